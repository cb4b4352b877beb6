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

    limits = dict(soft_timeout=seconds(4.5), hard_timeout=seconds(4.7))
    times = dict(IMPATIENT, **limits, last_call_wait=seconds(0.3))
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
                time.sleep(4.9)
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
    assert job.said(
        0, "InternalError: rank_assignment, rank_filter or initialize left rank 0 in mode ABORT"
    )


def test_of_a_composed_abort_each_leaf_is_called_and_ranks_are_freed_whichever_fail(
    ranks: RankStarter,
) -> None:
    """A leaf that cannot work here costs nobody the restart; nor does an abort that frees nobody.

    One that raises ``RestartAbort`` takes its rank out, as it does in any plug-in.
    """
    source = """
    import threading
    from holdfast.inplace.torch_edge.work_abort import work_aborter

    class Leaf(inprocess.abort.Abort):
        def __init__(self, name, error=None):
            self.name, self.error = name, error
        def __call__(self, state):
            note(aborts=self.name)
            if self.error is not None:
                raise self.error
            return state

    Torch = inprocess.abort.AbortTorchDistributed

    def say_when_it_waits(path):
        main = threading.main_thread().ident
        while not work_aborter.waits(main):
            time.sleep(0.01)
        open(path, "w").close()

    def job(name, abort):
        waits = f"{os.environ['OUT']}/{name}-waits"
        # Rank 1 raises when rank 0 waits for it: that may be later on a busy machine.
        @wrapper(abort=abort, **QUICK)
        def train(call: CallWrapper):
            if name == "idle" and call.iteration == 1:
                dist.destroy_process_group()  # such an abort leaves that to the function
            dist.init_process_group("gloo")
            assert all_reduce() == now()[1]
            if call.iteration == 0:
                if RANK == 1:
                    while not os.path.exists(waits):
                        time.sleep(0.01)
                    raise ValueError("boom")
                threading.Thread(target=say_when_it_waits, args=[waits], daemon=True).start()
                all_reduce()
            dist.destroy_process_group()
            return call.iteration
        run(train)

    no_module = ModuleNotFoundError("no checkpointing")
    job("composed", Compose(Leaf("last"), Torch(), Leaf("first", no_module)))
    job("alone", Leaf("alone", no_module))
    job("idle", Leaf("idle"))
    left = inprocess.exception.RestartAbort("enough")
    job("leaves", Compose(Torch(), Leaf("leaves", left if RANK == 1 else None)))
    """
    job = ranks(2, source)
    assert job.wait() == [0, 5]
    assert job.notes(0, "aborts") == ["first", "last", "alone", "idle", "leaves"]
    assert job.notes(1, "aborts") == job.notes(0, "aborts")
    assert job.notes(0, "returned") == [1, 1, 1, 1]
    assert job.notes(1, "returned") == [1, 1, 1]
    assert job.notes(1, "raised") == ["RestartAbort"]
    assert job.said(
        0, "an abort plug-in failed; those after it were called\n(.*\n)*?ModuleNotFound"
    )
    assert job.said(0, "process groups are aborted: an abort plug-in failed, and no other has")
    assert job.said(0, "process groups are aborted: no abort plug-in has freed its main thread")


def test_plug_ins_of_the_first_generation_have_one_state_and_say_who_works(
    ranks: RankStarter,
) -> None:
    """Without annotations, under any names; what they put on the state stays for the call.

    Assignments see the iteration that failed, and its exception, which holds no memory any more.
    What a check or a finalizer raises reaches the caller with its own cause, and with the exception
    that was being handled.
    """
    source = """
    import weakref
    from holdfast.inprocess.rank_assignment import RankAssignment, ShiftRanks

    def chain(error):
        words = []
        while error is not None:
            words.append(type(error).__name__)
            context = None if error.__suppress_context__ else error.__context__
            error = error.__cause__ or context
        return words

    def has_initialized(rank):
        path = f"{os.environ['OUT']}/rank{rank}.jsonl"
        if not os.path.exists(path):
            return False
        with open(path) as file:
            return "calls" in file.read()

    class Initialize(inprocess.initialize.Initialize):
        def __call__(self, it):
            it.calls = getattr(it, "calls", 0) + 1
            note(calls=it.calls)
            if it.iteration == 0 and RANK == 2:
                it.status = inprocess.Mode.INACTIVE
            return it

    class Assignment(RankAssignment):
        def __call__(self, *args):
            note(assigns=[args[0].iteration, type(args[0].fn_exception).__name__])
            note(holds=[type(it()).__name__ for it in held])
            return ShiftRanks()(*args)

    class HealthCheck(inprocess.health_check.HealthCheck):
        def __call__(self, *args):
            state, error = args
            if isinstance(error, KeyError):
                raise RuntimeError("unwell")
            return args

    class Finalize(inprocess.finalize.Finalize):
        def __call__(self, it, error):
            if isinstance(error, IndexError):
                try:
                    raise OSError("disk")
                except OSError as cause:
                    raise TypeError("cannot clean up") from cause
            return it, error

    @wrapper(initialize=Initialize(), rank_assignment=Assignment(), health_check=HealthCheck(),
             finalize=Finalize(), **QUICK)
    def train(call: CallWrapper):
        kept.append(call.state)
        note(fn=call.iteration)
        call.store.meet("all who work", [2, 3, 2, 1][call.iteration])
        faults = {0: (1, ValueError), 1: (1, KeyError), 2: (0, IndexError)}
        rank, error = faults.get(call.iteration, (None, None))
        while call.iteration == 0 and not has_initialized(2):
            time.sleep(0.01)
        if RANK == rank:
            tensor = torch.ones(1)
            held.append(weakref.ref(tensor))
            raise error("boom")
        while rank is not None:
            time.sleep(0.01)
        assert all(one is call.state for one in kept)
        return call.iteration

    kept, held = [], []
    try:
        note(returned=train())
    except BaseException as error:
        note(chain=chain(error))
    """
    job = ranks(3, source)
    assert job.wait() == [0, 0, 0]
    assert job.notes(1, "chain") == [["HealthCheckError", "RuntimeError", "KeyError"]]
    assert job.notes(0, "chain") == [["TypeError", "OSError"]]
    assert job.notes(2, "returned") == [3]
    assert [job.notes(rank, "fn") for rank in range(3)] == [[0, 1, 2], [0, 1], [1, 2, 3]]
    assert job.notes(2, "calls") == [1, 2, 3, 4]
    assert job.notes(1, "assigns") == [[0, "NoneType"], [0, "ValueError"]]
    assert job.notes(1, "holds") == [[], ["NoneType"]], "its traceback keeps no memory"
    assert job.notes(2, "assigns") == [[n, "NoneType"] for n in (0, 0, 1, 2)]
