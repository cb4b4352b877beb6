"""The pieces of :class:`~holdfast.fault_tolerance.rank_monitor_client.RankMonitorClient`."""
