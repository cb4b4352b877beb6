"""Warm restarts: interpreters that have imported torch and wait, parked, until a rank is needed.

``pure/parked_interpreters.py`` decides; ``standbys.py`` and ``standby_process.py`` act;
``parked/paused_start.py`` runs in the parked process.
"""
