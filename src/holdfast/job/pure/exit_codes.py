"""The exit codes of ``ft_launcher``: every way a launcher ends, its code, and their precedence.

Pure. The only place that names a code: the machines, ``--help``, the doctor and docs/exit-codes.md
all use this module. A job of one node and a job of several end the same way for the same
reasons.
"""

from __future__ import annotations

import enum

NO_RESTART = 93
"""Another attempt would not help; ``--ft-no-restart-exit-code`` puts another code in its place."""


class Ending(enum.Enum):
    """How a launcher ends: (exit code, in words, whether to start it again)."""

    SUCCEEDED = (
        0,
        (
            "all ranks ended well; with min-healthy MIN nodes, on one node those that completed "
            "the call"
        ),
        "no",
    )
    SPARE = (
        0,
        (
            "the job succeeded without this node: a spare, or one that came after the end; its "
            "last line says that it never ran the script"
        ),
        "no",
    )
    EXCLUDED = (
        0,
        (
            "a rank asked to exclude this node (WorkloadAction.ExcludeThisNode), and its job "
            "could be restarted"
        ),
        "not on this node",
    )
    UNHEALTHY = (
        0,
        ("this node of several is not healthy (health checks); the error names the fault"),
        "on another node",
    )
    OTHERS_FAILED = (0, "min-healthy: the job failed, but no rank of this node did", "no")
    SIGNALLED_WELL = (
        0,
        (
            "stopped by a signal (SIGTERM ...) when all its ranks had ended well, and it waited "
            "for the others"
        ),
        "no",
    )
    FAILED = (1, "ranks failed and --max-restarts are used up", "yes")
    SIGNALLED = (
        1,
        ("stopped by a signal (SIGTERM ...), however the ranks ended: the job is not complete"),
        "yes",
    )
    SHUT_DOWN = (
        1,
        "shut down on a rank's request (WorkloadAction.ShutdownWorkload)",
        "as the rank's message says",
    )
    NO_NODE_LEFT = (
        1,
        ("the only node is not healthy, or excluded and unhealthy nodes leave too few"),
        "on other nodes",
    )
    HOSTED_A_FAILED_JOB = (
        1,
        (
            "this node left, its launcher stayed to lead, and the job of the others failed (with"
            " the job's code, if that is not 1)"
        ),
        "yes",
    )
    TOO_FEW = (1, "too few nodes joined in time", "yes")
    REFUSED = (
        1,
        (
            "the node was refused (its number is taken, its number of ranks does not fit, or it "
            "runs another script, module or function)"
        ),
        "yes; one of another job at an endpoint of its own",
    )
    LEADER_LOST = (
        1,
        "the launcher that leads left or was lost, and no majority was found for another one",
        "yes",
    )
    STUCK = (1, "a rank cannot be killed; this node needs attention", "on another node")
    CANNOT_START = (
        1,
        "the configuration file cannot be used, a folder cannot be made",
        "no, but as torchrun",
    )
    USAGE = (
        2,
        "the command line, or the scheduler's environment, cannot be used; nothing was started",
        "no",
    )
    NO_PROGRESS = (
        NO_RESTART,
        ("no progress in --ft-max-no-progress-cycles failed cycles in a row"),
        "no",
    )
    SAME_FAILURE = (
        NO_RESTART,
        (
            "the same failure, at the same line of the script, ended --ft-max-same-failures "
            "cycles in a row without progress"
        ),
        "no",
    )
    NO_USE = (
        NO_RESTART,
        (
            "a rank exited with 93, however many restarts are left and whatever else was asked "
            "for (all nodes)"
        ),
        "no",
    )
    INTERRUPTED = (130, "interrupted (Ctrl-C) before anything was started", "no")

    @property
    def happened(self) -> str:
        """In words, as in the table of docs/exit-codes.md."""
        return self.value[1]

    @property
    def again(self) -> str:
        """Whether whatever started the launcher should start it again."""
        return self.value[2]

    def code(self, no_restart: int = NO_RESTART) -> int:
        """The exit code; ``no_restart``: of ``--ft-no-restart-exit-code``."""
        is_final = self in (Ending.NO_PROGRESS, Ending.SAME_FAILURE, Ending.NO_USE)
        return no_restart if is_final else self.value[0]


IN_SHORT = {
    0: "all ranks ended well, also where this node was only a spare; or this node leaves, on a\n"
    "rank's request or because it is not healthy and others continue",
    1: "ranks failed and no restart is left, the job was shut down by a rank or a signal, no\n"
    "healthy node is left, or the configuration file is bad",
    2: "the command line cannot be used; nothing was started",
    NO_RESTART: "another attempt would not help: no progress, the same failure again and again, or "
    "a rank\nsaid so by ending with 93",
    130: "interrupted before anything was started",
}
"""For ``--help``."""


def of_a_host(own: int, job: int | None) -> int:
    """Code of a launcher that had left its job and stayed to lead the others.

    A scheduler must not call a job completed that is not, so at least this code says it. ``own``:
    when its part was over. ``job``: when that was over; None: each launcher says its own.
    """
    return own or job or 0
