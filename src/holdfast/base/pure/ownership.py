"""Decide which processes a job may kill: those that are provably its own, and no others. Pure.

    proof                                               asked of
    it is a rank, or was seen below one                 any process
    its parent is the job's                             any process
    it is in the session of a rank                      orphans
    it is in the session of a process of the job        orphans
    it carries the marker, and nothing speaks against   orphans of process 1 and the launcher
    it was adopted by a launcher that is alone          orphans

An *orphan* is a process whose parent is a reaper: process 1, the launcher, or one of the launcher's
ancestors, to which the kernel hands children of the dead. A process with any other living parent
belongs to that parent. The rule in words, with its limits: docs/what-is-killed.md (K-3).

The kernel does not give a session's number to another process, so two living processes with one
session number are in one session. Environment, cgroup and owner are looked up only where they
decide: the verdicts name the pids for which they are wanted.
"""

from __future__ import annotations

from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]
    """A pid, and the clock tick at which it was started: together they are not recycled."""
    Life: TypeAlias = tuple[int, int | None]
    """Ticks at which a process was started, and at which its end was noticed; None: it was not."""

INIT = 1


class Facts:
    """The kernel's facts about a process, without a look into its memory.

    Attributes:
        parent: Pid of its parent; 0: that is outside this pid namespace.
        session: Pid of the process that began its session.
        started: Clock ticks since boot.
    """

    __slots__ = ("parent", "session", "started")

    def __init__(self, parent: int, session: int, started: int) -> None:
        self.parent = parent
        self.session = session
        self.started = started


class Origin(Value):
    """Where a process comes from, as far as that can be known.

    Attributes:
        marker: ``HOLDFAST_MARKER`` of its environment; "" where it has none, or where that cannot
            be read.
        uid: Its user.
        cgroups: Path of its cgroup in each hierarchy, by the hierarchy's name.
        login: Number of its login (audit session); "" where the kernel does not keep one.
    """

    marker: str
    uid: int
    cgroups: Mapping[str, str]
    login: str


class Claim:
    """A job's facts about its own processes.

    Attributes:
        job: Its name, with which every marker of its ranks begins.
        launcher: The launcher.
        origin: Where the launcher comes from; its marker means nothing.
        reapers: Who adopts orphans of the job, besides process 1.
        ranks: Lives of its ranks by pid; each leads a session.
        alive_at: Tick at which ranks whose end was not noticed were alive.
        known: Processes seen below a rank while it lived.
        foreign: Children that the launcher had before it started anything.
        is_alone: Every other child of the launcher comes from the job: it is no part of a program
            that starts processes, and adopts no foreign orphans.
    """

    __slots__ = (
        "alive_at",
        "foreign",
        "is_alone",
        "job",
        "known",
        "launcher",
        "origin",
        "ranks",
        "reapers",
    )  # fmt: skip

    def __init__(
        self,
        job: str,
        launcher: Identity,
        origin: Origin,
        *,
        reapers: Collection[Identity] = (),
        ranks: Mapping[int, Life] | None = None,
        alive_at: int = 0,
        known: Collection[Identity] = (),
        foreign: Collection[Identity] = (),
        is_alone: bool = False,
    ) -> None:
        self.job = job
        self.launcher = launcher
        self.origin = origin
        self.reapers = frozenset(reapers)
        self.ranks = dict(ranks or {})
        self.alive_at = alive_at
        self.known = frozenset(known)
        self.foreign = frozenset(foreign)
        self.is_alone = is_alone


class Verdicts:
    """The conclusion from the facts.

    Attributes:
        owned: Processes of the job, which may be killed, and the proof for each.
        unknown: Processes whose origin has to be known first.
        left: Processes that carry the marker, or were adopted by the launcher, and are left alone,
            each with the reason.
    """

    __slots__ = ("left", "owned", "unknown")

    def __init__(self) -> None:
        self.owned: dict[int, str] = {}
        self.unknown: list[int] = []
        self.left: dict[int, str] = {}


def judge(
    table: Mapping[int, Facts],
    claim: Claim,
    me: int,
    *,
    origins: Mapping[Identity, Origin],
    launchers: Collection[Identity] = (),
    spared: Collection[int] = (),
) -> Verdicts:
    """Decide about every process of a table.

    Args:
        table: Processes by pid.
        claim: Whose processes are looked for.
        me: Pid of the process that asks.
        origins: Known origins of some processes.
        launchers: Living launchers of other jobs: neither they nor their ancestors are killed
            because of a marker, which they may have inherited.
        spared: Pids that are left alone, with all below them.
    """
    return _Judge(table, claim, me, origins, launchers, spared).verdicts()


def ancestors(table: Mapping[int, Facts], pid: int) -> list[int]:
    """Parent, grandparent and so on of ``pid``, as far as the table goes."""
    found: list[int] = []
    facts = table.get(pid)
    while facts is not None and facts.parent in table and facts.parent not in found:
        found.append(facts.parent)
        facts = table[facts.parent]
    return found


