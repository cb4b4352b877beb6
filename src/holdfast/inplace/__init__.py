"""Restarts inside the process: a rank's session, the guard of its node, the coordinator.

``pure/``: ``rank.py``, ``guard.py``, ``coordinator.py``, ``messages.py``, ``timing.py`` (all their
waits), ``rank_tree.py`` (new numbers after a loss). ``session.py``, ``guard_main.py``,
``coordinator_server.py``, ``interrupt.py`` (an exception for the main thread) act.
``kept_arenas.py``: snapshots of ranks, also of dead ones (decision 53). ``own_look.py``: evidence
that a rank takes of itself.
"""
