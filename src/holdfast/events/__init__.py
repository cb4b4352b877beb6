"""The event files of a run: schema, writer, reader, and the model of a run made from them.

The product's main interface. Read first: ``pure/schema.py``, ``event_log.py`` (the writer); in
``run/``: ``rank_spans.py``, ``ledger.py``, ``old_runs.py``.
"""
