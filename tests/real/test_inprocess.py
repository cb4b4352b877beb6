"""The Wrapper, on real ranks and real gloo groups: every kind of fault, and what is seen of it."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.atomic_soak import violations
from tests.processes import environ, send
from tests.real.ranks import SIGKILLED, RankStarter
from tests.waiting import until

COMPAT = str(Path(__file__).parents[2] / "compat" / "src")
TRAIN = """
@wrapper(**QUICK)
def train(call: CallWrapper):
    rank, world = now()
    note(iteration=call.iteration, rank=rank, world=world)
    dist.init_process_group("gloo")
    assert all_reduce() == world
    if call.iteration == 0:
        if RANK == {who}:
            {fault}
        all_reduce()
    dist.destroy_process_group()
    return [rank, call.iteration]

run(train)
"""


HANGS = """
@wrapper(**IMPATIENT)
def train(call: CallWrapper):
    rank, world = now()
    with call.disable_hang_protection():  # on a busy machine this is slow, too, and no hang
        dist.init_process_group("gloo")
        assert all_reduce() == world
    if call.iteration == 0:
        if RANK == 1:
            {fault}
        {wait}
    with call.disable_hang_protection():
        dist.destroy_process_group()
    return [rank, call.iteration]

run(train)
"""
UNLIMITED = "with call.disable_hang_protection(): all_reduce()"


def train(who: int, fault: str) -> str:
    return TRAIN.format(who=who, fault=fault)


def hangs(fault: str, wait: str = "all_reduce()") -> str:
    """Rank 1, once; of two that are late, either may be the one that is noticed first."""
    return HANGS.format(fault=fault, wait=wait)


@pytest.mark.parametrize("who", [0, 2])
def test_after_an_exception_on_one_rank_all_ranks_call_the_function_again(
    ranks: RankStarter, who: int
) -> None:
    """The others are blocked in a collective, which would last for ever."""
    job = ranks(3, train(who, "raise ValueError('boom')"))
    assert job.wait() == [0, 0, 0]
    for rank in range(3):
        assert job.notes(rank, "returned") == [[rank, 1]]
        assert job.said(rank, f"restarted after EXCEPTION of rank {who}: ValueError: boom")
        shown = job.output(rank).count("Traceback")
        assert shown == (rank == who), "the first cause, where it happened; not its echoes"


def test_a_function_may_host_its_store_at_the_same_port_each_time(ranks: RankStarter) -> None:
    """The one of the attempt before still listens: nobody takes it for the new one."""
    source = """
    at = f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}"

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        note(iteration=call.iteration)
        rank, world = now()
        dist.init_process_group("gloo", init_method=at, rank=rank, world_size=world)
        assert all_reduce() == world
        if call.iteration < 2 and RANK == 1:
            raise ValueError("boom")
        if call.iteration < 2:
            all_reduce()
        dist.destroy_process_group()

    run(train)
    """
    job = ranks(3, source)
    assert job.wait() == [0, 0, 0], job.output(0)
    assert [job.notes(rank, "iteration") for rank in range(3)] == 3 * [[0, 1, 2]]


def test_a_rank_that_waits_for_a_store_that_nobody_hosts_is_freed(ranks: RankStarter) -> None:
    """Its host has failed before it made it: the exception is told at once, and blames nobody."""
    source = """
    at = int(os.environ["MASTER_PORT"]) + 1

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        note(iteration=call.iteration)
        if call.iteration == 0:
            if RANK == 0:
                while not os.path.exists(os.environ["OUT"] + "/rank1.jsonl"):
                    time.sleep(0.01)
                time.sleep(0.2)  # mostly long enough for the other to wait
                raise ValueError("boom")
            dist.TCPStore("127.0.0.1", at, 2, False, timeout=seconds(1000))

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0], job.output(0)
    assert [job.notes(rank, "iteration") for rank in range(2)] == 2 * [[0, 1]]
    assert job.said(0, r"iteration 0: rank 0 raised ValueError: boom \(.*\)\nTraceback")
    assert job.said(1, "restarted after EXCEPTION of rank 0: ValueError: boom")


