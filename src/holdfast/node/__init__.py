"""The launcher of a node at work: its ranks, their monitors, its part in the job.

``pure/launcher.py`` routes between ``node.py`` (with ``rank_life.py``, ``node_evidence.py``),
member and leader. ``agent.py`` carries the effects out (``job_part.py``, ``job_log.py``,
``monitors.py``, and ``reporter.py`` for log lines) and notifies its parts (``part.py``): standby,
``health_process.py``, ``observing.py``. Also ``late_launcher.py``, ``snapshot_dir.py``,
``restart_lines.py``. Steps kept at other nodes: ``pure/node_keeping.py`` decides, ``kept_steps.py``
and ``peer_copies.py`` (the process that copies) act. The processes for health, for hooks and for
copies are each a ``processes/helper_process.py``.
"""
