"""Random faults in a row on a tiny job: ``python -m tests.soak --faults 200 [--seed N]``.

Two ranks step and beat under one launcher. Each fault is drawn from a shuffled deck, done to a
random rank at a random moment, and has to be recovered from before the next one; some are done to
launchers of their own without restarts, which have to end in the right way. Afterwards nothing may
be left, and the first launcher may not have grown. Every run has a seed, which it prints.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.base.processes import proc
from holdfast.node.pure.rank_life import MONITOR_DEATHS, MONITOR_DEATHS_PERIOD_S
from holdfast.node.records import run_dirs
from tests.real.harness import Job, Launcher, launcher
from tests.waiting import SCALE, until

RANKS = (0, 1)
SECTION_LIMIT_S = 1.0 * SCALE
OUTSIDE_LIMIT_S = 1.2 * SCALE
PAUSE_S_MAX = 0.03
"""A fault comes this long after the recovery from the last one, at most."""
STEPS = 3
"""So many steps of a rank are progress."""
SPARE_RESTARTS = 100
"""For faults that cost two, and for stalls of a busy machine."""
RSS_GROWTH_KIB_MAX = 8.0
"""Of the launcher, per restart."""
RSS_NOISE_KIB = 1024.0
"""What an allocator may come and go by; matters in short runs only."""

SCRIPT = """
import ctypes, os, signal, struct, sys, threading, time
from pathlib import Path
from holdfast.fault_tolerance import RankMonitorClient

folder = Path(os.environ["OUT"])
rank, cycle = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
order_file = folder / f"order.{cycle}.{rank}"
progress = os.open(folder / f"progress.{rank}", os.O_RDWR | os.O_CREAT)
client = RankMonitorClient()
client.init_workload_monitoring()

def stuck_for_ever():
    threading.Event().wait()

def stuck_with_the_interpreter():
    ctypes.PyDLL(None).sleep(1000)

step = 0
while True:
    order = order_file.read_text() if order_file.exists() else None
    with client.section("step"):
        time.sleep(0.002)
        if order == "hang":
            stuck_for_ever()
        if order == "hang with the interpreter held":
            stuck_with_the_interpreter()
        if order == "exception":
            raise ValueError("loss is NaN")
        if order == "exit code":
            sys.exit(3)
        if order == "exit at once":
            os._exit(4)
    if order == "hang outside sections":
        stuck_for_ever()
    client.send_heartbeat()
    step += 1
    os.pwrite(progress, struct.pack("qqq", cycle, step, os.getpid()), 0)
    if order == "finish":
        break
client.shutdown_workload_monitoring()
"""

ORDERS = (
    "hang",
    "hang with the interpreter held",
    "hang outside sections",
    "exception",
    "exit code",
    "exit at once",
)
HANGS = (*ORDERS[:3], "SIGSTOP")


class Progress(NamedTuple):
    """What a rank last wrote down."""

    cycle: int
    step: int
    pid: int


class Resources(NamedTuple):
    """What the launcher holds at a quiet moment."""

    descriptors: int
    threads: int
    files: int
    children: int
    rss_kib: int


class TinyJob:
    """A launcher and its two stepping ranks."""

    def __init__(self, jobs: Launcher, max_restarts: int) -> None:
        script = jobs.script(SCRIPT)
        self.job: Job = jobs.start(
            f"--nproc-per-node={len(RANKS)}",
            f"--max-restarts={max_restarts}",
            f"--ft-rank-section-timeouts=step:{SECTION_LIMIT_S}",
            f"--ft-rank-out-of-section-timeout={OUTSIDE_LIMIT_S}",
            "--log-dir=logs",
            script,
        )
        self.pid = self.job.process.pid
        self.seen_monitors: set[tuple[int, int | None]] = set()

    def progress(self, rank: int) -> Progress:
        path = self.job.folder / f"progress.{rank}"
        data = path.read_bytes() if path.exists() else b""
        return Progress(*struct.unpack("qqq", data)) if len(data) == 24 else Progress(-1, 0, 0)

    def cycle_in_progress(self) -> int | None:
        """The cycle in which both ranks have made progress."""
        first, second = map(self.progress, RANKS)
        steps = min(first.step, second.step)
        return first.cycle if first.cycle == second.cycle >= 0 and steps >= STEPS else None

    def order(self, rank: int, what: str) -> None:
        """Have a rank do something to itself, in its current cycle."""
        path = self.job.folder / f"order.{self.progress(rank).cycle}.{rank}"
        new = path.with_suffix(".new")
        new.write_text(what)
        new.rename(path)

    def do(self, fault: str, rank: int) -> None:
        """Do something fatal to a rank."""
        if fault in ORDERS:
            self.order(rank, fault)
        else:
            os.kill(self.progress(rank).pid, signal.Signals[fault])

    def monitors(self) -> dict[int, int]:
        """Pids by local rank; found through the socket that each of them listens on."""
        paths = {}
        for line in Path("/proc/net/unix").read_text().splitlines():
            if f"_ft_launcher{self.pid}_rmon" in line:
                fields = line.split()
                paths[f"socket:[{fields[6]}]"] = fields[7]
        found = {}
        for pid in self.children():
            try:
                path = paths.get(str(Path(f"/proc/{pid}/fd/3").readlink()), "")
                cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"monitor_main" in cmdline and path:
                found[int(path.rpartition("_rmon")[2].removesuffix(".socket"))] = pid
                self.seen_monitors.add((pid, proc.start_ticks(pid)))
        return found

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def runtime_files(self) -> list[str]:
        """In the private folder of this launcher, which may remove some as this looks."""
        return [
            f"{folder}/{name}"
            for parent in {"/dev/shm", tempfile.gettempdir()}
            for top in Path(parent).glob(f"holdfast_{self.pid}-*")
            for folder, folders, files in os.walk(top)
            for name in folders + files
        ]

    def resources(self) -> Resources:
        base = Path(f"/proc/{self.pid}")
        state = proc.process_state(self.pid)
        assert state is not None, "the launcher is gone"
        return Resources(
            descriptors=len(list((base / "fd").iterdir())),
            threads=state.threads,
            files=len(self.runtime_files()),
            children=len(self.children()),
            rss_kib=state.rss_kib,
        )

    def assert_nothing_is_left(self) -> None:
        """After the launcher's end: nothing that it started, no file in memory."""
        until(lambda: not self.job.leftovers(), "processes of the job are gone")
        until(lambda: not self.runtime_files(), "the runtime folder is gone")
        self.assert_no_monitor_is_left()

    def assert_no_monitor_is_left(self) -> None:
        """Zombies, which wait for whoever inherited them, are gone."""

        def lives(pid: int, ticks: int | None) -> bool:
            state = proc.process_state(pid)
            return state is not None and state.state != "Z" and proc.start_ticks(pid) == ticks

        until(
            lambda: not any(lives(*monitor) for monitor in self.seen_monitors),
            "the monitors are gone",
        )


