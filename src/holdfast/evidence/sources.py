"""Sources of evidence: each adds its fields to the record of a rank, ``RankEvidence``."""

# ruff: noqa: D102 - the base class, Source, describes the methods

from __future__ import annotations

from math import inf

from holdfast.base.processes import proc
from holdfast.evidence import proc_sample
from holdfast.evidence.pure import stacks
from holdfast.evidence.pure.evidence import FILE, OTHER_PROCESS
from holdfast.evidence.pure.rank_digest import Sight, state_of, waits_for
from holdfast.evidence.pure.rank_words import awaited
from holdfast.evidence.stack_dump import StackDump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from holdfast.evidence.pure.evidence import Operations

HELPER_NAME = "holdfast-look"
"""Of the helper thread, in /proc."""
LOCK_SWITCHES = 3
"""Context switches in 50 ms of a thread that waits for the interpreter's lock, at least."""
SILENT_S = 0.2
"""A helper thread that has the interpreter's lock answers within milliseconds."""
OPERATIONS_S = 0.3
"""Until when it has said in which collectives the rank is."""
STACKS_S = 0.1
"""Kept for the stacks, however late the helper is."""
UNINTERRUPTIBLE_S = 0.1
"""How long stacks are awaited of a process in state D, which takes no signal."""
STOPPED_STATES = ("T", "t")
_WORKER_NAME = "pt_data_worker"
"""By which torch's loader names its workers, in /proc."""
_WORKERS_MAX = 16
_WORKER_DUMPS_MAX = 4
_KEPT_MAX = 3
"""Samples of a guard: when the rank was late, when all were interrupted, when it is ended."""


class Source:
    """A source that has all its facts at once."""

    def step(self, now: float) -> float | None:
        """Take the step that is due; until when to wait for more. None: nothing more comes."""
        del now
        return None

    def facts(self) -> dict[str, Any]:
        """Fields of ``RankEvidence``."""
        return {}

    def finish(self) -> None:
        """All sources have ended, the deadline has come, or the collection is broken off."""


class MainThread(Source):
    """Samples of the main thread in /proc, which show its activity in between.

    Attributes:
        first: The first sample; None: there is no such process.
        second: The later one.
        children: The latest samples of child processes that live.
    """

    def __init__(self) -> None:
        self.first: Sight | None = None
        self.second: Sight | None = None
        self.children: Mapping[int, Sight | None] = {}

    @property
    def state(self) -> str:
        """Letter of ps(1), of both samples."""
        return state_of(self.first, self.second)


class ProcSamples(MainThread):
    """Two samples, ``apart_s`` apart, of the main thread or another one, and of child processes."""

    def __init__(
        self,
        pid: int,
        now: float,
        apart_s: float = proc_sample.APART_S,
        *,
        thread_id: int | None = None,
        with_children: bool = False,
    ) -> None:
        super().__init__()
        self.pid = pid
        self.second_due_at = now + apart_s
        self._thread_id = thread_id
        self.first = proc_sample.look_at(pid, thread_id)
        self._began_at, self._apart_s, self._is_frozen = now, 0.0, False
        children = proc.children(pid)[:_WORKERS_MAX] if with_children else []
        self.children = _look_at_all(children)

    def step(self, now: float) -> float | None:
        if self.are_two:
            return None
        if now < self.second_due_at:
            return self.second_due_at
        self._apart_s = now - self._began_at
        self.second = proc_sample.look_at(self.pid, self._thread_id)
        after = _look_at_all(self.children)
        self.children = {pid: one for pid, one in after.items() if one is not None}
        if self.state in ("D", *STOPPED_STATES):
            self._is_frozen = proc_sample.is_frozen(self.pid)
        return None

    @property
    def are_two(self) -> bool:
        """Both have been taken."""
        return self._apart_s > 0.0

    def facts(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "apart_s": self._apart_s,
            "is_frozen": self._is_frozen,
        }