def is_within(cgroups: Mapping[str, str], launcher: Mapping[str, str]) -> bool:
    """Each cgroup is the launcher's, or lies below it; no: where one of them is not known."""
    return bool(launcher) and all(
        _is_below(cgroups.get(hierarchy), path) for hierarchy, path in launcher.items()
    )


class _Judge:
    def __init__(
        self,
        table: Mapping[int, Facts],
        claim: Claim,
        me: int,
        origins: Mapping[Identity, Origin],
        launchers: Collection[Identity],
        spared: Collection[int],
    ) -> None:
        self._table = table
        self._claim = claim
        self._me = me
        self._origins = origins
        self._never = {INIT, me, *ancestors(table, me), *spared}
        if self._is_there(claim.launcher):
            self._never |= {claim.launcher[0], *ancestors(table, claim.launcher[0])}
        self._never |= self._living(claim.foreign)
        self._leads_elsewhere: set[int] = set()
        for pid in self._living(launchers):
            self._leads_elsewhere |= {pid, *ancestors(table, pid)}
        self._reapers = {INIT, *self._living(claim.reapers)}
        self._verdicts = Verdicts()
        self._judged: dict[int, bool] = {}
        self._sessions: set[int] = set()

    def verdicts(self) -> Verdicts:
        n_sessions = -1
        while n_sessions < len(self._sessions):  # one process of the job may prove another
            n_sessions = len(self._sessions)
            self._pass()
        return self._verdicts

    def _pass(self) -> None:
        self._judged.clear()
        self._verdicts.unknown.clear()
        self._verdicts.left.clear()
        for pid in self._table:
            line = [pid]
            while (parent := self._table[line[-1]].parent) in self._table and parent not in line:
                line.append(parent)
            for each in reversed(line):  # parents first
                if each not in self._judged:
                    self._judged[each] = self._is_owned(each)

    def _is_owned(self, pid: int) -> bool:
        if pid in self._never:
            return False
        proof = self._proof(pid)
        if proof is None:
            return False
        self._verdicts.owned[pid] = proof
        self._sessions.add(self._table[pid].session)
        return True

    def _proof(self, pid: int) -> str | None:
        facts, claim = self._table[pid], self._claim
        if pid in claim.ranks and claim.ranks[pid][0] == facts.started:
            return "it is a rank"
        if (pid, facts.started) in claim.known:
            return "it was seen below a rank"
        parent = self._table.get(facts.parent)
        if self._judged.get(facts.parent) and parent and parent.started <= facts.started:
            return f"its parent {facts.parent} belongs to the job"
        if facts.parent not in self._reapers or facts.started < claim.launcher[1]:
            return None
        if self._is_in_a_ranks_session(facts):
            return f"it is in the session of rank process {facts.session}"
        if facts.session in self._sessions:
            return f"its session {facts.session} belongs to the job"
        is_adopted = facts.parent == claim.launcher[0]
        if is_adopted and claim.is_alone:
            return "the launcher adopted it"
        if not is_adopted and facts.parent != INIT:
            return None  # an ancestor may be a scheduler, and have copied the environment itself
        origin = self._origins.get((pid, facts.started))
        if origin is None:
            self._verdicts.unknown.append(pid)
            return None
        if not origin.marker.startswith(f"{claim.job}."):
            if is_adopted and self._me == claim.launcher[0]:
                self._verdicts.left[pid] = "nothing proves that a rank started it"
            return None
        if (why := self._objection(pid, origin)) is not None:
            self._verdicts.left[pid] = why
            return None
        return "it carries the marker of the job"

    def _is_in_a_ranks_session(self, facts: Facts) -> bool:
        began, ended = self._claim.ranks.get(facts.session, (None, None))
        if began is None or facts.started < began:
            return False
        leader = self._table.get(facts.session)
        if leader is not None:
            return leader.started == began  # else the number is another process's now
        return facts.started <= (self._claim.alive_at if ended is None else ended)

    def _objection(self, pid: int, origin: Origin) -> str | None:
        """Why a marker proves nothing: schedulers copy environments into jobs of their own."""
        mine = self._claim.origin
        if origin.uid != mine.uid:
            return f"it carries the marker, but is user {origin.uid}'s"
        if not is_within(origin.cgroups, mine.cgroups):
            return "it carries the marker, but is in another cgroup than the launcher was"
        if origin.login != mine.login:
            return "it carries the marker, but is of another login than the launcher was"
        if pid in self._leads_elsewhere:
            return "it carries the marker, but another job's launcher is it or was started from it"
        return None

    def _is_there(self, identity: Identity) -> bool:
        facts = self._table.get(identity[0])
        return facts is not None and facts.started == identity[1]

    def _living(self, identities: Iterable[Identity]) -> set[int]:
        return {identity[0] for identity in identities if self._is_there(identity)}


def _is_below(path: str | None, top: str) -> bool:
    return path is not None and (path == top or path.startswith(top.rstrip("/") + "/"))
