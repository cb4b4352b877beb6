"""The files that a launcher writes: run folders, incidents, progress, the failure report.

Read first: ``run_dirs.py``, ``incidents.py``, ``progress_log.py``, ``report.py``,
``launch_facts.py`` (``node/pure/shareable.py`` removes secrets).
"""
