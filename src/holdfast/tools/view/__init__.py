"""Live views of a running job: ``holdfast top`` in a terminal, ``holdfast view`` in a browser.

Read first: ``live.py``, which ``top.py`` and ``web.py`` show; ``merged_stacks.py``.
"""
