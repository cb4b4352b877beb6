"""Look at one rank: all that can be had of it within a bound, whatever it does or does not do.

    /proc, helper asked ──50 ms──► /proc again, helper has answered or is silent
                                     ──► stacks ──► its loader's workers ──► done

In this order: the signal that dumps stacks ends a sleep in C, and the rank would seem to compute,
or to leave the interpreter's lock to others. It would also end the hang. So no signal is sent where
the helper writes the stacks; where it cannot, as the main thread sleeps with the lock or in the
kernel, it is the helper that gets the signal; a main thread that runs gets its own. A stopped rank
is woken for its stacks last, when all ranks of the job have been looked at (:meth:`RankLook.wake`):
it runs on from there.
Nothing here waits: ``step`` is called at ``next_step_at`` and when something has come.
"""

from __future__ import annotations

from holdfast.base.processes import proc
from holdfast.evidence import sight
from holdfast.evidence.pure import stacks
from holdfast.evidence.pure.evidence import FILE, OTHER_PROCESS, Operations
from holdfast.evidence.pure.evidence_words import awaited
from holdfast.evidence.pure.rank_digest import Seen, Sight, state_of, waits_for
from holdfast.evidence.stack_dump import StackDump
from holdfast.watch.pure.rank_messages import Dump, Dumped, Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Iterable, Mapping
    from typing import Any

    from holdfast.watch.monitor.visitors import Visitor
    from holdfast.watch.pure.rank_messages import Alive

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
_WORKER_NAME = "pt_data_worker"
"""By which torch's loader names its workers, in /proc."""
_WORKERS_MAX = 16
_WORKER_DUMPS_MAX = 4
_STOPPED = ("T", "t")
_EPOLLIN = 1


