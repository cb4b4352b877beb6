"""Finds hangs: the rank monitor, and the client that a rank talks to it through.

Read first: ``pure/hang.py`` (verdicts and deadlines), then ``monitor.py``, ``learned.py``,
``steps.py`` (a rank that sends no heartbeats).
"""
