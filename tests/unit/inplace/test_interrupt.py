from __future__ import annotations

import ctypes
import functools
import gc
import multiprocessing.util
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.inplace.interrupt import InterruptError, MainThreadInterrupt, never_inside
from tests.interrupt_stress import interrupt_often
from tests.unit.inplace.test_atomic import restart_under_way
from tests.waiting import BOUND_S, until


class Restart(BaseException):
    pass


@pytest.fixture
def interrupt() -> Iterator[MainThreadInterrupt]:
    made = MainThreadInterrupt()
    yield made
    made.close()


@contextmanager
def watcher(interrupt: MainThreadInterrupt, ready: Callable[[], Any] = bool) -> Iterator[None]:
    """Asks for an interrupt when ``ready`` returns, and repeats it until it is acknowledged."""
    over = threading.Event()

    def run() -> None:
        ready()
        interrupt.request()
        while interrupt.is_requested and not over.wait(0.002):
            interrupt.deliver_again()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BOUND_S)


def interrupted(interrupt: MainThreadInterrupt, function: Callable[[], Any], **kwargs: Any) -> Any:
    """Run ``function`` until it is interrupted; how that went."""
    with watcher(interrupt, **kwargs), pytest.raises(Restart):
        interrupt.run(function, Restart)
    return interrupt.delivered


def spin() -> None:
    give_up_at = time.monotonic() + BOUND_S
    while time.monotonic() < give_up_at:
        pass


def fail() -> None:
    raise ValueError("on purpose")


PIPE = os.pipe()
"""Made beforehand: an interrupt may come as soon as a function runs, before it blocks."""


def in_join() -> None:
    waits = threading.Thread(target=threading.Event().wait, args=(BOUND_S,), daemon=True)
    waits.start()
    waits.join()


BLOCKED = {
    "loop": spin,
    "sleep": lambda: time.sleep(BOUND_S),
    "lock": lambda: threading.Lock().acquire() and threading.Event().wait(BOUND_S),
    "queue": lambda: queue.Queue().get(timeout=BOUND_S),
    "read": lambda: os.read(PIPE[0], 1),
    "join": in_join,
}


@pytest.mark.parametrize("name", BLOCKED)
def test_a_blocked_main_thread_is_freed(interrupt: MainThreadInterrupt, name: str) -> None:
    """Whatever it waits in, long before that would end by itself."""
    started = time.monotonic()
    delivered = interrupted(interrupt, BLOCKED[name])
    assert delivered.attempts >= 1
    assert time.monotonic() - started < BOUND_S / 2


def test_clean_up_is_never_left_half_done(interrupt: MainThreadInterrupt) -> None:
    """300 interrupts at any instant of a function that spends half of its time cleaning up."""
    begun: list[str] = []
    ended: list[str] = []

    def clean_up(where: str) -> None:
        begun.append(where)
        for _ in range(60):
            pass
        ended.append(where)

    class Scope:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None:
            clean_up("exit")

    class Dying:
        def __del__(self) -> None:
            clean_up("del")

    def work() -> None:
        while True:
            try:
                with Scope():
                    Dying()
                for _ in range(600):
                    pass
                fail()
            except ValueError:
                clean_up("except")
            finally:
                clean_up("finally")

    n_refusals = 0
    for _ in range(300):
        n_refusals += interrupted(interrupt, work).refusals
        assert begun == ended
        begun.clear()
        ended.clear()
    assert n_refusals > 0


def test_an_atomic_section_ends_first(interrupt: MainThreadInterrupt) -> None:
    """The interrupt comes when the outermost section has been left, nested ones included."""
    steps: list[str] = []
    inside = threading.Event()

    def work() -> None:
        with interrupt.atomic:
            with interrupt.atomic:
                inside.set()
                until(lambda: interrupt.is_requested)
                steps.append("inner")
            steps.append("outer")
        spin()

    delivered = interrupted(interrupt, work, ready=inside.wait)
    assert steps == ["inner", "outer"]
    assert delivered.attempts == 1


