"""Why a rank ended, and which end was the cause."""

from __future__ import annotations

import pytest

from holdfast.evidence.pure.evidence import Verdict
from holdfast.evidence.pure.failure import RankEnd, explain, first_cause, was_asked
from holdfast.node.records.report import cause_line, failure_report, failure_summary
from tests.overdue import overdue_section

GIB_IN_KIB = 1 << 20
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:4711"
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in step']
ABORT = ["terminate called after throwing an instance of 'gloo::IoException'", f"  what():  {GLOO}"]


def end(rank: int, exit_code: int, at: float, **more: object) -> RankEnd:
    """How rank ``rank`` ended at time ``at``."""
    return RankEnd(rank, rank, 4000 + rank, exit_code, at, **more)  # type: ignore[arg-type]


def box(
    name: str, node: str, cycle: int, ends: list[RankEnd], why: str, hang: Verdict | None = None
) -> str:
    """The summary of a cycle, as the console has it."""
    return failure_summary(name, node, cycle, ends, why, hang).boxed


@pytest.mark.parametrize(
    ("exit_code", "more", "expected"),
    [
        (3, {}, "exit code 3"),
        (-11, {}, "killed by SIGSEGV (segmentation fault in native code)"),
        (-40, {}, "killed by signal 40"),
        (-9, {}, "killed by SIGKILL, not by holdfast; the kernel reports no out-of-memory kill"),
        (
            -9,
            {"oom_kills": ["cgroup"], "peak_rss_kib": 2048},
            (
                "out of memory: killed by SIGKILL by the kernel (out-of-memory kill in this "
                "cgroup; it had used 2 MiB)"
            ),
        ),
        (
            -9,
            {"oom_kills": ["host"], "peak_rss_kib": 2048},
            (
                "killed by SIGKILL, not by holdfast; perhaps out of memory: the kernel killed some "
                "process of this host for it meanwhile (it had used 2 MiB)"
            ),
        ),
        (
            -9,
            {"is_stuck": True},
            "still alive after SIGKILL: stuck in the kernel (uninterruptible)",
        ),
        (1, {"error": "torch.OutOfMemoryError: ..."}, "out of GPU memory: exit code 1"),
        (1, {"error": "RuntimeError: CUDA error: out of memory"}, "out of GPU memory: exit code 1"),
        (
            1,
            {"last_lines": ["RuntimeError: CUDA error: device-side assert triggered"]},
            ("device-side assert in a CUDA kernel: exit code 1"),
        ),
        (
            -6,
            {"last_lines": ["CUDA error: an illegal memory access was encountered"]},
            ("killed by SIGABRT (wrong address in a CUDA kernel)"),
        ),
        (1, {"last_lines": ["MemoryError"]}, "out of host memory: exit code 1"),
        (
            1,
            {"last_lines": [*TRACEBACK, "ValueError: lr is -1"]},
            "ValueError (lr is -1): exit code 1 at train.py:3",
        ),
        (
            1,
            {
                "last_lines": [
                    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
                ],
                "oom_kills": ["cgroup"],
            },
            "data loader worker that ended (7): exit code 1 (out-of-memory kill in this cgroup)",
        ),
        (1, {"last_lines": ["no field 'lr'"]}, "exit code 1 (its last line: no field 'lr')"),
        (
            -9,
            {"hang": overdue_section(312.44, 300.0)},
            "hung (section 'step': 312.4 s, timeout 300 s); killed by SIGKILL by its monitor",
        ),
        (
            -9,
            {"hung_in_place": "it sleeps", "oom_kills": ["host"]},
            "hung: it sleeps; killed by SIGKILL by the node guard of restarts in place",
        ),
        (
            143,
            {"hung_in_place": "it sleeps"},
            "hung: it sleeps; exit code 143 after a signal of the node guard of restarts in place",
        ),
    ],
)
def test_an_end_is_explained_in_one_line(exit_code: int, more: dict, expected: str) -> None:
    """Signal names, out-of-memory kills and hangs are told apart."""
    assert explain(end(0, exit_code, 1.0, **more)) == expected


