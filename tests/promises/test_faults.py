"""Faults among real ranks: what each sees, and who goes on. Several promises share a job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import nvidia_resiliency_ext
from tests.promises.rows import promise, promises
from tests.real.ranks import Ranks, RankStarter

COMPAT = f"""
sys.path.insert(0, {str(Path(nvidia_resiliency_ext.__file__).parents[1])!r})
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess import CallWrapper, Compose
from nvidia_resiliency_ext.inprocess.monitor_thread import RankShouldRestart

OUT = os.environ["OUT"]

def sign(name):
    open(f"{{OUT}}/{{name}}", "w").close()

def wait_for(name):
    while not os.path.exists(f"{{OUT}}/{{name}}"):
        time.sleep(0.01)

def meet(iteration, n):
    sign(f"{{iteration}}.{{RANK}}")
    while len([name for name in os.listdir(OUT) if name.startswith(f"{{iteration}}.")]) < n:
        time.sleep(0.01)
"""

TWO = (
    COMPAT
    + """
def plugin(base, name):
    def call(self, state):
        note(step=name, exception=repr(state.fn_exception), at=time.monotonic())
        return state
    return type(name, (base,), {"__call__": call})()

@inprocess.Wrapper(
    initialize=plugin(inprocess.initialize.Initialize, "initialize"),
    abort=Compose(plugin(inprocess.abort.Abort, "abort"), inprocess.abort.AbortTorchDistributed()),
    finalize=plugin(inprocess.finalize.Finalize, "finalize"),
    health_check=plugin(inprocess.health_check.HealthCheck, "health_check"),
    completion=plugin(inprocess.completion.Completion, "completion"),
    **QUICK,
)
def train(call: CallWrapper):
    note(step="function", exception="None")
    phases[call.iteration](call)
    return [RANK, call.iteration]

def one_fails_while_the_other_waits(call):
    if RANK == 1:
        wait_for("waits in code of its own")
        try:
            raise ValueError("boom")
        except BaseException as error:
            note(saw=type(error).__name__, phase=0)
            raise
    try:
        sign("waits in code of its own")
        wait_for("nothing")
    except BaseException as error:
        kind = type(error)
        note(saw=kind.__name__, bases=[base.__name__ for base in kind.__bases__],
             said=str(error), phase=0)
        raise

def one_fails_while_the_other_is_in_a_section(call):
    if RANK == 1:
        wait_for("inside")
        raise ValueError("boom")
    try:
        with call.atomic():
            note(entered=time.monotonic())
            sign("inside")
            time.sleep(0.5)
            note(left=time.monotonic())
        time.sleep(1000)
    except RankShouldRestart:
        note(delivered=time.monotonic())
        raise

def one_fails_while_the_other_swallows(call):
    if RANK == 1:
        wait_for("waits")
        raise ValueError("boom")
    try:
        sign("waits")
        time.sleep(1000)
    except BaseException as error:
        note(swallowed=type(error).__name__)
    time.sleep(1000)

def one_asks_for_a_restart(call):
    if RANK == 1:
        wait_for("is there")
        raise RankShouldRestart("please")
    sign("is there")
    time.sleep(1000)

def one_fails_while_the_other_is_in_a_collective(call):
    dist.init_process_group("gloo")
    all_reduce()
    if RANK == 1:
        raise ValueError("boom")
    all_reduce()  # would wait for ever

def one_is_done_before_the_other(call):
    if RANK == 0:
        note(done=time.monotonic())
        return
    time.sleep(0.5)
    note(done=time.monotonic())

phases = [
    one_fails_while_the_other_waits,
    one_fails_while_the_other_is_in_a_section,
    one_fails_while_the_other_swallows,
    one_asks_for_a_restart,
    one_fails_while_the_other_is_in_a_collective,
    one_is_done_before_the_other,
]
try:
    result = train()
finally:
    note(back=time.monotonic())