def test_a_rank_whose_cuda_context_is_lost_leaves(ranks: RankStarter) -> None:
    """Each call of the function would fail again; the others go on. The default arguments do it."""
    source = """
    class Lost:
        def query(self):
            raise RuntimeError("CUDA error: device-side assert triggered")

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        note(iteration=call.iteration)
        dist.init_process_group("gloo")
        all_reduce()
        if RANK == 1:
            torch.cuda.is_initialized = lambda: True
            torch.cuda.is_current_stream_capturing = lambda: False
            torch.cuda.current_stream = Lost
            assert call.iteration < 3, "in place for ever"
            Lost().query()
        if call.iteration == 0:
            all_reduce()
        dist.destroy_process_group()
        return now()

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 5]
    assert job.notes(0, "returned") == [[0, 1]]
    assert job.notes(1, "iteration") == [0]
    assert job.notes(1, "raised") == ["HealthCheckError"]
    assert "CUDA context is lost (CUDA error: device-side assert" in job.notes(1, "text")[0]


@pytest.mark.parametrize("who", [0, 2])
def test_the_others_go_on_without_a_rank_that_died(ranks: RankStarter, who: int) -> None:
    """Rank 0, too, on whose node everything was hosted."""
    job = ranks(3, train(who, "os.kill(os.getpid(), signal.SIGKILL)"))
    codes = job.wait()
    assert codes.pop(who) == SIGKILLED
    assert codes == [0, 0]
    survivors = [rank for rank in range(3) if rank != who]
    assert [job.notes(rank, "returned") for rank in survivors] == [[[0, 1]], [[1, 1]]]
    assert job.said(survivors[0], f"restarted after TERMINATED of rank {who}")


def test_a_rank_that_is_hung_but_can_be_interrupted_is(ranks: RankStarter) -> None:
    job = ranks(2, hangs("time.sleep(1000)", UNLIMITED))
    assert job.wait() == [0, 0]
    assert job.notes(1, "returned") == [[1, 1]]
    assert job.said(0, r"SOFT_TIMEOUT of rank 1: no progress .* \(soft_timeout 2 s\)")


def test_the_rank_that_the_others_wait_for_is_named_though_it_makes_progress(
    ranks: RankStarter,
) -> None:
    """Of which only the one that waits shows none: its timeout runs out."""
    job = ranks(2, hangs("while True: time.sleep(0.01)"))
    assert job.wait() == [0, 0]
    assert job.said(
        0, r"restarted after a hang: rank 1 \(pid \d+, node .*\) .* in `train` job.py:\d+"
    )
    assert job.said(
        0, r"1 other rank waits for it in `all_reduce`; noticed as SOFT_TIMEOUT of rank 0"
    )


def test_a_rank_that_hangs_again_and_again_is_ended_and_the_others_go_on(
    ranks: RankStarter,
) -> None:
    """With the third hang in a row. Those that wait for it hang as often, and stay."""
    source = """
    times = dict(
        QUICK, soft_timeout=seconds(1.5), hard_timeout=seconds(60),
        progress_watchdog_interval=seconds(0.05),
    )
    @wrapper(**times)
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        if RANK == 2:
            time.sleep(1000)
        all_reduce()
        dist.destroy_process_group()
        return [*now(), call.iteration]

    run(train)
    """
    job = ranks(4, source)
    codes = job.wait()
    assert codes.pop(2) in (-signal.SIGTERM, SIGKILLED)
    assert codes == [0, 0, 0]
    returned = [job.notes(rank, "returned")[0] for rank in (0, 1, 3)]
    assert [one[:2] for one in returned] == [[0, 3], [1, 3], [2, 3]]
    assert all(one[2] >= 3 for one in returned)  # more where a busy machine is late by itself
    said = "".join(job.output(rank) for rank in range(4))
    assert "HARD_TIMEOUT of rank 2: hung by itself in 3 iterations in a row" in said
    assert re.search(r'job.py", line \d+ in train', said), "its stacks were taken where it hung"


def test_a_busy_rank_is_hung_when_it_pinged_once_and_stopped(ranks: RankStarter) -> None:
    """What a worker marks that it has forked is not its own progress."""
    fault = """call.ping()
            pid = os.getpid()
            if os.fork() == 0:
                with call.disable_hang_protection():
                    while os.getppid() == pid:
                        call.ping()
                        time.sleep(0.001)
                    os._exit(0)
            while True: time.sleep(0.001)"""
    job = ranks(2, hangs(fault, UNLIMITED))
    assert job.wait() == [0, 0]
    assert job.said(0, r"SOFT_TIMEOUT of rank 1: no progress of ping\(\)")


def test_a_rank_that_cannot_be_interrupted_is_killed_with_its_stacks_taken(
    ranks: RankStarter,
) -> None:
    """It holds the interpreter, in a wait that no signal ends: for a mutex that it has itself."""
    hold = "lock = ctypes.PyDLL(None).pthread_mutex_lock; m = ctypes.create_string_buffer(64)"
    hold += "; lock(m); lock(m)"
    job = ranks(2, hangs(hold), TORCH_CPP_LOG_LEVEL="ERROR")
    codes = job.wait()
    assert codes[0] == 0
    assert codes[1] in (-signal.SIGTERM, SIGKILLED)
    assert job.notes(0, "returned") == [[0, 1]]
    assert job.said(0, r"HARD_TIMEOUT of rank 1: no progress .* the interpreter is held")
    how = r"holds the interpreter's lock in `train` job.py:\d+"
    assert job.said(0, rf"a hang: rank 1 \(pid \d+, node .*\) {how}; 1 other rank waits for it")
    assert job.said(0, r'job.py", line \d+ in train'), "the stacks are told by a rank that lives"


def test_no_section_is_broken_by_restarts_at_random_moments(tmp_path: Path) -> None:
    """None is entered while an abort runs, either; ``make soak-inprocess`` tries it longer."""
    assert violations(tmp_path, faults=20, ranks=2, seed=1) == []


def test_clean_up_that_does_not_end_is_ended_with_its_line(ranks: RankStarter) -> None:
    """Nothing is raised in it; the process ends at the hard timeout, and the others go on."""
    source = """
    @wrapper(**IMPATIENT)
    def train(call: CallWrapper):
        if call.iteration == 0 and RANK == 1:
            try:
                raise ValueError("a bad sample")
            finally:
                try:
                    time.sleep(1000)
                except BaseException as error:
                    note(broken=repr(error))
        return call.iteration

    run(train)
    """
    job = ranks(2, source)
    codes = job.wait()
    assert codes[0] == 0
    assert codes[1] in (-signal.SIGTERM, SIGKILLED)
    assert job.notes(1, "broken") == []
    assert job.said(0, r"HARD_TIMEOUT of rank 1: no progress .*a restart waits for it")
    noticed = "noticed as SOFT_TIMEOUT of rank 1: .*; then HARD_TIMEOUT of rank 1"
    assert job.said(0, rf"restarted after a hang: .*rank 1 in `train` job.py:\d+; {noticed}")


def test_a_stopped_rank_is_woken_or_killed(ranks: RankStarter) -> None:
    job = ranks(2, hangs("os.kill(os.getpid(), signal.SIGSTOP)"))
    codes = job.wait()
    assert codes[0] == 0
    assert job.notes(0, "returned") in ([[0, 1]], [[0, 2]])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("sys.exit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise inprocess.exception.RestartAbort('enough')", "RestartAbort"),
    ],
)
def test_a_rank_that_leaves_has_its_exception_and_the_others_go_on(
    ranks: RankStarter, fault: str, error: str
) -> None:
    job = ranks(2, train(1, fault))
    assert job.wait() == [0, 5]
    assert job.notes(1, "raised") == [error]
    assert job.notes(0, "returned") == [[0, 1]]
    assert job.said(0, f"BASE_EXCEPTION of rank 1: .*{error}")


def test_a_rank_that_ends_with_success_interrupts_no_other(ranks: RankStarter) -> None:
    """As under torchrun; what it has forked in the function ends at once, as there, too."""
    source = """
    def has_left(rank):
        with open(f"{os.environ['OUT']}/rank{rank}.jsonl") as notes:
            return "SystemExit" in notes.read()

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        if RANK == 1:
            if (pid := os.fork()) == 0:
                raise LookupError("of the child alone")
            note(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        dist.init_process_group("gloo")
        all_reduce()
        dist.destroy_process_group()
        if RANK == 1:
            sys.exit(0)
        while not has_left(1):
            time.sleep(0.01)
        return call.iteration

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 5]
    assert job.notes(1, "raised") == ["LookupError", "SystemExit"]
    assert job.notes(1, "child") == [5]
    assert job.notes(0, "returned") == [0]


