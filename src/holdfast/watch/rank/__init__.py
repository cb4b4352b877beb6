"""The pieces of :class:`~holdfast.fault_tolerance.rank_monitor_client.RankMonitorClient`.

It does not import the launcher. Read first: ``rank_progress.py``, ``monitor_link.py``,
``limits_state.py``, ``look_helper.py`` (answers the monitor), ``first_lines.py``, ``uncaught.py``.
"""