class KeptSamples(MainThread):
    """The last samples of a guard, which takes one each time that it reads the rank's page."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self._samples: list[tuple[float, Sight]] = []
        self._ran_at = 0.0

    def sample(self, now: float, ran_at: float) -> None:
        """Take one; ``ran_at``: when another thread last had the interpreter.

        Never after a signal: a dump of stacks may end the sleep in C in which the rank hangs.
        """
        if (seen := proc_sample.look_at(self._pid)) is not None:
            self._samples = [*self._samples[1 - _KEPT_MAX :], (now, seen)]
            self._ran_at, self.first = ran_at, seen

    def facts(self) -> dict[str, Any]:
        if not self._samples:
            return {}
        last_at, last = self._samples[-1]
        earlier = [(at, it) for at, it in self._samples if at <= last_at - proc_sample.APART_S]
        if not earlier:
            return {"first": last}
        first_at, first = earlier[-1]
        apart_s = last_at - first_at
        # The limits for a busy thread are for samples that are APART_S apart.
        switches = int((last.switches - first.switches) * proc_sample.APART_S / apart_s)
        return {
            "first": first,
            "second": last.but(switches=first.switches + max(0, switches)),
            "apart_s": apart_s,
            "is_asked": True,
            "is_alive": self._ran_at > first_at,
        }


class HelperThread(Source):
    """Whether a thread of the rank can run: it answers, or the interpreter's lock is held.

    Args:
        ask: Asks it where the rank is; None: the rank has no helper thread.

    Attributes:
        operations: Its answer.
        is_silent: There is none, though it had a CPU.
        unproven: Why its silence does not show that the lock is held; "": it does.
        others_run: Another thread of the rank runs.
    """

    def __init__(
        self, samples: ProcSamples, ask: Callable[[], None] | None, now: float, until: float
    ) -> None:
        self._samples = samples
        self._until = until
        self._wait_until = now
        self.is_asked = ask is not None and samples.first is not None
        self.is_alive = self.is_silent = self.others_run = self.has_stacks = False
        self.operations: Operations | None = None
        self.unproven = ""
        self._is_starved = self._has_begun = False
        self._thread: Sight | None = None
        self._thread_before: Sight | None = None
        self._sleeps_before: dict[str, int] = {}
        if ask is not None and self.is_asked:
            ask()
            self._wait_until = min(until - STACKS_S, now + SILENT_S)

    def answered(self, operations: Operations | None = None) -> None:
        """Take in its answer: first that it is there, then where the rank is."""
        # After the stacks were asked for, an answer proves nothing: their signal may have ended
        # the call that held the lock.
        self.is_alive = self.is_alive or not self.is_silent
        self.operations = operations or self.operations

    def step(self, now: float) -> float | None:
        if not self._has_begun:
            self._begin(now)
        if not self.is_asked or self.is_alive:
            return None
        if now < self._wait_until:
            return self._wait_until
        pid = self._samples.pid
        before, self._thread = self._thread, proc_sample.look_at_thread(pid, HELPER_NAME)
        if self._thread is None or self._thread.state != "R":
            self.is_silent, self._is_starved = True, False
            self.unproven = self._why_lock_is_unproven()
            self.others_run = proc_sample.others_run(
                pid, HELPER_NAME, self._sleeps_before, LOCK_SWITCHES
            )
        elif before is None:  # it waits for a CPU, or wakes every 5 ms to ask for the lock
            self._wait_until, self._is_starved = now + proc_sample.APART_S, True
        elif self._thread.switches >= before.switches + LOCK_SWITCHES:
            self.is_silent, self._is_starved = True, False
        else:
            self._wait_until = min(self._until - STACKS_S, now + SILENT_S)
        return self._wait_until if now < self._wait_until else None

    def _begin(self, now: float) -> None:
        self._has_begun = True
        pid = self._samples.pid
        if self.is_asked and not self.is_alive:
            self._thread_before = proc_sample.look_at_thread(pid, HELPER_NAME)
            self._sleeps_before = proc_sample.sleeps_of_others(pid)
        if self._samples.state in ("D", *STOPPED_STATES):
            self._wait_until = now  # it is stopped, too; or as good as that

    def _why_lock_is_unproven(self) -> str:
        # A thread that waits for the lock wakes every 5 ms. One that sleeps has no connection any
        # more, because the program has closed it.
        before, thread = self._thread_before, self._thread
        if thread is None:
            return "its helper thread has ended"
        if before is not None and thread.switches < before.switches + LOCK_SWITCHES:
            return "its helper thread sleeps and cannot be reached"
        return ""

    def facts(self) -> dict[str, Any]:
        is_starved = self._is_starved and not self.is_alive
        # Without stacks its interpreter may be ending, and such a thread with it.
        is_unproven = bool(self.unproven) and self.has_stacks and not self.is_alive
        lacks = ["its helper thread had no CPU to answer"] if is_starved else []
        return {
            "is_asked": self.is_asked and not is_starved and not is_unproven,
            "is_alive": self.is_alive,
            "operations": self.operations,
            "lacks": [*lacks, self.unproven] if is_unproven else lacks,
        }


class DumpedStacks(Source):
    """The rank's stacks, then those of its loader's workers if it waits for one.

    Args:
        signum: Dumps them into the file ``path``; 0: none may be sent.
        helper: None: the main thread alone is of interest.
        ask_helper: Asks the helper thread for the stacks; None: there is none.
        wakes_stopped: A stopped rank is woken for them.
        will_end: It is decided that the rank is ended.
        is_gentle: No signal is sent.

    Attributes:
        dump: The dump of the rank; None: it was not asked.
        text: Its stacks, without the helper thread.
        place: Where the thread of interest is.
    """

    def __init__(
        self,
        process: proc.Process,
        signum: int,
        path: str | None,
        *,
        samples: MainThread,
        helper: HelperThread | None = None,
        ask_helper: Callable[[], None] | None = None,
        wakes_stopped: bool = True,
        will_end: bool = False,
        is_gentle: bool = False,
    ) -> None:
        self._process = process
        self._signal = signum
        self._path = path
        self._samples = samples
        self._helper = helper
        self._ask_helper = ask_helper
        self._wakes_stopped = wakes_stopped
        self._will_end = will_end
        self._is_gentle = is_gentle
        self._has_asked = False
        self._give_up_at = inf
        self._latest: Sight | None = None
        self._dump: StackDump | None = None  # that comes now, of the rank or of a worker
        self._pending: list[int] = []  # workers whose stacks are wanted
        self._worker = self._silent_worker = ""
        self.dump: StackDump | None = None
        self.text = ""
        self.place = stacks.ThreadPlace()

    def step(self, now: float) -> float | None:
        if not self._has_asked:
            self._begin(now)
        while (dump := self._dump) is not None:
            if not dump.step(now) and now < self._give_up_at:
                return min(dump.next_step_at or now, self._give_up_at)
            self.finish()
            if dump.process is self._process and _waits_for_child(self.place):
                self._pending = self._suspects()
            self._ask_next_worker(now)
        return None

    def _begin(self, now: float) -> None:
        self._has_asked = True
        state = self._samples.state
        self._latest = self._samples.second
        if state == "D":
            self._give_up_at = now + UNINTERRUPTIBLE_S
        if self._is_gentle and not self._is_helped:
            return
        if state not in STOPPED_STATES or self._wakes_stopped:
            self.ask(self._process, now)

    @property
    def _is_helped(self) -> bool:
        return self._helper is not None and self._helper.is_alive

    @property
    def is_left_stopped(self) -> bool:
        """The rank is stopped, and has not been woken."""
        return self.dump is None and self._samples.state in STOPPED_STATES

    def wake(self, now: float) -> None:
        """Ask a rank that was left stopped, and that will be ended."""
        self._has_asked = self._will_end = True
        self.ask(self._process, now)

    def ask(self, process: proc.Process, now: float) -> None:
        """Ask the rank, or a worker of it."""
        is_rank = process is self._process
        self._dump = dump = StackDump(
            process,
            self._signal,
            self._path,
            now,
            **(self._way() if is_rank else {}),
            will_end=is_rank and self._will_end,
        )
        if self.dump is None:
            self.dump = dump

    def _way(self) -> Mapping[str, Any]:
        """How to ask the rank so that its main thread notices nothing, if there is such a way."""
        if self._ask_helper is None:
            return {}
        if self._is_gentle:
            return {"ask_helper": self._ask_helper, "is_gentle": True}
        # One that is stopped cannot say that it is there; woken, it can. The signal would come in
        # the middle of whatever Python runs then, of which about one rank in 400 died.
        may_answer = self._is_helped or self._samples.state == "T"
        ask = self._ask_helper if may_answer else None
        return {"ask_helper": ask, "find_thread": self._find_thread}

    def _find_thread(self) -> int:
        """Number of the helper, if the main thread has slept since the last sample; 0: it has not.

        Its frames may be read by another thread as long as it does not run them.
        """
        pid, before = self._process.pid, self._latest
        self._latest = after = proc_sample.look_at(pid)
        if before is None or after is None or before.switches != after.switches:
            return 0
        return proc_sample.thread_of(pid, HELPER_NAME) if after.state in ("S", "D") else 0

    def written(self) -> None:
        """The helper has written all stacks."""
        if self._dump is not None and self._dump.process is self._process:
            self._dump.written()

    def take(self, text: str) -> None:
        """Take in the rank's stacks."""
        self.text = stacks.without_helper(text)
        helper = self._helper
        found = stacks.without_helpers(stacks.threads(text))
        at = len(found) - 1
        if helper is not None:
            helper.has_stacks = bool(self.text)
        if helper is not None and found:
            at = stacks.training_thread(found)
            if helper.is_silent and not helper.unproven:
                at = stacks.lock_holder(found, main_waits=self._waits_for_lock(helper))
        answer = helper.operations if helper is not None else None
        frames, is_main = found[at] if found else [], at == len(found) - 1
        self.place = stacks.place_of(frames, answer.frames if answer else (), is_main=is_main)

    def _waits_for_lock(self, helper: HelperThread) -> bool:
        """The main thread wakes every few ms to ask for the interpreter's lock, or sleeps.

        One that sleeps may hold it, unless another thread runs: without the lock, few do.
        """
        first, second = self._samples.first, self._samples.second
        if first is None or second is None or second.state != "S":
            return False
        return second.switches >= first.switches + LOCK_SWITCHES or helper.others_run

    @property
    def why_not(self) -> str | None:
        """Why there are no stacks; None: there are some."""
        if self.text:
            return None
        why_not = self.dump.why_not if self.dump is not None else None
        return why_not or ("it is stopped" if self.is_left_stopped else "there was no time")

    def facts(self) -> dict[str, Any]:
        is_missing = self.why_not is not None and not self.is_left_stopped
        return {
            "place": self.place,
            "worker": self._worker or self._silent_worker,
            "is_worker_hidden": bool(self._silent_worker) and not self._worker,
            "has_handler": bool(self.text) or self.dump is None or self.dump.has_handler,
            "lacks": [f"no stacks: {self.why_not}"] if is_missing else [],
        }

    def finish(self) -> None:
        dump, self._dump = self._dump, None
        if dump is None:
            return
        is_rank = dump.process is self._process
        try:
            if is_rank:
                self.take(dump.text())
            else:
                self._note_worker(dump)
        finally:
            dump.close()
            if not is_rank:
                dump.process.close()

    # ------------------------------------------------------------ workers of a data loader

    def _suspects(self) -> list[int]:
        """Workers, those first that do not wait for work; a stopped one is named by its state."""
        if self._is_gentle:
            return []
        states = {pid: one.state for pid, one in self._samples.children.items() if one is not None}
        for pid, state in states.items():
            if state in ("D", *STOPPED_STATES):
                self._worker = describe_child(pid, self._samples.children[pid], "")
                return []
        return sorted(states, key=lambda pid: states[pid] != "R")[:_WORKER_DUMPS_MAX]

    def _ask_next_worker(self, now: float) -> None:
        while self._pending and not self._worker:
            pid = self._pending.pop(0)
            state = proc.process_state(pid)
            if state is None:
                continue
            # Without holdfast's handler, the signal kills, or another program's handler runs.
            if not state.catches(self._signal) or not proc.is_fork(pid):
                self._note_silent_worker(pid)
                continue
            try:
                worker = proc.Process(pid)
            except ProcessLookupError:
                continue
            self.ask(worker, now)
            return

    def _note_silent_worker(self, pid: int) -> None:
        why = "it was forked before the handler for stack dumps was installed"
        if not proc.is_fork(pid):
            seen = proc.stat(pid)
            if seen is None or seen.name != _WORKER_NAME:
                return
            why = "it is an interpreter of its own (spawn, forkserver), which has no handler"
        if not self._silent_worker:
            self._silent_worker = describe_child(
                pid, self._samples.children.get(pid), f"no stack: {why}"
            )

    def _note_worker(self, dump: StackDump) -> None:
        place = stacks.place_of(stacks.main_thread(dump.text()))
        if place.line and not _waits_for_child(place):
            pid = dump.process.pid
            self._worker = describe_child(pid, self._samples.children.get(pid), place.line)


