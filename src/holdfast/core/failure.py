"""Say why a rank ended, and which end was the cause of all others.

Pure: facts in, words out. The first cause is a failure that the launcher did not ask for. Order is
by cause, then by the time at which the failure *began*, as the launcher observed it; the time
stamps in error files are whole seconds written by different processes and say nothing about order.

- A rank that failed because of a peer (:data:`NAMES_A_PEER`) comes last: it may be reaped first,
  while the memory of the one that it lost is still being freed, or that one writes its error file.
- A hang began when it was found, before its rank was killed and its peers lost their connections.
- Where evidence of all ranks tells which of them hold up the job, the first cause is one of those,
  whatever ended it: it need not be the one whose timeout ran out.
- A process that is killed is reported only when its memory has been freed, 75-170 ms per GiB; its
  peers see its sockets close earlier and may fail and be reported first.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.core.attribution import Attribution, attribute, last_words
from holdfast.core.numbering import GlobalRank, LocalRank, Pid

NAMES_A_PEER = (
    "Connection closed by peer",  # gloo, and a socket of Python's
    "Connection reset by peer",
    "Broken pipe",
    "Connection was likely closed",  # torch's TCPStore: the rank that hosts it is gone
    "Application timeout caused pair closure",  # gloo: another operation has timed out
    "Timed out waiting",  # gloo: for a peer
    "remote process exited",  # NCCL
    "remote process exiting",
    "ncclRemoteError",
    "Watchdog caught collective operation timeout",
)
"""Texts of errors that a rank reports when another one has failed, hangs or was lost."""

FREEING_S_PER_GIB = 0.2
"""How long the kernel may take to free the memory of a killed process, at most, as measured."""


@dataclass(frozen=True)
class Hang:
    """What a rank's monitor found before it ended the rank.

    ``clock`` is "section", "heartbeat", ...; ``name`` the section; ages and limits in seconds;
    ``found_at`` monotonic seconds.
    """

    clock: str
    name: str | None
    age_s: float
    limit_s: float
    found_at: float = 0.0

    def __str__(self) -> str:
        what = f"section {self.name!r}" if self.name is not None else self.clock
        return f"{what}: {self.age_s:.1f} s, timeout {self.limit_s:g} s"


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended, with everything that could be learned about why.

    Attributes:
        exit_code: As of the process; -N: killed by signal N.
        ended_at: Monotonic seconds.
        asked: We told it to stop, and this is how it did.
        hang: Its monitor ended it.
        error: What the rank wrote to its error file (type and message), if anything.
        traceback: From the same file.
        last_lines: The end of its stderr.
        oom_kills: Scope ("cgroup", "host") of kernel out-of-memory kills seen since it started.
        peak_rss_kib: Largest resident size.
        is_condemned: Its monitor signalled it because it hung: it failed, even with exit code 0.
        host_problem: The launcher ended it, because of what was found about the host.
        is_stuck: It has not ended: SIGKILL does not end it. ``ended_at`` is when we gave up.
    """

    local_rank: LocalRank
    rank: GlobalRank
    pid: Pid
    exit_code: int
    ended_at: float
    asked: bool = False
    hang: Hang | None = None
    error: str | None = None
    traceback: str | None = None
    last_lines: Sequence[str] = ()
    oom_kills: Sequence[str] = ()
    peak_rss_kib: int = 0
    is_stuck: bool = False
    is_condemned: bool = False
    host_problem: str | None = None

    @property
    def failed(self) -> bool:
        """It did not end well, and the launcher had not asked it to end."""
        return not self.asked and (self.exit_code != 0 or self.is_condemned)

    @property
    def began_at(self) -> float:
        """When its failure began, as well as can be known."""
        if self.hang is not None:
            return self.hang.found_at
        if self.exit_code == -signal.SIGKILL and not self.is_stuck:
            return self.ended_at - FREEING_S_PER_GIB * self.peak_rss_kib / 2**20
        return self.ended_at

    @property
    def names_a_peer(self) -> bool:
        """It failed of an error that says that another rank is gone, or does not answer."""
        aborted = self.exit_code == -signal.SIGABRT
        if self.exit_code <= 0 and not aborted:
            return False  # a signal from outside
        if self.hang is not None or self.host_problem is not None:
            return False
        words = self.error or last_words(self.last_lines, aborted=aborted)
        return any(text in words for text in NAMES_A_PEER)

    @property
    def attribution(self) -> Attribution:
        """What it died of by itself, as far as its last words tell."""
        if self.asked or self.hang is not None or self.host_problem is not None or self.is_stuck:
            return Attribution()
        return attribute(
            self.exit_code,
            self.error,
            self.traceback,
            self.last_lines,
            is_oom_kill="cgroup" in self.oom_kills,
        )


def was_asked(exit_code: int, signals_sent: Collection[int]) -> bool:
    """An end like this is what our signals led to; SIGKILL counts only if it was ours."""
    if exit_code == -signal.SIGKILL:
        return signal.SIGKILL in signals_sent
    return bool(signals_sent)


def first_cause(ends: Sequence[RankEnd], culprits: Collection[int] = ()) -> RankEnd | None:
    """The end that caused the others: of those that the launcher did not ask for; see above.

    Without such a failure it is the rank that cannot be ended. ``culprits``: see above.
    """
    failures = [end for end in ends if end.rank in culprits]
    failures = failures or [end for end in ends if end.failed]
    failures = failures or [end for end in ends if end.is_stuck]
    return min(failures, key=lambda end: (end.names_a_peer, end.began_at), default=None)


def describe_exit(exit_code: int) -> str:
    """``exit code 3``, ``killed by SIGSEGV``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"killed by {signal_name(-exit_code)}"


def signal_name(signum: int) -> str:
    """``SIGTERM``; ``signal 41`` where a signal has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def explain(end: RankEnd) -> str:
    """One line: how the rank ended, and why, as far as it is known."""
    if end.is_stuck:
        why = f"hung ({end.hang}); " if end.hang is not None else ""
        if end.host_problem is not None:
            why = f"its host is not healthy ({end.host_problem}); "
        return f"{why}still alive after SIGKILL: stuck in the kernel (uninterruptible)"
    how = describe_exit(end.exit_code)
    if end.hang is not None:
        by = "by its monitor" if end.exit_code < 0 else "after its monitor's signal"
        return f"hung ({end.hang}); {how} {by}"
    if end.host_problem is not None:
        return f"ended by the launcher, as its host is not healthy: {end.host_problem}"
    if end.exit_code == -signal.SIGKILL:
        used = f"it had used {end.peak_rss_kib / 1024:.0f} MiB"
        if "cgroup" in end.oom_kills:
            return f"out of memory: {how} by the kernel (out-of-memory kill in this cgroup; {used})"
        if end.oom_kills:  # of any process on this host
            return (
                f"{how}, not by holdfast; perhaps out of memory: the kernel killed some process of "
                f"this host for it meanwhile ({used})"
            )
        return f"{how}, not by holdfast; the kernel reports no out-of-memory kill"
    kind = str(end.attribution)
    if not kind:
        return how
    return f"{kind}: {how}" if end.exit_code > 0 else f"{how} ({kind})"