def test_rank_0_joins_a_store_that_listens_on_the_port_already(ranks: RankStarter) -> None:
    """One that the program made before, say; other programs are named when the time is over."""
    source = """
    import socket

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if RANK == 0:
        kept = dist.TCPStore(host, port, 2, is_master=True, wait_for_workers=False)

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        if call.iteration == 0 and RANK == 1:
            raise ValueError("boom")
        dist.init_process_group("gloo")
        assert all_reduce() == 2
        dist.destroy_process_group()
        return call.iteration

    run(train)
    if RANK == 0:
        listener = socket.create_server((host, 0))  # who never answers
        there = {"port": listener.getsockname()[1], "timeout": seconds(0.2)}
        inprocess.store._MARGIN_S = 0.0
        try:
            wrapper(store_kwargs=there)(lambda: None)()
        except inprocess.exception.BarrierTimeout as error:
            note(text=str(error))
        os._exit(0)  # a thread of torch waits for the answer
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    assert [job.notes(rank, "returned") for rank in range(2)] == [[1], [1]]
    (text,) = job.notes(0, "text")
    assert "has not answered as a torch store within 0.2 s" in text


def test_ranks_do_not_follow_what_an_earlier_life_left_in_the_store(ranks: RankStarter) -> None:
    """A file is older than a job that is started again; rank 1 comes before the new rank 0."""
    source = """
    out = os.environ["OUT"] + "/.."
    if RANK == 0 and os.path.exists(out + "/second"):
        while not os.path.exists(out + "/rank 1 is here"):
            time.sleep(0.01)

    class FileStore(inprocess.store.FileStore):
        def get(self, key):
            value = super().get(key)
            if RANK == 1 and os.path.exists(out + "/second"):
                open(out + "/rank 1 is here", "w")
            return value

    file = {"file_name": out + "/store", "world_size": -1}  # it stays, as where a job is killed
    @wrapper(store_factory=FileStore, store_kwargs=file, **QUICK)
    def train(call: CallWrapper):
        return call.iteration

    run(train)
    """
    for life in range(2):
        job = ranks(2, source)
        assert job.wait() == [0, 0], job.output(1)
        assert [job.notes(rank, "returned") for rank in range(2)] == [[0], [0]], life
        (job.folder.parent / "second").touch()


def test_durations_may_be_years(ranks: RankStarter) -> None:
    """Of the Wrapper and of plug-ins: who asks for so much means never."""
    source = """
    from holdfast.inprocess.rank_assignment import (
        ActivateAllRanks, FilterCountGroupedByKey, ShiftRanks)

    never, day = datetime.timedelta.max, datetime.timedelta(days=1)

    @wrapper(
        soft_timeout=never - 3 * day, hard_timeout=never - 2 * day, barrier_timeout=never,
        heartbeat_timeout=never - day, heartbeat_interval=40 * day, completion_timeout=never,
        progress_watchdog_interval=400 * day, termination_grace_time=never,
        monitor_thread_interval=400 * day, monitor_process_interval=400 * day,
        store_kwargs={"timeout": never},
        finalize=inprocess.finalize.ThreadedFinalize(never, lambda: None),
        rank_assignment=Compose(
            ActivateAllRanks(), ShiftRanks(),
            FilterCountGroupedByKey("all", lambda count: True, timeout=never),
        ),
    )
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        if call.iteration == 0:
            all_reduce()
            if RANK == 1:
                raise ValueError("boom")
        call.store.meet("here", 2, never)
        dist.destroy_process_group()
        return call.iteration

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    assert [job.notes(rank, "returned") for rank in range(2)] == [[1], [1]]


