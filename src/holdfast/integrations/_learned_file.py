"""Timeouts that a job has learned, in a file beside its checkpoints.

Every rank reads the file at the start of a run, rank 0 writes it. A reader sees the old content or
the new one, also if the writer is killed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from holdfast.errors import RankMonitorClientError
from holdfast.fault_tolerance import RankMonitorClient


def load_timeouts(client: RankMonitorClient, path: Path, logger: logging.Logger) -> bool:
    """Give ``client`` the timeouts of the file; whether there were any.

    A file that cannot be used is left out with a warning: the timeouts of the command line apply,
    and the next calculation writes a new one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except OSError as error:
        logger.warning("timeouts learned before are not used: %s", error)
        return False
    if not text.strip():
        return False
    try:
        client.load_state_dict(dict(json.loads(text)))
    except (ValueError, TypeError, RankMonitorClientError) as error:
        logger.warning("timeouts learned before are not used: %s: %s", path, error)
        return False
    return True


def save_timeouts(client: RankMonitorClient, path: Path) -> None:
    """Write the learned timeouts of ``client``; for rank 0."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(client.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def has_process_group() -> bool:
    """Whether the ranks can calculate timeouts together. torch is not imported for it."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def is_rank_0(client: RankMonitorClient) -> bool:
    """Of the job; where there is no process group, the launcher's variables decide."""
    return client.rank_info is not None and client.rank_info.global_rank == 0