class Soak:
    """One run."""

    def __init__(self, jobs: Launcher, faults: int, seed: int) -> None:
        self._jobs = jobs
        self._faults = faults
        self._rng = random.Random(seed)
        self._job = TinyJob(jobs, faults + SPARE_RESTARTS)
        self._cycle = 0
        self._clock = threading.Event()  # nobody sets it: a pause, not a wait
        self._deck: list[str] = []
        self._monitor_kills: dict[int, collections.deque[float]] = {
            rank: collections.deque(maxlen=MONITOR_DEATHS) for rank in RANKS
        }
        self._baseline: Resources | None = None
        self._rss: list[tuple[int, int]] = []
        self.stalls = 0
        self.took_s: dict[str, list[float]] = {}
        self._kinds: dict[str, Callable[[int], None]] = {
            **dict.fromkeys((*ORDERS, "SIGKILL", "SIGSTOP"), self._one),
            "SIGKILL of both ranks": self._both,
            "SIGKILL, and again while starting": self._again,
            "SIGKILL of a monitor": self._monitor,
            "SIGKILL of a monitor, then a hang": self._monitor_then_hang,
            "without restarts": self._without_restarts,
            "SIGTERM to a launcher": self._ended_from_outside,
            "SIGKILL of a launcher": self._ended_from_outside,
        }
        self._kind = ""

    def run(self) -> None:
        """Raises AssertionError, with what happened."""
        until(lambda: self._job.cycle_in_progress() is not None, "the job has begun")
        for number in range(self._faults):
            self._clock.wait(self._rng.uniform(0, PAUSE_S_MAX))
            rank = self._rng.choice(RANKS)
            self._kind = self._draw(rank)
            began_at = time.monotonic()
            try:
                self._kinds[self._kind](rank)
                self._look_at_launcher(number)
            except (AssertionError, OSError) as error:
                raise AssertionError(
                    f"fault {number} ({self._kind}, rank {rank}, cycle {self._cycle}): {error!r}\n"
                    f"the last that the launcher said:\n{self._job.job.stderr[-4000:]}"
                ) from error
            self.took_s.setdefault(self._kind, []).append(time.monotonic() - began_at)
        self._finish()

    def _draw(self, rank: int) -> str:
        for _ in range(len(self._kinds)):
            if not self._deck:
                self._deck = list(self._kinds)
                self._rng.shuffle(self._deck)
            kind = self._deck.pop()
            if "of a monitor" not in kind or self._may_kill_monitor(rank):
                return kind
        return "SIGKILL"

    def _may_kill_monitor(self, rank: int) -> bool:
        """A launcher gives a monitor up that dies too often; that is tested elsewhere."""
        kills = self._monitor_kills[rank]
        longest_ago = kills[0] if len(kills) == MONITOR_DEATHS else -1e9
        return time.monotonic() - longest_ago > MONITOR_DEATHS_PERIOD_S + 5

    # ------------------------------------------------------------ faults
    def _one(self, rank: int) -> None:
        pid = self._job.progress(rank).pid
        self._job.do(self._kind, rank)
        if self._recovered(self._cycle + 1, {rank}) and self._kind in HANGS:
            self._was_explained(pid)

    def _both(self, _: int) -> None:
        for pid in [self._job.progress(rank).pid for rank in RANKS]:
            with contextlib.suppress(ProcessLookupError):  # the launcher ends the second one, too
                os.kill(pid, signal.SIGKILL)
        self._recovered(self._cycle + 1, set(RANKS))

    def _again(self, rank: int) -> None:
        self._job.do("SIGKILL", rank)
        cycle = self._cycle + 1
        started = until(
            lambda: [
                event["pid"]
                for event in self._job.job.events("worker_started")
                if event["cycle"] == cycle
            ],
            f"ranks of cycle {cycle} are started",
        )
        os.kill(self._rng.choice(started), signal.SIGKILL)
        self._recovered(cycle + 1, {rank})

    def _monitor(self, rank: int) -> None:
        """Training goes on, and the monitor is replaced."""
        before = self._job.monitors()
        steps = self._job.progress(rank).step
        self._kill_monitor(rank)
        until(
            lambda: self._job.monitors().get(rank) not in (None, before[rank]),
            "a monitor in the place of the one that was killed",
        )
        until(
            lambda: self._settled() or self._job.progress(rank).step > steps + STEPS,
            "the rank trains on",
        )

    def _monitor_then_hang(self, rank: int) -> None:
        pid = self._job.progress(rank).pid
        self._kill_monitor(rank)
        self._clock.wait(self._rng.choice([0, 0.01, 0.1]))
        self._job.do(self._rng.choice(HANGS), rank)
        if self._recovered(self._cycle + 1, {rank}):
            self._was_explained(pid)

    def _kill_monitor(self, rank: int) -> None:
        os.kill(self._job.monitors()[rank], signal.SIGKILL)
        self._monitor_kills[rank].append(time.monotonic())

    def _without_restarts(self, rank: int) -> None:
        """A launcher of its own: exit code 1, and nothing left."""
        other = TinyJob(self._jobs, max_restarts=0)
        until(lambda: other.cycle_in_progress() == 0, "another job has begun")
        other.monitors()
        other.do(self._rng.choice((*ORDERS, "SIGKILL", "SIGSTOP")), rank)
        assert other.job.wait() == 1
        other.assert_nothing_is_left()

    def _ended_from_outside(self, _: int) -> None:
        other = TinyJob(self._jobs, max_restarts=3)
        until(lambda: other.cycle_in_progress() == 0, "another job has begun")
        other.monitors()
        if self._kind.startswith("SIGTERM"):
            other.job.signal(signal.SIGTERM)
            assert other.job.wait() == 1
            other.assert_nothing_is_left()
        else:
            other.job.signal(signal.SIGKILL)
            other.job.wait()
            until(lambda: not other.job.leftovers(), "the ranks of a killed launcher are gone")
            other.assert_no_monitor_is_left()
            run_dirs.remove_orphaned_runtime_dirs()  # as the next launcher to start would do
            assert not other.runtime_files()

    # ------------------------------------------------------------ what has to be true afterwards
    def _recovered(self, cycle: int, causes: set[int]) -> bool:
        """Both ranks make progress in ``cycle``; whether one of ``causes`` ended the one before.

        False: the machine stood still, and another rank was found hung first.
        """
        until(
            lambda: (self._job.cycle_in_progress() or 0) >= cycle,
            f"both ranks make progress in cycle {cycle}; "
            f"they are at {[self._job.progress(rank) for rank in RANKS]}",
        )
        before, self._cycle = self._cycle, cycle
        stopped = until(
            lambda: [e for e in self._job.job.events("cycle_stopping") if e["cycle"] == before],
            f"the event of the end of cycle {before}",
        )
        assert len(stopped) == 1, stopped
        was_caused = stopped[0]["cause_local_rank"] in causes
        if not was_caused:
            self._count_stall(before)
        self._settled()
        return was_caused

    def _settled(self) -> bool:
        """Whether the job has restarted without our doing, because the machine stood still."""
        now = self._job.cycle_in_progress()
        if now is None or now == self._cycle:
            return False
        for cycle in range(self._cycle, now):
            self._count_stall(cycle)
        self._cycle = now
        return True

    def _count_stall(self, cycle: int) -> None:
        """A limit this short runs out on a healthy rank that gets no CPU for so long."""
        overdue = [e for e in self._job.job.events("rank_overdue") if e["cycle"] == cycle]
        assert overdue, f"cycle {cycle} ended although nothing was done to it"
        self.stalls += 1

    def _was_explained(self, pid: int) -> None:
        """Found by its limit, and its stacks are there.

        A rank that had no time to meet its new monitor is given the signal for stacks in the middle
        of its work, and about one in 400 dies of that (see ``StackDump``); it was to be ended.
        """
        events = self._job.job.events()
        overdue = [e for e in events if e["kind"] == "rank_overdue" and e["pid"] == pid]
        assert overdue, f"rank with pid {pid} was not found hanging"
        evidence = [e for e in events if e["kind"] == "evidence" and e["pid"] == pid]
        exits = [
            e.get("signal") for e in events if e["kind"] == "worker_exited" and e["pid"] == pid
        ]
        if any(self._monitor_kills.values()) and exits == [signal.SIGSEGV]:
            return
        assert evidence, f"nothing was written down about pid {pid}"
        assert evidence[0]["stacks"], evidence

    def _look_at_launcher(self, number: int) -> None:
        """Nothing that is held at a quiet moment becomes more."""
        until(lambda: sorted(self._job.monitors()) == list(RANKS), "every rank has its monitor")
        baseline = self._baseline
        if baseline is None:
            everybody = 2 * len(RANKS) + 1
            until(
                lambda: len(self._job.children()) == everybody,
                "two ranks, two monitors, and who looks after the host",
            )
            self._baseline = baseline = self._job.resources()
        now = baseline

        def has_not_grown() -> bool:
            nonlocal now
            now = self._job.resources()
            return all(new <= old for new, old in zip(now[:-1], baseline[:-1], strict=True))

        try:
            until(has_not_grown, "the launcher holds no more than at first")
        except AssertionError as error:
            raise AssertionError(
                f"{error}\nat first {baseline}\nnow {now}\n" + "\n".join(self._job.runtime_files())
            ) from None
        self._rss.append((self._cycle, now.rss_kib))

    def _finish(self) -> None:
        for rank in RANKS:
            self._job.order(rank, "finish")
        exit_code = self._job.job.wait()
        assert exit_code == 0, f"exit code {exit_code}\n{self._job.job.stderr[-4000:]}"
        self._job.assert_nothing_is_left()
        growth = self.rss_growth_kib
        restarts = self._cycle or 1
        assert growth <= RSS_GROWTH_KIB_MAX + RSS_NOISE_KIB / restarts, (
            f"the launcher grew by {growth:.1f} KiB per restart"
        )

    @property
    def rss_growth_kib(self) -> float:
        """Per restart, after the first quarter: slope of the line that fits best."""
        samples = self._rss[len(self._rss) // 4 :]
        cycles, kib = zip(*samples, strict=True)
        return statistics.linear_regression(cycles, kib).slope if len(set(cycles)) > 1 else 0.0

    def summary(self) -> str:
        """One line per kind, and what the launcher held."""
        lines = [
            f"  {kind:36} {len(took):4} times, median {statistics.median(took) * 1e3:6.0f} ms, "
            f"worst {max(took) * 1e3:6.0f} ms"
            for kind, took in sorted(self.took_s.items())
        ]
        held = self._baseline
        if held is not None:
            lines.append(
                f"  {self._cycle} restarts; launcher: {held.descriptors} descriptors, "
                f"{held.threads} threads, {held.files} files in memory, "
                f"RSS {self._rss[0][1]} -> {self._rss[-1][1]} KiB "
                f"({self.rss_growth_kib:+.1f} KiB per restart)"
            )
        if self.stalls:
            lines.append(f"  {self.stalls} times a healthy rank stood still for its whole limit")
        return "\n".join(lines)


def soak(folder: Path, faults: int, seed: int) -> str:
    """Run, and return a summary.

    Raises:
        AssertionError: Something was not recovered from, was left, or grew.
    """
    with launcher(folder) as jobs:
        run = Soak(jobs, faults, seed)
        run.run()
        return run.summary()


def main(arguments: list[str]) -> int:
    """Exit code 0 when all was recovered from and nothing is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), metavar="N")
    parsed = parser.parse_args(arguments)
    print(f"soak: {parsed.faults} faults, seed {parsed.seed}", flush=True)
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast_soak_") as folder:
        try:
            print(soak(Path(folder), parsed.faults, parsed.seed))
        except AssertionError as error:
            print(f"FAILED: {error}")
            print(f"repeat: python -m tests.soak --faults {parsed.faults} --seed {parsed.seed}")
            return 1
    print(f"soak: all recovered or ended as they should, in {time.monotonic() - began_at:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