def test_with_no_abort_nothing_of_torch_is_touched(ranks: RankStarter) -> None:
    source = """
    class AsIfTheirOwn(inprocess.abort.Abort):
        def __call__(self, state):
            note(aborted=True)

    def job(**arguments):
        @wrapper(**arguments, **QUICK)
        def train(call: CallWrapper):
            if call.iteration == 0:
                dist.init_process_group("gloo")
                if RANK == 1:
                    all_reduce()
                    raise ValueError("boom")
                all_reduce()
                time.sleep(1000)
            assert all_reduce() == 2, "the group is as it was"
            dist.destroy_process_group()
            return call.iteration
        return train

    note(returned=[job(abort=None)(), job(abort=AsIfTheirOwn())()])
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    assert [job.notes(rank, "returned") for rank in range(2)] == [[[1, 1]], [[1, 1]]]
    assert [job.notes(rank, "aborted") for rank in range(2)] == [[True], [True]]


def test_a_callwrapper_is_called_without_the_decorator_and_shows_what_it_has(
    ranks: RankStarter,
) -> None:
    """And its stores: one per iteration, one for the call; rank 0, lost, takes nothing along."""
    source = """
    sys.path.insert(0, "{compat}")
    from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord
    from nvidia_resiliency_ext.inprocess.store import StoreMixin

    def train(step, call: CallWrapper, *, scale):
        assert (call.wrapper, call.state.iteration) == (made, call.iteration)
        assert call.state.initial_rank == RANK
        assert all(isinstance(store, StoreMixin) for store in (call.store, call.base_store))
        assert call.store.base_store is call.base_store
        with call.atomic_lock:
            call.atomic_lock.acquire()
            call.atomic_lock.release()
        _, size = now()
        place = call.state.rank
        call.store.meet("torch has a barrier of its own", size)
        if hasattr(dist.Store, "barrier"):  # torch 2.13 and later
            call.store.barrier(f"this one {call.iteration}", size)
        call.store.iteration_barrier([place], size)
        if call.iteration == 0:
            call.base_store.set_initial_rank(RANK, RANK * 10)
            call.base_store.iteration_barrier([RANK], 3)
            record = InterruptionRecord(RANK, Interruption.EXCEPTION)
            call.store.record_interrupted([record])
            call.base_store.record_terminated_ranks([RANK] if RANK == 0 else [])
            call.store.completion_barrier([RANK], 3)
            assert len(call.store.get_interruption_records()) == 3
            if RANK == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            call.base_store.get("never")  # in Python, so that a restart gets through
        assert call.store.get_interruption_records() == []
        assert call.base_store.get_terminated_ranks() == {0}
        assert call.base_store.get_initial_ranks([0, 1, 2]) == [0, 10, 20]
        return step * scale

    made = wrapper(**QUICK)
    call = CallWrapper(made)
    note(returned=call(train, (2,), {"scale": 3}))
    try:
        call(train)
    except inprocess.exception.InternalError as error:
        note(text=str(error))
    with CallWrapper(made) as call:
        assert call.base_store.add("all", 1) <= 2
        note(returned=call(lambda: now()[1]))
    assert (call.store, call.base_store) == (None, None)
    """
    job = ranks(3, source.replace("{compat}", COMPAT))
    assert job.wait() == [SIGKILLED, 0, 0]
    for rank in (1, 2):
        assert job.notes(rank, "returned") == [6, 2]
        assert "make another" in job.notes(rank, "text")[0]


def test_a_call_whose_start_fails_again_and_again_ends_with_the_reason(ranks: RankStarter) -> None:
    """Before the function, and in its init_process_group; a function that fails may go on so."""
    source = """
    class Refuses(inprocess.initialize.Initialize):
        def __call__(self, state):
            note(began=state.iteration)
            raise OSError("the dataset is not mounted")

    @wrapper(**QUICK, max_start_faults=2, initialize=Refuses())
    def refused():
        time.sleep(60)

    @wrapper(**QUICK, max_start_faults=0)
    def cut_off(call: CallWrapper):
        if call.iteration < 3:
            raise ValueError("of the function's own")
        os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
        try:
            dist.init_process_group("gloo")
        except Exception as error:
            raise ValueError("no group") from error

    for call in refused, cut_off:
        try:
            call()
        except inprocess.exception.RestartError as error:
            note(raised=type(error).__name__, text=str(error), cause=str(error.__cause__))
    """
    job = ranks(1, source)
    assert job.wait() == [0]
    assert job.notes(0, "began") == [0, 1, 2]
    refused, cut_off = (note for note in job.notes(0) if "raised" in note)
    assert refused["raised"] == cut_off["raised"] == "RestartError"
    assert "gave up after 3 iterations in a row" in refused["text"]
    assert "EXCEPTION of rank 0: OSError: the dataset is not mounted" in refused["text"]
    assert refused["cause"] == "the dataset is not mounted"
    assert "gave up after 1 iteration in a row" in cut_off["text"]
    assert cut_off["cause"] == "no group"
    assert job.said(0, "2 iterations in a row failed at the start, waited 0.1 s")


def test_two_faults_at_once_are_one_restart(ranks: RankStarter) -> None:
    source = """
    @wrapper(**QUICK)
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        if call.iteration == 0 and RANK == 0:
            store.get("rank 2 is about to die")
            raise ValueError("first")
        if call.iteration == 0 and RANK == 2:
            with call.atomic():  # the restart for rank 0 does not come between
                store.set("rank 2 is about to die", "")
                os.kill(os.getpid(), signal.SIGKILL)
        all_reduce()
        dist.destroy_process_group()
        note(done_in=call.iteration)
        return now()

    run(train)
    """
    job = ranks(4, source)
    assert job.wait() == [0, 0, SIGKILLED, 0]
    assert [job.notes(rank, "returned") for rank in (0, 1, 3)] == [[[0, 3]], [[1, 3]], [[2, 3]]]


def test_a_rank_that_is_done_comes_back_when_another_fails(ranks: RankStarter) -> None:
    source = """
    @wrapper(**QUICK)
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        all_reduce()
        dist.destroy_process_group()
        note(iteration=call.iteration)
        if call.iteration == 0 and RANK == 1:
            while not os.path.exists(f"{os.environ['OUT']}/rank0.jsonl"):
                time.sleep(0.01)
            time.sleep(0.3)  # rank 0 has only to return
            raise ValueError("late")
        return call.iteration

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    assert job.notes(0) == [{"iteration": 0}, {"iteration": 1}, {"returned": 1}]


