"""The report of a run, its goodput, and its trace.

Read first: ``timeline.py``; ``report.py`` (``failures.py``, ``answer.py``), which
``report_text.py`` and ``report_html.py`` show; ``compare.py``, ``trace.py``, ``stragglers.py``.
"""
