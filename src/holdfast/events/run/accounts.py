"""The accounts of the goodput ledger, and which section belongs to which. Pure.

Every second of every rank is in exactly one account (docs/report.md).
"""

from __future__ import annotations

from typing import Literal, get_args

Account = Literal[
    "starting",
    "importing",
    "setup",
    "steps",
    "steps_again",
    "checkpointing",
    "evaluating",
    "finishing",
    "stalled",
    "stopping",
    "restarting",
    "waiting",
]
ACCOUNTS: tuple[Account, ...] = get_args(Account)

LABELS: dict[Account, str] = {
    "starting": "starting",
    "importing": "importing",
    "setup": "setup",
    "steps": "productive steps",
    "steps_again": "steps done again after a restart",
    "checkpointing": "checkpointing",
    "evaluating": "evaluating",
    "finishing": "finishing, after the last step",
    "stalled": "stalled, until detected",
    "stopping": "evidence and stopping",
    "restarting": "restarting",
    "waiting": "waiting for nodes",
}

SHORT: dict[Account, str] = {**LABELS, "finishing": "finishing", "stalled": "stalled"}
"""The same where a line has many."""

_PARTS: tuple[tuple[Account, tuple[str, ...]], ...] = (
    ("checkpointing", ("checkpoint", "ckpt", "save", "saving")),
    ("evaluating", ("eval", "valid", "test")),
    ("setup", ("setup", "init", "load", "startup", "warmup", "warm_up", "compile")),
)


def account_of(section: str) -> Account:
    """The account of a section, by its name; a name that says nothing of it is a step.

    ``data_loading`` is part of a step, ``load`` and ``checkpoint_loading`` are not.
    """
    name = section.lower()
    if "data" in name:
        return "steps"
    if "load" in name or "restore" in name:
        return "setup"
    for account, parts in _PARTS:
        if any(part in name for part in parts):
            return account
    return "steps"
