"""Say why a rank ended, and which end was the cause of all others. Pure.

The first cause is a failure that the launcher did not ask for. Order is by cause, then by the time
at which the failure *began*, as the launcher observed it; time stamps in error files are whole
seconds of different processes and say nothing about order.

- A rank that failed because of a peer (:mod:`.echoes`) comes last: it may be reaped first.
- A hang began when it was found, before its rank was killed and its peers lost their connections.
- Where evidence of all ranks names those that hold up the job, the first cause is one of those: it
  need not be the one whose timeout ran out.
- A rank may need seconds to exit after its exception. Its peers lose it meanwhile, fail first, and
  the launcher stops it. So a failure begins when the exception is written; and where all failures
  name a peer, the cause is a rank that was exiting of an exception when it was stopped.
- A rank that hangs while a restart in place waits for it comes after the fault that began that
  restart.
- A killed process is reported when its memory has been freed, 75-170 ms per GiB; its peers see its
  sockets close earlier.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast.base.pure.numbering import GlobalRank, LocalRank, Pid
from holdfast.base.pure.rank_sets import named
from holdfast.base.pure.wording import count
from holdfast.evidence.pure import last_words
from holdfast.evidence.pure.echoes import is_echo
from holdfast.evidence.pure.evidence import Overdue
from holdfast.evidence.pure.failure_kinds import LOADER_WORKER_ENDED, Attribution, attribute
from holdfast.evidence.pure.last_words import LastWords
from holdfast.evidence.pure.rank_words import describe_exit as describe_exit  # noqa: PLC0414
from holdfast.evidence.pure.rank_words import signal_name as signal_name  # noqa: PLC0414

EXITING_S = 60.0
"""An exception that is older when its rank is stopped was not on its way to end it."""
FREEING_S_PER_GIB = 0.2
"""How long the kernel may take to free the memory of a killed process, at most, as measured."""


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended, with everything that could be learned about why.

    Attributes:
        exit_code: As of the process; -N: killed by signal N.
        ended_at: Monotonic seconds.
        asked: The launcher told it to stop, and this is how it did.
        hang: Its monitor ended it.
        error: Content of the rank's error file (type and message), if anything.
        traceback: From the same file.
        last_lines: The end of its stderr.
        line_times: When each of these came, monotonic seconds; empty: not known.
        first_lines: The beginning of its stderr.
        n_lines: How many lines it wrote there in all.
        asked_at: When the launcher did, monotonic seconds; None: it has not.
        oom_kills: Scope ("cgroup", "host") of kernel out-of-memory kills seen since it started.
        peak_rss_kib: Largest resident size.
        parked: Interpreters that were parked on its node when SIGKILL ended it, and their memory
            in KiB.
        is_condemned: Its monitor signalled it because it hung: it failed, even with exit code 0.
        host_problem: The launcher ended it, because of a finding about the host.
        hung_in_place: Its node's guard ended it, as it did not come back for a restart in place.
        began_restart: Why a restart in place began that failed later: that fault came first.
        began_restart_at: When it did, monotonic seconds.
        launcher_slept_s: Its monitor ended it, for its launcher did nothing for so long.
        is_stuck: It has not ended: SIGKILL does not end it. ``ended_at``: the launcher gave up.
        raised: The traceback of the uncaught exception, as the rank sent it to its launcher.
        raised_at: When it did, monotonic seconds; None: it sent none.
        exit_handlers_s: It was killed, as its exit handlers had not ended after so long.
        exiting_at: When Python began to exit without an exception, monotonic seconds; None: it had
            not, or it is not known.
    """

    local_rank: LocalRank
    rank: GlobalRank
    pid: Pid
    exit_code: int
    ended_at: float
    asked: bool = False
    hang: Overdue | None = None
    error: str | None = None
    traceback: str | None = None
    last_lines: Sequence[str] = ()
    line_times: Sequence[float] = ()
    first_lines: Sequence[str] = ()
    n_lines: int = 0
    asked_at: float | None = None
    oom_kills: Sequence[str] = ()
    peak_rss_kib: int = 0
    parked: tuple[int, int] = (0, 0)
    is_stuck: bool = False
    is_condemned: bool = False
    host_problem: str | None = None
    hung_in_place: str | None = None
    began_restart: str | None = None
    began_restart_at: float = 0.0
    launcher_slept_s: float | None = None
    raised: str = ""
    raised_at: float | None = None
    exit_handlers_s: float | None = None
    exiting_at: float | None = None

    @property
    def failed(self) -> bool:
        """It did not end well, and the launcher had not asked it to end."""
        return not self.asked and (self.exit_code != 0 or self.is_condemned)

    @cached_property
    def last_words(self) -> LastWords:
        """Its last words."""
        if self.error:
            return last_words.of_error_file(self.error, self.traceback)
        if self.raised and not self._on_stderr.is_final:  # a terminal's, or a file's
            return last_words.read(self.raised.splitlines())
        return self._on_stderr

    @property
    def _code(self) -> int:
        """Exit code without the launcher's signal."""
        return 1 if self.raised_at is not None else self.exit_code

    @cached_property
    def _on_stderr(self) -> LastWords:
        return last_words.read(
            self.last_lines,
            self.line_times,
            exit_code=1 if self.asked else self._code,
            ended_at=self.ended_at,
        )

    @cached_property
    def exception_when_asked(self) -> LastWords | None:
        """The exception that was ending it when the launcher stopped it; None: none was."""
        words = self._on_stderr if self.asked and not self.is_stuck else LastWords()
        if not words.is_final or words.has_more or is_echo(words.text):
            return None
        if words.began_at is None or self.asked_at is None:
            return None
        return words if 0.0 <= self.asked_at - words.began_at <= EXITING_S else None

    @property
    def left_at(self) -> float | None:
        """When its program ended without an exception and by itself; None: it did not.

        After that Python may take seconds to exit, and the launcher may have stopped it meanwhile.
        """
        if self.failed:
            return None
        if not self.asked:
            return self.ended_at
        if self.exiting_at is None or self.asked_at is None or is_echo(self._on_stderr.text):
            return None
        return self.exiting_at if self.exiting_at <= self.asked_at else None

    @property
    def began_at(self) -> float:
        """When its failure began, as well as can be known."""
        if self.began_restart is not None:
            return self.began_restart_at
        if self.hang is not None:
            return self.hang.detected_at
        if self.raised_at is not None:
            return min(self.raised_at, self.ended_at)
        if self.exit_code == -signal.SIGKILL and not self.is_stuck:
            return self.ended_at - FREEING_S_PER_GIB * self.peak_rss_kib / 2**20
        wrote_at = self._on_stderr.began_at
        return self.ended_at if wrote_at is None else min(wrote_at, self.ended_at)

    @property
    def names_a_peer(self) -> bool:
        """It failed of an error that says that another rank is gone, or does not answer."""
        is_from_outside = self._code <= 0 and self._code != -signal.SIGABRT
        if self.began_restart is not None or is_from_outside or self._was_ended:
            return False
        return is_echo(self.last_words.text)

    @property
    def _was_ended(self) -> bool:
        """By holdfast, for a reason that says more than its last words."""
        reasons = self.hang, self.host_problem, self.hung_in_place, self.launcher_slept_s
        return any(it is not None for it in reasons)

    @cached_property
    def attribution(self) -> Attribution:
        """Cause of its death, as far as its last words tell."""
        if (words := self.exception_when_asked) is not None:
            return attribute(1, words)
        if self.asked or self._was_ended or self.is_stuck:
            return Attribution()
        is_killed = self._code == -signal.SIGKILL and bool(self.oom_kills)
        return attribute(
            self._code,
            self.last_words,
            self.last_lines,
            is_oom_kill=self.exit_code < 0 and "cgroup" in self.oom_kills,
            parked=_words_of_parked(*self.parked) if is_killed else "",
        )


