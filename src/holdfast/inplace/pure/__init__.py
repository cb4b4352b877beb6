"""In-process restart, decided: the machines of rank, node guard and coordinator, and their words.

    rank ---unix socket--- node guard ---TCP--- coordinator
    rank.py                guard.py             coordinator.py          messages.py: what they say

Each takes ``(event, now)`` and returns effects; none reads a clock or touches anything.
"""
