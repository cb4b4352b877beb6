"""The files of a run, read into one model: what every command reads.

Read first: ``reader.py``, ``run_files.py``, then ``node_clocks.py``, ``follower.py``.
"""
