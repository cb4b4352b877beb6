"""What a job may kill, on made-up process tables: whatever happened, only its own (K-3)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.base.pure.ownership import Claim, Facts, Origin, Verdicts, is_within, judge

EXAMPLES = int(os.environ.get("HOLDFAST_OWNERSHIP_EXAMPLES", "100"))
LOGIN, CGROUP = "7", {"": "/user/login"}
PIDS = 24
"""So few that they are reused all the time."""


@dataclass
class Process:
    """A process, and what nobody can see: by whom it was started, in truth."""

    pid: int
    parent: int
    session: int
    started: int
    marker: str = ""
    cgroup: str = "/user/login"
    login: str = LOGIN
    is_reaper: bool = False
    is_needed: bool = False
    jobs: frozenset[str] = frozenset()
    """Jobs of whose ranks it descends."""


@dataclass
class Job:
    """A launcher, alive or dead, and what it and its monitors know."""

    name: str
    launcher: tuple[int, int]
    reapers: list[tuple[int, int]]
    foreign: list[tuple[int, int]]
    is_alone: bool
    ranks: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    known: set[tuple[int, int]] = field(default_factory=set)
    alive_at: int = 0


class Kernel:
    """Processes of one pid namespace, as Linux keeps them."""

    def __init__(self) -> None:
        self.now = 0
        self.last = 1
        self.processes = {1: Process(1, 0, 1, 0, is_reaper=True, is_needed=True)}

    def free_pid(self) -> int | None:
        """The next one that is nobody's, nor the number of a session."""
        taken = {*self.processes, *(p.session for p in self.processes.values())}
        for step in range(1, PIDS + 1):
            pid = (self.last + step - 1) % PIDS + 1
            if pid not in taken:
                self.last = pid
                return pid
        return None

    def fork(self, parent: int, **changes: object) -> Process | None:
        pid = self.free_pid()
        if pid is None:
            return None
        self.now += 1
        origin = self.processes[parent]
        child = replace(
            origin, pid=pid, parent=parent, started=self.now, is_reaper=False, is_needed=False,
            **changes,
        )  # fmt: skip
        self.processes[pid] = child
        return child

    def exit(self, pid: int) -> None:
        """Its children go to the nearest reaper above."""
        self.now += 1
        dead = self.processes[pid]
        reaper = dead.parent
        while reaper in self.processes and not self.processes[reaper].is_reaper:
            reaper = self.processes[reaper].parent
        for process in self.processes.values():
            if process.parent == pid:
                process.parent = reaper if reaper in self.processes else 1
        del self.processes[pid]

    def below(self, top: int) -> list[int]:
        found, pending = [], [top]
        while pending:
            pid = pending.pop()
            found.append(pid)
            pending += [p.pid for p in self.processes.values() if p.parent == pid]
        return found

    def table(self, pids: list[int] | None = None) -> dict[int, Facts]:
        return {
            p.pid: Facts(p.parent, p.session, p.started)
            for p in self.processes.values()
            if pids is None or p.pid in pids
        }

    def origin(self, pid: int) -> Origin:
        process = self.processes[pid]
        return Origin(process.marker, 1000, {"": process.cgroup}, process.login)