class TrainingThread(Source):
    """Two samples of the thread that trains, where the helper's second answer names another one."""

    def __init__(self, pid: int, helper: HelperThread, dumped: DumpedStacks, now: float) -> None:
        self._pid = pid
        self._helper = helper
        self._answer_until = now + OPERATIONS_S
        self._stacks = dumped
        self._samples: ProcSamples | None = None

    def step(self, now: float) -> float | None:
        answer = self._helper.operations
        if answer is None:
            is_due = self._helper.is_alive and now < self._answer_until
            return self._answer_until if is_due else None
        if not answer.thread:
            return None
        self._samples = self._samples or ProcSamples(self._pid, now, thread_id=answer.thread)
        return self._samples.step(now)

    def facts(self) -> dict[str, Any]:
        samples = self._samples
        if samples is None or not samples.are_two or self._stacks.place.is_main:
            return {}
        return samples.facts()


class ReceiveQueues(Source):
    """Bytes that wait in TCP connections of a rank that is in a collective."""

    def __init__(self, pid: int, dumped: DumpedStacks) -> None:
        self._pid = pid
        self._stacks = dumped
        self._unread_bytes = 0

    def finish(self) -> None:
        if self._stacks.place.is_in_collective:
            self._unread_bytes = proc_sample.unread_bytes(self._pid)

    def facts(self) -> dict[str, Any]:
        return {"unread_bytes": self._unread_bytes}


def _waits_for_child(place: stacks.ThreadPlace) -> bool:
    """Of a child itself: it waits for its parent."""
    return place.is_in_loader or place.waits_for == OTHER_PROCESS


def _look_at_all(pids: Iterable[int]) -> dict[int, Sight | None]:
    return {pid: proc_sample.look_at(pid) for pid in pids}


def describe_child(pid: int, seen: Sight | None, line: str) -> str:
    """A process that a rank waits for: its pid, its state, and the ``line`` of its stack."""
    parts = [f"pid {pid}", _state(seen.state) if seen is not None else "", line]
    waits = waits_for(seen) if seen is not None and seen.reads else ""
    file = seen.reads if seen is not None and waits == FILE else ""
    parts.append(f"waits for {awaited(waits, file)}" if waits else "")
    return ", ".join(part for part in parts if part)


def _state(letter: str) -> str:
    return f"stopped (state {letter})" if letter in STOPPED_STATES else f"state {letter}"
