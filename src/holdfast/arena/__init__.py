"""Memory for the snapshots of ranks, which outlives them, and the rules of its contents.

``pure/layout.py`` has the words and the order of a commit, ``slots.py`` which slot is written,
``cadence.py`` of how many steps one is taken, ``tensors_head.py`` the head of a snapshot (a
safetensors file), ``plain_data.py``. ``taken.py`` counts snapshots of ranks for events and live
views. The launchers' and coordinator's rules: ``beginning.py`` how a cycle or a restart in place
begins, ``choice.py`` the snapshot that all ranks begin from, ``lineage.py`` which belong to the
job's history, ``trust.py`` which are given up, ``budget.py`` how much memory, ``kept_steps.py`` and
``peers.py`` steps kept at other nodes; used by ``job/pure/state_choice.py`` and ``node/arenas.py``.
``arena.py`` makes, maps, reserves, commits; ``sums.py``. On disk: ``pure/file_names.py``,
``file_choice.py`` which are used, written, removed, ``tiles.py`` shards as parts of a tensor;
``snapshot_files.py`` acts. Copies on other nodes: ``pure/peer_messages.py``, ``copy_transfer.py``,
``slot_stream.py``, and the process ``peer_copies_main.py``.

No torch: the launcher owns this memory. The rank's use of it: :mod:`holdfast.snapshot`.
"""