class Jobs(RuleBasedStateMachine):
    """Jobs, schedulers, containers and foreign processes share a host that reuses its pids."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel()
        self.jobs: dict[str, Job] = {}

    def pick(self, data: st.DataObject, **wanted: object) -> Process | None:
        found = [
            p
            for p in self.kernel.processes.values()
            if p.pid != 1 and all(getattr(p, key) == value for key, value in wanted.items())
        ]
        return data.draw(st.sampled_from(found)) if found else None

    def launcher_pids(self) -> dict[int, Job]:
        living = {}
        for job in self.jobs.values():
            process = self.kernel.processes.get(job.launcher[0])
            if process is not None and process.started == job.launcher[1]:
                living[process.pid] = job
        return living

    # ------------------------------------------------------------ what happens
    @rule(reaper=st.booleans(), leads=st.booleans())
    def a_service_starts(self, reaper: bool, leads: bool) -> None:
        if (process := self.kernel.fork(1)) is not None:
            process.is_reaper = reaper
            if leads:
                process.session = process.pid

    @rule()
    def somebody_enters_from_outside(self) -> None:
        """``kubectl exec``: nobody's child, in a session from outside."""
        if (process := self.kernel.fork(1)) is not None:
            process.parent = process.session = 0

    @rule(data=st.data())
    def a_process_forks(self, data: st.DataObject) -> None:
        if (parent := self.pick(data)) is None:
            return
        is_part = self.jobs_alone(parent.pid)
        if not is_part:
            self.kernel.fork(parent.pid)

    def jobs_alone(self, pid: int) -> bool:
        """A launcher that runs as a command starts nothing but what belongs to its job."""
        job = self.launcher_pids().get(pid)
        return job is not None and job.is_alone

    @rule(data=st.data())
    def a_process_begins_a_session(self, data: st.DataObject) -> None:
        process = self.pick(data)
        if process is not None:
            taken = {p.session for p in self.kernel.processes.values() if p is not process}
            if process.pid not in taken:
                process.session = process.pid

    @rule(data=st.data())
    def a_process_clears_its_environment(self, data: st.DataObject) -> None:
        if (process := self.pick(data)) is not None:
            process.marker = ""

    @rule(data=st.data(), how=st.sampled_from(["cgroup", "login", "stays"]))
    def a_scheduler_copies_an_environment(self, data: st.DataObject, how: str) -> None:
        """``sbatch`` from a rank. The scheduler gives its job an own place, or stays its parent."""
        scheduler, source = self.pick(data, jobs=frozenset()), self.pick(data)
        if scheduler is None or source is None or scheduler.pid in self.launcher_pids():
            return  # a program that gives a rank's environment to its own children gives them away
        job = self.kernel.fork(scheduler.pid, marker=source.marker)
        if job is None:
            return
        job.session = job.pid
        if how == "cgroup":
            job.cgroup = f"/slurm/{job.started}"
        elif how == "login":
            job.login = f"of {job.started}"  # never the number of the launcher's
        else:
            scheduler.is_needed = True

    @rule(data=st.data(), is_command=st.booleans(), is_reaper=st.booleans())
    def a_launcher_starts(self, data: st.DataObject, is_command: bool, is_reaper: bool) -> None:
        parent = self.pick(data)
        if parent is None or self.jobs_alone(parent.pid):
            return
        process = parent if data.draw(st.booleans()) else self.kernel.fork(parent.pid)
        if process is None or process.pid in self.launcher_pids():
            return
        process.is_reaper = True
        table = self.kernel.table()
        children = [(pid, f.started) for pid, f in table.items() if f.parent == process.pid]
        above, reapers = process, [(process.pid, process.started)]
        while above.parent in self.kernel.processes:
            above = self.kernel.processes[above.parent]
            reapers.append((above.pid, above.started))
        name = f"job{len(self.jobs)}"
        self.jobs[name] = Job(
            name, reapers[0], reapers, children, is_alone=is_command and not children
        )

    @rule(data=st.data())
    def a_rank_starts(self, data: st.DataObject) -> None:
        living = self.launcher_pids()
        if not living:
            return
        pid = data.draw(st.sampled_from(sorted(living)))
        job = living[pid]
        jobs = self.kernel.processes[pid].jobs | {job.name}
        rank = self.kernel.fork(pid, marker=f"{job.name}.0.0", jobs=jobs)
        if rank is not None:
            rank.session = rank.pid
            job.ranks[rank.pid] = (rank.started, None)
            job.alive_at = self.kernel.now

    @rule(data=st.data())
    def a_process_ends(self, data: st.DataObject) -> None:
        process = self.pick(data, is_needed=False)
        if process is None:
            return
        job = self.launcher_pids().get(process.pid)
        self.kernel.exit(process.pid)
        ended = [process]
        if job is not None:  # its ranks die with it
            for pid, (began, _) in job.ranks.items():
                rank = self.kernel.processes.get(pid)
                if rank is not None and rank.started == began and not rank.is_needed:
                    self.kernel.exit(pid)
                    ended.append(rank)
        for other in self.launcher_pids().values():
            for rank in ended:
                if other.ranks.get(rank.pid) == (rank.started, None):
                    other.ranks[rank.pid] = (rank.started, self.kernel.now)

    @rule()
    def monitors_look_what_lies_below_ranks(self) -> None:
        for job in self.launcher_pids().values():
            job.alive_at = self.kernel.now
            for pid, (began, _) in job.ranks.items():
                rank = self.kernel.processes.get(pid)
                if rank is not None and rank.started == began:
                    below = self.kernel.below(pid)
                    job.known |= {(p, self.kernel.processes[p].started) for p in below}

    # ------------------------------------------------------------ what must hold
    def ask(self, job: Job, table: dict[int, Facts], me: int, *, below: bool) -> Verdicts:
        claim = Claim(
            job.name,
            job.launcher,
            Origin("", 1000, CGROUP, LOGIN),
            reapers=job.reapers[:1] if below else job.reapers,
            ranks=job.ranks,
            alive_at=job.alive_at,
            known=job.known,
            foreign=job.foreign,
            is_alone=below and job.is_alone,
        )
        others = [j.launcher for j in self.launcher_pids().values() if j is not job]
        origins: dict[tuple[int, int], Origin] = {}
        while True:
            verdicts = judge(table, claim, me, origins=origins, launchers=others)
            if not verdicts.unknown:
                return verdicts
            for pid in verdicts.unknown:
                origins[pid, table[pid].started] = self.kernel.origin(pid)

    def check(self, job: Job, verdicts: Verdicts) -> None:
        for pid, proof in verdicts.owned.items():
            process = self.kernel.processes[pid]
            started_by_us = job.is_alone and pid in self.kernel.below(job.launcher[0])
            assert job.name in process.jobs or started_by_us, (process, proof)

    @invariant()
    def nothing_is_killed_that_is_not_the_jobs_own(self) -> None:
        """By its launcher, its monitors, or the next launcher, whoever that is."""
        living = self.launcher_pids()
        for job in self.jobs.values():
            launcher = job.launcher[0]
            if launcher in living and living[launcher] is job:
                table = self.kernel.table(self.kernel.below(launcher))
                self.check(job, self.ask(job, table, launcher, below=True))
            for me in [1, *self.kernel.processes][:4]:
                verdicts = self.ask(job, self.kernel.table(), me, below=False)
                self.check(job, verdicts)
                assert not {1, me} & verdicts.owned.keys()

    @invariant()
    def what_shows_that_it_is_the_jobs_own_is_found(self) -> None:
        """Ranks and what was seen below them; children of those; else the rule would be idle."""
        for job in self.jobs.values():
            verdicts = self.ask(job, self.kernel.table(), 1, below=False)
            for process in self.kernel.processes.values():
                if (process.pid, process.started) in job.known:
                    below = self.kernel.below(process.pid)
                    launchers = set(self.launcher_pids())
                    assert process.pid in verdicts.owned or launchers & set(below)