def _words_of_parked(n: int, kib: int) -> str:
    """Advice for an out-of-memory kill beside parked interpreters; empty: there were none."""
    if not n:
        return ""
    return f"{count(n, 'parked interpreter')} held {kib >> 10} MiB: --ft-warm-standby=off"


def was_asked(exit_code: int, signals_sent: Collection[int]) -> bool:
    """The launcher's signals led to such an end; SIGKILL counts only if the launcher sent it."""
    if exit_code == -signal.SIGKILL:
        return signal.SIGKILL in signals_sent
    return bool(signals_sent)


def rank_name(end: RankEnd, node: str = "") -> str:
    """``rank 9 (local rank 1, pid 4711)``; ``rank 1 (pid 4711)`` where both numbers are equal."""
    where = f", node {node}" if node else ""
    local = f"local rank {end.local_rank}, " if int(end.local_rank) != int(end.rank) else ""
    return f"rank {end.rank} ({local}pid {end.pid}{where})"


def first_cause(ends: Sequence[RankEnd], culprits: Collection[int] = ()) -> RankEnd | None:
    """The end that caused the others: of those that the launcher did not ask for; see above.

    Without such a failure it is the rank that cannot be ended. ``culprits``: see above.
    """
    failures = [end for end in ends if end.rank in culprits]
    failures = failures or [end for end in ends if end.failed]
    if all(end.names_a_peer for end in failures):
        failures = [end for end in ends if end.exception_when_asked is not None] or failures
    failures = failures or [end for end in ends if end.is_stuck]
    cause = min(failures, key=lambda end: (end.names_a_peer, end.began_at), default=None)
    if cause is not None and cause.hung_in_place is not None:
        began = [end for end in ends if end.began_restart is not None]
        return min(began, key=lambda end: end.began_at, default=cause)
    return cause