def test_the_error_of_an_atomic_section_is_kept(interrupt: MainThreadInterrupt) -> None:
    """It goes on its way; who catches it is interrupted afterwards."""
    inside = threading.Event()
    seen: list[BaseException] = []

    def work() -> None:
        try:
            with interrupt.atomic:
                inside.set()
                until(lambda: interrupt.is_requested)
                fail()
        except ValueError as error:
            seen.append(error)
        spin()

    interrupted(interrupt, work, ready=inside.wait)
    assert [str(e) for e in seen] == ["on purpose"]


def test_code_that_swallows_is_interrupted_again_and_named(
    interrupt: MainThreadInterrupt,
) -> None:
    """With the line of its except. One that comes between two rounds of the loop gets out."""
    n_swallowed = 0
    is_inside = threading.Event()

    def work() -> None:
        nonlocal n_swallowed
        while n_swallowed < 3:
            try:
                is_inside.set()
                spin()
            except BaseException:  # noqa: BLE001 - the point
                n_swallowed += 1
        spin()

    delivered = interrupted(interrupt, work, ready=is_inside.wait)
    assert delivered.attempts == n_swallowed + 1 >= 2
    source = Path(__file__).read_text().splitlines()
    wanted = 1 + next(n for n, line in enumerate(source) if "the point" in line)
    assert delivered.swallowed_at == [f"{__file__}:{wanted} in work"]


def test_clean_up_is_not_interrupted_however_long_it_takes(interrupt: MainThreadInterrupt) -> None:
    """A checkpoint in ``finally`` is written whole; the interrupt comes after it."""
    interrupt.max_defer_s = 0.0
    n_runs = 0

    def work() -> None:
        nonlocal n_runs
        try:
            pass
        finally:
            until(lambda: Path(__file__).name in interrupt.refused_at)
            for _ in range(20_000):
                n_runs += 1
        spin()

    delivered = interrupted(interrupt, work)
    assert n_runs == 20_000
    assert delivered.refusals > 0
    assert delivered.forced_at == ""


