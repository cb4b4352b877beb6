"""Benchmarks: few numbers, each a promise. ``python -m bench`` (``make bench``).

Every measurement is a function in a module of its own that returns a :class:`bench.figures.Report`.
The alternative is measured in the same run, interleaved with ours, so that a busy machine slows
both; figures from different runs or machines are not compared.
"""
