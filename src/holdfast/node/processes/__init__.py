"""The processes of a node's ranks, and helper processes.

Read first: ``ranks.py``, ``worker_env.py``, ``pages.py``, ``output.py``, ``sweeper.py``,
``controlled_process.py``.
"""