TestJobs = Jobs.TestCase
TestJobs.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


# ---------------------------------------------------------------- cases by name
LAUNCHER, RANK, STRANGER = 10, 20, 30
INIT = Facts(0, 1, 0)


def claim(**changes: object) -> Claim:
    """Of a launcher that was started at tick 100 and whose rank was alive until 200."""
    facts: dict[str, object] = {
        "reapers": [(LAUNCHER, 100)],
        "ranks": {RANK: (110, None)},
        "alive_at": 200,
    }
    return Claim("job", (LAUNCHER, 100), Origin("", 1000, CGROUP, LOGIN), **{**facts, **changes})


def ours(
    table: dict[int, Facts],
    origin: Origin | None = None,
    of: Claim | None = None,
    me: int = 99,
    **more: object,
) -> set[int]:
    table = {1: INIT, **table}
    found = origin or Origin("", 1000, CGROUP, LOGIN)
    origins = {(pid, facts.started): found for pid, facts in table.items()}
    return set(judge(table, of or claim(), me, origins=origins, **more).owned)


MARKED = Origin("job.0.0", 1000, CGROUP, LOGIN)


def test_an_orphan_with_the_marker_is_ours() -> None:
    """In a session of its own; its children with it, whatever their environment says."""
    orphan = {30: Facts(1, 30, 150), 31: Facts(30, 31, 160)}

    assert ours(orphan, MARKED) == {30, 31}


@pytest.mark.parametrize(
    "origin",
    [
        Origin("job.0.0", 1001, CGROUP, LOGIN),
        Origin("job.0.0", 1000, {"": "/slurm/job_7"}, LOGIN),
        Origin("job.0.0", 1000, {"": "/user/login2"}, LOGIN),
        Origin("job.0.0", 1000, {}, LOGIN),
        Origin("job.0.0", 1000, CGROUP, "8"),
        Origin("job2.0.0", 1000, CGROUP, LOGIN),
        Origin("", 1000, CGROUP, LOGIN),
    ],
    ids=["user", "cgroup", "like cgroup", "no cgroup", "login", "job", "no marker"],
)
def test_a_copied_marker_proves_nothing(origin: Origin) -> None:
    """The batch shell of the next job, re-parented to init."""
    assert ours({30: Facts(1, 30, 150)}, origin) == set()


def test_a_process_with_a_living_parent_is_its_parents() -> None:
    """A batch shell below its scheduler, although it carries the marker of a dead job."""
    scheduler_and_shell = {5: Facts(1, 5, 50), 30: Facts(5, 30, 150), 31: Facts(30, 30, 160)}

    assert ours(scheduler_and_shell, MARKED) == set()


def test_a_scheduler_that_runs_the_launcher_keeps_its_other_jobs() -> None:
    """A rank hands it a job with its own environment; then the launcher is killed."""
    table = {5: Facts(1, 5, 50), 30: Facts(5, 30, 150)}
    below_scheduler = claim(reapers=[(LAUNCHER, 100), (5, 50)])

    assert ours(table, MARKED, of=below_scheduler) == set()
    known = claim(reapers=[(LAUNCHER, 100), (5, 50)], known=[(30, 150)])
    assert ours(table, MARKED, of=known) == {30}


