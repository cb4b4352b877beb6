"""Live views of a running job: ``holdfast top`` in a terminal, ``holdfast view`` in a browser.

Read first: ``job_view.py``, made by ``live.py``, shown by ``top.py`` and ``web.py``;
``merged_stacks.py``.
"""
