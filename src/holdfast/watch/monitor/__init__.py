"""The rank monitor: a process of its own that imports neither torch nor the launcher.

Read first: ``monitor_main.py``, ``rank_sessions.py``; ``looks.py`` on ``evidence/collector.py``;
``hang_response.py``: one verdict.
"""
