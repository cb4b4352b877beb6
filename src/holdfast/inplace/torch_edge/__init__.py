"""What needs torch. Nothing here is imported before a caller needs a tensor or a process group.

Read first: ``abort_distributed.py``; ``gloo_abort.py`` (collectives, broken from outside),
``work_abort.py``, ``hosted_stores.py`` (stores in which the function's ranks meet).
"""
