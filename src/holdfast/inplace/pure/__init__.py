"""Restart in place: the machines of rank, node guard and coordinator, and their messages.

    rank ---unix socket--- node guard ---TCP--- coordinator
    rank.py                guard.py             coordinator.py          messages.py

Each takes ``(event, now)`` and returns effects; none reads a clock or touches anything.
"""
