"""Processes: to start them, to know a job's own, to end them and all that they leave behind.

Read first: ``child.py``, ``proc.py``, ``file_read.py``; ``descendants.py``, ``orphans.py``,
``reaper.py`` (``base/pure/ownership.py`` decides); ``start_hook/``; ``system_calls.py``.
"""