def test_an_import_that_takes_too_long_is_interrupted(
    interrupt: MainThreadInterrupt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may train while it is imported. After max_defer_s, and where is said."""
    interrupt.max_defer_s = 0.05
    (tmp_path / "trains_at_import.py").write_text("while True:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)

    def work() -> None:
        __import__("trains_at_import")

    assert "importlib" in interrupted(interrupt, work).forced_at


def test_clean_up_that_would_enter_a_section_is_interrupted_at_its_door(
    interrupt: MainThreadInterrupt,
) -> None:
    """It would wait for the restart, which waits for it."""
    is_inside: list[bool] = []

    def work() -> None:
        try:
            pass
        finally:
            with interrupt.atomic:
                is_inside.append(True)

    with restart_under_way(interrupt.atomic):
        delivered = interrupted(interrupt, work)
    assert is_inside == []
    assert delivered.attempts == 1


def test_a_callback_from_c_is_never_interrupted(interrupt: MainThreadInterrupt) -> None:
    """An exception in there would be printed and lost."""
    interrupt.max_defer_s = 0.0
    ran: list[int] = []

    @never_inside
    def callback() -> int:
        until(lambda: interrupt.is_requested)
        for _ in range(2000):
            pass
        ran.append(1)
        return 0

    call = ctypes.CFUNCTYPE(ctypes.c_int)(callback)

    def work() -> None:
        call()
        spin()

    interrupted(interrupt, work)
    assert ran == [1]


def test_the_callers_own_clean_up_does_not_count(interrupt: MainThreadInterrupt) -> None:
    """A function that is run from an except body (a retry) is interrupted like any other."""
    try:
        fail()
    except ValueError:
        delivered = interrupted(interrupt, spin)
    assert delivered.attempts == 1
    assert delivered.forced_at == ""


def test_a_handler_of_the_users_does_not_save_him(interrupt: MainThreadInterrupt) -> None:
    """Ours runs under its second number; his handler stays, and is not called."""
    calls: list[int] = []

    def work() -> None:
        signal.signal(interrupt.signal, lambda *_: calls.append(1))
        spin()

    interrupted(interrupt, work)
    interrupt.close()
    mine = signal.getsignal(interrupt.signal)
    signal.signal(interrupt.signal, signal.SIG_DFL)
    assert callable(mine)
    assert calls == []


def test_a_blocked_signal_does_not_save_him(interrupt: MainThreadInterrupt) -> None:
    """Likewise, when the main thread does not take it."""

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {interrupt.signal})
        spin()

    try:
        interrupted(interrupt, work)
    finally:
        interrupt.acknowledge()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {interrupt.signal})


def test_where_both_handlers_were_replaced_that_is_said_once(
    interrupt: MainThreadInterrupt, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised by another way, which would not see what it breaks into."""

    def work() -> None:
        numbers = list(interrupt._before)
        assert len(numbers) == 2
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        interrupt.request()
        for _ in range(10):
            interrupt.deliver_again()
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    interrupt.run(work, Restart)
    assert interrupt.delivered.attempts == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the main thread cannot be interrupted" in caplog.text


@pytest.mark.parametrize("kind", ["function", "method"])
def test_callbacks_of_the_garbage_collector_are_not_broken_into(
    interrupt: MainThreadInterrupt, kind: str
) -> None:
    """A library may have some (Hypothesis does); what they raise is lost."""
    inside: list[str] = []

    class Callback:
        def method(self, phase: str, _info: dict[str, int]) -> None:
            if inside:
                return
            inside.append(phase)
            interrupt.request()
            inside.append("asked")

    def function(phase: str, info: dict[str, int]) -> None:
        Callback().method(phase, info)

    def work() -> None:
        gc.collect()
        spin()

    callback = function if kind == "function" else Callback().method
    lost: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lost.append
    gc.callbacks.append(callback)
    try:
        interrupted(interrupt, work, ready=lambda: until(lambda: "asked" in inside))
    finally:
        gc.callbacks.remove(callback)
        sys.unraisablehook = hook
    assert inside == ["start", "asked"]
    assert lost == []


@pytest.mark.parametrize("kind", ["function", "method", "partial", "object"])
def test_a_handler_of_a_signal_is_not_broken_into(
    interrupt: MainThreadInterrupt, kind: str
) -> None:
    """It may write the last checkpoint of a job that is stopped by SIGTERM; here SIGUSR1."""
    inside: list[str] = []

    class Handler:
        def __call__(self, number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_IGN)  # as many do first
            interrupt.request()
            interrupt.deliver_again()
            inside.append("done")

        method = __call__

    def function(number: int, frame: FrameType | None) -> None:
        Handler.__call__(Handler(), number, frame)

    handlers = {
        "function": function,
        "method": Handler().method,
        "partial": functools.partial(function),
        "object": Handler(),
    }

    def work() -> None:
        signal.raise_signal(signal.SIGUSR1)
        spin()

    before = signal.signal(signal.SIGUSR1, handlers[kind])
    try:
        interrupted(interrupt, work, ready=lambda: until(lambda: "done" in inside))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert inside == ["done"]


def test_callbacks_of_weak_references_are_not_broken_into(interrupt: MainThreadInterrupt) -> None:
    """The interpreter calls them when an object dies, and loses what they raise."""
    kept = weakref.WeakSet[threading.Event]()
    inside: list[str] = []

    def work() -> None:
        event = threading.Event()
        kept.add(event)
        code = type(kept).__init__.__code__.co_filename

        # Ask while the interpreter is in the callback that takes it out of the set.
        def ask(frame: FrameType, _kind: str, _argument: object) -> None:
            if frame.f_code.co_filename == code and not inside:
                inside.append(frame.f_code.co_name)
                interrupt.request()

        sys.setprofile(ask)
        try:
            del event
        finally:
            sys.setprofile(None)
        inside.append("done")
        spin()

    lost: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lost.append
    try:
        interrupted(interrupt, work, ready=lambda: until(lambda: "done" in inside))
    finally:
        sys.unraisablehook = hook
    assert inside == ["_remove", "done"]
    assert lost == []
    assert len(kept) == 0


@pytest.mark.parametrize("by_program", [False, True])
def test_the_finalizer_of_a_queue_is_not_broken_into_where_its_object_dies(
    interrupt: MainThreadInterrupt, by_program: bool
) -> None:
    """Of a ``DataLoader``, say. Where the program calls it, it may wait: that is no clean-up."""
    steps: list[str] = []

    class Queue: ...

    def clean_up() -> None:
        steps.append("begins")
        interrupt.request()
        until(lambda: interrupt.refused_at != "", "it is refused")
        steps.append("ends")

    def work() -> None:
        queue = Queue()
        finalizer = multiprocessing.util.Finalize(queue, clean_up)
        if by_program:
            finalizer()
        del queue, finalizer
        multiprocessing.util._finalizer_registry.clear()  # and its reference
        spin()

    lost: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lost.append
    try:
        interrupted(interrupt, work, ready=lambda: until(lambda: bool(steps)))
    finally:
        sys.unraisablehook = hook
    assert steps == (["begins"] if by_program else ["begins", "ends"])
    assert lost == []


def test_many_interrupts_of_a_thread_that_stamps_and_starts_others_all_arrive() -> None:
    """The short form of ``make soak-inprocess``; nothing is raised anywhere else."""
    outcome = interrupt_often(500, BOUND_S)
    assert outcome.strays == {}
    assert outcome.arrived == 500
    assert outcome.stamped > 0


def test_what_was_asked_for_early_comes_when_armed(interrupt: MainThreadInterrupt) -> None:
    """And nothing comes after it was acknowledged."""
    interrupt.request()
    for _ in range(1000):
        pass
    delivered = interrupted(interrupt, spin)
    assert delivered.is_requested
    interrupt.arm(Restart)
    signal.pthread_kill(threading.get_ident(), interrupt.signal)
    for _ in range(1000):
        pass
    assert not interrupt.acknowledge().is_requested


def test_many_requests_one_exception(interrupt: MainThreadInterrupt) -> None:
    """A second one while the first is handled waits for nothing: it is the same."""

    def work() -> None:
        try:
            spin()
        finally:
            for _ in range(5):
                interrupt.request()

    assert interrupted(interrupt, work).attempts == 1


def test_closing_puts_back_what_was_there() -> None:
    """Signals that are on their way at that moment included."""
    interrupt = MainThreadInterrupt()
    number = interrupt.signal
    for _ in range(20):
        signal.pthread_kill(threading.get_ident(), number)
    interrupt.close()
    interrupt.close()
    assert signal.getsignal(number) == signal.SIG_DFL
    interrupt.request()  # by a watcher that is late


def test_only_the_main_thread_can_be_interrupted() -> None:
    """Elsewhere the error names the thread."""
    errors: list[BaseException] = []

    def make() -> None:
        try:
            MainThreadInterrupt()
        except InterruptError as error:
            errors.append(error)

    thread = threading.Thread(target=make, name="trainer-7")
    thread.start()
    thread.join(BOUND_S)
    assert "'trainer-7'" in str(errors[0])


def test_no_frame_is_kept_after_it_was_acknowledged(interrupt: MainThreadInterrupt) -> None:
    """The function's data can go."""
    before = sys.getrefcount(interrupt)

    class Big: ...

    gone = threading.Event()

    def work() -> None:
        big = Big()
        import weakref

        weakref.finalize(big, gone.set)
        spin()

    interrupted(interrupt, work)
    import gc

    gc.collect()
    assert gone.is_set()
    assert sys.getrefcount(interrupt) <= before


def test_a_call_in_the_memory_of_one_that_is_gone_has_swallowed_nothing(
    interrupt: MainThreadInterrupt,
) -> None:
    """The next frame of a function is often made where the last one was."""

    def here() -> FrameType:
        return sys._getframe()

    interrupt.arm(Restart)
    interrupt._now.requested_at = 0.0  # what a request leaves, without its signal
    with pytest.raises(Restart):
        interrupt._handle(interrupt.signal, frame := here())
    known, frame = id(frame), None
    others = []
    while len(others) < 1000 and id(frame := here()) != known:
        others.append(frame)
    with pytest.raises(Restart):
        interrupt._handle(interrupt.signal, frame)
    (place,) = interrupt.acknowledge().swallowed_at
    assert "in test_a_call_in_the_memory" in place
