"""The command ``holdfast``: reports, traces, live views, metrics, chaos, doctor.

No command starts a rank, but for ``chaos``. Read first: ``run_list.py``, ``runs.py``,
``outages.py``; ``calls.py`` (restarts in place), ``node_snapshots.py`` and
``node_copies.py`` (of one node, now), ``rescue.py`` (a snapshot to disk),
``explain.py`` on ``log_lines.py``.
"""
