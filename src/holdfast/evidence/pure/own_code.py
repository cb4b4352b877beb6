"""The code of holdfast that runs within a rank's, also from a checkout."""

from __future__ import annotations

_ROOMS = ("base", "evidence", "fault_tolerance", "inplace", "inprocess", "net", "page", "watch")
OWN_CODE = tuple(f"/holdfast/{room}/" for room in _ROOMS)
"""A part of each of its paths."""
