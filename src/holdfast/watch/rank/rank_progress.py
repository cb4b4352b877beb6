"""Heartbeats and sections of a rank, as stores into its page.

Here is every call of a training loop, so here cost counts: a heartbeat is a clock read and a store,
an opened section two stores. No message is sent, nothing waits, whatever state the monitor is in.

Mistakes (a section opened twice, or closed when it is not open) are found here, at once.

Threads: everything may be called from several threads at once. Section clocks are kept by one
re-entrant lock, heartbeats take none.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import weakref
from collections.abc import Callable, Mapping

from holdfast.base.clock import monotonic
from holdfast.errors import RankMonitorClientError
from holdfast.page.pure import page as layout
from holdfast.page.pure.page import (
    CLOSED_AT,
    FIRST_AT,
    HEARTBEAT_AT,
    LONGEST,
    LONGEST_GAP,
    LONGEST_OUTSIDE,
    LONGEST_STEP,
    OUTSIDE_SINCE,
    PUBLISH_S,
    STEPPED_AT,
    STEPS_BESIDE,
    TIMES,
    TOTAL_S,
    USED_SECTIONS,
)
from holdfast.watch.pure.learned import NEVER
from holdfast.watch.rank.once_per_node import is_first_on_node
from holdfast.watch.rank.rank_info import RankInfo

_MEGATRON = "megatron.training.global_vars"
_thread_id = threading.get_ident


class Section:
    """A section as a context manager; made by :meth:`RankMonitorClient.section`, used for ever.

    Entering it again in the thread that is inside already is allowed; the section is timed from the
    outermost ``with``. Leaving it after ``end_all_sections`` or a shutdown is allowed, too.
    """

    __slots__ = ("_client", "_depth", "_owner", "name")

    def __init__(self, client: ReportsProgress, name: str) -> None:
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
    """One section: its page and place there, since when it is open (0.0: it is not).

    ``unpublished_s``, ``unpublished``: seconds and times that the page does not have yet. Three
    more stores each time would make a pair of calls a fifth dearer; once in a millisecond of
    section time they cost nothing that can be measured.
    """

    __slots__ = (
        "longest_s",
        "opened_at",
        "publish_from_s",
        "slot",
        "unpublished",
        "unpublished_s",
        "words",
    )

    def __init__(self, words: memoryview[float], slot: int) -> None:
        self.words = words
        self.slot = slot
        self.opened_at = 0.0
        self.longest_s = self.publish_from_s = NEVER
        self.unpublished_s = 0.0
        self.unpublished = 0


_UNKNOWN_MAX = 16
"""Sections that are not configured and are warned of: a name may hold the number of a step."""
_NO_WORDS = memoryview(bytes(8)).cast("d")
_CANNOT_CLOSE, _CANNOT_OPEN = _Clock(_NO_WORDS, 0), _Clock(_NO_WORDS, 0)
_CANNOT_OPEN.opened_at = 1.0
"""Of a section that is not configured, or of a client that is not initialised."""


def _publish(clock: _Clock, took_s: float, now: float) -> None:
    """Add the ended times to the page."""
    words, slot = clock.words, clock.slot
    if took_s > clock.longest_s:
        words[slot + LONGEST] = clock.longest_s = took_s
        clock.publish_from_s = min(took_s, PUBLISH_S)
    if not words[slot + FIRST_AT]:
        words[slot + FIRST_AT] = now - took_s
    words[slot + TOTAL_S] += clock.unpublished_s
    words[slot + TIMES] += clock.unpublished
    words[slot + CLOSED_AT] = now
    clock.unpublished_s, clock.unpublished = 0.0, 0


class ReportsProgress:
    """The part of a client that a training loop calls.

    Attributes:
        logger: Gets a line for each section that is not configured, a warning once per node.
        rank_info: Who this rank is; ``None`` where it has no page.
    """

    # Slots are for the hot paths; all other attributes, also those that callers add, need a dict.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_acquire",
        "_clocks",
        "_closed_by_restart",
        "_last_heartbeat",
        "_last_step",
        "_lock",
        "_longest_gap",
        "_longest_outside",
        "_longest_step",
        "_n_open",
        "_outside_since",
        "_release",
        "_report_iteration",
        "_words",
    )

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.rank_info: RankInfo | None = None
        self._make_lock()
        # The page is never unmapped by hand: another thread may be storing.
        self._words: memoryview[float] | None = None  # None: not initialised
        self._clocks: dict[str, _Clock] = {}
        self._n_open = 0
        self._outside_since = 0.0
        self._longest_outside = NEVER
        self._last_heartbeat = 0.0
        self._longest_gap = NEVER
        self._last_step = 0.0
        self._longest_step = NEVER
        self._report_iteration: Callable[[], None] | None = None
        self._disarmed = False  # in a forked child, which must not speak for the rank
        self._sections: dict[str, Section] = {}
        self._warned: set[str] = set()
        self._closed_by_restart: set[str] = set()
        clients.add(self)

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        self._acquire = self._lock.acquire
        self._release = self._lock.release

    def _start(self, words: memoryview[float], slots: Mapping[str, int]) -> None:
        """Nothing is open, nothing was measured; the last store arms the page.

        Args:
            words: Of the page; all other words are written.
            slots: First word of each section.
        """
        self._clocks = {name: _Clock(words, slot) for name, slot in slots.items()}
        for slot in slots.values():
            words[slot] = 0.0
            words[slot + LONGEST] = NEVER
        for word in (layout.LONGEST_INITIAL, LONGEST_GAP, LONGEST_OUTSIDE, LONGEST_STEP):
            words[word] = NEVER
        for word in (HEARTBEAT_AT, USED_SECTIONS, STEPS_BESIDE, STEPPED_AT):
            words[word] = 0.0
        self._last_heartbeat = self._last_step = 0.0
        self._longest_gap = self._longest_outside = self._longest_step = NEVER
        self._n_open = 0
        words[OUTSIDE_SINCE] = words[layout.ARMED_AT] = self._outside_since = monotonic()
        self._words = words

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

    def _count_step(self) -> None:
        """The optimizer has made a step; a hook of torch's says so."""
        words = self._words
        if words is None:
            return
        now = monotonic()
        words[STEPPED_AT] = now
        words[STEPS_BESIDE] += 1.0
        last = self._last_step
        self._last_step = now
        if last and now - last > self._longest_step:
            self._longest_step = words[LONGEST_STEP] = now - last

    # Signals and asynchronous exceptions are delivered at calls and loops only. So none comes
    # between the first and the last store, where nothing is called, and page and clocks always
    # agree. It may come right after the lock was taken, hence the bare "except". A "with" would
    # need no such care, but with an RLock it costs three times as much as the rest of the method.

    def start_section(self, section: str) -> None:
        """Open a section; its clock runs until ``end_section``. Sections may nest and overlap.

        Args:
            section: A configured name (``rank_section_timeouts``); others are ignored, with one
                warning for each of the first 16.

        Raises:
            RankMonitorClientError: Not initialised, or the section is open already.
        """
        acquire, release = self._acquire, self._release
        try:
            acquire()
            try:
                clock = self._clocks[section]  # cheaper than "get"
            except KeyError:
                clock = _CANNOT_OPEN
            if clock.opened_at:
                self._refuse_section("start_section", section)
            else:
                words = clock.words
                report = self._report_iteration
                if report is not None:
                    report()
                now = monotonic()
                words[clock.slot] = clock.opened_at = now
                already_open = self._n_open
                self._n_open = already_open + 1  # before any jump: 3.10 handles signals there
                if not already_open:
                    words[OUTSIDE_SINCE] = 0.0
                    outside_s = now - self._outside_since
                    if outside_s > self._longest_outside:  # always so the first time
                        words[LONGEST_OUTSIDE] = self._longest_outside = outside_s
                        words[USED_SECTIONS] = 1.0
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
            try:
                clock = self._clocks[section]  # cheaper than "get"
            except KeyError:
                clock = _CANNOT_CLOSE
            opened_at = clock.opened_at
            if not opened_at:
                self._refuse_section("end_section", section)
            else:
                words = clock.words
                now = monotonic()
                took_s = now - opened_at
                if self._n_open == 1:  # no jump within each branch, as above; a clock runs always
                    words[OUTSIDE_SINCE] = self._outside_since = now
                    words[clock.slot] = clock.opened_at = 0.0
                    self._n_open = 0
                else:
                    words[clock.slot] = clock.opened_at = 0.0
                    self._n_open -= 1
                clock.unpublished += 1
                clock.unpublished_s = unpublished_s = clock.unpublished_s + took_s
                if unpublished_s > clock.publish_from_s:  # always so if it is the longest
                    _publish(clock, took_s, now)
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

    def _end_sections_since(self, at: float) -> None:
        """Close those that were opened at the instant ``at`` or later."""
        with self._lock:
            for section in self._open_sections():
                if self._clocks[section].opened_at >= at:
                    self.end_section(section)
                    self._closed_by_restart.add(section)

    def _expect_no_heartbeat(self) -> None:
        words = self._words
        if words is None:
            return
        words[USED_SECTIONS] = 1.0
        is_initial_over = words[layout.SECTION_ENDS_INITIAL] or words[layout.STEPS]
        if words[HEARTBEAT_AT] and is_initial_over:  # the next heartbeat is a first one
            words[HEARTBEAT_AT] = 0.0
            self._last_heartbeat = math.inf  # the time until then is no gap
        words[layout.STEPS] = words[STEPS_BESIDE] = self._last_step = 0.0

    def _expect_heartbeats(self) -> None:
        if self._words is not None and self._last_heartbeat == math.inf:
            self._words[HEARTBEAT_AT] = monotonic()

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

    def _refuse_section(self, method: str, section: str) -> None:
        clock = self._clocks.get(section)
        if self._words is None:
            self._refuse_uninitialised(method)
        elif clock is None:
            self._words[USED_SECTIONS] = 1.0  # not timed, but no heartbeats need come either
            self._warn_unknown(section)
        elif clock.opened_at:
            age_s = monotonic() - clock.opened_at
            self._refuse(
                f"section {section!r} is open already, since {age_s:.3f} s; "
                "end it before starting it again (its time counts from its first start)"
            )
        elif section in self._closed_by_restart:
            # Another thread, which saves, may go on through the restart: its end comes later.
            self._closed_by_restart.discard(section)
        else:
            self._refuse(
                f"section {section!r} is not open; open are {self._open_sections() or 'none'}"
            )

    def _warn_unknown(self, section: str) -> None:
        if section in self._warned or len(self._warned) >= _UNKNOWN_MAX:
            return
        self._warned.add(section)
        self.logger.log(
            logging.WARNING if is_first_on_node(f"section {section}") else logging.DEBUG,
            "section %r is not configured, so it is not monitored; configured are %s. To monitor "
            "it, add it to rank_section_timeouts (--ft-rank-section-timeouts=%s:SECONDS,...). One "
            "rank per node warns of it",
            section,
            sorted(self._clocks) or "none",
            section,
        )

    def _refuse_uninitialised(self, method: str) -> None:
        self._refuse(f"{method}() needs a monitor: call init_workload_monitoring() first")

    def _refuse(self, text: str) -> None:
        """Raise, unless this is a forked child: it has no part in its parent's errors."""
        if not self._disarmed:
            raise RankMonitorClientError(self._prefix() + text)

    def _prefix(self) -> str:
        return f"rank {self.rank_info.global_rank}: " if self.rank_info else ""


