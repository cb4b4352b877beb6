"""The shared-memory pages in which a rank shows itself, and a launcher shows that it lives.

``pure/page.py`` is the layout; ``page_view.py`` reads it into ``clocks.py``; ``page.py`` makes and
maps it; ``lease.py``, ``stamps.py``.
"""