note(returned=result, environment=[os.environ["RANK"], os.environ["WORLD_SIZE"]])
"""
)


@pytest.fixture(scope="module")
def two(ranks: RankStarter) -> Ranks:
    """Two ranks, one call with five restarts."""
    job = ranks(2, TWO)
    assert job.wait() == [0, 0], [job.output(rank) for rank in range(2)]
    return job


RESTART = ["abort", "finalize", "health_check"]
START = ["initialize", "health_check", "function"]


@promises(
    "inprocess 4.1",
    "rank",
    {"The order on the rank that fails": 1, "The same order on the ranks that it interrupts": 0},
)
def test_order(two: Ranks, rank: int) -> None:
    assert two.notes(rank, "step") == [*(START + RESTART) * 5, *START, "completion"]


@promise(
    "inprocess 4.1", "`fn_exception` is the exception on the rank that failed, None on the others"
)
def test_fn_exception(two: Ranks) -> None:
    for rank, exception in ((0, "None"), (1, "ValueError('boom')")):
        notes = [note for note in two.notes(rank) if note.get("step") == "finalize"]
        assert notes[0]["exception"] == exception


@promise("inprocess 6", "The rank that fails sees its own exception only")
def test_the_rank_that_fails(two: Ranks) -> None:
    assert [note["saw"] for note in two.notes(1) if "saw" in note] == ["ValueError"]


@promise("inprocess 6", "The others see RankShouldRestart, a direct subclass of BaseException")
def test_the_others(two: Ranks) -> None:
    [note] = [note for note in two.notes(0) if "saw" in note]
    assert (note["saw"], note["bases"]) == ("RankShouldRestart", ["BaseException"])


@promise("inprocess 6", "Its text names the kinds of interruption, and the ranks")
def test_its_text(two: Ranks) -> None:
    [note] = [note for note in two.notes(0) if "saw" in note]
    assert "Interruption.EXCEPTION" in note["said"]
    assert "affecting ranks {1}" in note["said"]


@promise(
    "inprocess 3", "Nothing is raised in `atomic()`, and no abort starts while a rank is inside"
)
def test_atomic(two: Ranks) -> None:
    [entered], [left] = two.notes(0, "entered"), two.notes(0, "left")
    [delivered] = two.notes(0, "delivered")
    aborts = [note["at"] for note in two.notes(0) if note.get("step") == "abort"]
    assert entered < left <= aborts[1] <= delivered


@promise(
    "inprocess 6", "A RankShouldRestart that is swallowed is raised again, and the log says where"
)
def test_swallowed(two: Ranks) -> None:
    assert two.notes(0, "swallowed") == ["RankShouldRestart"]
    assert two.said(0, r"swallowed by .*one_fails_while_the_other_swallows")


@promise("inprocess 6", "RankShouldRestart raised by the function restarts all ranks")
def test_request(two: Ranks) -> None:
    assert [note[1] for note in two.notes(0, "returned")] == [5]


@promise("inprocess 4.1", "`abort` frees ranks that wait in a collective")
def test_abort_frees(two: Ranks) -> None:
    assert two.notes(0, "returned") == [[0, 5]]


@promise("inprocess 2", "The call returns only after all ranks have completed")
def test_all_complete(two: Ranks) -> None:
    [last] = two.notes(1, "done")
    assert all(two.notes(rank, "back")[0] >= last for rank in range(2))


@promise(
    "inprocess 2", "Each rank gets what the function returned there, in the successful iteration"
)
def test_results(two: Ranks) -> None:
    assert [two.notes(rank, "returned") for rank in range(2)] == [[[0, 5]], [[1, 5]]]


# ---------------------------------------------------------------- ranks that leave, one by one
LOSSES = (
    COMPAT
    + """
class Losing(inprocess.finalize.Finalize):
    def __call__(self, state):
        if RANK == 2 and state.iteration == 3:
            raise LookupError("in finalize")
        return state

class Sick(inprocess.health_check.HealthCheck):
    def __call__(self, state):
        if RANK == 1 and state.iteration == 5 and state.fn_exception is not None:
            raise OSError("sick")
        return state

@inprocess.Wrapper(finalize=Losing(), health_check=Sick(), **QUICK)
def train(call: CallWrapper):
    rank, world = now()
    note(iteration=call.iteration, rank=rank, world=world)
    meet(call.iteration, world)
    if call.iteration == 0 and RANK == 5:
        raise SystemExit(3)
    if call.iteration == 1 and RANK == 4:
        raise KeyboardInterrupt
    if call.iteration == 2 and RANK == 3:
        raise inprocess.exception.RestartAbort("enough")
    if call.iteration == 3 and RANK == 2:
        raise ValueError("its finalize fails")
    if call.iteration == 4 and RANK == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if call.iteration == 5:
        raise ValueError("its health check fails")
    if call.iteration < 5:
        time.sleep(1000)
    return call.iteration

try:
    result = train()
except BaseException as error:
    note(raised=type(error).__name__, text=str(error), cause=repr(error.__cause__),
         environment=now())
    raise
