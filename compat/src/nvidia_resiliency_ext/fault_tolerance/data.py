"""holdfast's value types, and the messages between a rank and its monitor as classes.

holdfast's own rank and monitor talk through a page and JSON. The classes are for programs that name
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
    HeartbeatTimeouts,
    RankInfo,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
)

if TYPE_CHECKING:
    from holdfast.fault_tolerance.config import FaultToleranceConfig

__all__ = [
    "FT_LAUNCHER_IPC_SOCKET_ENV_VAR",
    "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR",
    "AuthkeyMsg",
    "ErrorMsg",
    "HeartbeatMsg",
    "HeartbeatTimeouts",
    "InitMsg",
    "OkMsg",
    "RankInfo",
    "SectionAction",
    "SectionMsg",
    "SectionTimeouts",
    "UpdateConfigMsg",
    "WorkloadAction",
    "WorkloadControlRequest",
]


class SectionAction(Enum):
    """An action on a section."""

    OPEN = 1
    CLOSE = 2
    CLOSE_ALL = 3


@dataclass
class AuthkeyMsg:
    """A client proves that it may talk; here the kernel does (``SO_PEERCRED``)."""

    authkey: str = ""


@dataclass
class InitMsg:
    """A rank asks to be monitored."""

    rank_info: RankInfo
    iteration: int | None = None
    num_warmup_iters: int | None = None


@dataclass
class HeartbeatMsg:
    """A rank is alive."""

    rank: int
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class SectionMsg:
    """A rank opens or closes a section; ``section`` is ``None`` for ``CLOSE_ALL``."""

    rank: int
    section: str | None = None
    action: SectionAction = SectionAction.OPEN
    iteration: int | None = None


@dataclass
class UpdateConfigMsg:
    """New timeouts; ``None`` leaves the present ones."""

    hb_timeouts: HeartbeatTimeouts | None = None
    section_timeouts: SectionTimeouts | None = None
    current_cycle: int | None = None


@dataclass
class OkMsg:
    """All went well; answers to ``InitMsg`` carry the configuration."""

    cfg: FaultToleranceConfig | None = None


@dataclass
class ErrorMsg:
    """Something went wrong."""

    cause: str = "<not set>"