def test_the_order_of_plug_ins(ranks: RankStarter) -> None:
    """On the rank that fails and on the others: the same, but for the exception."""
    source = """
    def plugin(base, name):
        class Noting(base):
            def __call__(self, state):
                note(step=name, exception=repr(getattr(state, "fn_exception", None)))
                return state
        return Noting()

    i = inprocess
    @wrapper(
        initialize=plugin(i.initialize.Initialize, "initialize"),
        abort=Compose(plugin(i.abort.Abort, "abort"), i.abort.AbortTorchDistributed()),
        finalize=plugin(i.finalize.Finalize, "finalize"),
        health_check=plugin(i.health_check.HealthCheck, "health_check"),
        completion=plugin(i.completion.Completion, "completion"),
        terminate=plugin(i.terminate.Terminate, "terminate"),
        **QUICK,
    )
    def train(call: CallWrapper):
        note(step="fn", exception="None")
        dist.init_process_group("gloo")
        all_reduce()
        if call.iteration == 0:
            if RANK == 1:
                raise ValueError("boom")
            all_reduce()
        dist.destroy_process_group()

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    order = ["initialize", "health_check", "fn", "abort", "finalize", "health_check"]
    order += ["initialize", "health_check", "fn", "completion"]
    for rank, exception in ((0, "None"), (1, "ValueError('boom')")):
        assert job.notes(rank, "step") == order
        assert job.notes(rank, "exception")[4:6] == [exception, exception]


def test_ranks_beyond_the_active_ones_stand_by_and_take_over(ranks: RankStarter) -> None:
    source = """
    from holdfast.inprocess.rank_assignment import (
        ActivateAllRanks, MaxActiveWorldSize, ShiftRanks)

    @wrapper(
        rank_assignment=Compose(MaxActiveWorldSize(2), ActivateAllRanks(), ShiftRanks()), **QUICK
    )
    def train(call: CallWrapper):
        note(iteration=call.iteration, now=now())
        dist.init_process_group("gloo")
        all_reduce()
        if call.iteration == 0:
            if RANK == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            all_reduce()
        dist.destroy_process_group()
        return call.iteration

    run(train)
    """
    job = ranks(3, source)
    assert job.wait() == [SIGKILLED, 0, 0]
    assert job.notes(1) == [
        {"iteration": 0, "now": [1, 2]},
        {"iteration": 1, "now": [0, 2]},
        {"returned": 1},
    ]
    assert job.notes(2) == [{"iteration": 1, "now": [1, 2]}, {"returned": 1}]


def test_a_group_that_lost_a_rank_is_left_out_whole(ranks: RankStarter) -> None:
    """Ranks exchange their keys in the store of the iteration; the healthy rank is discarded."""
    source = """
    from holdfast.inprocess.rank_assignment import (
        ActivateAllRanks, FilterCountGroupedByKey, ShiftRanks)

    @wrapper(
        rank_assignment=Compose(
            ActivateAllRanks(),
            ShiftRanks(),
            FilterCountGroupedByKey(lambda state: RANK // 2, lambda count: count == 2),
        ),
        **QUICK,
    )
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        all_reduce()
        if call.iteration == 0:
            if RANK == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            all_reduce()
        dist.destroy_process_group()
        return [call.iteration, *now()]

    run(train)
    """
    job = ranks(4, source)
    assert job.wait() == [0, 0, 5, SIGKILLED]
    assert job.notes(2, "raised") == ["RankDiscarded"]
    assert [job.notes(rank, "returned") for rank in (0, 1)] == [[[1, 0, 2]], [[1, 1, 2]]]


def test_ranks_that_an_assignment_discards_are_not_waited_for_by_those_after_it(
    ranks: RankStarter,
) -> None:
    """The second exchange of keys is among those whom the first one left."""
    source = """
    from holdfast.inprocess.rank_assignment import (
        ActivateAllRanks, FilterCountGroupedByKey, ShiftRanks)

    @wrapper(
        rank_assignment=Compose(
            ActivateAllRanks(),
            ShiftRanks(),
            FilterCountGroupedByKey(lambda state: state.rank // 2, lambda count: count == 2),
            ShiftRanks(),
            FilterCountGroupedByKey(lambda state: RANK == 1, lambda count: count > 1),
        ),
        **QUICK,
    )
    def train(call: CallWrapper):
        return [call.iteration, *now()]

    run(train)
    """
    job = ranks(4, source)
    assert job.wait() == [0, 5, 0, 5]
    assert [job.notes(rank, "raised") for rank in (1, 3)] == [["RankDiscarded"]] * 2
    assert [job.notes(rank, "returned") for rank in (0, 2)] == [[[0, 0, 2]], [[0, 1, 2]]]


def test_the_loss_of_the_guard_ends_the_call_on_its_node_in_words(ranks: RankStarter) -> None:
    job = ranks(2, train(1, "note(waits=True); time.sleep(1000)"))
    until(lambda: job.notes(1, "waits"), "rank 1 hangs")
    (guard,) = job.guards()
    os.kill(guard, signal.SIGKILL)
    assert job.wait() == [5, 5]
    for rank in range(2):
        assert job.notes(rank, "raised") == ["InternalError"]
        assert "the guard of this node is gone" in job.notes(rank, "text")[0]


def test_ranks_of_a_stopped_guard_end_before_the_others_go_on_and_alone_too(
    ranks: RankStarter,
) -> None:
    """Rank 1's guard is stopped; rank 0 goes on alone; then its guard is stopped, too.

    Rank 1 swallows the restart and ends itself; rank 0 leaves in words.
    """
    source = """
    from holdfast.inplace import guard_process

    # As if each rank had a node to itself: a guard of its own.
    address = guard_process.guard_address
    guard_process.guard_address = lambda token, *rest: address(f"{token} of {RANK}", *rest)

    times = dict(QUICK, heartbeat_interval=seconds(0.1), heartbeat_timeout=seconds(4))
    @wrapper(**times)
    def train(call: CallWrapper):
        note(iteration=call.iteration, now=now(), at=time.monotonic())
        swallow(9)

    def swallow(depth):
        while True:
            try:
                if depth:
                    swallow(depth - 1)
                time.sleep(0.01)
                with open(f"{os.environ['OUT']}/wrote{RANK}", "w") as file:
                    file.write(f"{time.monotonic()}\\n")
            except BaseException:  # also what came between two lines of the next one's handler
                if RANK == 0:
                    raise

    run(train)
    """
    job = ranks(2, source)
    until(lambda: all(job.notes(rank, "iteration") for rank in range(2)), "both run")
    guards = {environ(pid)["RANK"]: pid for pid in job.guards()}
    try:
        send(guards["1"], signal.SIGSTOP)
        until(lambda: 1 in job.notes(0, "iteration"), "rank 0 goes on")
        send(guards["0"], signal.SIGSTOP)
        assert job.wait() == [5, SIGKILLED]
    finally:
        for pid in guards.values():
            with suppress(ProcessLookupError):
                send(pid, signal.SIGCONT)
    assert job.notes(0, "now") == [[0, 2], [0, 1]]
    last_write = float((job.folder / "wrote1").read_text().strip() or 0.0)
    assert last_write < job.notes(0, "at")[1], "rank 1 did not write as one of two any more"
    assert job.said(1, "guard of this node is stopped or cut off.* this process kills itself")
    assert job.said(1, r'job.py", line \d+ in train'), "its stacks come first"
    assert job.notes(0, "raised") == ["InternalError"]
    assert "guard of this node is stopped" in job.notes(0, "text")[0]


def test_nothing_is_left_behind_by_a_call(ranks: RankStarter) -> None:
    """Threads, descriptors, signal handlers, the exception hook, logging handlers."""
    source = """
    import gc, logging, threading

    def threads():
        return sorted(thread.name for thread in threading.enumerate())

    def world():
        gc.collect()
        return {
            "threads": threads(),
            "fds": len(os.listdir("/proc/self/fd")),
            "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
            "excepthook": str(sys.excepthook),
            "logging": [str(logging.getLogger(n).handlers) for n in ("", "holdfast")],
            "frozen": gc.get_freeze_count(),
        }

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        all_reduce()
        if call.iteration < 3:
            if RANK == 0:
                raise ValueError("boom")
            all_reduce()
        dist.destroy_process_group()
        return call.iteration

    @wrapper(**QUICK)
    def end_at_once(call: CallWrapper):
        if call.iteration == 0:
            dist.init_process_group("gloo")
            all_reduce()
            if RANK == 0:
                raise ValueError("boom")
            all_reduce()

    train()  # what is made once for the life of a process: the dump's signal
    before = world()
    train()
    note(before=before, after=world())
    alone = threads()
    end_at_once()
    note(alone=alone, at_once=threads())
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    for rank in range(2):
        note, at_the_end = job.notes(rank)
        assert note["after"] == note["before"]
        assert at_the_end["at_once"] == at_the_end["alone"], "of the moment of the return"


def test_a_function_called_off_the_main_thread_is_refused_in_words(ranks: RankStarter) -> None:
    source = """
    import threading

    @wrapper(**QUICK)
    def train():
        pass

    thread = threading.Thread(target=run, args=(train,), name="side")
    thread.start()
    thread.join()
    """
    job = ranks(1, source)
    assert job.wait() == [0]
    assert job.notes(0, "raised") == ["InternalError"]
    assert "must be called in the main thread" in job.notes(0, "text")[0]


def test_a_rank_that_does_not_come_is_a_barrier_timeout_for_the_others(
    ranks: RankStarter,
) -> None:
    source = """
    times = dict(IMPATIENT, heartbeat_timeout=seconds(6), barrier_timeout=seconds(7))
    @wrapper(**times)
    def train():
        pass

    run(train)
    """
    job = ranks(1, source, WORLD_SIZE="2", TORCH_CPP_LOG_LEVEL="ERROR")
    assert job.wait() == [5]
    assert job.notes(0, "raised") == ["BarrierTimeout"]
    assert "1 of 2 ranks did not come" in job.notes(0, "text")[0]


def test_strangers_garbage_and_floods_end_their_own_connection_and_nothing_else(
    ranks: RankStarter,
) -> None:
    """On the coordinator's port, which is open to the network, and on the guard's socket."""
    source = """
    import socket
    from holdfast.inplace.guard_process import guard_address

    @wrapper(**QUICK)
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        if RANK == 0 and call.iteration == 0:
            meeting = call._meeting
            for data in (
                b"GET / HTTP/1.1\\r\\n\\r\\n",
                b"\\xff" * 64,
                (20).to_bytes(4, "big") + b"x" * 20,
                (46).to_bytes(4, "big") + b'{"role":"guard","node":"x","token":"guessed!"}',
            ):
                with socket.create_connection(("127.0.0.1", meeting.port)) as stranger:
                    stranger.settimeout(20)
                    try:
                        stranger.sendall(data)
                        assert stranger.recv(100) == b"", "nobody is answered"
                    except ConnectionError:
                        pass
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(20)
                stranger.connect(guard_address(meeting.token))
                stranger.sendall((2).to_bytes(4, "big") + b"{}")
                assert stranger.recv(1000) == b"", "nobody is answered"
            flood = socket.create_connection(("127.0.0.1", meeting.port))
            try:
                flood.settimeout(20)
                for _ in range(100):
                    flood.sendall(b"\\x7f" * 100_000)
                raise AssertionError("a flood is cut off")
            except ConnectionError:
                pass
            note(survived=True)
        if call.iteration == 0:
            all_reduce()
            raise ValueError("boom")
        assert all_reduce() == 2
        dist.destroy_process_group()
        return call.iteration

    run(train)
    """
    job = ranks(2, source)
    assert job.wait() == [0, 0]
    assert job.notes(0, "survived") == [True]
    assert [job.notes(rank, "returned") for rank in range(2)] == [[1], [1]]


def test_plain_python_and_a_notebook_are_one_rank_without_an_environment(
    ranks: RankStarter,
) -> None:
    """One sentence says so. Two calls, each with a restart; the environment is as it was after."""
    source = """
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]

    @inprocess.Wrapper
    def train(call: CallWrapper, steps, *, scale=1):
        note(now=now())
        dist.init_process_group("gloo")
        assert all_reduce() == 1
        if call.iteration == 0:
            raise ValueError("once")
        dist.destroy_process_group()
        return steps * scale

    run(train, 3)
    note(again=train(4, scale=2))
    note(left=[name for name in ("RANK", "WORLD_SIZE") if name in os.environ])
    """
    job = ranks(1, source)
    assert job.wait() == [0], job.output(0)
    assert job.notes(0, "now") == [[0, 1]] * 4
    assert [job.notes(0, key) for key in ("returned", "again", "left")] == [[3], [8], [[]]]
    assert job.output(0).count("the only rank of its job (rank 0 of 1)") == 2


def test_attributes_that_were_assigned_and_a_subclass_count_at_the_call(
    ranks: RankStarter,
) -> None:
    """The soft timeout of a subclass, and the health check of an attribute."""
    source = """
    from holdfast.inprocess.health_check import HealthCheck

    class Mine(inprocess.Wrapper):
        def __init__(self, soft_s, **others):
            super().__init__(**{**QUICK, "soft_timeout": seconds(soft_s), **others})

    class Checked(HealthCheck):
        def __call__(self, state):
            note(checked=state.iteration)
            return state

    made = Mine(30)

    @made
    def train(call: CallWrapper):
        if call.iteration == 0:
            time.sleep(60)
        return call.iteration

    made.soft_timeout, made.health_check = seconds(1), Checked()
    run(train)
    """
    job = ranks(1, source)
    assert job.wait() == [0], job.output(0)
    assert job.notes(0, "returned") == [1]
    assert job.notes(0, "checked")[0] == 0
    assert "soft_timeout 1 s" in job.output(0)
