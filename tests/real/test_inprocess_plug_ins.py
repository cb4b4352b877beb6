"""Plug-ins and limits of the Wrapper, several at a time, in calls of real ranks."""

from __future__ import annotations

from tests.real.ranks import SIGKILLED, RankStarter


def test_faults_are_counted_retries_end_and_the_guard_writes_its_files(ranks: RankStarter) -> None:
    """FaultCounter, RetryController, ThreadedFinalize, last_call_wait, logfile and pidfile.

    What a health check raises before the function is a fault, as a HealthCheckError.

    And ``disable_hang_protection``: a wait above both limits is no fault in there.
    """
    source = """
    import threading

    OUT = os.environ["OUT"]
    LOG, PID = f"{OUT}/guard-{{rank}}.log", f"{OUT}/guard-{{rank}}.pid"
    with open(LOG.format(rank=RANK), "w") as file:
        file.write("of the call before")

    def clean_up(what, *, again):
        note(cleaned_up=[what, again, threading.current_thread() is threading.main_thread()])

    class Unwell(inprocess.health_check.HealthCheck):
        def __call__(self, state):
            if state.iteration == 2 and state.fn_exception is None:
                raise ValueError("unwell")
            if state.iteration == 2:
                error = state.fn_exception
                note(held=[type(error).__name__, type(error.__cause__).__name__])
            return state

    times = dict(IMPATIENT, hard_timeout=seconds(2.2), last_call_wait=seconds(0.3))
    @wrapper(
        initialize=inprocess.initialize.RetryController(max_iterations=4),
        health_check=Compose(Unwell(), inprocess.health_check.FaultCounter(max_rank_faults=1)),
        finalize=inprocess.finalize.ThreadedFinalize(
            seconds(20), clean_up, args=("cache",), kwargs={"again": True}),
        monitor_process_logfile=LOG, monitor_process_pidfile=PID, **times,
    )
    def train(call: CallWrapper):
        note(entered=time.monotonic())
        with call.disable_hang_protection():  # what follows the sleep is slow on a busy machine
            if call.iteration == 0:
                time.sleep(2.4)
                with open(PID.format(rank=RANK)) as file:
                    pid = int(file.read())
                with open(f"/proc/{pid}/cmdline") as file:
                    assert "guard_main" in file.read()
            dist.init_process_group("gloo")
            all_reduce()
        note(fails=time.monotonic())
        if call.iteration < 2:
            if RANK == 1:
                raise ValueError("boom")
            all_reduce()
        raise inprocess.exception.RankShouldRestart("please")

    try:
        run(train)
    finally:
        note(log=open(LOG.format(rank=RANK)).read())
    """
    job = ranks(2, source)
    assert job.wait() == [5, 5]
    assert [job.notes(rank, "raised") for rank in range(2)] == [
        ["RestartAbort"],
        ["HealthCheckError"],
    ]
    assert "iteration=4" in job.notes(0, "text")[0]
    assert "max_rank_faults=1" in job.notes(1, "text")[0]
    assert [len(job.notes(rank, "entered")) for rank in range(2)] == [3, 2]
    assert job.notes(0, "held") == [["HealthCheckError", "ValueError"]]
    assert job.notes(0, "cleaned_up") == [["cache", True, False]] * 4
    assert job.notes(1, "cleaned_up") == [["cache", True, False]] * 2
    pauses = zip(job.notes(0, "entered")[1:], job.notes(1, "fails"), strict=True)
    assert all(entered - failed >= 0.3 for entered, failed in pauses)
    for rank in range(2):
        log = job.notes(rank, "log")[0]
        assert "of the call before" not in log
        assert f"target_pid={job.processes[rank].pid}" in log


def test_a_tree_replaces_within_the_group_and_late_completion_is_a_fault(
    ranks: RankStarter,
) -> None:
    """Tree, completion_timeout, and a ThreadedFinalize that takes too long: its rank leaves."""
    source = """
    from holdfast.inprocess.rank_assignment import Layer, LayerFlag, Tree

    ITERATION = [0]

    def clean_up():
        if RANK == 3 and ITERATION[0] == 1:
            time.sleep(1000)

    class Counting(inprocess.initialize.Initialize):
        def __call__(self, state):
            ITERATION[0] = state.iteration
            return state

    @wrapper(
        initialize=Counting(),
        rank_assignment=Tree([
            Layer(flag=LayerFlag.RESERVE),
            Layer(key_or_fn=lambda state: f"node {state.initial_rank // 2}", max_ranks=1,
                  flag=LayerFlag.RESERVE),
        ]),
        finalize=inprocess.finalize.ThreadedFinalize(seconds(3), clean_up),
        completion_timeout=seconds(3), **QUICK,
    )
    def train(call: CallWrapper):
        note(iteration=call.iteration, now=now())
        dist.init_process_group("gloo")
        assert all_reduce() == 2
        if call.iteration == 0:
            if RANK == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            all_reduce()
        dist.destroy_process_group()
        if call.iteration == 1 and RANK == 2:
            time.sleep(1000)
        return call.iteration

    run(train)
    """
    job = ranks(4, source)
    assert job.wait() == [SIGKILLED, 0, 0, 5]
    assert job.notes(0) == [{"iteration": 0, "now": [0, 2]}]
    assert job.notes(1) == [
        {"iteration": 1, "now": [0, 2]},
        {"iteration": 2, "now": [0, 2]},
        {"returned": 2},
    ]
    assert job.notes(2, "now") == [[1, 2]] * 3
    assert job.notes(3, "raised") == ["TimeoutError"]
    assert job.said(1, "completion_timeout")


def test_a_rank_neither_active_nor_inactive_is_a_fault(ranks: RankStarter) -> None:
    source = """
    from holdfast.inprocess.rank_assignment import RankFilter

    class Strange(RankFilter):
        def __call__(self, state):
            if state.iteration == 0:
                state.mode = inprocess.Mode.ABORTED
            return state

    run(wrapper(rank_filter=Strange(), **QUICK)(lambda: "works"))
    """
    job = ranks(1, source)
    assert job.wait() == [0]
    assert job.notes(0, "returned") == ["works"]
    assert job.said(0, "InternalError: rank_assignment or rank_filter left rank 0 in mode ABORTED")
