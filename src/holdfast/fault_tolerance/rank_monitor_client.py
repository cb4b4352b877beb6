"""What a rank says of itself: heartbeats, sections, and limits learned from both.

A rank and its monitor share a page (``wire/page.py``): a heartbeat is a clock read and a store, an
opened section two stores. No message is sent, nothing waits, whatever state the monitor is in. The
socket carries what has to be answered: hello, armed, new limits, bye.

    start_section("step")  ──►  page  ◄──  monitor, when a limit could have run out
    calculate_and_set_...  ──►  page, then "limits" over the socket  ──►  monitor: ok, or raised

Mistakes (a section opened twice, or closed when it is not open) are found here, at once, so the
configuration's ``skip_section_response=False`` has nothing left to wait for.

Threads: everything may be called from several threads at once. Section clocks are kept by one
re-entrant lock, heartbeats take none. Processes: a forked child (a data-loader worker) has a client
that does nothing and raises nothing; a hung rank must not be kept alive by its children.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.core.learned import NEVER
from holdfast.errors import RankMonitorClientError
from holdfast.fault_tolerance import iterations, limits_state
from holdfast.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
    HeartbeatTimeouts,
    RankInfo,
    SectionTimeouts,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.limits_state import LearnedBefore
from holdfast.fault_tolerance.timeouts_calc import TimeoutsCalc
from holdfast.host import endpoint
from holdfast.host.clock import monotonic
from holdfast.host.dump_signal import register_stack_dump
from holdfast.host.endpoint import Connection, EndpointClosedError, EndpointError
from holdfast.host.exception_hook import install_exception_hook
from holdfast.host.page import Page, PageError, map_page, private_page
from holdfast.host.proc import start_ticks
from holdfast.wire import page as layout
from holdfast.wire.page import (
    HEARTBEAT_AT,
    LONGEST_GAP,
    LONGEST_OUTSIDE,
    OUTSIDE_SINCE,
)

if TYPE_CHECKING:
    from holdfast.fault_tolerance.config import FaultToleranceConfig
    from holdfast.wire.frames import Message

__all__ = ["RankMonitorClient", "RankMonitorClientError", "Section"]

_HELLO_S = 200.0
"""A monitor lets a rank wait 180 s for the one before it to leave."""
_ANSWER_S = 60.0
_BYE_S = 5.0
_DESCRIPTION_CHARS_MAX = 1000
_LONGEST = layout.LONGEST  # opened-at is the first word of a slot, this the second


class _NoSetupError(RankMonitorClientError, RuntimeError):
    """Something that the environment should have provided is not there."""


class _UnreachableError(RankMonitorClientError, OSError):
    """A socket cannot be connected to."""


class Section:
    """A section as a context manager; made by :meth:`RankMonitorClient.section`, used for ever.

    Entering it again in the thread that is inside already is allowed; the section is timed from the
    outermost ``with``. Leaving it after ``end_all_sections`` or a shutdown is allowed, too.
    """

    __slots__ = ("_client", "_depth", "_owner", "name")

    def __init__(self, client: RankMonitorClient, name: str) -> None:
        self.name = name
        self._client = client
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> Section:  # noqa: PYI034 - Self is in typing from Python 3.11
        client = self._client
        if self._depth and self._owner == _thread_id() and client._is_open(self.name):  # noqa: SLF001
            self._depth += 1
            return self
        client.start_section(self.name)
        self._owner = _thread_id()
        self._depth = 1
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if self._owner != _thread_id():
            return
        depth = self._depth = self._depth - 1
        if not depth and self._client._is_open(self.name):  # noqa: SLF001
            self._client.end_section(self.name)


class _Clock:
    """One section: where it is in the page, since when it is open (0.0: it is not)."""

    __slots__ = ("longest_s", "opened_at", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.opened_at = 0.0
        self.longest_s = NEVER


_thread_id = threading.get_ident


class RankMonitorClient:
    """Tells this rank's monitor that the rank is alive.

    Attributes:
        is_initialized: Between ``init_workload_monitoring`` and ``shutdown_workload_monitoring``.
        hb_timeouts: Heartbeat limits in force; ``None`` before init.
        section_timeouts: Section limits in force; ``None`` before init.
        cfg: The monitor's configuration; ``None`` before init.
        rank_info: Who this rank is; ``None`` before init.
    """

    CURRENT_TIMEOUTS_STATE_KEY = "current_timeouts"

    # What the hot paths read is found by position; the rest, and what callers add, by name.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_acquire",
        "_clocks",
        "_last_heartbeat",
        "_lock",
        "_longest_gap",
        "_longest_outside",
        "_n_open",
        "_outside_since",
        "_release",
        "_report_iteration",
        "_words",
    )

    def __init__(self) -> None:
        """Make a client. It connects to nothing before ``init_workload_monitoring``."""
        self.logger = logging.getLogger(__name__)
        self.is_initialized = False
        self.hb_timeouts: HeartbeatTimeouts | None = None
        self.section_timeouts: SectionTimeouts | None = None
        self.cfg: FaultToleranceConfig | None = None
        self.rank_info: RankInfo | None = None

        self._launcher_path = os.environ.get(FT_LAUNCHER_IPC_SOCKET_ENV_VAR)
        if not self._launcher_path:
            self.logger.info(
                "%s is not set: workload control requests are not available",
                FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
            )
        # What hot paths use. The page is never unmapped by hand: another thread may be storing.
        self._make_locks()
        self._words: memoryview[float] | None = None  # None: not initialised
        self._clocks: dict[str, _Clock] = {}
        self._n_open = 0
        self._outside_since = 0.0
        self._longest_outside = NEVER
        self._last_heartbeat = 0.0
        self._longest_gap = NEVER
        self._report_iteration: Callable[[], None] | None = None

        self._connection: Connection | None = None
        self._monitor_path = ""
        self._page: Page | None = None
        self._disarmed = False
        self._learned_before = LearnedBefore()
        self._loaded: limits_state.Loaded = (None, None)
        self._sections: dict[str, Section] = {}
        self._warned: set[str] = set()
        _clients.add(self)

    def _make_locks(self) -> None:
        self._control_lock = threading.RLock()
        self._lock = threading.RLock()
        self._acquire = self._lock.acquire
        self._release = self._lock.release

    # ------------------------------------------------------------------ life

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Connect to this rank's monitor; from now on the rank is watched.

        Args:
            num_warmup_iters: For how many iterations of this cycle the time outside sections is not
                judged. Counted where Megatron-LM is loaded, otherwise there is no warm-up.
                ``None``: as configured.

        Raises:
            RankMonitorClientError: Initialised already, no monitor in the environment, or the
                monitor refused. Also a ``RuntimeError`` where the rank is unknown, also an
                ``OSError`` where the monitor cannot be reached.
        """
        with self._control_lock:
            if self.is_initialized:
                self._refuse(
                    "init_workload_monitoring() was called twice; call "
                    "shutdown_workload_monitoring() before initialising again"
                )
            if self._disarmed:
                return
            info = _rank_info()
            path = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
            if not path:
                raise RankMonitorClientError(
                    f"rank {info.global_rank} has no monitor: {FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR} "
                    "is not set; start the job with ft_launcher"
                )
            self._monitor_path = path
            self.rank_info = info
            try:
                self._begin(info, num_warmup_iters)
            except BaseException:
                self._forget()
                raise
            self.logger.info(
                "rank %d (pid %d) is monitored: %s, %s",
                info.global_rank,
                info.pid,
                self.hb_timeouts,
                self.section_timeouts,
            )

    def _begin(self, info: RankInfo, num_warmup_iters: int | None) -> None:
        from holdfast.fault_tolerance.config import FaultToleranceConfig  # noqa: PLC0415

        self._connection, welcome = self._connect(num_warmup_iters=num_warmup_iters)
        self.cfg = cfg = FaultToleranceConfig.from_wire(welcome["cfg"])
        configured = (
            HeartbeatTimeouts(
                cfg.initial_rank_heartbeat_timeout,
                cfg.rank_heartbeat_timeout,
                were_calculated=False,
            ),
            SectionTimeouts(dict(cfg.rank_section_timeouts), cfg.rank_out_of_section_timeout),
        )
        self._learned_before = LearnedBefore.from_wire(welcome.get("learned"))
        heartbeats, sections = self._with_loaded(*configured)
        if cfg.install_exception_hook:
            install_exception_hook()

        try:
            self._page = page = map_page(welcome["page"], writable=True)
            page.words[layout.ARMED_AT] = 0.0
            page.store_names(list(sections.section))
        except PageError as error:
            raise RankMonitorClientError(f"rank {info.global_rank}: {error}") from error
        words = page.words
        self._clocks = {name: _Clock(layout.slot(i)) for i, name in enumerate(sections.section)}
        words[layout.PID] = float(info.pid)
        words[layout.START_TICKS] = float(start_ticks(info.pid) or 0)
        words[layout.GLOBAL_RANK] = float(info.global_rank)
        words[layout.LOCAL_RANK] = float(info.local_rank)
        words[layout.DUMP_SIGNAL] = float(self._register_dump(welcome.get("dump")))
        self._store_limits(words, heartbeats, sections)
        self._prepare_iteration(
            words, cfg.num_warmup_iterations if num_warmup_iters is None else num_warmup_iters
        )
        self._start_clocks(words)
        self._words = words
        self._ask({"op": "armed"})
        self.hb_timeouts, self.section_timeouts = configured
        if any(self._loaded):
            self._publish(heartbeats, sections)
        self._loaded = (None, None)
        self.is_initialized = True

    def _start_clocks(self, words: memoryview[float]) -> None:
        """Nothing is open, nothing was measured; the last store arms the page."""
        for clock in self._clocks.values():
            words[clock.slot] = 0.0
            words[clock.slot + _LONGEST] = NEVER
        for word in (layout.LONGEST_INITIAL, LONGEST_GAP, LONGEST_OUTSIDE):
            words[word] = NEVER
        words[HEARTBEAT_AT] = 0.0
        self._last_heartbeat = 0.0
        self._longest_gap = self._longest_outside = NEVER
        self._n_open = 0
        words[OUTSIDE_SINCE] = words[layout.ARMED_AT] = self._outside_since = monotonic()

    def shutdown_workload_monitoring(self) -> None:
        """Leave the monitor; the rank is not watched any more. Never raises, may be repeated."""
        with self._control_lock:
            if not self.is_initialized:
                return
            connection, left_open = self._connection, self._open_sections()
            info = self.rank_info
            self._connection = None
            self._forget()
            if self._disarmed:
                return
            if left_open:
                self.logger.warning(
                    "rank %s leaves its monitor while sections %s are open; call "
                    "end_all_sections() before shutdown_workload_monitoring()",
                    info and info.global_rank,
                    left_open,
                )
            if connection is not None:
                try:
                    connection.request({"op": "bye"}, _BYE_S)
                except EndpointError as error:
                    self.logger.info("the monitor did not hear this rank leave: %s", error)
                connection.close()

    def _forget(self) -> None:
        with self._lock:
            if self._page is not None:
                self._page.words[layout.ARMED_AT] = 0.0
            self._words = self._page = None
            self._clocks = {}
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.is_initialized = False
        self.hb_timeouts = self.section_timeouts = self.cfg = self.rank_info = None

    def _register_dump(self, path: str | None) -> int:
        if not path:
            return 0
        try:
            number = register_stack_dump(path)
        except OSError as error:
            self.logger.warning("%s: stacks of this rank will be missing from incidents", error)
            return 0
        if number == 0:
            self.logger.warning(
                "no real-time signal is free: stacks of this rank will be missing from incidents"
            )
        return number

    # ------------------------------------------------------------------ hot paths

    def send_heartbeat(self) -> None:
        """This rank is alive, and makes progress. Never blocks (P-1); about 0.1 microseconds.

        Raises:
            RankMonitorClientError: The client is not initialised.
        """
        words = self._words
        if words is None:
            self._refuse_uninitialised("send_heartbeat")
            return
        # Of two threads, the one that read the clock first may store last: off by microseconds.
        now = monotonic()
        words[HEARTBEAT_AT] = now
        last = self._last_heartbeat
        self._last_heartbeat = now
        if now - last > self._longest_gap:
            self._note_gap(words, last, now)

    def _note_gap(self, words: memoryview[float], last: float, now: float) -> None:
        if last:
            self._longest_gap = words[LONGEST_GAP] = now - last
        else:
            words[layout.LONGEST_INITIAL] = now - words[layout.ARMED_AT]

    # Signals and asynchronous exceptions are delivered at calls and loops only. So none comes
    # between the first and the last store, where nothing is called, and page and clocks always
    # agree. It may come right after the lock was taken, hence the bare "except". A "with" would
    # need no such care, but with an RLock it costs three times as much as the rest of the method.

    def start_section(self, section: str) -> None:
        """Open a section; its clock runs until ``end_section``. Sections may nest and overlap.

        Args:
            section: A configured name (``rank_section_timeouts``); others are ignored, with one
                warning each.

        Raises:
            RankMonitorClientError: Not initialised, or the section is open already.
        """
        acquire, release = self._acquire, self._release
        try:
            acquire()
            words = self._words
            clock = self._clocks.get(section)
            if words is None or clock is None or clock.opened_at:
                self._refuse_to_open(section)
            else:
                report = self._report_iteration
                if report is not None:
                    report()
                now = monotonic()
                words[clock.slot] = clock.opened_at = now
                if not self._n_open:
                    words[OUTSIDE_SINCE] = 0.0
                    outside_s = now - self._outside_since
                    if outside_s > self._longest_outside:
                        words[LONGEST_OUTSIDE] = self._longest_outside = outside_s
                self._n_open += 1
        except BaseException:
            self._let_go()
            raise
        release()

    def end_section(self, section: str) -> None:
        """Close a section.

        Raises:
            RankMonitorClientError: Not initialised, or the section is not open.
        """
        acquire, release = self._acquire, self._release
        try:
            acquire()
            words = self._words
            clock = self._clocks.get(section)
            if words is None or clock is None or not clock.opened_at:
                self._refuse_to_close(section)
            else:
                now = monotonic()
                took_s = now - clock.opened_at
                self._n_open -= 1
                if not self._n_open:
                    words[OUTSIDE_SINCE] = self._outside_since = now
                words[clock.slot] = clock.opened_at = 0.0
                if took_s > clock.longest_s:
                    words[clock.slot + _LONGEST] = clock.longest_s = took_s
        except BaseException:
            self._let_go()
            raise
        release()

    def _let_go(self) -> None:
        """Release the lock after an exception, unless that came before it was acquired."""
        if self._lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - as threading does
            self._release()

    def end_all_sections(self) -> None:
        """Close every open section; nothing happens where none is.

        Raises:
            RankMonitorClientError: Not initialised.
        """
        with self._lock:
            if self._words is None:
                self._refuse_uninitialised("end_all_sections")
                return
            for section in self._open_sections():
                self.end_section(section)

    def section(self, name: str) -> Section:
        """A section as a context manager, to be made once and used often.

        >>> step = client.section("step")  # doctest: +SKIP
        >>> with step:  # doctest: +SKIP
        ...     loss = train_step(batch)
        """
        try:
            return self._sections[name]
        except KeyError:
            return self._sections.setdefault(name, Section(self, name))

    def _is_open(self, section: str) -> bool:
        clock = self._clocks.get(section)
        return clock is not None and clock.opened_at > 0.0

    def _open_sections(self) -> list[str]:
        return sorted(name for name, clock in self._clocks.items() if clock.opened_at)

    def _refuse_to_open(self, section: str) -> None:
        if self._words is None:
            self._refuse_uninitialised("start_section")
        elif section not in self._clocks:
            self._warn_unknown(section)
        else:
            age_s = monotonic() - self._clocks[section].opened_at
            self._refuse(
                f"section {section!r} is open already, since {age_s:.3f} s; end it "
                "before starting it again (it goes on being timed from its first start)"
            )

    def _refuse_to_close(self, section: str) -> None:
        if self._words is None:
            self._refuse_uninitialised("end_section")
        elif section not in self._clocks:
            self._warn_unknown(section)
        else:
            self._refuse(
                f"section {section!r} is not open; open are {self._open_sections() or 'none'}"
            )

    def _warn_unknown(self, section: str) -> None:
        if section in self._warned:
            return
        self._warned.add(section)
        self.logger.warning(
            "section %r is not configured, so it is not monitored; configured are %s. To monitor "
            "it, add it to rank_section_timeouts (--ft-rank-section-timeouts=%s:SECONDS,...)",
            section,
            sorted(self._clocks) or "none",
            section,
        )

    def _refuse_uninitialised(self, method: str) -> None:
        self._refuse(f"{method}() needs a monitor: call init_workload_monitoring() first")

    def _refuse(self, text: str) -> None:
        """Raise, unless this is a forked child: nobody there expects to be told anything."""
        if not self._disarmed:
            raise RankMonitorClientError(self._who() + text)

    def _who(self) -> str:
        return f"rank {self.rank_info.global_rank}: " if self.rank_info else ""

    # ------------------------------------------------------------------ learned limits

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:  # noqa: FBT001, FBT002
        """Set heartbeat limits from the intervals of all ranks. A collective: every rank calls it.

        Args:
            skip_if_not_ready: Return ``False`` where no rank has sent two heartbeats yet.

        Returns:
            Whether limits were set.

        Raises:
            RankMonitorClientError: Not initialised, not ready, or the monitor did not answer.
            TimeoutsCalcError: There is no process group.
        """
        with self._control_lock:
            heartbeats, sections = self._current("calculate_and_set_hb_timeouts")
            if self._disarmed:
                return False
            calc = self._measured()
            calc.merge_over_ranks()
            if self._not_ready(calc.missing_for_heartbeats(), skip=skip_if_not_ready):
                return False
            self._publish(calc.heartbeat_timeouts(heartbeats), sections)
            return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,  # noqa: FBT001, FBT002
        skip_if_not_ready: bool = False,  # noqa: FBT001, FBT002
    ) -> bool:
        """Set limits of sections from the intervals of all ranks. A collective.

        Args:
            selected_sections: Which sections; ``None``: all. An empty collection sets none, and
                like ``None`` asks for data of all.
            calc_out_of_section: Set the limit outside sections, too.
            skip_if_not_ready: Return ``False`` where no rank has data for one of them yet.

        Returns:
            Whether limits were set.

        Raises:
            RankMonitorClientError: Not initialised, not ready, or the monitor did not answer.
            TimeoutsCalcError: There is no process group, or ranks have different sections.
            KeyError: A selected section is not configured.
        """
        with self._control_lock:
            heartbeats, sections = self._current("calculate_and_set_section_timeouts")
            if self._disarmed:
                return False
            calc = self._measured()
            # A wrong name is found before other ranks wait for this one.
            calc.missing_for_sections(selected_sections)
            calc.merge_over_ranks()
            lacking = calc.missing_for_sections(
                selected_sections, calc_out_of_section=calc_out_of_section
            )
            if self._not_ready(lacking, skip=skip_if_not_ready):
                return False
            fresh = calc.section_timeouts(
                sections, selected_sections, calc_out_of_section=calc_out_of_section
            )
            self._publish(heartbeats, fresh)
            return True

    def _current(self, method: str) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
        if self.hb_timeouts is None or self.section_timeouts is None:
            self._refuse_uninitialised(method)
            return HeartbeatTimeouts(), SectionTimeouts()
        return self.hb_timeouts, self.section_timeouts

    def _measured(self) -> TimeoutsCalc:
        """Own intervals up to now; the time outside that is running counts, too."""
        words, cfg = self._words, self.cfg
        assert words is not None
        assert cfg is not None
        with self._lock:
            outside_s = self._longest_outside
            if not self._n_open:
                outside_s = max(outside_s, monotonic() - self._outside_since)
            return TimeoutsCalc(
                initial_max=words[layout.LONGEST_INITIAL],
                subsequent_max=self._longest_gap,
                section_max={name: clock.longest_s for name, clock in self._clocks.items()},
                out_of_section_max=outside_s,
                safety_factor=cfg.safety_factor,
                floor_s=cfg.learned_timeout_floor,
            )

    def _not_ready(self, lacking: list[str], *, skip: bool) -> bool:
        if lacking and not skip:
            self._refuse(
                f"limits cannot be calculated yet, on no rank was seen: {', '.join(lacking)}. Call "
                "this later, leave these out, or pass skip_if_not_ready=True"
            )
        return bool(lacking)

    def _publish(self, heartbeats: HeartbeatTimeouts, sections: SectionTimeouts) -> None:
        """Put limits in force: page, monitor, own fields; all or none."""
        words = self._words
        assert words is not None
        self._store_limits(words, heartbeats, sections)
        before = self._learned_before
        message: dict[str, object] = {"op": "limits"}
        if heartbeats is not self.hb_timeouts:
            message["heartbeat"] = limits_state.heartbeats_to_wire(heartbeats, before)
        if sections is not self.section_timeouts:
            message["section"] = limits_state.sections_to_wire(sections, before)
        try:
            answer = self._ask(message)
        except BaseException:
            self._store_limits(words, *self._current("limits"))
            raise
        self.hb_timeouts, self.section_timeouts = limits_state.apply_raised(
            answer.get("raised"), heartbeats, sections
        )
        self._store_limits(words, self.hb_timeouts, self.section_timeouts)
        self.logger.info("limits in force: %s, %s", self.hb_timeouts, self.section_timeouts)

    def _store_limits(
        self,
        words: memoryview[float],
        heartbeats: HeartbeatTimeouts,
        sections: SectionTimeouts,
    ) -> None:
        before = self._learned_before
        version = int(words[layout.LIMITS_VERSION]) | 1
        words[layout.LIMITS_VERSION] = float(version)
        words[layout.LIMIT_INITIAL] = _word(heartbeats.initial)
        words[layout.LIMIT_HEARTBEAT] = _word(heartbeats.subsequent)
        words[layout.LIMIT_OUTSIDE] = _word(sections.out_of_section)
        words[layout.LEARNED_HEARTBEAT] = float(before.is_heartbeat_learned(heartbeats))
        words[layout.LEARNED_OUTSIDE] = float(before.is_outside_learned(sections))
        learned = before.learned_sections(sections)
        for name, clock in self._clocks.items():
            words[clock.slot + layout.LIMIT] = _word(sections.section.get(name))
            words[clock.slot + layout.LEARNED] = float(name in learned)
        words[layout.LIMITS_VERSION] = float(version + 1)

    # ------------------------------------------------------------------ persisted state

    def state_dict(self) -> dict[str, Any]:
        """Calculated limits as plain data (JSON), the same on all ranks; not configured ones.

        Raises:
            RankMonitorClientError: Not initialised.
        """
        heartbeats, sections = self._current("state_dict")
        return {self.CURRENT_TIMEOUTS_STATE_KEY: limits_state.to_state(heartbeats, sections)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over limits of an earlier run; at once if initialised, else at init.

        They go before configured ones. Calculated limits below the configured floor are raised to
        it; sections that are not configured are left out, configured ones that the state does not
        know keep their limits.

        Raises:
            RankMonitorClientError: The state is damaged, or the monitor did not answer.
        """
        saved = state_dict.get(self.CURRENT_TIMEOUTS_STATE_KEY) or {}
        try:
            loaded = limits_state.from_state(saved)
        except (ValueError, AttributeError) as error:
            raise RankMonitorClientError(
                f"{self._who()}cannot load limits from {saved!r}: {error}. Remove them from the "
                "saved state to start from the configured ones"
            ) from error
        with self._control_lock:
            self._loaded = loaded
            if self.hb_timeouts is None or self.section_timeouts is None or self._disarmed:
                return
            current = self.hb_timeouts, self.section_timeouts
            if any(loaded):
                self._publish(*self._with_loaded(*current))
            self._loaded = (None, None)

    def _with_loaded(
        self, heartbeats: HeartbeatTimeouts, sections: SectionTimeouts
    ) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
        loaded_heartbeats, loaded_sections = self._loaded
        before = self._learned_before
        floor_s = self.cfg.learned_timeout_floor if self.cfg else 0.0
        if loaded_heartbeats is not None:
            heartbeats = limits_state.apply_loaded_heartbeats(loaded_heartbeats, floor_s)
            before.heartbeat = False
        if loaded_sections is not None:
            strangers = sorted(set(loaded_sections.section) - set(sections.section))
            if strangers:
                self.logger.warning(
                    "loaded limits of sections %s are left out: they are not configured", strangers
                )
            sections = limits_state.apply_loaded_sections(loaded_sections, floor_s, sections)
            before.sections -= set(loaded_sections.section)
            before.out_of_section = False
        return heartbeats, sections

    # ------------------------------------------------------------------ workload control

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask the launcher for something that takes effect at the next restart; waits for its ok.

        Raises:
            RankMonitorClientError: Not initialised, or the launcher refused or did not answer. Also
                a ``RuntimeError`` where there is no launcher.
        """
        if not self._launcher_path:
            raise _NoSetupError(
                f"{self._who()}{request} cannot be sent: {FT_LAUNCHER_IPC_SOCKET_ENV_VAR} is not "
                "set; start the job with ft_launcher"
            )
        info = self.rank_info
        if info is None:
            self._refuse_uninitialised("send_workload_control_request")
            return
        message = {
            "op": "control",
            "rank": info.global_rank,
            "action": request.action.name,
            "description": str(request.description)[:_DESCRIPTION_CHARS_MAX],
        }
        try:
            connection = endpoint.connect(self._launcher_path, _ANSWER_S)
            try:
                answer = connection.request(message, _ANSWER_S)
            finally:
                connection.close()
        except EndpointError as error:
            self._unreachable("launcher", error)
        if answer.get("op") != "ok":
            raise RankMonitorClientError(
                f"{self._who()}the launcher refused {request}: {answer.get('text', answer)}"
            )

    # ------------------------------------------------------------------ the monitor's socket

    def _connect(
        self, *, num_warmup_iters: int | None = None, resume: bool = False
    ) -> tuple[Connection, Message]:
        info = self.rank_info
        assert info is not None
        hello: dict[str, object] = {
            "op": "hello",
            "version": 1,
            "rank": info.global_rank,
            "local_rank": info.local_rank,
            "host": info.host,
            "pid": info.pid,
            "clock_s": monotonic(),
            "num_warmup_iterations": num_warmup_iters,
        }
        if resume:
            hello["resume"] = True
        try:
            connection = endpoint.connect(self._monitor_path)
        except EndpointError as error:
            self._unreachable("monitor", error)
        try:
            return connection, self._expect("welcome", connection.request(hello, _HELLO_S))
        except EndpointError as error:
            connection.close()
            self._unreachable("monitor", error)
        except BaseException:
            connection.close()
            raise

    def _ask(self, message: Mapping[str, object]) -> Message:
        """Ask the monitor; if it was replaced meanwhile, ask its successor."""
        connection = self._connection
        try:
            if connection is None:
                connection = self._resume()
            try:
                answer = connection.request(message, _ANSWER_S)
            except EndpointClosedError as error:
                self.logger.info("the monitor of this rank was replaced: %s", error)
                answer = self._resume().request(message, _ANSWER_S)
        except EndpointError as error:
            self._unreachable("monitor", error)
        return self._expect("ok", answer)

    def _resume(self) -> Connection:
        """Connect to the monitor that watches this rank now."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        connection, welcome = self._connect(resume=True)
        page, mine = welcome.get("page"), self._page
        if mine is not None and page != mine.path:
            connection.close()
            raise RankMonitorClientError(
                f"{self._who()}the monitor that answers now watches {page!r}, this rank writes "
                f"{mine.path!r}: it belongs to another cycle"
            )
        self._connection = connection
        return connection

    def _expect(self, operation: str, answer: Message) -> Message:
        if answer.get("op") != operation:
            raise RankMonitorClientError(
                f"{self._who()}its monitor ({self._monitor_path!r}) answered "
                f"{answer.get('text', answer)!r} where {operation!r} was expected"
            )
        return answer

    def _unreachable(self, whom: str, cause: EndpointError) -> NoReturn:
        error = _UnreachableError(f"{self._who()}its {whom} cannot be reached: {cause}")
        error.errno = cause.errno
        raise error from cause

    # ------------------------------------------------------------------ iterations

    def _prepare_iteration(self, words: memoryview[float], num_warmup_iters: int) -> None:
        """From now on, each opened section notes the iteration, where somebody counts it."""
        words[layout.ITERATION] = -1.0
        words[layout.WARM_UNTIL] = 0.0
        first: dict[str, int] = {}

        def report() -> None:
            current = iterations.current_iteration()
            if current is None:
                return
            source, iteration = current
            first.setdefault(source, iteration)
            words[layout.WARM_UNTIL] = float(first[source] + num_warmup_iters)
            words[layout.ITERATION] = float(iteration)

        self._report_iteration = report if iterations.is_reported() else None

    # ------------------------------------------------------------------ forked children

    def _disarm_in_child(self) -> None:
        """This process is a fork of the rank, and not the rank: what it does must not show."""
        self._make_locks()  # a thread that held one has stayed in the parent
        if self._connection is None and self._words is None:
            return
        self._disarmed = True
        self._report_iteration = None
        if self._connection is not None:
            # Or the monitor would not see the rank's death while this child lives.
            self._connection.close()
            self._connection = None
        mine = private_page()
        if self._words is not None:
            mine.words[:] = self._words
            self._words = mine.words
        self._page = mine


def _word(limit_s: float | None) -> float:
    return math.inf if limit_s is None else float(limit_s)


def _rank_info() -> RankInfo:
    rank = _process_group_rank()
    if rank is None:
        text = os.environ.get("RANK")
        if text is None:
            raise _NoSetupError(
                "the rank of this process is unknown: there is no process group and RANK is not "
                "set; start the job with ft_launcher or call init_process_group() first"
            )
        rank = _integer("RANK", text)
    return RankInfo(rank, _integer("LOCAL_RANK", os.environ.get("LOCAL_RANK", "-1")))


def _process_group_rank() -> int | None:
    """Rank in the default process group, without importing torch for a process that has none."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)
    if distributed is None or is_initialized is None or not is_initialized():
        return None
    rank: int = distributed.get_rank()
    return rank


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _NoSetupError(f"environment variable {name} is {text!r}, not a number") from None


_clients: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()


def _disarm_all_in_child() -> None:
    for client in list(_clients):
        client._disarm_in_child()  # noqa: SLF001


os.register_at_fork(after_in_child=_disarm_all_in_child)