note(returned=result)
"""
)


@pytest.fixture(scope="module")
def six(ranks: RankStarter) -> Ranks:
    """Six ranks, each of which is lost in its own way."""
    job = ranks(6, LOSSES)
    job.wait()
    return job


@promises(
    "inprocess 6",
    "rank, raised, seen",
    {
        "SystemExit: the caller gets it on that rank, the others restart without it": (
            5,
            "SystemExit",
            1,
        ),
        "KeyboardInterrupt: the same": (4, "KeyboardInterrupt", 2),
        "RestartAbort: the same": (3, "RestartAbort", 3),
        "`finalize` raised: the caller gets that, the others restart without the rank": (
            2,
            "LookupError",
            4,
        ),
        "A health check raised at restart: the caller gets HealthCheckError": (
            1,
            "HealthCheckError",
            6,
        ),
    },
)
def test_leaving(six: Ranks, rank: int, raised: str, seen: int) -> None:
    assert six.notes(rank, "raised") == [raised], six.output(rank)
    assert six.notes(rank, "iteration") == list(range(seen))


@promise("inprocess 5", "A rank that is killed: the others restart without it, rank 0 or not")
def test_killed(six: Ranks) -> None:
    assert six.processes[0].poll() == -signal.SIGKILL
    assert six.notes(1, "iteration") == list(range(6))


@promise(
    "inprocess 10", "After each loss `RANK` and `WORLD_SIZE` are those of the ranks that are left"
)
def test_renumbered(six: Ranks) -> None:
    assert six.notes(1, "world") == [6, 5, 4, 3, 2, 1]
    assert six.notes(1, "rank") == [1, 1, 1, 1, 1, 0]


@promise("inprocess 6", "After the call `RANK` and `WORLD_SIZE` keep their last values")
def test_environment(six: Ranks) -> None:
    assert six.notes(1, "environment") == [[0, 1]]


@promise("inprocess 6", "The exit code of a rank is what its exception makes of it")
def test_exit_codes(six: Ranks) -> None:
    codes = [process.poll() for process in six.processes]
    assert codes[5] == 3
    assert all(code not in (0, None) for code in codes[:5])


# ---------------------------------------------------------------- timeouts
HANGS = (
    COMPAT
    + """
def wait_for_a_restart():
    while True:
        time.sleep(0.01)

@inprocess.Wrapper(**dict(IMPATIENT, hard_timeout=seconds(3)))
def train(call: CallWrapper):
    note(iteration=call.iteration)
    if RANK == 0 and call.iteration >= 2:  # a rank that is stopped is late twice, for both limits
        return "done"
    if RANK == 1 and call.iteration == 0:
        time.sleep(1000)
    if RANK == 1:  # who looks at its stacks wakes it up
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        wait_for_a_restart()
    except BaseException as error:
        note(said=str(error))
        raise

run(train)
"""
)


@pytest.fixture(scope="module")
def hangs(ranks: RankStarter) -> Ranks:
    """Rank 1 sleeps, then is stopped."""
    job = ranks(2, HANGS)
    job.wait()
    return job


@promise(
    "inprocess 5", "No progress for `soft_timeout`: all ranks restart, and the rank takes part"
)
def test_soft_timeout(hangs: Ranks) -> None:
    assert "Interruption.SOFT_TIMEOUT affecting ranks {1}" in hangs.notes(0, "said")
    assert hangs.notes(1, "iteration")[:2] == [0, 1]


@promise(
    "inprocess 5", "A stopped rank is ended by SIGTERM or SIGKILL; the others restart without it"
)
def test_hard_timeout(hangs: Ranks) -> None:
    assert hangs.processes[1].poll() in (-signal.SIGTERM, -signal.SIGKILL)
    assert hangs.notes(0, "returned") == ["done"]


@promise("inprocess 5", "A rank that makes progress is not restarted by a timeout of its own")
def test_progress(hangs: Ranks) -> None:
    assert all("{1}" in said for said in hangs.notes(0, "said"))


# ---------------------------------------------------------------- ranks that stand by
SPARES = (
    COMPAT
    + """
class Noting(inprocess.initialize.Initialize):
    def __call__(self, state):
        note(mode=state.mode.name, active=state.active_rank, rank=os.environ["RANK"])
        sign(f"{state.iteration}.{RANK}")
        return state

