"""The accounts of the goodput ledger, and which section belongs to which. Pure.

Every second of every rank is in exactly one account (docs/report.md is made from ``MEANINGS``).
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

MEANINGS: dict[Account, tuple[str, str]] = {
    "starting": (
        "the launcher starts",
        "the rank's process is started, in the first cycle",
    ),
    "restarting": ("nothing of the cycle before is left", "the same, in later cycles"),
    "waiting": (
        "the node has joined",
        "the cycle begins; also while the node is a spare. Only with several nodes",
    ),
    "importing": (
        "the process is started",
        "it reports in: init_workload_monitoring, or its third optimizer step",
    ),
    "setup": (
        "it has reported in",
        "its first step: a section that is not a setup, or the first heartbeat",
    ),
    "steps": (
        "the first step",
        (
            "the last step of a rank that ends well; else the last sign of progress; less the "
            "next three"
        ),
    ),
    "steps_again": (
        "",
        "the part of it that repeats steps lost since the last checkpoint, or snapshot",
    ),
    "checkpointing": ("", "time in sections of that kind, also of those that are open still"),
    "evaluating": ("", "the same"),
    "finishing": (
        "the last step of a rank that ends well",
        "the job is over, or a failure of another rank is detected",
    ),
    "stalled": ("the last sign of progress", "the failure is detected"),
    "stopping": (
        "the failure is detected, or the launcher gets SIGTERM or SIGINT",
        "nothing of the cycle is left: evidence, signals, grace",
    ),
}
"""From, to. The page of a report shows it, too."""


def meaning(account: Account) -> str:
    """Of an account, in one line."""
    begin, end = MEANINGS[account]
    return f"from: {begin}; to: {end}" if begin else end


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
