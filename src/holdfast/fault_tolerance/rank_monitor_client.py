"""The client of a rank: connection to its monitor, and limits learned from measured durations.

A rank and its monitor share a page (``page/pure/page.py``). Progress is stored into it without a
message (``rank_progress.py``); the socket carries requests with answers (``monitor_link.py``).

    start_section("step")  ──►  page  ◄──  monitor, when a limit could have run out
    calculate_and_set_...  ──►  page, then "limits" over the socket  ──►  monitor: ok, or raised;
                                a monitor that does not answer soon finds them in the page

A forked child (a data-loader worker) has a client that does nothing and raises nothing:
children must not keep a hung rank alive.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.base.clock import monotonic
from holdfast.base.processes.proc import start_ticks
from holdfast.base.pure.codec import decode_fields, encode_fields
from holdfast.base.rank_log import rank_logger
from holdfast.errors import RankMonitorClientError
from holdfast.evidence.dump_signal import register_stack_dump
from holdfast.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
    HeartbeatTimeouts,
    RankInfo,
    SectionTimeouts,
    WorkloadControlRequest,
    timeouts_text,
)
from holdfast.fault_tolerance.timeouts_calc import TimeoutsCalc
from holdfast.page.page import Page, PageError, map_page, private_page
from holdfast.page.pure import page as layout
from holdfast.page.pure.clocks import Learned, Timeouts
from holdfast.watch.pure.rank_messages import Armed
from holdfast.watch.rank import limits_state, rank_end
from holdfast.watch.rank.limits_state import (
    LEARNED_WHERE,
    LearnedWhere,
    here,
    machine_kind,
    where_from_state,
)
from holdfast.watch.rank.look_helper import LookHelper
from holdfast.watch.rank.monitor_link import MonitorLink, send_control_request
from holdfast.watch.rank.rank_info import NoSetupError
from holdfast.watch.rank.rank_progress import ReportsProgress, Section, clients, iteration_reporter

if TYPE_CHECKING:
    from holdfast.fault_tolerance.config import FaultToleranceConfig

__all__ = ["RankMonitorClient", "RankMonitorClientError", "Section"]

_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_TIMEOUTS_CHARS = 110
"""Of timeouts in a line at the level info; at debug all are shown."""


class RankMonitorClient(ReportsProgress):
    """Tells this rank's monitor that the rank is alive.

    Attributes:
        is_initialized: Between ``init_workload_monitoring`` and ``shutdown_workload_monitoring``.
        cfg: The monitor's configuration; ``None`` before init.
        rank_info: Who this rank is; ``None`` before init.
        keeps_given_timeouts: Timeouts that are learned or loaded are never shorter than those that
            the user gave. False by default, as programs written for nvidia-resiliency-ext expect
            the calculated values; True for callbacks and for
            :func:`holdfast.fault_tolerance.client`. The configuration's
            ``learned_timeouts_below_given`` comes before it.
    """

    CURRENT_TIMEOUTS_STATE_KEY = "current_timeouts"
    _is_automatic = False
    """Its heartbeats are the steps of an optimizer, for which no timeouts were given."""

    def __init__(self) -> None:
        """Make a client. It connects to nothing before ``init_workload_monitoring``."""
        super().__init__(rank_logger(__name__))
        self.is_initialized = False
        self._limits: Timeouts | None = None
        self.cfg: FaultToleranceConfig | None = None
        self.keeps_given_timeouts = False

        self._launcher_path = os.environ.get(FT_LAUNCHER_IPC_SOCKET_ENV_VAR)
        if not self._launcher_path:
            self._report_no_launcher()
        self._control_lock = threading.RLock()
        self._link: MonitorLink | None = None
        self._helper: LookHelper | None = None
        self._page: Page | None = None
        self._learned_before = Learned()
        self._given = Timeouts()
        self._has_said_timeouts = False
        self._is_cold_start = True
        self._learned_where: LearnedWhere | None = None
        self._loaded = limits_state.Loaded()

    def _report_no_launcher(self) -> None:
        self.logger.info(
            "%s is not set: workload control requests are not available",
            FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
        )

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """Heartbeat timeouts that apply; ``None`` before init."""
        return None if self._limits is None else HeartbeatTimeouts.of(self._limits)

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """Section timeouts that apply; ``None`` before init."""
        return None if self._limits is None else SectionTimeouts.of(self._limits)

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
            info = RankInfo.get_for_current_rank()
            path = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
            if not path:
                raise RankMonitorClientError(
                    f"rank {info.global_rank} has no monitor: {FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR} "
                    "is not set; start the job with ft_launcher"
                )
            self.rank_info = info
            for other in initialised_clients():
                if other._is_automatic:  # noqa: SLF001
                    other._step_aside()  # noqa: SLF001 - of this class
            try:
                self._begin(path, info, num_warmup_iters)
            except BaseException:
                self._forget()
                raise
            if self._link is not None and self._link.welcome.page is None:
                self.logger.error(
                    "rank %d runs unwatched, hangs of it will not be found: there was no space for "
                    "its page; its launcher has said where",
                    info.global_rank,
                )
                return
            self._announce(info)

    def _announce(self, info: RankInfo) -> None:
        is_restart = os.environ.get(_RESTARTS, "0") != "0"
        head = f"rank {info.global_rank} (pid {info.pid}) is monitored; timeouts"
        self._log_timeouts(head, is_news=not is_restart)

    def _log_timeouts(self, head: str, *, is_news: bool) -> None:
        info = self.rank_info
        is_first = is_news and info is not None and info.global_rank == 0
        text = timeouts_text(self._limits or Timeouts())
        if is_first and len(text) > _TIMEOUTS_CHARS:
            text = f"{text[:_TIMEOUTS_CHARS].rpartition(', ')[0]}, ..."
        level = logging.INFO if is_first else logging.DEBUG  # one line for the job
        self.logger.log(level, "%s: %s", head, text)

    def _step_aside(self) -> None:
        """Another client of this process takes over; this one is silent from now on."""
        with self._control_lock:
            self._disarmed = True  # first: another thread may be in a step, which must not fail
            self._forget()

    def _begin(self, monitor: str, info: RankInfo, num_warmup_iters: int | None) -> None:
        from holdfast.fault_tolerance.config import (  # noqa: PLC0415
            GIVEN,
            FaultToleranceConfig,
        )

        self._link = link = MonitorLink(monitor, info, self.logger, by_steps=self._is_automatic)
        welcome = link.welcome
        self.cfg = cfg = FaultToleranceConfig.from_wire(welcome.cfg)
        configured = Timeouts(
            subsequent=cfg.rank_heartbeat_timeout,
            section_ends_initial=cfg.is_initial_ended_by_section,
        )
        if not self._is_automatic:  # that has no first heartbeat, and no sections
            configured = configured.but(
                initial=cfg.initial_rank_heartbeat_timeout,
                out_of_section=cfg.rank_out_of_section_timeout,
                sections=dict(cfg.rank_section_timeouts),
            )
        self._learned_before = welcome.learned
        given: Any = welcome.cfg.get(GIVEN, {})
        self._given = decode_fields(Timeouts, given)
        self._is_cold_start = _begins_cold(welcome.cycle, is_automatic=self._is_automatic)
        limits = self._with_loaded(configured)
        if cfg.exception_grace_in_force is not None and rank_end.KEPT_AS not in sys.modules:
            rank_end.watch_end(cfg.exception_grace_in_force, threading)

        try:
            # None: no space for a page; the sections of this rank go nowhere.
            path = welcome.page
            self._page = page = _page_at(path) if path else private_page()
            page.words[layout.ARMED_AT] = page.words[layout.LEFT_AT] = 0.0
            page.store_names(list(limits.sections))
        except PageError as error:
            raise RankMonitorClientError(f"rank {info.global_rank}: {error}") from error
        words = page.words
        slots = {name: layout.slot(index) for index, name in enumerate(limits.sections)}
        words[layout.PID] = float(info.pid)
        words[layout.START_TICKS] = float(start_ticks(info.pid) or 0)
        words[layout.GLOBAL_RANK] = float(info.global_rank)
        words[layout.LOCAL_RANK] = float(info.local_rank)
        words[layout.DUMP_SIGNAL] = float(self._register_dump(welcome.dump))
        words[layout.STEPS] = float(self._is_automatic)
        limits_state.store(words, slots, limits_state.in_force(limits, self._learned_before))
        self._report_iteration = iteration_reporter(
            words, cfg.num_warmup_iterations if num_warmup_iters is None else num_warmup_iters
        )
        self._start(words, slots)
        link.send(Armed())
        if welcome.takes_helper:
            self._helper = LookHelper(monitor, info)
        self._limits = configured
        self._publish_loaded(limits)
        self.is_initialized = True
        _Process.client = weakref.ref(self)

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

    def shutdown_workload_monitoring(self) -> None:
        """Leave the monitor. Never raises, may be repeated.

        Heartbeats and sections are not watched any more. The process is: it is expected to end
        within ``exit_timeout``, or to call ``init_workload_monitoring`` again before.
        """
        with self._control_lock:
            if not self.is_initialized:
                return
            link, left_open = self._link, self._open_sections()
            info = self.rank_info
            self._link = None
            if self._page is not None:
                self._page.words[layout.LEFT_AT] = monotonic()
            self._forget()
            if self._disarmed:
                return
            if left_open:
                self.logger.warning(
                    "rank %s stopped its monitoring while sections %s are open; call "
                    "end_all_sections() before shutdown_workload_monitoring()",
                    info and info.global_rank,
                    left_open,
                )
            if link is not None:
                link.leave()

    def _forget(self) -> None:
        with self._lock:
            if self._page is not None:
                self._page.words[layout.ARMED_AT] = 0.0
            self._words = self._page = None
            self._clocks = {}
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._helper is not None:
            self._helper.close()
            self._helper = None
        self.is_initialized = False
        self._limits = self.cfg = self.rank_info = None

    # ------------------------------------------------------------------ learned limits

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:  # noqa: FBT001, FBT002
        """Set heartbeat limits from the intervals of all ranks. A collective: every rank calls it.

        In a cycle that began as a restart a limit may only be raised, and without one there is none
        afterwards either: a first start takes longer. See ``keeps_given_timeouts``, too.

        Args:
            skip_if_not_ready: Return ``False`` where no rank has sent two heartbeats yet.

        Returns:
            Whether limits were set.

        Raises:
            RankMonitorClientError: Not initialised, not ready, or the monitor refused.
            TimeoutsCalcError: There is no process group.
        """
        with self._control_lock:
            limits = self._current("calculate_and_set_hb_timeouts")
            if self._disarmed:
                return False
            calc = self._measured()
            calc.merge_over_ranks()
            if self._not_ready(calc.missing_for_heartbeats(), skip=skip_if_not_ready):
                return False
            self._publish_learned(calc, calc.with_heartbeats(limits))
            return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,  # noqa: FBT001, FBT002
        skip_if_not_ready: bool = False,  # noqa: FBT001, FBT002
    ) -> bool:
        """Set limits of sections from the intervals of all ranks. A collective.

        In a cycle that began as a restart limits may only be raised, as with
        :meth:`calculate_and_set_hb_timeouts`.

        Args:
            selected_sections: Which sections; ``None``: all. An empty collection sets none, and
                like ``None`` asks for data of all.
            calc_out_of_section: Set the limit outside sections, too.
            skip_if_not_ready: Return ``False`` where no rank has data for one of them yet.

        Returns:
            Whether limits were set.

        Raises:
            RankMonitorClientError: Not initialised, not ready, or the monitor refused.
            TimeoutsCalcError: There is no process group, or ranks have different sections.
            KeyError: A selected section is not configured.
        """
        with self._control_lock:
            limits = self._current("calculate_and_set_section_timeouts")
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
            fresh = calc.with_sections(
                limits, selected_sections, calc_out_of_section=calc_out_of_section
            )
            self._publish_learned(calc, fresh)
            return True

    def _current(self, method: str) -> Timeouts:
        if self._limits is None:
            self._refuse_uninitialised(method)
            return Timeouts()
        return self._limits

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
                given=self._kept_timeouts(),
                may_shorten=self._is_cold_start or not self._is_careful(),
                machine=machine_kind(),
            )

    def _kept_timeouts(self, *, is_foreign: bool = False) -> Timeouts:
        """The given timeouts that learned ones must not be below."""
        may_be_below = self.cfg.learned_timeouts_below_given if self.cfg else None
        if may_be_below is None:
            may_be_below = not self.keeps_given_timeouts
        elif is_foreign and self.keeps_given_timeouts:
            may_be_below = False  # the setting is for timeouts learned here
        return Timeouts() if may_be_below else self._given

    def _is_careful(self) -> bool:
        """False: the values of nvidia-resiliency-ext were asked for, by a floor of 0."""
        return self.keeps_given_timeouts or bool(self.cfg and self.cfg.learned_timeout_floor)

    def _publish_learned(self, calc: TimeoutsCalc, limits: Timeouts) -> None:
        self._publish(limits)
        self._learned_where = here(calc.machine)
        if not calc.may_shorten and self.rank_info and self.rank_info.global_rank == 0:
            self.logger.info(
                "timeouts may only be raised in this cycle: it began as a restart, and a first "
                "start takes longer"
            )

    def _not_ready(self, lacking: list[str], *, skip: bool) -> bool:
        if lacking and not skip:
            self._refuse(
                f"timeouts cannot be calculated yet; no rank has measured: {', '.join(lacking)}. "
                "Call "
                "this later, leave these out, or pass skip_if_not_ready=True"
            )
        return bool(lacking)

    def _publish(self, limits: Timeouts) -> None:
        """Put limits in force: page, monitor, own fields; all or none.

        The monitor judges by the page. It also raises learned limits that tripped, whether its
        answer comes or not, and hands all of them to the next rank.
        """
        words, link = self._words, self._link
        assert words is not None
        assert link is not None
        slots = {name: clock.slot for name, clock in self._clocks.items()}
        before = self._learned_before
        in_force = limits_state.in_force(limits, before)
        limits_state.store(words, slots, in_force)
        try:
            answer = link.send(in_force)
        except BaseException:
            limits_state.store(words, slots, limits_state.in_force(self._current("limits"), before))
            raise
        if answer is not None and answer.raised is not None:
            limits_state.store(words, slots, answer.raised)
            limits = answer.raised.but(learned=limits.learned)
        self._limits = limits
        is_news, self._has_said_timeouts = not self._has_said_timeouts, True
        self._log_timeouts("timeouts are now", is_news=is_news)  # a training may learn at each save

    # ------------------------------------------------------------------ persisted state

    def state_dict(self) -> dict[str, Any]:
        """Calculated limits as plain data (JSON), the same on all ranks; not configured ones.

        Beside them, under ``learned_where``: script, world size and kind of machine.

        Raises:
            RankMonitorClientError: Not initialised.
        """
        limits = self._current("state_dict")
        state: dict[str, Any] = {self.CURRENT_TIMEOUTS_STATE_KEY: limits_state.to_state(limits)}
        if self._learned_where is not None:
            state[LEARNED_WHERE] = encode_fields(self._learned_where)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over limits of an earlier run; at once if initialised, else at init.

        They go before configured ones. Calculated limits below the configured floor are raised to
        it, those that were learned elsewhere (another script, world size or kind of machine) to the
        default floor of 30 s at least; with ``keeps_given_timeouts`` none is shorter than the one
        that was given. Sections that are not configured are left out, configured ones that the
        state does not know keep their limits.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            RankMonitorClientError: The state is damaged, or the monitor refused.
        """
        saved = state.get(self.CURRENT_TIMEOUTS_STATE_KEY) or {}
        try:
            loaded = limits_state.from_state(saved)
        except (ValueError, AttributeError) as error:
            raise RankMonitorClientError(
                f"{self._prefix()}cannot load timeouts from {saved!r}: {error}. Remove them from "
                "the saved state to start from the configured ones"
            ) from error
        with self._control_lock:
            self._loaded = loaded
            self._learned_where = where_from_state(state)
            if self._limits is not None and not self._disarmed:
                self._publish_loaded(self._with_loaded(self._limits))

    def _publish_loaded(self, limits: Timeouts) -> None:
        if self._loaded.heartbeats or self._loaded.sections:
            self._publish(limits)
        self._loaded = limits_state.Loaded()

    def _with_loaded(self, current: Timeouts) -> Timeouts:
        loaded, before = self._loaded, self._learned_before
        where = self._learned_where
        is_foreign = where is None or not where.is_known() or where != here(machine_kind())
        floor_s = self._loaded_floor_s(is_foreign=is_foreign)
        given = self._kept_timeouts(is_foreign=is_foreign)
        if loaded.heartbeats:
            before = before.but(heartbeat=False)
        if loaded.sections:
            names = loaded.limits.sections
            unknown = sorted(set(names) - set(current.sections))
            if unknown:
                self.logger.warning(
                    "loaded timeouts of sections %s are left out: they are not configured",
                    unknown,
                )
            others = tuple(name for name in before.sections if name not in names)
            before = Learned(before.heartbeat, False, others)
        self._learned_before = before
        return limits_state.apply_loaded(loaded, floor_s, given, current)

    def _loaded_floor_s(self, *, is_foreign: bool) -> float:
        from holdfast.fault_tolerance.config import LEARNED_FLOOR_S  # noqa: PLC0415 - as _begin

        floor_s = self.cfg.learned_timeout_floor if self.cfg else 0.0
        return max(floor_s, LEARNED_FLOOR_S) if is_foreign and self._is_careful() else floor_s

    # ------------------------------------------------------------------ workload control

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """Ask the launcher for something that takes effect at the next restart; waits for its ok.

        Args:
            req: The request, with its reason.

        Raises:
            RankMonitorClientError: Not initialised, or the launcher refused or did not answer. Also
                a ``RuntimeError`` where there is no launcher.
        """
        if not self._launcher_path:
            raise NoSetupError(
                f"{self._prefix()}{req} cannot be sent: {FT_LAUNCHER_IPC_SOCKET_ENV_VAR} is not "
                "set; start the job with ft_launcher"
            )
        if self.rank_info is None:
            self._refuse_uninitialised("send_workload_control_request")
        else:
            send_control_request(self._launcher_path, self.rank_info, req)

    # ------------------------------------------------------------------ forked children

    def _disarm_in_child(self) -> None:
        """This process is a fork of the rank: it must not touch the rank's page or link."""
        self._control_lock = threading.RLock()  # a thread that held one has stayed in the parent
        self._make_lock()
        if self._link is None and self._words is None:
            return
        self._disarmed = True
        self._report_iteration = None
        if self._link is not None:
            # Or the monitor would not see the rank's death while this child lives.
            self._link.close()
            self._link = None
        if self._helper is not None:
            self._helper.forget_in_child()
            self._helper = None
        mine = private_page()
        if self._words is not None:
            mine.words[:] = self._words
            self._words = mine.words
            for clock in self._clocks.values():
                clock.words = mine.words
        self._page = mine