def explain(end: RankEnd, culprits: Collection[int] = ()) -> str:
    """One line: how the rank ended, and why, as far as it is known.

    ``culprits``: the ranks that held up others; one that waited for them did not hang.
    """
    hung = "hung"
    if culprits and end.rank not in culprits:
        hung = f"waited for {named(culprits)}"
    if end.is_stuck:
        why = f"{hung} ({end.hang}); " if end.hang is not None else ""
        if end.host_problem is not None:
            why = f"its host is not healthy ({end.host_problem}); "
        return f"{why}still alive after SIGKILL: stuck in the kernel (uninterruptible)"
    how = describe_exit(end.exit_code)
    if end.began_restart is not None:
        ended = f"{how}, as it was asked to" if end.asked else how
        return f"{end.began_restart}; the restart in place after that failed ({ended})"
    if end.exception_when_asked is not None:
        return (
            f"{end.attribution.words}{end.attribution.at}: it was still exiting when it was stopped"
        )
    if end.hang is not None:
        by = "by its monitor" if end.exit_code < 0 else "after its monitor's signal"
        return f"{hung} ({end.hang}); {how} {by}"
    if end.host_problem is not None:
        return f"killed by the launcher, as its host is not healthy: {end.host_problem}"
    if end.hung_in_place is not None and not end.asked:
        by = "by" if end.exit_code < 0 else "after a signal of"
        return f"hung: {end.hung_in_place}; {how} {by} the node guard of restarts in place"
    if end.launcher_slept_s is not None and end.exit_code == -signal.SIGKILL:
        return (
            f"killed by its monitor, as the launcher of its node did nothing for "
            f"{end.launcher_slept_s:.1f} s and the other nodes could continue without it"
        )
    if end.exit_handlers_s is not None:
        how = f"{how}, as its exit handlers had not ended after {end.exit_handlers_s:g} s"
    elif end.exit_code == -signal.SIGKILL and end.raised_at is None:
        used = f"it had used {end.peak_rss_kib / 1024:.0f} MiB"
        if "cgroup" in end.oom_kills:
            return f"out of memory: {how} by the kernel (out-of-memory kill in this cgroup; {used})"
        if end.oom_kills:  # of any process on this host
            return (
                f"{how}, not by holdfast; perhaps out of memory: the kernel killed some process of "
                f"this host for it meanwhile ({used})"
            )
        return f"{how}, not by holdfast; the kernel reports no out-of-memory kill"
    found = end.attribution
    if "cgroup" in end.oom_kills and found.kind == LOADER_WORKER_ENDED:
        how += " (out-of-memory kill in this cgroup)"
    words, last = found.words, found.message
    if not words:
        return f"{how} (its last line: {last})" if last else f"{how}{found.at}"
    has_said = end.exit_code > 0 or end.raised_at is not None
    return f"{words}: {how}{found.at}" if has_said else f"{how} ({words}){found.at}"