class RankLook:
    """One look at a rank.

    Args:
        process: The rank's.
        dump_signal: That dumps its stacks; 0: none may be sent.
        dump_path: Into this file; None: there is none.
        helper: Connection of its helper thread.
        epoll: Woken when the dump grows.
        now: When it begins.
        until: What has not come by then is missing.
        wakes_stopped: A stopped rank is woken at once: it will be ended, and no other rank is
            looked at.
        is_gentle: No signal is sent: where the helper does not write the stacks, there are none.

    Attributes:
        first: Of two looks at its main thread.
        second: The later one.
        dump: Its stacks, as they came; None: they have not been asked for.
        text: Of its stacks.
        next_step_at: When to call :meth:`step` at the latest; None: it is done.
    """

    def __init__(
        self,
        process: proc.Process,
        dump_signal: int,
        dump_path: str | None,
        helper: Visitor | None,
        epoll: select.epoll,
        now: float,
        until: float,
        *,
        wakes_stopped: bool,
        is_gentle: bool = False,
    ) -> None:
        self._process = process
        self._signal = dump_signal
        self._is_gentle = is_gentle
        self._path = dump_path
        self._epoll = epoll
        self._started_at = now
        self._until = until
        self._wakes_stopped = wakes_stopped
        self._is_alive = False
        self._operations: Operations | None = None
        self._place = stacks.Place()
        self._unread_bytes = 0
        self._worker = self._silent_worker = ""
        self._helper = helper
        self._latest: Sight | None = None
        self._asked: proc.Process | None = None  # for the stacks that come now
        self._dump: StackDump | None = None
        self._stacks_until = until
        self.dump: StackDump | None = None
        self.text = ""
        self.first = sight.look_at(process.pid)
        self.second: Sight | None = None
        self._second_at = 0.0
        self._is_frozen = self._others_run = False
        self._of_thread: list[Sight | None] = []  # that trains, if it is not the main one
        self._of_thread_at = self._of_thread_s = 0.0
        self._workers = _look_at_all(proc.children(process.pid)[:_WORKERS_MAX])
        self._pending: list[int] = []  # workers whose stacks are wanted
        self._is_asked = helper is not None and self.first is not None
        self._is_starved = self._is_silent = self._has_asked = False
        self._thread: Sight | None = None
        self._thread_before: Sight | None = None
        self._sleeps_before: dict[str, int] = {}
        self._unproven = ""
        self._helper_until = now
        if helper is not None and self._is_asked:
            helper.send(Look())
            self._helper_until = min(until - STACKS_S, now + SILENT_S)
        self.next_step_at: float | None = now + sight.APART_S

    @property
    def is_done(self) -> bool:
        """Nothing more will come."""
        return self.next_step_at is None

    @property
    def is_left_stopped(self) -> bool:
        """The rank is stopped, and has not been woken."""
        return self.dump is None and state_of(self.first, self.second) in _STOPPED

    def is_at(self, process: proc.Process) -> bool:
        """It is this process that is looked at."""
        mine = self._process
        return (mine.pid, mine.start_ticks) == (process.pid, process.start_ticks)

    def helper_said(self, message: Alive | Operations | Dumped) -> None:
        """Take in what the rank's helper thread says."""
        if isinstance(message, Dumped):
            if self._dump is not None and self._asked is self._process:
                self._dump.written()
            return
        # After the stacks were asked for, an answer proves nothing: see above.
        self._is_alive = self._is_alive or not self._is_silent
        if isinstance(message, Operations):
            self._operations = message

    def step(self, now: float) -> bool:
        """Take the next step that is due; whether there is none any more."""
        if self.next_step_at is None:
            return True
        if not self._second_at:
            if now < self._started_at + sight.APART_S:
                return False
            self._look_again(now)
        wait_until = self._wait_for_answer(now)
        if wait_until is None:
            if not self._has_asked:
                self._ask_for_stacks(now)
            wait_until = self._stacks_step(now)
        if wait_until is None and self._is_alive and self._operations is None:
            wait_until = (
                self._started_at + OPERATIONS_S if now < self._started_at + OPERATIONS_S else None
            )
        if wait_until is None:
            wait_until = self._look_at_thread(now)
        if wait_until is None or now >= self._until:
            self._end_dump()
            if self._place.is_in_collective:
                self._unread_bytes = sight.unread_bytes(self._process.pid)
            self.next_step_at = None
        else:
            self.next_step_at = min(wait_until, self._until)
        return self.is_done

    def _look_again(self, now: float) -> None:
        self._second_at = now
        self.second = self._latest = sight.look_at(self._process.pid)
        if self._is_asked and not self._is_alive:
            self._thread_before = sight.look_at_thread(self._process.pid, HELPER_NAME)
            self._sleeps_before = sight.sleeps_of_others(self._process.pid)
        after = _look_at_all(self._workers)
        self._workers = {pid: one for pid, one in after.items() if one is not None}
        if state_of(self.first, self.second) in ("D", *_STOPPED):
            self._helper_until = now  # it is stopped, too; or as good as that
            self._is_frozen = sight.is_frozen(self._process.pid)

    def _look_at_thread(self, now: float) -> float | None:
        """Of the thread that trains the same as of the main one; until when to wait for it."""
        thread_id = self._operations.thread if self._operations is not None else 0
        if not thread_id or len(self._of_thread) > 1:
            return None
        if self._of_thread and now < self._of_thread_at + sight.APART_S:
            return self._of_thread_at + sight.APART_S
        self._of_thread.append(sight.look_at(self._process.pid, thread_id))
        if len(self._of_thread) > 1:
            self._of_thread_s = now - self._of_thread_at
            return None
        self._of_thread_at = now
        return now + sight.APART_S

    def _wait_for_answer(self, now: float) -> float | None:
        """Until when to wait for the helper's first word; None: no longer."""
        if not self._is_asked or self._is_alive or self._has_asked:
            return None
        if now < self._helper_until:
            return self._helper_until
        before, self._thread = self._thread, sight.look_at_thread(self._process.pid, HELPER_NAME)
        if self._thread is None or self._thread.state != "R":
            self._is_silent, self._is_starved = True, False
            self._unproven = self._why_lock_is_unproven()
            self._others_run = sight.others_run(
                self._process.pid, HELPER_NAME, self._sleeps_before, LOCK_SWITCHES
            )
        elif before is None:  # it waits for a CPU, or wakes every 5 ms to ask for the lock
            self._helper_until, self._is_starved = now + sight.APART_S, True
        elif self._thread.switches >= before.switches + LOCK_SWITCHES:
            self._is_silent, self._is_starved = True, False
        else:
            self._helper_until = min(self._until - STACKS_S, now + SILENT_S)
        return self._helper_until if now < self._helper_until else None

    def _why_lock_is_unproven(self) -> str:
        """Why its silence does not show that the interpreter's lock is held; "": it does.

        A thread that waits for the lock wakes every 5 ms. One that sleeps has no connection any
        more, because the program has closed it.
        """
        before, thread = self._thread_before, self._thread
        if thread is None:
            return "its helper thread has ended"
        if before is not None and thread.switches < before.switches + LOCK_SWITCHES:
            return "its helper thread sleeps and cannot be reached"
        return ""

    def _ask_for_stacks(self, now: float) -> None:
        self._has_asked = True
        state = state_of(self.first, self.second)
        if state == "D":
            self._stacks_until = min(self._until, now + UNINTERRUPTIBLE_S)
        if self._is_gentle and not self._is_alive:
            return
        if state not in _STOPPED or self._wakes_stopped:
            self._ask(self._process, now)

    def wake(self, now: float, until: float) -> None:
        """Have the stacks of a rank that was left stopped: all others have been looked at."""
        if self.is_left_stopped:
            self._until = self._stacks_until = until
            self._ask(self._process, now)
            self.next_step_at = now

    # ------------------------------------------------------------ stacks

    def _ask(self, process: proc.Process, now: float) -> None:
        self._asked = process
        is_rank = process is self._process
        will_end = is_rank and (self._wakes_stopped or self.is_left_stopped)
        self._dump = dump = StackDump(
            process, self._signal, self._path, now, **self._way(), will_end=will_end
        )
        if self.dump is None:
            self.dump = dump
        if dump.fileno() >= 0:
            self._epoll.register(dump.fileno(), _EPOLLIN)

    def _way(self) -> Mapping[str, Any]:
        """How to ask the rank so that its main thread notices nothing, if there is such a way."""
        helper = self._helper
        if helper is None or self._asked is not self._process or self.is_left_stopped:
            return {}
        ask = lambda: helper.send(Dump())  # noqa: E731
        if self._is_gentle:
            return {"ask_helper": ask, "is_gentle": True}
        return {"ask_helper": ask if self._is_alive else None, "find_thread": self._find_thread}

    def _find_thread(self) -> int:
        """Of the helper, if the main thread has slept since the last look; 0: it has not.

        Its frames may be read by another thread as long as it does not run them.
        """
        pid, before = self._process.pid, self._latest
        self._latest = after = sight.look_at(pid)
        if before is None or after is None or before.switches != after.switches:
            return 0
        return sight.thread_of(pid, HELPER_NAME) if after.state in ("S", "D") else 0

    def fileno(self) -> int:
        """Readable when stacks have come; -1: they are not waited for like that."""
        return -1 if self._dump is None else self._dump.fileno()

    def _stacks_step(self, now: float) -> float | None:
        """Until when to wait for stacks; None: all that come have come."""
        while (dump := self._dump) is not None:
            if not dump.step(now) and now < self._stacks_until:
                return min(dump.next_step_at or self._stacks_until, self._stacks_until)
            text = dump.text()
            self._end_dump()
            if self._asked is self._process:
                self._take_stacks(text)
                if _waits_for_child(self._place):
                    self._pending = self._suspects()
            else:
                self._note_worker(stacks.place_of(stacks.main_thread(text)))
            self._ask_next_worker(now)
        return None

    def _take_stacks(self, text: str) -> None:
        self.text = stacks.without_helper(text)
        earlier = self._operations.frames if self._operations is not None else ()
        found = stacks.without_helpers(stacks.threads(text))
        at = len(found) - 1
        if found and self._is_silent and not self._unproven:
            at = stacks.lock_holder(found, main_waits=self._waits_for_lock)
        elif found:
            at = stacks.training_thread(found)
        is_main = at == len(found) - 1
        self._place = stacks.place_of(found[at] if found else [], earlier, is_main=is_main)

    @property
    def _waits_for_lock(self) -> bool:
        """The main thread wakes every few ms to ask for the interpreter's lock, or sleeps.

        One that sleeps may hold it, unless another thread runs: without the lock, few do.
        """
        first, second = self.first, self.second
        if first is None or second is None or second.state != "S":
            return False
        return second.switches >= first.switches + LOCK_SWITCHES or self._others_run

    def _end_dump(self) -> None:
        dump, self._dump = self._dump, None
        if dump is not None:
            if dump.fileno() >= 0:
                self._epoll.unregister(dump.fileno())
            dump.close()
        if self._asked is not None and self._asked is not self._process:
            self._asked.close()

    # ------------------------------------------------------------ workers of a data loader

    def _suspects(self) -> list[int]:
        """Workers, those first that do not wait for work; a stopped one is told by its state."""
        if self._is_gentle:
            return []
        states = {pid: one.state for pid, one in self._workers.items() if one is not None}
        for pid, state in states.items():
            if state in ("D", *_STOPPED):
                self._worker = _told(pid, self._workers[pid], "")
                return []
        return sorted(states, key=lambda pid: states[pid] != "R")[:_WORKER_DUMPS_MAX]

    def _ask_next_worker(self, now: float) -> None:
        while self._pending and not self._worker:
            pid = self._pending.pop(0)
            state = proc.process_state(pid)
            if state is None:
                continue
            # Another program's handler of this signal is not ours; without one, the signal kills.
            if not state.catches(self._signal) or not proc.is_fork(pid):
                self._note_silent_worker(pid)
                continue
            try:
                worker = proc.Process(pid)
            except ProcessLookupError:
                continue
            self._ask(worker, now)
            return

    def _note_silent_worker(self, pid: int) -> None:
        why = "it was forked before the handler for stack dumps was installed"
        if not proc.is_fork(pid):
            seen = proc.stat(pid)
            if seen is None or seen.name != _WORKER_NAME:
                return
            why = "it is an interpreter of its own (spawn, forkserver), which has no handler"
        if not self._silent_worker:
            self._silent_worker = _told(pid, self._workers.get(pid), f"no stack: {why}")

    def _note_worker(self, place: stacks.Place) -> None:
        worker = self._asked
        assert worker is not None
        if place.line and not _waits_for_child(place):
            self._worker = _told(worker.pid, self._workers.get(worker.pid), place.line)

    # ------------------------------------------------------------ the end

    def seen(self) -> Seen:
        """All of it."""
        why_not = self.why_no_stacks
        lacks = [f"no stacks: {why_not}"] if why_not and not self.is_left_stopped else []
        if self._is_starved and not self._is_alive:
            lacks.append("its helper thread had no CPU to answer")
        # Without stacks its interpreter may be ending, and such a thread with it.
        is_unproven = bool(self._unproven and self.text and not self._is_alive)
        if is_unproven:
            lacks.append(self._unproven)
        first, second = self.first, self.second
        apart_s = self._second_at - self._started_at if self._second_at else 0.0
        if len(self._of_thread) > 1 and not self._place.is_main:
            (first, second), apart_s = self._of_thread, self._of_thread_s
        return Seen(
            first,
            second,
            apart_s,
            self._place,
            self._is_asked and (self._is_alive or not (self._is_starved or is_unproven)),
            self._is_alive,
            self._operations,
            self._unread_bytes,
            self._worker or self._silent_worker,
            lacks,
            self._is_frozen,
            is_worker_hidden=bool(self._silent_worker) and not self._worker,
            has_handler=bool(self.text) or self.dump is None or self.dump.has_handler,
        )

    @property
    def why_no_stacks(self) -> str | None:
        """None: there are some."""
        if self.text:
            return None
        why_not = self.dump.why_not if self.dump is not None else None
        return why_not or ("it is stopped" if self.is_left_stopped else "there was no time")

    @property
    def operations(self) -> tuple[str, ...]:
        """The rank's last operations, for people."""
        return self._operations.recent if self._operations is not None else ()

    def close(self) -> None:
        """Wait for nothing more: stacks that have come by now are all."""
        self.next_step_at = None
        try:
            if self._dump is not None and self._asked is self._process:
                self._take_stacks(self._dump.text())
        finally:
            self._end_dump()


def _waits_for_child(place: stacks.Place) -> bool:
    """Of a child itself: it waits for its parent."""
    return place.is_in_loader or place.waits_for == OTHER_PROCESS


def _look_at_all(pids: Iterable[int]) -> dict[int, Sight | None]:
    return {pid: sight.look_at(pid) for pid in pids}


def _told(pid: int, seen: Sight | None, line: str) -> str:
    parts = [f"pid {pid}", f"state {seen.state}" if seen is not None else "", line]
    waits = waits_for(seen) if seen is not None and seen.reads else ""
    file = seen.reads if seen is not None and waits == FILE else ""
    parts.append(f"waits for {awaited(waits, file)}" if waits else "")
    return ", ".join(part for part in parts if part)