def test_who_asks_and_its_ancestors_are_never_ours() -> None:
    """The next launcher in the batch shell that has inherited the marker."""
    shell_and_launcher = {30: Facts(1, 30, 150), 31: Facts(30, 30, 160), 32: Facts(30, 30, 170)}

    assert ours(shell_and_launcher, MARKED, me=31) == set()


def test_what_a_launcher_was_started_from_is_never_ours() -> None:
    """Whatever else is known of it."""
    table = {5: Facts(1, 5, 50), LAUNCHER: Facts(5, 10, 100), 30: Facts(1, 30, 150)}
    known = claim(known=[(5, 50), (LAUNCHER, 100), (30, 150)])

    assert ours(table, of=known) == {30}


def test_who_is_older_than_its_parent_was_adopted_by_it() -> None:
    """A helper that the job started may be a subreaper of others, too."""
    subreaper_and_stranger = {30: Facts(1, 30, 150), 31: Facts(30, 31, 140)}

    assert ours(subreaper_and_stranger, of=claim(known=[(30, 150)])) == {30}


def test_a_marker_ends_no_other_jobs_launcher() -> None:
    """Nor the shell that runs it."""
    shell_and_launcher = {30: Facts(1, 30, 150), 31: Facts(30, 30, 160)}

    assert ours(shell_and_launcher, MARKED, launchers=[(31, 160)]) == set()


def test_who_cleared_its_environment_is_found_by_its_session() -> None:
    """``env -i``, setproctitle; only if it was in it while the rank lived."""
    assert ours({30: Facts(1, RANK, 150)}) == {30}
    assert ours({30: Facts(1, RANK, 201)}) == set(), "the number may be another session's by then"
    assert ours({30: Facts(1, RANK, 150), RANK: Facts(1, RANK, 140)}) == set(), "it is another's"
    assert ours({30: Facts(1, RANK, 105)}) == set(), "it is older than the rank"


def test_a_session_is_ours_if_one_process_of_it_is() -> None:
    """Two living processes with one session number are in one session."""
    family = {30: Facts(1, 30, 150), 31: Facts(1, 30, 250)}

    assert ours(family, of=claim(known=[(30, 150)])) == {30, 31}
    assert ours(dict(reversed(family.items())), of=claim(known=[(30, 150)])) == {30, 31}
    assert ours(family, of=claim(known=[(30, 149)])) == set(), "somebody else has that pid now"


def test_a_launcher_in_a_program_leaves_the_programs_children() -> None:
    """Those that were there before, and those that came since."""
    table = {
        LAUNCHER: Facts(1, 10, 100),
        RANK: Facts(LAUNCHER, RANK, 110),
        21: Facts(LAUNCHER, RANK, 120),
        40: Facts(LAUNCHER, 10, 101),
        41: Facts(40, 10, 130),
        42: Facts(LAUNCHER, 10, 140),
    }
    mine = claim(foreign=[(40, 101)])

    assert ours(table, of=mine, me=LAUNCHER) == {RANK, 21}
    alone = claim(foreign=[(40, 101)], is_alone=True)
    assert ours(table, of=alone, me=LAUNCHER) == {RANK, 21, 42}
    assert ours(table, of=alone, me=LAUNCHER, spared=[RANK]) == {21, 42}


def test_what_is_left_alone_has_a_reason() -> None:
    """It is named, for people to decide."""
    table = {LAUNCHER: Facts(1, 10, 100), 42: Facts(LAUNCHER, 42, 140)}
    origins = {(42, 140): Origin("", 1000, CGROUP, LOGIN)}
    assert judge(table, claim(), LAUNCHER, origins=origins).left == {
        42: "nothing proves that a rank started it"
    }
    origins = {(42, 140): Origin("job.0.0", 1000, {"": "/slurm/job_7"}, LOGIN)}
    assert "cgroup" in judge(table, claim(), LAUNCHER, origins=origins).left[42]
    assert judge(table, claim(), LAUNCHER, origins={}).unknown == [42]


def test_a_cgroup_lies_within_in_every_hierarchy() -> None:
    """Of version 1 there are many."""
    launcher = {"cpu": "/a", "": "/"}
    assert is_within({"cpu": "/a/b", "": "/x", "net": "/y"}, launcher)
    assert not is_within({"cpu": "/ab", "": "/"}, launcher)
    assert not is_within({"": "/"}, launcher)
    assert not is_within({"": "/"}, {}), "where the launcher's is not known, nothing is proved"
