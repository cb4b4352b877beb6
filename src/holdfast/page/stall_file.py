"""A file beside the pages: how long a rank without heartbeats may make no progress.

Its monitor, which has learned that, writes it for live views; a page has one writer, the rank. One
file per monitor, replaced as a whole.

    <runtime folder>/r<local rank>.stall     <cycle> <instant of the last progress> <seconds>
"""

from __future__ import annotations

import os

_BYTES_MAX = 200


def path_beside(page_path: str, local_rank: int) -> str:
    """Of the rank with this page."""
    return os.path.join(os.path.dirname(page_path), f"r{local_rank}.stall")


def write(path: str, cycle: int, sign_at: float, stall_s: float) -> None:
    """Replace the file; a full or missing folder costs a view this number, and nothing else."""
    try:
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(f"{cycle} {sign_at!r} {stall_s!r}\n")
        os.replace(f"{path}.new", path)
    except OSError:
        pass


def read(path: str, cycle: int) -> tuple[float, float] | None:
    """Instant of the last progress, and seconds; None: no monitor has said that of this cycle."""
    try:
        with open(path, encoding="ascii") as file:
            of_cycle, sign_at, stall_s = file.read(_BYTES_MAX).split()
        return (float(sign_at), float(stall_s)) if int(of_cycle) == cycle else None
    except (OSError, ValueError):
        return None
