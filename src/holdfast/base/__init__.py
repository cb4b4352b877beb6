"""What every room stands on: clocks, descriptors, files, torch's private names. No policy.

Read first: ``clock.py``; ``pure/codec.py`` (the form of all messages), ``pure/value.py`` (records),
``pure/kill_ladder.py``, ``excuse.py``, ``numbering.py``, ``printable.py``; ``torch_private.py``
(all private names of torch).
"""
