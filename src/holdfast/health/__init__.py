"""Probes that look at a host and return facts (:class:`holdfast.core.health.Finding`).

A probe raises nothing for what it cannot determine, imports neither torch nor CUDA, and returns
within its bound wherever the kernel lets it.
"""