def test_the_earliest_failure_is_the_cause() -> None:
    """Success and ends that we asked for are none."""
    ends = [end(0, 0, 1.0), end(1, -15, 1.5, asked=True), end(2, 1, 3.0), end(3, 2, 2.0)]

    assert first_cause(ends) is ends[3]
    assert first_cause(ends[:2]) is None


def test_a_rank_that_cannot_be_ended_is_a_cause_only_where_nothing_else_is() -> None:
    """It was asked to stop because of the failure; or by a signal, and then it is all there is."""
    failed, stuck = end(0, 1, 1.0), end(1, -9, 45.0, asked=True, is_stuck=True)

    assert first_cause([failed, stuck]) is failed
    assert first_cause([end(0, -15, 1.0, asked=True), stuck]) is stuck
    summary = box("train.py", "n0", 0, [failed, stuck], "over")
    assert "Not ended:   rank 1 (pid 4001) still alive after SIGKILL" in summary


def test_a_hang_precedes_the_echoes_of_its_kill() -> None:
    """A peer whose connection broke may be reaped before the hung rank itself."""
    hung = end(0, -9, 10.5, hang=overdue_section(5.0, 4.0, 10.0))
    echo = end(1, 1, 10.4)

    assert first_cause([echo, hung]) is hung


def test_a_big_process_that_was_killed_precedes_the_echoes_of_its_death() -> None:
    """It is reported only when its memory has been freed."""
    killed = end(0, -9, 12.0, peak_rss_kib=10 * GIB_IN_KIB)
    echo = end(1, 1, 11.0)

    assert first_cause([echo, killed]) is killed
    small = end(0, -9, 12.0, peak_rss_kib=GIB_IN_KIB // 10)
    assert first_cause([echo, small]) is echo


@pytest.mark.parametrize(
    ("exit_code", "more", "expected"),
    [
        (1, {"error": GLOO}, True),
        (1, {"last_lines": [*TRACEBACK, GLOO]}, True),
        (1, {"last_lines": [f"[rank3]: {line}" for line in (*TRACEBACK, GLOO)]}, True),
        (
            1,
            {"last_lines": [*TRACEBACK, "DistBackendError: NCCL error", "ncclRemoteError: x"]},
            True,
        ),
        (1, {"last_lines": ["BrokenPipeError: [Errno 32] Broken pipe"]}, True),
        (-6, {"last_lines": [*ABORT, "", "Fatal Python error: Aborted"]}, True),
        (3, {}, False),
        (3, {"last_lines": [GLOO, "tried again and gave up"]}, False),
        (1, {"last_lines": [*TRACEBACK, GLOO, *TRACEBACK, "ValueError: loss is NaN"]}, False),
        (1, {"last_lines": [*TRACEBACK, '    raise E("Broken pipe")', "E: else"]}, False),
        (1, {"error": "ValueError: loss is NaN", "last_lines": [GLOO]}, False),
        (-9, {"last_lines": [GLOO]}, False),
        (-15, {"error": GLOO}, False),
        (-9, {"hang": overdue_section(9.0, 5.0), "last_lines": [GLOO]}, False),
        (0, {"error": GLOO}, False),
    ],
)
def test_an_error_that_says_that_another_rank_is_gone_is_told_from_an_own_one(
    exit_code: int, more: dict, expected: bool
) -> None:
    """By the exception that it ended with, and not by what it printed before."""
    assert end(0, exit_code, 1.0, **more).names_a_peer is expected


CAUSES = {
    "its own exit": end(1, 3, 9.0),
    "an exception": end(1, 1, 9.0, last_lines=[*TRACEBACK, "ValueError: x"]),
    "a signal from outside": end(1, -9, 9.0),
    "a hang": end(1, -9, 9.0, hang=overdue_section(5.0, 4.0, 8.9)),
    "its host": end(1, -9, 9.0, host_problem="GPU 1 is lost"),
    "a hang in place": end(1, -9, 9.0, hung_in_place="it sleeps"),
}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_the_cause_comes_before_what_it_caused_in_whatever_order_they_are_reported(
    cause: RankEnd,
) -> None:
    """A rank whose peer is gone may be reaped long before that peer."""
    echoes = [end(0, 1, 1.0, error=GLOO), end(2, -6, 1.1, last_lines=ABORT), end(3, 1, 1.2)]
    echoes[2] = end(3, -15, 1.2, asked=True)
    for ends in ([*echoes, cause], [cause, *echoes]):
        assert first_cause(ends) is cause
    assert first_cause(echoes) is echoes[0], "nothing else is known"


TOP = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']
RAISED = [*TOP, "ValueError: bad sample"]


def test_a_failure_begins_when_its_exception_is_written() -> None:
    """A rank may take seconds to exit, and its peers fail of its absence meanwhile."""
    slow = end(1, 1, 9.0, last_lines=RAISED, line_times=[5.0] * 3)
    abort = end(0, -6, 6.0, last_lines=["terminate called", "  what(): x"], line_times=[5.9] * 2)

    assert slow.began_at == 5.0
    assert abort.began_at == 5.9
    assert first_cause([abort, slow]) is slow


@pytest.mark.parametrize("exit_code", [1, -15, -9])
def test_a_rank_that_was_exiting_of_its_exception_when_it_was_stopped_is_the_cause(
    exit_code: int,
) -> None:
    """Its peer failed first, and the launcher stopped all others."""
    asked = {"asked": True, "asked_at": 6.1, "last_lines": RAISED}
    peer = end(0, -6, 6.0, last_lines=ABORT, line_times=[6.0] * 2)
    exiting = end(1, exit_code, 6.5, line_times=[5.0] * 3, **asked)
    told = "ValueError (bad sample) at train.py:3: it was still exiting when it was stopped"

    assert first_cause([peer, exiting]) is exiting
    assert explain(exiting) == told
    assert f"First cause: rank 1 (pid 4001): {told}" in box(
        "train.py", "n0", 0, [peer, exiting], "over"
    )
    assert first_cause([end(0, 3, 6.0), exiting]).rank == 0, "that one says nothing of a peer"


@pytest.mark.parametrize(
    "more",
    [
        {"line_times": [6.2] * 3},  # the handler of our SIGTERM raised it
        {"line_times": [5.0] * 3, "asked_at": 500.0},  # it was survived
        {"line_times": [5.0] * 3 + [5.9], "last_lines": [*RAISED, "step 10"]},
        {"line_times": []},
        {"line_times": [5.0] * 3, "last_lines": [*TOP, GLOO]},
        {"line_times": [5.0] * 3, "last_lines": [*TRACEBACK, "ValueError: caught, and shown"]},
    ],
)
def test_a_rank_that_was_running_when_it_was_stopped_is_not_the_cause(more: dict) -> None:
    peer = end(0, -6, 6.0, last_lines=ABORT, line_times=[6.0] * 2)
    stopped = end(1, -15, 6.5, **{"asked": True, "asked_at": 6.1, "last_lines": RAISED, **more})

    assert first_cause([peer, stopped]) is peer


def test_no_rank_ends_a_negative_time_after_the_cause() -> None:
    """An echo may be seen to end before it."""
    ends = [end(0, 1, 1.0, error=GLOO), end(1, 3, 1.019), end(2, -15, 1.1, asked=True)]

    text = box("train.py", "n0", 0, ends, "over")

    assert "First cause: rank 1 (pid 4001): exit code 3" in text
    assert "rank 0 (pid 4000) exit code 1, because of another rank\n" in text
    assert "rank 2 (pid 4002) stopped by holdfast, +81 ms" in text
    assert "-19" not in text


@pytest.mark.parametrize(
    ("exit_code", "sent", "asked"),
    [
        (-15, {15}, True),
        (1, {15}, True),
        (-6, {15}, True),
        (-9, {15, 9}, True),
        (-9, {15}, False),
        (1, set(), False),
    ],
)
def test_an_end_after_our_signal_was_asked_for(exit_code: int, sent: set[int], asked: bool) -> None:
    """A SIGKILL that we did not send has another author, whatever else we sent."""
    assert was_asked(exit_code, sent) is asked


def test_the_summary_names_cause_rank_pid_and_last_words() -> None:
    """What an engineer needs at 3 a.m. is in the box, the cause first."""
    ends = [
        end(1, -15, 1.02, asked=True),
        end(0, 1, 1.0, last_lines=["Traceback ...", "ValueError: loss is NaN"]),
    ]

    text = box("train.py", "gpu-07", 3, ends, "3 of 3 restarts used")

    assert "train.py FAILED in cycle 3 on gpu-07: 3 of 3 restarts used" in text
    assert "First cause: rank 0 (pid 4000)" in text
    assert "exit code 1" in text
    assert "    ValueError: loss is NaN" in text
    assert "Also ended:  rank 1 (pid 4001) stopped by holdfast, +20 ms" in text


LOST = "another rank was lost ([::1]:4711)"


def test_a_rank_that_left_early_is_named_where_others_lost_a_peer() -> None:
    """Batches for fewer steps on one rank: its exit code is 0, and the others fail of it."""
    left, late = end(0, 0, 0.9), end(2, 0, 1.1)
    text = box("t.py", "n", 0, [left, end(1, 1, 1.0, error=GLOO), late], "v")

    assert (
        "First cause: rank 0 (pid 4000) exited with code 0 while ranks 1,2 continued\n"
        "  Advice: look in rank 0 for sys.exit, an early return or fewer batches\n"
        f"Then failed: rank 1 (pid 4001): {LOST}: exit code 1\n"
    ) in text
    assert text.count("Advice: ") == 1, "the error of the other rank names no rank to look at"
    assert "rank 2 " not in text
    assert "exited with" not in box("t.py", "n", 0, [left, end(1, 3, 1.0)], "v")
    many = [end(rank, 0, rank / 10) for rank in range(11)]
    text = box("t.py", "n", 0, [*many, end(11, 1, 1.0, error=GLOO)], "v")
    assert "First cause: rank 10 (pid 4010) exited with code 0 after 10 other ranks while" in text
    assert "Had left:    rank 9 (pid 4009) exited with code 0, 100 ms before\n" in text
    assert text.count("Had left") == 8
    assert "             and 2 more\n==" in text


def test_the_last_lines_of_a_rank_that_left_early_are_shown_above_those_of_its_peer() -> None:
    """They may say why it left."""
    left = end(0, 0, 0.9, last_lines=["no shard for this rank: done"])
    fails = end(1, 1, 1.0, last_lines=[*TRACEBACK, GLOO])
    text = box("t.py", "n", 0, [left, fails], "v")
    assert text.index("    no shard for this rank: done\nThen failed: ") < text.index(GLOO)


def test_the_cause_has_the_rank_that_left_early() -> None:
    """What people and other nodes read, and the job's error file."""
    left, fails = end(0, 0, 0.9), end(1, 1, 1.0, error=GLOO)

    assert cause_line([left, fails, end(2, -15, 1.1, asked=True)]) == (
        "rank 0 (pid 4000) exited with code 0 while ranks 1,2 continued; "
        f"0.10 s later rank 1 failed: {LOST}"
    )
    assert cause_line([left, fails], node="gpu-07").startswith("rank 0 (pid 4000, node gpu-07) ")
    assert "rank 0" not in cause_line([left, end(1, 3, 1.0)]), "it may have done its work"
    asked = end(0, 0, 0.9, asked=True)
    assert "rank 0" not in cause_line([asked, fails])


LEAVING = {"asked": True, "asked_at": 1.05, "exiting_at": 0.4}


@pytest.mark.parametrize(("exit_code", "more"), [(-15, ""), (-9, ""), (3, ", with exit code 3")])
def test_a_rank_that_was_exiting_by_itself_when_it_was_stopped_has_left_before(
    exit_code: int, more: str
) -> None:
    """Python takes seconds to exit after sys.exit, and prints nothing; its peers fail of that."""
    fails, stopped = end(0, 1, 1.0, error=GLOO), end(2, -15, 1.1, asked=True, asked_at=1.05)
    ends = [fails, end(1, exit_code, 1.2, **LEAVING), stopped]
    how = (
        f"rank 1 (pid 4001) began to exit (sys.exit, or the end of its script{more}) "
        "while ranks 0,2 continued"
    )

    assert cause_line(ends) == f"{how}; 0.60 s later rank 0 failed: {LOST}"
    text = box("t.py", "n", 0, ends, "v")
    assert f"First cause: {how}\n" in text
    assert "Also ended:  rank 1 " not in text
    assert failure_report(ends, None).others == "1"


@pytest.mark.parametrize(
    "more",
    [
        {"exiting_at": None},
        {"asked_at": 0.3},  # the handler of our SIGTERM calls sys.exit
        {"exiting_at": 1.02},  # it has lost the same peer, and says nothing of it
        {"last_lines": [*TRACEBACK, GLOO]},  # it has caught that, and exits
    ],
)
def test_a_rank_that_exits_because_of_others_has_not_left_before(more: dict) -> None:
    fails = end(0, 1, 1.0, error=GLOO)

    assert "rank 1" not in cause_line([fails, end(1, -15, 1.2, **{**LEAVING, **more})])


def test_a_rank_that_was_exiting_is_not_named_beside_an_error_that_names_no_peer() -> None:
    assert "rank 1" not in cause_line([end(0, 3, 1.0), end(1, -15, 1.2, **LEAVING)])


def test_the_first_lines_of_its_stderr_are_in_the_box_before_the_last_ones() -> None:
    """A warning at the beginning may explain the exception; what comes after that is cut."""
    error = [TRACEBACK[0], '  File "train.py", line 9, in <module>', "ValueError: x"]
    last, times = [*["step"] * 20, *error, "an exit handler"], [*[0.2] * 23, 0.9]
    first = {"first_lines": ["bad sampler", "y"], "n_lines": 1024}
    fails = end(0, 1, 1.0, last_lines=last, line_times=times, **first)
    text = box("t.py", "n", 0, [fails], "v")
    assert "  its stderr:\n    bad sampler\n    y\n    ... 1,006 lines between\n    step" in text
    assert "exit handler" not in text


def test_the_traceback_of_an_error_file_is_preferred_to_stderr() -> None:
    """``@record`` knows better than the last lines of a shared stream."""
    ends = [end(0, 1, 1.0, error="ValueError: x", traceback="File a\nFile b", last_lines=["noise"])]

    text = box("t.py", "n", 0, ends, "v")

    assert "ValueError: x" in text
    assert "    File b" in text
    assert "noise" not in text


def test_ranks_that_hung_together_are_named_together() -> None:
    """One of them keeps the others waiting; the order of finding does not say which."""
    hang = overdue_section(4.0, 4.0, 9.0)
    ends = [end(0, -9, 10.0, hang=hang), end(1, -9, 10.0, hang=hang), end(2, -15, 10.1, asked=True)]

    assert cause_line(ends).endswith("by its monitor; hung at the same time: rank 1")
    assert "same time" not in cause_line(ends[:1])
    assert cause_line(ends[2:]) == "its ranks being stopped"


REASON = "rank 2 was stopped; ranks 0, 1 wait for it"


def test_the_rank_that_holds_up_the_others_is_named_first_whosever_timeout_ran_out() -> None:
    """It was not overdue, and the launcher has stopped it; or it is on another node."""
    hang = overdue_section(4.0, 4.0, 9.0)
    hung = [end(k, -9, 10.0, hang=hang, is_condemned=True) for k in (0, 1)]
    ends = [*hung, end(2, -15, 10.1, asked=True)]
    verdict = Verdict((2,), "stopped", REASON, "high")

    assert first_cause(ends) is ends[0]
    assert first_cause(ends, verdict.culprits) is ends[2]
    assert cause_line(ends, verdict).startswith(f"{REASON}; rank 0 (pid 4000): waited for")
    text = box("t.py", "n", 0, ends, "over", verdict)
    assert f"First cause: {REASON}\nCulprit:     rank 2 (pid 4002): " in text

    overdue_too = Verdict((1,), "stopped", "rank 1 was stopped", "high")
    assert cause_line(hung, overdue_too).startswith("rank 1 was stopped; rank 1 (pid 4001): ")

    elsewhere = box("t.py", "n", 0, hung, "over", verdict)
    assert f"First cause: {REASON}\nThis node:   rank 0 (pid 4000): " in elsewhere
    assert cause_line(ends[2:], verdict) == REASON


def test_a_verdict_that_names_nobody_follows_what_is_known() -> None:
    hang = overdue_section(4.0, 4.0, 9.0)
    ends = [end(0, -9, 10.0, hang=hang), end(1, -15, 10.1, asked=True)]
    verdict = Verdict(reason="all ranks are in the same collective")

    assert cause_line(ends, verdict) == f"{cause_line(ends)}; {verdict.reason}"
    assert cause_line(ends[1:], verdict) == "its ranks being stopped"


@pytest.mark.parametrize(
    ("oom_kills", "exit_code", "parked", "advice"),
    [
        (["cgroup"], -9, (0, 0), "ask for more memory, or use fewer data loader workers"),
        (
            ["cgroup", "host"],
            -9,
            (2, 480 << 10),
            (
                "ask for more memory, or use fewer data loader workers; 2 parked interpreters held "
                "480 MiB: --ft-warm-standby=off"
            ),
        ),
        (["host"], -9, (1, 240 << 10), "1 parked interpreter held 240 MiB: --ft-warm-standby=off"),
        ([], -9, (1, 240 << 10), ""),
        (["host"], -11, (1, 240 << 10), "PYTHONFAULTHANDLER=1 shows the stack"),
    ],
)
def test_advice_of_an_out_of_memory_kill_names_what_holdfast_held(
    oom_kills: list[str], exit_code: int, parked: tuple[int, int], advice: str
) -> None:
    """Else nobody looks for 240 MiB of a process that did no work."""
    found = end(0, exit_code, 1.0, oom_kills=oom_kills, parked=parked).attribution

    assert found.advice == advice


def test_what_a_restart_in_place_began_with_comes_before_the_rank_that_held_it_up() -> None:
    """It is no end at all, and the launcher ended its rank; a hang by itself has no such cause."""
    why = "ValueError: bad batch (train.py:3)"
    raised = end(0, -15, 200.0, asked=True, began_restart=why, began_restart_at=100.0)
    held_up = end(1, -15, 190.0, hung_in_place="no progress for 90.0 s")
    ends = [raised, held_up]

    assert first_cause(ends) is raised
    told = f"{why}; the restart in place after that failed (killed by SIGTERM, as it was asked to)"
    assert explain(raised) == told
    text = box("train.py", "n0", 0, ends, "no restarts left")
    assert f"First cause: rank 0 (pid 4000): {told}" in text
    crashed = end(2, 1, 150.0, last_lines=["ValueError: another"])
    assert first_cause([*ends, crashed]) is crashed, "a rank that failed before"
    assert first_cause([end(0, -15, 200.0, asked=True), held_up]) is held_up
