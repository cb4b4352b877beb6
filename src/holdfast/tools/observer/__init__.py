"""The observer process of a node: metrics and hooks, at no cost to the launcher.

Read first: ``observer_main.py``, then ``metrics.py``, ``hooks.py``.
"""
