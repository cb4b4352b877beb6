"""One call of a wrapped function with all its restarts: the main thread's half.

The order that plug-ins may rely on::

    assignment → RANK, WORLD_SIZE → initialize → health_check → function ─┬─► all done → completion
        ▲                                                                 │ any rank's fault
        └── all ready ◄── garbage ◄── health_check ◄── finalize ◄── abort ┘ (in the watcher thread)

``inplace/pure`` decides between ranks; ``session.py`` and the node's guard act on that.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import gc
import inspect
import logging
import math
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from torch.distributed import DistStoreError

from holdfast.base.clock import monotonic
from holdfast.base.own_descriptor import out_of_the_way
from holdfast.base.processes import system_calls
from holdfast.base.processes.proc import why_unusable
from holdfast.base.pure.codec import MAX_TEXT
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.rank_sets import text_of
from holdfast.base.pure.wording import count
from holdfast.base.rank_log import rank_logger
from holdfast.evidence import current_collectives  # noqa: F401 - for own_look.py
from holdfast.evidence.dump_signal import register_stack_dump
from holdfast.evidence.pure.echoes import is_echo
from holdfast.inplace.bootstrap import (
    Meeting,
    late_ranks,
    meet,
    only_rank_without_environment,
    reached_at,
    waiting_for_rank_0,
)
from holdfast.inplace.cuda import context_problem
from holdfast.inplace.interrupt import InterruptError, MainThreadInterrupt
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure import rank as machine
from holdfast.inplace.pure.job_calls import Cause, FaultKind
from holdfast.inplace.pure.keyvalue import CALL_ROOM
from holdfast.inplace.pure.timing import AT_ONCE_S, FREED_S, LEAVE_S, wait_s
from holdfast.inplace.session import Session
from holdfast.inplace.torch_edge import abort_distributed, hosted_stores
from holdfast.inplace.torch_edge.epoch_store import EpochStore
from holdfast.inprocess._arguments import WrapperArguments
from holdfast.inprocess._plugin_call import Plugins
from holdfast.inprocess._timing import in_seconds
from holdfast.inprocess.abort import AbortTorchDistributed
from holdfast.inprocess.exception import (
    BarrierTimeout,
    HealthCheckError,
    InternalError,
    RankShouldRestart,
    RestartError,
)
from holdfast.inprocess.rank_assignment import RankDiscarded
from holdfast.inprocess.state import Mode, State
from holdfast.inprocess.store import StoreMixin, TCPStore
from holdfast.net import until_listens
from holdfast.net.address import interface_of
from holdfast.page.page import Page, anonymous_page
from holdfast.page.pure import page as layout
from holdfast.watch.rank.rank_progress import end_sections_since, end_standby, stand_by

if TYPE_CHECKING:
    from typing_extensions import Self

log = rank_logger("holdfast.inprocess.wrap")  # the name by which programs configure it

_REAP_S = 10.0
"""How long the end of a call waits for the destruction of old process groups; gloo takes 10 ms."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class RestartableCall:
    """A call of one function on this rank: set up by ``with``, then run to its end.

    Args:
        arguments: The Wrapper's, checked.
        restart_health_check: Called after a fault.
    """

    def __init__(
        self, arguments: WrapperArguments, restart_health_check: Callable[..., Any] | None
    ) -> None:
        self._arguments = arguments
        self._state = State.from_env()
        self._plugins = Plugins(arguments, restart_health_check)
        self._iteration = 0
        self._result: Any = None
        # Copies to go back to: plug-ins see one state, and keep the attributes that they set on it.
        self._base = self._assigned = self._state.copy()
        self._base.iteration = -1
        self._store: Any = None
        self._exits = contextlib.ExitStack()
        self._is_entered = False

    # ------------------------------------------------------------ setting up

    def __enter__(self) -> Self:
        """Meet the other ranks, and leave nothing behind where that fails.

        Raises:
            InternalError: This is not the main thread.
            BarrierTimeout: Not all ranks came within ``barrier_timeout``.
        """
        self._is_entered = True
        try:
            self._set_up()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._session.is_in_child:
            self._exits.close()

    def _set_up(self) -> None:
        arguments, exits = self._arguments, self._exits
        if threading.current_thread() is not threading.main_thread():
            raise InternalError(
                "a restartable function must be called in the main thread, which is the only one "
                f"that can be interrupted; this is thread {threading.current_thread().name!r}"
            )
        if (missing := why_unusable()) is not None:
            raise InternalError(missing)
        try:
            self._interrupt = MainThreadInterrupt()
        except InterruptError as error:
            raise InternalError(str(error)) from None
        exits.callback(self._interrupt.close)
        self._page = page = anonymous_page()
        exits.callback(page.close)
        exits.callback(abort_distributed.group_reaper.join, _REAP_S)
        exits.callback(abort_distributed.unwrap_excepthook)
        exits.enter_context(only_rank_without_environment())
        exits.enter_context(abort_distributed.watching())
        exits.enter_context(hosted_stores.env_rendezvous_by(lambda: self._store))
        exits.enter_context(hosted_stores.hosted_anew(lambda: self._store))
        exits.enter_context(_older_objects_set_aside())
        exits.callback(self._drop_stores)
        exits.callback(end_standby)
        barrier_s = in_seconds(arguments.barrier_timeout)
        join_s = in_seconds(arguments.join_within)
        given = dict(arguments.store_kwargs or {})
        if issubclass(arguments.store_factory, TCPStore):
            given.setdefault("timeout", dt.timedelta(seconds=join_s))
        rank = self._state.rank
        with waiting_for_rank_0(rank, barrier_s):
            self._bootstrap = store = arguments.store_factory(**given)
            client, self._meeting = meet(store, rank, self._attachment(page.fd), join_s)
        # Until the guard writes it: a guard that is stopped before it answers is noticed, too.
        page.words[layout.LEASE_UNTIL] = page.words[layout.LEASE_UNTIL] or monotonic() + barrier_s
        exits.enter_context(self._gloo_listens_where_it_is_reached())
        self._base_store = CallStore(self._meeting, barrier_s)
        self._session = Session(
            client,
            self._state.rank,
            page,
            self._interrupt,
            abort=self._abort,
            abort_again=self._abort_again,
            waits=abort_distributed.main_waits,
            is_idle=until_listens.is_waiting,
            number=self._number,
            soft_s=in_seconds(arguments.soft_timeout),
            silence_s=in_seconds(arguments.heartbeat_timeout),
            interval_s=in_seconds(arguments.progress_watchdog_interval),
        )
        exits.callback(self._session.close)
        exits.callback(self._session.leave_snapshots)
        self._session.begin(self._state.world_size)

    def _attachment(self, page_fd: int) -> msg.Attach:
        a, rank = self._arguments, self._state.rank
        path = f"/proc/{os.getpid()}/fd/{_stacks_fd()}"
        last_call = a.last_call_wait if a.waits_for_last_call else dt.timedelta(0)
        return msg.Attach(
            rank=rank,
            world=self._state.world_size,
            page_fd=page_fd,
            dump_signal=register_stack_dump(path, "inprocess"),
            dump_path=path,
            log=_for_rank(a.monitor_process_logfile, rank),
            pidfile=_for_rank(a.monitor_process_pidfile, rank),
            launcher=os.environ.get("FT_LAUNCHER_IPC_SOCKET"),
            timeouts=msg.CallTimeouts(
                soft_s=in_seconds(a.soft_timeout),
                hard_s=in_seconds(a.hard_timeout),
                grace_s=in_seconds(a.termination_grace_time),
                beat_s=in_seconds(a.heartbeats_every),
                silence_s=in_seconds(a.heartbeat_timeout),
            ),
            coordinator=msg.CoordinatorTimeouts(
                barrier_s=in_seconds(a.barrier_timeout),
                completion_s=in_seconds(a.completion_within),
                last_call_wait_s=in_seconds(last_call),
                silence_s=in_seconds(a.heartbeat_timeout),
                max_start_faults=a.max_start_faults,
                join_s=in_seconds(a.join_within),
            ),
        )

    # ------------------------------------------------------------ the main thread's loop

    def _run(self, function: Callable[[], Any]) -> Any:
        try:
            return self._until_finished(function)
        except BaseException as error:
            if not self._session.is_in_child:
                self._leave(error)
            raise

    def _until_finished(self, function: Callable[[], Any]) -> Any:
        directive = self._first_directive()
        while True:
            match directive:
                case msg.Commit():
                    self._enter_iteration(directive, function)
                    if self._session.is_in_child:
                        return self._result
                case machine.Unwind():
                    self._unwind()
                case msg.Exit(finished=True):
                    return self._finish()
                case msg.Exit():
                    if directive.gave_up:
                        raise RestartError(directive.text) from self._state.fn_exception
                    if self._assigned.iteration < 0:
                        raise BarrierTimeout(directive.text)
                    raise InternalError(f"rank {self._state.initial_rank}: {directive.text}")
                case machine.MayLeave() | None:
                    raise InternalError(
                        "the wrapper is in a state that cannot be (a bug of holdfast)"
                    )
                case _:
                    assert_never(directive)
            directive = self._session.wait()

    def _first_directive(self) -> machine.Directive | None:
        report_s = in_seconds(self._arguments.barrier_timeout)
        directive = self._session.wait(report_s)
        if directive is not None:
            return directive
        if self._state.rank == 0 and self._bootstrap is not None:
            with contextlib.suppress(RuntimeError):  # of the store: no call ends for a report
                late = late_ranks(self._bootstrap, self._meeting, self._state.world_size)
                log.warning(
                    "waiting for %s, which did not come within %g s: %s",
                    count(len(late), "rank"),
                    report_s,
                    text_of(late),
                )
        return self._session.wait()

    def _enter_iteration(self, commit: msg.Commit, function: Callable[[], Any]) -> None:
        abort_distributed.release()
        if self._bootstrap is not None:
            self._use_interface_of_others()
        self._bootstrap = None  # all ranks have met: it may end with its host
        if commit.base == self._assigned.iteration:
            self._base = self._assigned
        if commit.causes:
            _explain(commit)
        failed = self._iteration
        self._iteration = commit.epoch
        self._state.copy_from(self._base)
        self._state.iteration = commit.epoch
        if self._session.must_unwind():
            return
        terminated = set(commit.terminated)
        self._new_store(commit.epoch, terminated)
        try:
            self._assign(terminated, failed)
        except BaseException:
            if self._session.must_unwind():
                return  # it was woken for another rank's fault; the next directive says so
            raise
        self._assigned = self._state.copy()
        self._assigned.store = None
        self._state.set_distributed_vars()
        self._show_number()
        if commit.snapshots:
            self._session.place(self._place())
        self._page.words[layout.MANUAL] = 0.0
        self._session.mark_progress()
        self._call(function)

    def _assign(self, terminated: set[int], failed: int) -> None:
        """Assignments see the iteration that failed, and its exception on this rank."""
        state = self._state
        state.iteration, state.fn_exception = failed, self._failed_with
        try:
            self._plugins.assign(state, self._store, terminated)
        finally:
            state.iteration, state.fn_exception = self._iteration, None
        self._failed_with = None

    def _number(self) -> int | None:
        """The rank that torch knows this process by; ``None``: its function is not called."""
        state = self._state
        if state.mode is not Mode.ACTIVE:
            return None
        return state.rank if state.active_rank is None else state.active_rank

    def _place(self) -> msg.Place:
        """As the assignment has it; ``initialize`` changes no places."""
        state, number = self._state, self._number()
        world = state.active_world_size or state.world_size
        return msg.Place(self._born, -1 if number is None else number, world)

    def _show_number(self) -> None:
        number = self._number()
        self._page.words[layout.NUMBER] = 0.0 if number is None else number + 1.0

    def _call(self, function: Callable[[], Any]) -> None:
        """The user's code, which may be interrupted; nothing else of this class may."""
        outcome: BaseException | None = None
        is_at_start = True
        is_active = False
        interrupt = self._interrupt
        self._entered_at = monotonic()
        # Drop a request that came when the last call had just returned by itself.
        interrupt.acknowledge()
        try:
            interrupt.arm(self._should_restart)
            self._session.feed(machine.Entered())
            self._plugins.initialize(self._state)
            self._check_health(self._plugins.health_check, f"before iteration {self._iteration}")
            self._check_mode()
            self._show_number()
            is_active = self._state.mode is Mode.ACTIVE
            if is_active:
                is_at_start = False
                self._result = function()
        except BaseException as error:  # noqa: BLE001 - sorted out below, where nothing interrupts
            outcome = error
        finally:
            delivered = interrupt.acknowledge()
        if self._session.is_in_child:  # the function's own fork, which came out of it
            if outcome is not None:
                raise outcome
            return
        if delivered.swallowed_at:
            log.warning(
                "a restart was swallowed by %s: let RankShouldRestart pass",
                "; ".join(delivered.swallowed_at),
            )
        if outcome is None:  # a spare, or it waits for the others, one of which may save alone
            stand_by()
        report = ""
        event: machine.Event = msg.Done(self._iteration, self._born, is_active)
        if isinstance(outcome, RankShouldRestart) and delivered.is_requested:
            event = self._fault("an interrupt that no process has asked for")
        elif isinstance(outcome, (Exception, RankShouldRestart)):
            is_at_start = is_at_start or abort_distributed.comes_from_init(outcome)
            event = self._fault(_in_words(outcome), at_start=is_at_start)
            if isinstance(outcome, Exception) and not self._session.must_unwind():
                self._state.fn_exception = outcome
                report = self._report_of(outcome)
        elif outcome is not None:
            raise outcome
        # An exception, its traceback and this frame are a cycle. It ends here, while the process
        # groups still belong to torch: otherwise the garbage collection would destroy those that
        # it holds, and there gloo takes 10 ms.
        outcome = None
        self._session.feed(event)
        if report:  # after the others know: a log may be slow
            log.warning("%s", report)

    def _fault(self, text: str, *, at_start: bool = False) -> msg.FaultReported:
        return msg.FaultReported(self._iteration, self._born, FaultKind.EXCEPTION, text, at_start)

    def _report_of(self, error: Exception) -> str:
        """A log line at once: the restart may fail, and this process with it."""
        words = _in_words(error)
        shown = "" if is_echo(words) else "\n" + "".join(traceback.format_exception(error)).rstrip()
        return f"iteration {self._iteration}: rank {self._state.rank} raised {words}{shown}"

    def _check_mode(self) -> None:
        if self._state.mode not in (Mode.ACTIVE, Mode.INACTIVE):
            raise InternalError(
                f"rank_assignment, rank_filter or initialize left rank {self._state.rank} in mode "
                f"{self._state.mode.name}: it must be active (ACTIVE) or a spare (INACTIVE)"
            )

    def _check_health(self, check: Callable[[State], None], when: str) -> None:
        try:
            check(self._state)
        except Exception as error:
            _in_context_of(error, self._state.fn_exception)
            if isinstance(error, HealthCheckError):
                raise
            raise HealthCheckError(
                f"rank {self._state.rank} is not healthy {when}: {error}"
            ) from error

    def _should_restart(self) -> RankShouldRestart:
        causes = self._causes_of_abort
        ranks = sorted({cause.rank for cause in causes})
        kinds = sorted({f"Interruption.{cause.kind.value}" for cause in causes})
        return RankShouldRestart(
            f"{', '.join(kinds)} affecting ranks {{{', '.join(map(str, ranks))}}}"
        )

    def _unwind(self) -> None:
        self._result = None
        end_sections_since(self._entered_at)
        self._session.mark_progress()
        if not self._session.leave_snapshots():
            raise InternalError(
                f"rank {self._state.rank} leaves the call: a copy of its state for a snapshot has "
                "not ended"
            )
        if abort_distributed.is_aborted() and not self._groups_stay:
            abort_distributed.discard_process_groups()
        if self._abort_left_with is not None:
            raise self._abort_left_with
        self._state.mode = Mode.ABORTED
        try:
            self._plugins.finalize(self._state)
        except BaseException as error:
            _in_context_of(error, self._state.fn_exception)
            raise
        if (problem := context_problem()) is not None:
            raise HealthCheckError(
                f"rank {self._state.rank} leaves the call: its CUDA context is lost ({problem}). "
                "No call to the GPU works in this process any more; a new process, as ft_launcher "
                "starts one, can use the GPU again"
            ) from self._state.fn_exception
        self._check_health(self._plugins.restart_health_check, "after a fault, and leaves the call")
        if self._state.fn_exception is not None:
            self._failed_with, self._state.fn_exception = self._state.fn_exception, None
            _forget_locals(self._failed_with)
        self._drop_store()
        while gc.collect():
            pass
        seen = self._session.take_seen()
        standing = msg.Standing(
            self._born, _numbering_of(self._assigned), _numbering_of(self._base), seen
        )
        self._session.feed(msg.RanksReady(self._iteration, (standing,)))

    @property
    def _born(self) -> int:
        return self._state.initial_rank

    def _finish(self) -> Any:
        try:
            self._plugins.completion(self._state)
        except Exception:
            log.exception("the completion plug-in failed; all ranks have completed")
        log.log(
            # Every rank logs it; one of them at info, where there was a restart.
            logging.INFO if self._state.active_rank == 0 < self._iteration else logging.DEBUG,
            "iteration %d: all ranks have completed (%d); rank %d of them was rank %d at the start",
            self._iteration,
            self._state.world_size,
            self._state.rank,
            self._born,
        )
        self._session.feed(msg.RankReturned(self._born))
        return self._result

    def _leave(self, error: BaseException) -> None:
        """Tell the others, wait for the abort of this rank's collectives, call the user's hook."""
        session = self._session
        is_done = _is_success(error) and self._assigned.iteration >= 0
        is_fault = not (is_done or isinstance(error, RankDiscarded))
        session.feed(msg.RankLeaves(self._iteration, self._born, is_fault, _in_words(error)))
        until = monotonic() + LEAVE_S
        while (left_s := until - monotonic()) > 0:
            if isinstance(session.wait(left_s), (machine.MayLeave, msg.Exit)):
                break
        self._state.mode = Mode.TERMINATED
        try:
            self._plugins.terminate(self._state)
        finally:
            session.feed(msg.RankReturned(self._born))

    # ------------------------------------------------------------ the watcher thread

    _causes_of_abort: tuple[Cause, ...] = ()
    _abort_left_with: BaseException | None = None
    """Raised by an abort plug-in to leave the call."""
    _aborted_at = 0.0
    _groups_stay = False
    """The abort plug-ins of the user leave torch's groups to the function: on all ranks alike."""

    def _abort(self, causes: tuple[Cause, ...]) -> None:
        self._causes_of_abort = causes
        self._groups_stay = False
        self._session.abandon_snapshots()
        store = self._store
        if store is not None:
            store.hang_up()
        try:
            self._plugins.abort(self._state)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._abort_left_with = error
            log.exception("an abort plug-in failed; those after it were called")
            if not abort_distributed.is_aborted():
                self._abort_torch("an abort plug-in failed, and no other has done it")
        self._aborted_at = monotonic()

    def _abort_again(self) -> None:
        """The main thread may wait for another connection by now than when it was aborted."""
        if abort_distributed.is_aborted():
            abort_distributed.abort_again()
        elif (
            self._arguments.abort is not None
            and monotonic() >= self._aborted_at + FREED_S
            and abort_distributed.main_waits()
        ):
            self._groups_stay = True
            self._abort_torch(f"no abort plug-in has freed its main thread within {FREED_S:g} s")

    def _abort_torch(self, why: str) -> None:
        log.warning("rank %d: torch's process groups are aborted: %s", self._born, why)
        try:
            AbortTorchDistributed()(self._state)
        except Exception:
            log.exception("they could not be; ranks may wait for their collectives to end")

    # ------------------------------------------------------------ where gloo listens

    @contextlib.contextmanager
    def _gloo_listens_where_it_is_reached(self) -> Iterator[None]:
        """Inside, groups made by gloo are reached by other hosts; a setting of the user stays."""
        interface = self._meeting.gloo_interface
        if interface is None or _GLOO_INTERFACE in os.environ:
            yield
            return
        os.environ[_GLOO_INTERFACE] = interface
        self._chose_for_gloo = self._state.rank == 0  # the others know the way to rank 0
        try:
            yield
        finally:
            os.environ.pop(_GLOO_INTERFACE, None)

    def _use_interface_of_others(self) -> None:
        """All ranks have come: have gloo use the interface on which others reach this host."""
        if not self._chose_for_gloo:
            return
        at = reached_at(self._bootstrap, self._meeting)
        if at is not None and (interface := interface_of(at)) is not None:
            os.environ[_GLOO_INTERFACE] = interface

    _chose_for_gloo = False

    # ------------------------------------------------------------ the store of an iteration

    def _new_store(self, iteration: int, terminated: set[int]) -> None:
        self._drop_store()
        timeout_s = in_seconds(self._arguments.barrier_timeout)
        self._store = IterationStore(
            self._meeting, self._base, iteration, terminated, timeout_s, self._base_store
        )
        self._state.store = self._store

    def _drop_store(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._state.store = None

    def _drop_stores(self) -> None:
        self._drop_store()
        if self._base_store is not None:
            self._base_store.close()
        self._base_store = self._bootstrap = None

    _entered_at = math.inf
    """The function was called last."""
    _failed_with: Exception | None = None
    """The function's exception on this rank, until the next assignment has seen it."""
    _bootstrap: Any = None
    _base_store: Any = None
    _meeting: Meeting
    _session: Session
    _interrupt: MainThreadInterrupt
    _page: Page


def _numbering_of(state: State) -> msg.Numbering:
    return msg.Numbering(state.iteration, state.rank, state.world_size)


class CallStore(StoreMixin, EpochStore):
    """A torch store, shared by all ranks for as long as the call lasts."""

    def __init__(self, meeting: Meeting, timeout_s: float) -> None:
        super().__init__(meeting.address, meeting.token, CALL_ROOM, timeout_s)


class IterationStore(StoreMixin, EpochStore):
    """A torch store, shared by the ranks of one iteration, empty at its beginning.

    Args:
        base: This rank's numbers before the assignment of this iteration.
        terminated: Places of that numbering whose ranks have gone.
        timeout_s: How long ranks wait for each other.
        base_store: Of the call.
    """

    def __init__(
        self,
        meeting: Meeting,
        base: State,
        iteration: int,
        terminated: AbstractSet[int],
        timeout_s: float,
        base_store: CallStore,
    ) -> None:
        super().__init__(meeting.address, meeting.token, iteration, timeout_s)
        self.base_store = base_store
        self._timeout_of_barrier_s = timeout_s
        self._place = base.rank - sum(place < base.rank for place in terminated)
        self._living = base.world_size - len(terminated)

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Values of all living ranks, the same list on each, in the order of their ranks.

        Every living rank calls it with the same ``name``, which is ASCII, short, and used once per
        iteration. A rank that is lost or leaves meanwhile is not waited for.

        Args:
            name: Of this exchange.
            value: Anything that JSON can carry.
            timeout_s: How long to wait for the others, in seconds; ``None``: as long as a barrier.

        Raises:
            BarrierTimeout: Not all came in time.
        """
        wait_s = self._timeout_of_barrier_s if timeout_s is None else timeout_s
        try:
            return self.collect(name, self._place, self._living, value, wait_s)
        except DistStoreError as error:
            raise BarrierTimeout(f"{name}: {error}") from None


@contextlib.contextmanager
def _older_objects_set_aside() -> Iterator[None]:
    """Full collections look only at objects made inside.

    Each restart collects all garbage, for the device memory that it holds. Objects from before the
    call, torch's modules above all, make that 75 ms; without them it depends on the attempt's
    garbage. Objects that the program has frozen stay frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@functools.cache
def _stacks_fd() -> int:
    """Memory that this process's stacks are dumped into; made once."""
    return out_of_the_way(system_calls.memory_file("holdfast_stacks"))


def _for_rank(path: str | None, rank: int) -> str | None:
    return None if path is None else path.format(rank=rank)


def _in_context_of(error: BaseException, earlier: BaseException | None) -> None:
    """A traceback of ``error`` shows ``earlier``, too."""
    if earlier is None or error.__context__ is not None:
        return
    if not any(one is error for one in _chain(earlier)):
        error.__context__ = earlier


def _is_success(error: BaseException) -> bool:
    """The end of a process with exit code 0."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _forget_locals(error: BaseException) -> None:
    """Free the local variables of its traceback, such as device memory; lines stay.

    Not those of generators, which may go on.
    """
    for one in _chain(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if not frame.f_code.co_flags & _GENERATES:
                with contextlib.suppress(RuntimeError):  # it runs
                    frame.clear()


def _chain(error: BaseException) -> list[BaseException]:
    """It, its causes and contexts, and of a group the members."""
    found: list[BaseException] = []
    to_do: list[BaseException | None] = [error]
    while to_do:
        one = to_do.pop()
        if one is not None and not any(one is other for other in found):
            found.append(one)
            to_do += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return found


def _in_words(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{text[: MAX_TEXT // 2]}{where[:500]}"


def _explain(commit: msg.Commit) -> None:
    """Log all causes, the first one first; of echoes, which ranks had them."""
    first, *rest = commit.causes
    also: dict[str, list[int]] = {}
    for cause in rest:
        event = f"{cause.kind.value} of {{}}: {cause.text}"
        echo = "errors of {}, as another rank was gone"
        also.setdefault(echo if is_echo(cause.text) else event, []).append(cause.rank)
    more = "".join(
        "; then " + event.replace("{}", f"rank{'s' if len(ranks) > 1 else ''} {text_of(ranks)}", 1)
        for event, ranks in also.items()
    )
    in_a_row = max(commit.start_faults, commit.faults_at_once)
    if in_a_row > 1:
        if commit.start_faults == in_a_row:
            how, way_out = "failed at the start", ""
        else:
            how = f"failed within {AT_ONCE_S:g} s"
            way_out = "; initialize.RetryController(max_iterations=) limits the calls"
        failed, waited_s = count(in_a_row, "iteration"), wait_s(in_a_row)
        more += f"; {failed} in a row {how}, waited {waited_s:g} s{way_out}"
    verdict = commit.verdict
    log.warning(
        "iteration %d: restarted after %s%s of rank %d: %s%s",
        commit.epoch,
        f"a hang: {verdict.reason}; noticed as " if verdict is not None else "",
        first.kind.value,
        first.rank,
        first.text,
        more,
    )
