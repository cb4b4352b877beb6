"""Memory for the snapshots of ranks, which outlives them, and the rules of its contents.

No torch: the launcher owns this memory. The rank's use of it: :mod:`holdfast.snapshot`.
"""
