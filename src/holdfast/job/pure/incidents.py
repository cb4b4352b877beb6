"""The incidents of a job, as its leader sees them: the evidence that is awaited, and the verdict.

    none is open --Suspect--> OPEN --every node has answered, or the bound--> judged, none is open

Ranks that wait for each other become overdue within milliseconds, on many nodes. That is one
incident: a suspicion of a node that did not know of the last incident belongs to that. A node that
does not answer is named with the reason; it delays the verdict no longer than the bound.

Pure. Times are seconds on the leader's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.base.pure.rank_sets import text_of
from holdfast.evidence.pure.evidence import Absence, Missing, RankDigest, Verdict
from holdfast.evidence.pure.stall_rules import StallRules
from holdfast.job.pure import job_words as words
from holdfast.job.pure.membership import (
    Digests,
    Judged,
    OpenIncident,
    Round,
    StopWhy,
    Suspect,
)
from holdfast.job.pure.timing import VERDICT_SHARE
from holdfast.page.pure.clocks import PAUSE


@dataclass
class Incidents:
    """Of one job; at most one is open at a time.

    Args:
        timeout_s: From the moment a rank is found overdue to its end, at most.
        stall: The user's choice for ranks without timeouts.

    Attributes:
        number: Of the last incident; 0: there was none.
        until: When the verdict is due at the latest; None: no incident is open.
        digests: Of the last incident, by global rank.
        missing: Nodes whose evidence it lacks, by name.
    """

    timeout_s: float = 1.0
    stall: StallRules = StallRules()  # noqa: RUF009 - a value

    number: int = field(default=0, init=False)
    until: float | None = field(default=None, init=False)
    digests: dict[int, RankDigest] = field(default_factory=dict, init=False)
    missing: dict[str, Missing] = field(default_factory=dict, init=False)
    _formed: Round | None = field(default=None, init=False)
    _awaited: dict[str, str] = field(default_factory=dict, init=False)
    """Nodes that have not answered, and their hosts."""
    _clock: str = field(default="", init=False)
    """The one that ran out first."""
    _marks: dict[int, tuple[int, ...]] | None = field(default=None, init=False)
    """How far each rank was at the last stall or pause of steps that was reported."""
    _was_stall: bool = field(default=False, init=False)
    _held: tuple[str, str, StopWhy] | None = field(default=None, init=False)
    """Cause and node of a failure that stops the cycle when the open incident is judged."""

    @property
    def is_open(self) -> bool:
        """Evidence is awaited."""
        return self.until is not None

    def cycle_began(self, formed: Round) -> None:
        """The incident that was open is dropped."""
        self._formed, self.until, self._marks, self._held = formed, None, None, None

    def is_news(self, suspect: Suspect) -> bool:
        """A rank of the cycle that runs is overdue; False: it belongs to an incident that is known.

        On thousands of nodes most do.
        """
        return bool(self.timeout_s) and not self.is_open and suspect.after >= self.number

    def open(self, suspect: Suspect, hosts: Mapping[str, str | None], now: float) -> OpenIncident:
        """Ask all nodes of the cycle for evidence.

        ``hosts``: the names of their hosts; None: the node was lost in this cycle.
        """
        self.number += 1
        self._clock = suspect.clock
        self._awaited = {node: host or node for node, host in hosts.items()}
        self.digests, self.missing = {}, {}
        for node in [node for node, host in hosts.items() if host is None]:
            self._miss(node, Absence.LOST_BEFORE, words.lost_before())
        self.until = now + VERDICT_SHARE * self.timeout_s
        is_gentle = suspect.clock == PAUSE
        about = self.number, suspect.cycle, suspect.node, suspect.rank
        return OpenIncident(*about, is_gentle=is_gentle)

    def answered(self, message: Digests) -> None:
        """A node has sent the evidence of its ranks."""
        if message.incident == self.number and self._awaited.pop(message.node, None) is not None:
            self.digests.update((digest.rank, digest) for digest in message.digests)

    def lost(self, node: str, why: str) -> None:
        """A node of the job is gone."""
        if self.is_open and node in self._awaited:
            self._miss(node, Absence.LOST, why)

    def _miss(self, node: str, absence: Absence, why: str) -> None:
        host = self._awaited.pop(node)
        place = None if self._formed is None else self._formed.place_of(node)
        ranks = range(place.rank_offset, place.rank_offset + place.nproc) if place else ()
        missing = Missing(text_of(ranks), absence, why)
        self.missing[node if host in self.missing else host] = missing

    def holds(self, cause: str, node: str, why: StopWhy) -> bool:
        """Whether a failure waits for the verdict; the first is :meth:`released` after it.

        K-2: ranks that are stopped show nothing any more.
        """
        if self.is_open:
            self._held = self._held or (cause, node, why)
        return self.is_open

    def released(self) -> tuple[str, str, StopWhy] | None:
        """The failure that has waited for the verdict; None: none has."""
        held, self._held = self._held, None
        return held

    def judged(self, now: float, why_not: str = "") -> Judged | None:
        """The verdict, once, if no more is awaited; see :attr:`until`.

        ``why_not``: why no rank without timeouts may be ended; "": the job would be started again.
        """
        if self.until is None or (self._awaited and now < self.until):
            return None
        for node in list(self._awaited):
            self._miss(node, Absence.NO_ANSWER, words.no_answer(self.timeout_s))
        assert self._formed is not None
        self.until = None
        verdict = verdict_on(self.digests, self.missing, self._clock, self.stall, why_not)
        without = words.missing_nodes(self.missing)
        return Judged(self.number, self._formed.cycle, self._if_known(verdict), without)

    def _if_known(self, verdict: Verdict) -> Verdict:
        """A stall is reported once, however often its ranks are looked at."""
        if not (verdict.is_stall or verdict.is_pause):
            return verdict
        from holdfast.evidence.pure.stall import has_moved, marks  # noqa: PLC0415 - as below

        before, after = self._marks, marks(self.digests)
        is_first = before is None or has_moved(before, after)
        if not is_first and (self._was_stall or verdict.is_pause):
            return Verdict(**{**vars(verdict), "is_known": True})
        self._marks, self._was_stall = after, verdict.is_stall
        return verdict


def verdict_on(
    digests: dict[int, RankDigest],
    missing: dict[str, Missing],
    clock: str = "",
    stall: StallRules = StallRules(),  # noqa: B008 - a value
    why_not: str = "",
) -> Verdict:
    """The verdict of :mod:`holdfast.evidence.pure.verdict`, imported when there is an incident.

    ``clock``: that ran out first. ``stall``, ``why_not``: see ``evidence/pure/stall.py``.
    """
    # No start should wait for these.
    from holdfast.evidence.pure.stall import settle  # noqa: PLC0415
    from holdfast.evidence.pure.verdict import judge  # noqa: PLC0415

    return settle(judge(digests, missing), digests, missing, clock, stall, why_not)