@inprocess.Wrapper(
    store_factory=inprocess.store.FileStore,
    store_kwargs={"file_name": OUT + "/store"},
    initialize=Noting(),
    rank_assignment=Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(2),
        inprocess.rank_assignment.ActivateAllRanks(),
        inprocess.rank_assignment.ShiftRanks(),
    ),
    monitor_process_logfile=OUT + "/{rank}.log",
    monitor_process_pidfile=OUT + "/{rank}.pid",
    **QUICK,
)
def train(call: CallWrapper):
    note(iteration=call.iteration, now=now())
    if RANK == 0:
        note(pid=open(OUT + "/0.pid").read())
        meet(0, 4)
        os.kill(os.getpid(), signal.SIGKILL)
    if call.iteration == 0:
        time.sleep(1000)
    meet(1, 3)  # the call may be over before the spare has initialized
    return "done"

run(train)
"""
)


@pytest.fixture(scope="module")
def four(ranks: RankStarter) -> Ranks:
    """Two ranks work, and two stand by; one that works is killed."""
    job = ranks(4, SPARES)
    job.wait()
    return job


@promise("inprocess 10", "Ranks beyond the active world stand by: the function is not called there")
def test_spares(four: Ranks) -> None:
    assert [note["mode"] for note in four.notes(3) if "mode" in note] == ["INACTIVE"] * 2
    assert four.notes(3, "iteration") == []


@promise("inprocess 2", "On an inactive rank the call returns None, when the others have completed")
def test_spares_return(four: Ranks) -> None:
    assert four.notes(3, "returned") == [None]
    assert four.notes(1, "returned") == ["done"]


@promise("inprocess 12", "On an inactive rank `RANK` is never the text None")
def test_rank_of_a_spare(four: Ranks) -> None:
    texts = [note["rank"] for rank in range(4) for note in four.notes(rank) if "mode" in note]
    assert all(text.isdigit() for text in texts)


@promise("inprocess 10", "A spare takes the place of a rank that is lost")
def test_a_spare_works(four: Ranks) -> None:
    assert four.notes(2, "now") == [[1, 2]]
    assert four.notes(2, "returned") == ["done"]


@promise(
    "inprocess 11", "A store of another class is given as `store_factory` with its `store_kwargs`"
)
def test_other_store(four: Ranks) -> None:
    assert [process.poll() for process in four.processes] == [-signal.SIGKILL, 0, 0, 0]


@promise(
    "inprocess 11",
    "The monitor's log has `target_pid=` of its rank, in the file named for the rank",
)
def test_monitors_log(four: Ranks) -> None:
    for rank, process in enumerate(four.processes):
        text = (four.folder / f"{rank}.log").read_text()
        assert f"target_pid={process.pid}" in text


@promise("inprocess 11", "The PID file has the monitor's PID while the call runs")
def test_pid_file(four: Ranks) -> None:
    assert int(four.notes(0, "pid")[0]) not in {process.pid for process in four.processes}


# ---------------------------------------------------------------- who works, and who does not come
STATUS = (
    COMPAT
    + """
from nvidia_resiliency_ext.inprocess.state import Status

class Half(inprocess.initialize.Initialize):
    def __call__(self, state):
        state.status = Status.ACTIVE if state.rank == 0 else Status.INACTIVE
        return state

@inprocess.Wrapper(initialize=Half(), **QUICK)
def train():
    note(called=True)
    return "done"

run(train)
"""
)


@promise(
    "inprocess 4.2", "First generation: a rank that `initialize` leaves INACTIVE does not work"
)
def test_initialize_decides_who_works(ranks: RankStarter) -> None:
    job = ranks(2, STATUS)
    assert job.wait() == [0, 0]
    assert [job.notes(rank, "called") for rank in range(2)] == [[True], []]
    assert [job.notes(rank, "returned") for rank in range(2)] == [["done"], [None]]


LATE = (
    COMPAT
    + """
times = dict(IMPATIENT, soft_timeout=seconds(1), hard_timeout=seconds(1.2),
             heartbeat_timeout=seconds(1.2), barrier_timeout=seconds(1.3))
run(inprocess.Wrapper(**times)(lambda: None))
"""
)


@promise(
    "inprocess 6",
    "A rank that does not come: BarrierTimeout for the others, after `barrier_timeout`",
)
def test_barrier_timeout(ranks: RankStarter) -> None:
    job = ranks(1, LATE, WORLD_SIZE="2", TORCH_CPP_LOG_LEVEL="ERROR")
    job.wait()
    assert job.notes(0, "raised") == ["BarrierTimeout"]