clients: weakref.WeakSet[ReportsProgress] = weakref.WeakSet()
"""Of this process, initialised or not."""


def end_sections_since(at: float) -> None:
    """Close the sections of a function that was entered at the instant ``at``, and is left.

    A restart in place calls it anew, and it opens them again. ``with`` blocks have closed theirs.
    """
    for client in list(clients):
        client._end_sections_since(at)  # noqa: SLF001


def stand_by() -> None:
    """This rank waits: until it is called (again) it sends no heartbeat and makes no step.

    A default timeout for the first heartbeat ends as with a section; one that was given stays, and
    then the one between heartbeats does, too.
    """
    for client in list(clients):
        client._expect_no_heartbeat()  # noqa: SLF001


def end_standby() -> None:
    """The rank waits no more; one that has sent heartbeats sends them again."""
    for client in list(clients):
        client._expect_heartbeats()  # noqa: SLF001


# ---------------------------------------------------------------------- iterations


def iteration_reporter(
    words: memoryview[float], num_warmup_iters: int
) -> Callable[[], None] | None:
    """A function that stores the training iteration into a page; called when a section is opened.

    Args:
        words: Of the page.
        num_warmup_iters: For how many iterations from the first the page says "warming up".

    Returns:
        ``None``: no framework that counts iterations (Megatron-LM) is loaded.
    """
    words[layout.ITERATION] = -1.0
    words[layout.WARM_UNTIL] = 0.0
    first: dict[str, int] = {}

    def report() -> None:
        current = _current_iteration()
        if current is None:
            return
        source, iteration = current
        first.setdefault(source, iteration)
        words[layout.WARM_UNTIL] = float(first[source] + num_warmup_iters)
        words[layout.ITERATION] = float(iteration)

    return report if _MEGATRON in sys.modules else None


def _current_iteration() -> tuple[str, int] | None:
    """Which count, and its value; ``None`` before there is one.

    ``iteration`` is the one that a checkpoint was loaded for, and 0 before; ``curr_iteration`` is
    counted by the training loop and so appears later.
    """
    get_args = getattr(sys.modules.get(_MEGATRON), "get_args", None)
    try:
        args = get_args() if get_args else None
    except Exception:  # noqa: BLE001 - Megatron's code asserts before arguments are parsed
        return None
    for source in ("curr_iteration", "iteration"):
        iteration = getattr(args, source, None)
        if isinstance(iteration, int):
            return source, iteration
    return None
