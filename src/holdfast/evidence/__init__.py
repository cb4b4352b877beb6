"""Explains a hang or a death: what /proc, stacks and the flight recorder show of a rank.

``pure/``: ``last_words.py``, ``failure_kinds.py``, ``failure.py`` and ``left_early.py`` for a
death; ``rank_digest.py``, ``hang_kind.py``, ``job_evidence.py``, ``mismatch.py``, ``stall.py`` and
``verdict.py`` (the rules) for a hang. ``collector.py`` takes it from ``sources.py``, for monitor,
guard and rank.
"""