class _Process:
    """Clients of this process before the one that begins.

    The page stays mapped: Python's mmap has a descriptor of its own, which it closes by its number
    when it is freed, and the program may have closed it and reused the number.
    """

    has_begun = False
    client: weakref.ref[RankMonitorClient] | None = None
    """The one that was initialised last. After its shutdown it counts no steps."""
    pages: ClassVar[dict[tuple[str, int, int], Page]] = {}


def _page_at(path: str) -> Page:
    """The page, mapped once."""
    try:
        found = os.stat(path)  # noqa: PTH116 - pathlib is heavy
    except OSError as error:
        raise PageError(f"page {path!r} cannot be mapped: {error.strerror}") from error
    key = path, found.st_dev, found.st_ino
    if key not in _Process.pages:
        _Process.pages[key] = map_page(path, writable=True)
    return _Process.pages[key]


def _begins_cold(cycle: int, *, is_automatic: bool) -> bool:
    """Whether durations from now on are those of a first start.

    In a restart, also one in place, files are cached, kernels are compiled and a parked interpreter
    has done the imports.
    """
    is_first = not _Process.has_begun
    _Process.has_begun = _Process.has_begun or not is_automatic
    return is_first and cycle == 0 and os.environ.get(_RESTARTS, "0") in ("", "0")


def count_step() -> None:
    """The optimizer of this process has made a step."""
    last = _Process.client
    client = None if last is None else last()
    if client is not None:
        client._count_step()  # noqa: SLF001 - of this class


def _clients() -> list[RankMonitorClient]:
    return [client for client in list(clients) if isinstance(client, RankMonitorClient)]


def initialised_clients() -> list[RankMonitorClient]:
    """Those of this process that are between init and shutdown."""
    return [client for client in _clients() if client.is_initialized]


def _disarm_all_in_child() -> None:
    for client in _clients():
        client._disarm_in_child()  # noqa: SLF001


os.register_at_fork(after_in_child=_disarm_all_in_child)
