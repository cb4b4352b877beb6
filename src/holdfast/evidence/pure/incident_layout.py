"""Names of the files of an incident; monitors and launchers write to the same folder. Pure."""

from __future__ import annotations


def folder_name(incident: int, cycle: int) -> str:
    """Of an incident of the job, below ``incidents``: ``0001-cycle0``."""
    return f"{incident:04d}-cycle{cycle}"
