"""One rank's part in a call, carried out: the machine, its watcher thread, and the main thread.

    guard ──socket──► watcher thread ──► machine ──► main thread woken, or interrupted
                        │ every interval: both progress marks
                        │ on Abort: the abort plug-in; then the interrupt, again until seen
    guard ──page────► lease thread ──► machine: the guard is stopped
    main thread ──feed(...), wait()──► machine ──► guard

The shell around ``inplace.pure.rank``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from holdfast.arena.pure.messages import SnapshotUnusable
from holdfast.arena.pure.snapshots import Restore
from holdfast.base import wait_for
from holdfast.base.clock import monotonic
from holdfast.base.own_descriptor import OwnDescriptor
from holdfast.base.pure import codec
from holdfast.base.rank_log import rank_logger
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.inplace import own_look
from holdfast.inplace.interrupt import MainThreadInterrupt, never_inside
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure import rank as machine
from holdfast.inplace.pure.escalation import Blocked, look_for_s
from holdfast.inplace.pure.escalation import is_looked_at as is_looked_at_in_restart
from holdfast.inplace.pure.job_calls import Cause
from holdfast.inplace.pure.timing import GUARD_GONE_FENCE_S, RankLease, Step, rank_fence_s
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError
from holdfast.net.pure.rate_limited_log import RateLimitedLog
from holdfast.page.page import Page
from holdfast.page.pure import page as layout
from holdfast.page.stamps import Stamps

log = rank_logger(__name__)

_CHUNK_BYTES = 1 << 16
_AGAIN_S = 0.002
"""How often an interrupt is repeated that was refused or swallowed."""
_ABORT_AGAIN_S = 0.05
"""How often the abort is: the main thread may wait for another connection by now."""
_PUT_OFF_S = 10.0
"""A restart that an atomic section or clean-up puts off for so long is worth a warning."""
_JOIN_S = 5.0

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_sessions_in_child() -> None:
    for session in _sessions:
        session.leave_in_child()


os.register_at_fork(after_in_child=_leave_sessions_in_child)


def is_in_call() -> bool:
    """Whether this process runs a function that restarts in place."""
    return bool(_sessions)


def current() -> Session | None:
    """Of the call that this process is in."""
    return next(iter(_sessions), None)


class EpochSnapshots(Protocol):
    """Takes the snapshots of an epoch."""

    def abandon(self) -> None:
        """Commit nothing that the computation has not come to yet: it is cut short. Any thread."""

    def leave(self) -> bool:
        """Take no more; returns when no thread writes any more. False: one does."""


class Session:
    """From the connection to the guard to the end of the call.

    Args:
        client: To the guard, attached.
        rank: The number this process was born with.
        abort: Called in the watcher thread, once per abort: frees ranks that wait.
        abort_again: Called every now and then until the main thread is back.
        waits: Whether the main thread waits for other ranks.
        is_idle: Whether it does so in a loop of Python, which is no progress.
        number: The rank that torch knows this process by; None: its function is not called.
        soft_s: ``soft_timeout``: a rank that hangs that long again and again is ended.
        silence_s: ``heartbeat_timeout``; the lease follows from it.
        interval_s: How often progress is marked.
    """

    def __init__(
        self,
        client: Client,
        rank: int,
        page: Page,
        interrupt: MainThreadInterrupt,
        *,
        abort: Callable[[tuple[Cause, ...]], None],
        abort_again: Callable[[], None],
        waits: Callable[[], bool],
        is_idle: Callable[[], bool],
        number: Callable[[], int | None],
        soft_s: float,
        silence_s: float,
        interval_s: float,
    ) -> None:
        self._client = client
        self._error_log = RateLimitedLog()
        self._rank = rank
        self._machine = machine.RankMachine(rank, soft_s)
        self._soft_s = soft_s
        self._entered_at = 0.0
        self._is_outside = threading.Event()
        self._page = page
        self._interrupt = interrupt
        self._abort = abort
        self._abort_again = abort_again
        self._waits = waits
        self._is_idle = is_idle
        self._number = number
        self._seen: RankDigest | None = None
        self._silence_s = silence_s
        self._interval_s = interval_s
        self._lock = threading.RLock()
        self._commit: msg.Commit | None = None
        self._directive: machine.Directive | None = None
        self._pending_abort: msg.AbortEpoch | None = None
        """For the watcher, which runs it without the lock."""
        self._woken = threading.Condition(self._lock)
        self._put_off_since: float | None = None
        self._owns_atomic = self._is_atomic_due = False
        interrupt.atomic.on_left = self._wake_watcher
        self._is_closed = False
        self.is_in_child = False
        """This process is a fork of the rank, and no rank."""
        self._begins: msg.BeginFrom | None = None
        self._has_begun = threading.Event()
        self._snapshots: EpochSnapshots | None = None
        self.key = os.urandom(8).hex()
        """Of this call, in this process."""
        self.born_world = 0
        """How many ranks the call began with."""
        self.arena_fd = -1
        """Memory for the snapshots of this process, in all epochs; -1: none yet."""
        self._fence_at: float | None = None
        self._stamps = Stamps(page.words, layout.AUTOMATIC, layout.THREAD)
        wake_up, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wake_up, self._waker = OwnDescriptor(wake_up), OwnDescriptor(waker)
        self._poll = select.poll()
        self._socket_fd = client.fileno()
        self._poll.register(self._socket_fd, select.POLLIN)
        self._poll.register(self._wake_up.fd, select.POLLIN)
        self._watcher = threading.Thread(
            target=self._watch, name="holdfast.inprocess watcher", daemon=True
        )
        # Its own thread: the watcher may be in an abort plug-in, for as long as that takes.
        self._look_again = threading.Event()
        self._lease_watcher = threading.Thread(
            target=self._watch_lease, name="holdfast.inprocess lease", daemon=True
        )

    # ------------------------------------------------------------ the main thread

    def begin(self, world: int) -> None:
        """Start the threads, and tell the guard that this rank is here."""
        _sessions.add(self)
        self.born_world = world
        self._stamps.begin()
        self._watcher.start()
        self._lease_watcher.start()
        self.feed(msg.JoinCall(self._rank, world))

    def feed(self, event: machine.Event) -> None:
        """Something happened."""
        with self._lock:
            if isinstance(event, machine.Entered):
                self._entered_at = monotonic()
                self._is_outside.clear()
            self._carry_out(self._machine.handle(event))
            if not self._machine.is_in_user_code and not self._is_outside.is_set():
                self._is_outside.set()

    def wait(self, timeout_s: float | None = None) -> machine.Directive | None:
        """The main thread's next step; ``None``: there was none within ``timeout_s``."""
        with self._lock:
            self._woken.wait_for(lambda: self._commit or self._directive, timeout_s)
            # A commit is always taken, also where the next abort is already here: it says from
            # which assignment every rank starts.
            if self._commit is not None:
                commit, self._commit = self._commit, None
                return commit
            directive, self._directive = self._directive, None
            if directive is not None and self._owns_atomic:
                # The main thread has left the function: its plug-ins may enter sections again.
                self._is_atomic_due = True
                self._wake_watcher()
            return directive

    # ------------------------------------------------------------ snapshots

    @property
    def born(self) -> int:
        """The number that this process was born with."""
        return self._rank

    @property
    def epoch(self) -> int:
        """The one that runs."""
        return self._machine.epoch

    def place(self, place: msg.Place) -> None:
        """This rank has its place in an epoch that begins from snapshots."""
        self.feed(msg.RanksPlaced(self.epoch, (place,)))

    def begin_from(self) -> msg.BeginFrom | None:
        """The snapshot that all ranks of this epoch begin from; None: as the call began.

        Waits until all ranks have their places. The user's code: it may be interrupted.
        """
        self._has_begun.wait()
        return self._begins

    def keep_arena(self, fd: int, began: Restore | None, progress: int) -> None:
        """Have the guard keep the memory of this process's snapshots; see :class:`.OpenedArena`."""
        self.arena_fd = fd
        self.feed(msg.OpenedArena(self._rank, fd, began, progress))

    def refuse(self, unusable: SnapshotUnusable) -> None:
        """This rank cannot begin from a snapshot."""
        self.feed(unusable)

    def takes(self, snapshots: EpochSnapshots) -> None:
        """They are taken from now on, until this epoch is over."""
        self._snapshots = snapshots

    def abandon_snapshots(self) -> None:
        """Before collectives are aborted."""
        if self._snapshots is not None:
            self._snapshots.abandon()

    def leave_snapshots(self) -> bool:
        """The function has been left. False: a thread of it still writes."""
        snapshots, self._snapshots = self._snapshots, None
        return snapshots is None or snapshots.leave()

    def must_unwind(self) -> bool:
        """Whether an abort has come: the main thread's work is in vain."""
        with self._lock:
            return self._machine.must_unwind

    def mark_progress(self) -> None:
        """Set the automatic mark to now, and the manual one, if there is one."""
        now = monotonic()
        words = self._page.words
        words[layout.AUTOMATIC] = now
        if words[layout.MANUAL]:
            words[layout.MANUAL] = now

    def take_seen(self) -> RankDigest | None:
        """Where the main thread was at the abort of a hang, once; None: no hang, or not needed."""
        seen, self._seen = self._seen, None
        return seen

    def close(self) -> None:
        """End the threads and the connection."""
        _sessions.discard(self)
        with self._lock:
            self._is_closed = True
        self._wake_watcher()
        self._look_again.set()
        for thread in (self._watcher, self._lease_watcher):
            if thread.ident is not None:
                thread.join(_JOIN_S)
        self._stamps.end()
        self._client.close()
        if self.arena_fd >= 0:
            os.close(self.arena_fd)
        self._wake_up.close()
        self._waker.close()

    def leave_in_child(self) -> None:
        """In a forked child, which is no rank: close the connection, and mark no progress."""
        self.is_in_child = True
        self._page.leave_in_child()
        self._interrupt.atomic.reset()
        self._client.close()

    # ------------------------------------------------------------ effects

    def _carry_out(self, effects: list[machine.Effect]) -> None:
        for effect in effects:
            match effect:
                case msg.Commit():
                    self._commit = effect
                    self._begins = None
                    self._has_begun.clear()
                    if not effect.snapshots:
                        self._has_begun.set()
                    self._woken.notify_all()
                case msg.BeginFrom():
                    self._begins = effect
                    self._has_begun.set()
                case msg.Exit() | machine.Unwind() | machine.MayLeave():
                    self._directive = effect
                    self._woken.notify_all()
                case msg.AbortEpoch():
                    self._pending_abort = effect
                    self._wake_watcher()
                case machine.Interrupt():
                    self._interrupt.request()
                    self._wake_watcher()
                case _:
                    self._send(codec.encode(effect))

    def _wake_watcher(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has enough to read
            if self._waker.is_own():
                os.write(self._waker.fd, b"w")

    def _send(self, frame: dict[str, object]) -> None:
        try:
            self._client.send(frame)
        except OSError as error:
            log.debug("nothing more can be said to the guard: %s", error)

    # ------------------------------------------------------------ the watcher thread

    def _watch(self) -> None:
        next_mark = monotonic()
        next_abort = 0.0
        wake_fd = self._wake_up.fd
        self._receive()  # messages that came with the answer to Attach
        while not self._is_closed:
            now = monotonic()
            if now >= next_mark:
                # Clean-up is woken by each interrupt that it refuses: that is no progress.
                is_idle = self._interrupt.refused_at or self._is_idle()
                self._stamps.beat(main_counts=not is_idle)
                self._page.words[layout.WAITS] = float(self._waits())
                next_mark = now + self._interval_s
            sleep_s = next_mark - now
            if self._machine.is_interrupting:
                sleep_s = min(sleep_s, _AGAIN_S)
            ready = self._poll.poll(wait_for.milliseconds(sleep_s))
            if any(fd == wake_fd for fd, _ in ready):
                self._drain_wake_up()
            if any(fd != wake_fd for fd, _ in ready):
                self._receive()
            if self._is_atomic_due:
                self._resume_atomic()
            if self._pending_abort is not None:
                if self._own_atomic():
                    abort, self._pending_abort = self._pending_abort, None
                    self._run_abort(abort.causes)
                    next_abort = monotonic() + _ABORT_AGAIN_S
            elif self._machine.is_interrupting:
                self._interrupt.deliver_again()
                if monotonic() >= next_abort:
                    self._repeat_abort()
                    next_abort = monotonic() + _ABORT_AGAIN_S
            if self._fence_at is not None and now >= self._fence_at:
                self._fence()
            self._warn_if_put_off()
        self._resume_atomic()

    def _own_atomic(self) -> bool:
        """Whether the abort may begin; if not, the thread that leaves its section wakes this one.

        From here to the end of the main thread's way out of the function no section begins.
        """
        atomic = self._interrupt.atomic
        atomic.suspend_entry()
        self._owns_atomic = atomic.try_own()
        return self._owns_atomic

    def _resume_atomic(self) -> None:
        self._is_atomic_due = self._owns_atomic = False
        self._interrupt.atomic.resume_entry()

    def _warn_if_put_off(self) -> None:
        """Once a restart: the rank holds up all others, and is ended if that goes on."""
        is_put_off = self._pending_abort is not None or self._interrupt.refused_at
        if not is_put_off:
            self._put_off_since = None
            return
        now = monotonic()
        if self._put_off_since is None:
            self._put_off_since = now
        if now < self._put_off_since + _PUT_OFF_S:
            return
        self._put_off_since = float("inf")
        section = f"an atomic section; its main thread is in {own_look.place_of_main().line}"
        obstacle = self._interrupt.refused_at or section
        log.warning(
            "a restart waits for %s, for %g s now: all ranks wait for this one, and its process is "
            "killed after hard_timeout without progress, or barrier_timeout after the fault",
            obstacle,
            _PUT_OFF_S,
        )

    def _drain_wake_up(self) -> None:
        if not self._wake_up.is_own():  # closed by the program: it would be ready for ever
            self._poll.unregister(self._wake_up.fd)
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_up.fd, _CHUNK_BYTES)

    def _repeat_abort(self) -> None:
        try:
            self._abort_again()
        except Exception as error:  # noqa: BLE001 - without this thread nothing frees the main thread
            self._report("the abort", f"failed when it was repeated: {error!r:.200}")

    def _report(self, culprit: str, problem: str) -> None:
        if (line := self._error_log.line(culprit, problem, monotonic())) is not None:
            log.error("%s", line)

    def _receive(self) -> None:
        try:
            frames = self._client.received()
        except (OSError, FrameError) as error:
            self._poll.unregister(self._socket_fd)
            self._fence_at = monotonic() + GUARD_GONE_FENCE_S
            how = getattr(error, "strerror", None) or error
            self.feed(msg.Exit(False, f"the guard of this node is gone: {how}"))
            return
        for frame in frames:
            self._take(frame)

    def _take(self, frame: dict[str, object]) -> None:
        try:
            message = codec.decode(msg.TO_RANK, frame)
            if isinstance(message, msg.GuardLog):
                (log.warning if message.level == "warning" else log.error)("%s", message.text)
                return
            self._look_again.set()  # the guard's lease is shorter than the one to begin with
            if isinstance(message, msg.AbortEpoch) and message.is_hang:
                self._look()  # before the main thread is freed
            self.feed(message)
        except Exception as error:  # noqa: BLE001 - the watcher must not die of a message
            problem = f"sent a message that cannot be handled: {error!r:.200}"
            self._report("the guard of this node", problem)

    def _look(self) -> None:
        number, phase = self._number(), self._machine.phase
        if number is None or self._seen is not None:
            return
        try:
            if phase is machine.RankPhase.RUNNING:
                self._seen = own_look.look_at_main(number, self._is_outside.wait)
            elif phase is machine.RankPhase.DONE:
                self._seen = own_look.has_returned(number)
        except Exception as error:  # noqa: BLE001 - it has no part in the restart
            log.debug("the main thread was not seen: %r", error)

    def _fence(self) -> None:
        """The others go on without this rank: a function that is still running must end."""
        self._fence_at = None
        if self._machine.is_in_user_code:
            _end_this_process(
                "the node guard is gone, and the function has not let a restart pass for "
                f"{GUARD_GONE_FENCE_S:g} s"
            )

    def _run_abort(self, causes: tuple[Cause, ...]) -> None:
        self._stamps.beat()  # progress before now is not taken for being freed
        stood_from = self._last_progress()
        silent_s = monotonic() - stood_from
        is_looked_at = (
            self._machine.is_in_user_code
            and not self._page.words[layout.UNLIMITED]
            and is_looked_at_in_restart(causes, silent_s, self._soft_s)
        )
        is_freed = is_looked_at and self._waits()
        self._abort(causes)
        if not is_looked_at:
            self.feed(machine.AbortDone())
            return
        is_freed = is_freed or self._is_freed(stood_from)
        worked_s = stood_from - self._entered_at
        self.feed(machine.AbortDone(Blocked(worked_s, silent_s, is_freed)))

    def _last_progress(self) -> float:
        words = self._page.words
        manual = words[layout.MANUAL] or words[layout.AUTOMATIC]
        return max(self._entered_at, min(words[layout.AUTOMATIC], manual))

    def _is_freed(self, stood_from: float) -> bool:
        """Whether the main thread runs again, or leaves, now that collectives are aborted.

        A stamp wakes no thread, so it is looked for; only where a rank stood still for long.
        """
        is_blocked = self._page.words[layout.AUTOMATIC] <= stood_from  # else only ping() is late
        until = monotonic() + look_for_s(self._soft_s, self._machine.hangs.in_a_row)
        while True:
            self._stamps.beat()
            if is_blocked and self._page.words[layout.AUTOMATIC] > stood_from:
                return True
            if self._is_outside.wait(_AGAIN_S):
                return True
            if monotonic() >= until:
                return False

    # ------------------------------------------------------------ the lease thread

    def _watch_lease(self) -> None:
        words = self._page.words
        lease = RankLease(rank_fence_s(self._silence_s))
        while not self._is_closed:
            until, now = words[layout.LEASE_UNTIL] or None, monotonic()
            step = lease.look(until, now)
            if step is not Step.NOTHING:
                why, has_left = self._why_over(until or now, now), self._machine.has_left
                if step is Step.END and not has_left:
                    _end_this_process(f"{why}; it has not left the function")
                self.feed(msg.Exit(False, why))
                if has_left:
                    return  # it waited at most for its guard's word that the others stop
            look_at = lease.next_look(until)
            if look_at is None:
                return  # the call is over
            self._look_again.wait(max(0.0, look_at - monotonic()))
            self._look_again.clear()

    def _why_over(self, until: float, now: float) -> str:
        return (
            "the guard of this node is stopped or cut off: this rank's lease, which it renews, ran "
            f"out {now - until:.1f} s ago (heartbeat_timeout {self._silence_s:g} s), and the other "
            "nodes continue without this one"
        )


def _end_this_process(why: str) -> None:
    """First the stacks of all threads, then SIGKILL: no other process may be left to do it."""
    log.critical("%s: this process kills itself (SIGKILL); its stacks are on stderr", why)
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.dump_traceback(2)
    os.kill(os.getpid(), signal.SIGKILL)


for _own in (Session.feed, Session.wait):
    never_inside(_own)
