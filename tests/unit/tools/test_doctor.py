"""``holdfast doctor``: what facts mean, what faults will cost, and the command."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.pure.address import Published
from holdfast.node.pure import node
from holdfast.options.cluster_env import Cluster
from holdfast.tools.doctor import call_sources, earlier_run, limits, page
from holdfast.tools.doctor.advice import (
    WITHOUT_CALL,
    HostFacts,
    NetworkFacts,
    about_host,
    about_network,
    about_scheduler,
)
from holdfast.tools.doctor.earlier_run import EarlierRun
from holdfast.tools.doctor.faults import PlantedFault, describe_restart, faults_of
from holdfast.tools.doctor.host import within
from holdfast.tools.doctor.losses import about_memory, about_pages, losses_of
from tests.unit.options.test_plan import plan

WELL = HostFacts(
    nproc=8,
    descriptors=65536,
    processes=100000,
    shared_memory=64 << 30,
    temporary_space=64 << 30,
    clock_source="tsc",
)
LIMITLESS = FaultToleranceConfig(
    initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None, rank_section_timeouts={}
)


def wrong(findings: object) -> list[str]:
    """``subject: text`` of everything that is not as it should be."""
    bad = (Fitness.SUSPECT, Fitness.UNHEALTHY)
    return [f"{f.subject}: {f.text}" for f in findings if f.verdict in bad]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- this host
def test_a_host_as_it_should_be_is_told_nothing_but_facts() -> None:
    assert wrong(about_host(WELL)) == []


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({"descriptors": 100}, Fitness.UNHEALTHY, "the launcher of 8 ranks needs 160"),
        ({"descriptors": 1024}, Fitness.SUSPECT, "with data loaders may want 4096"),
        ({"processes": 100}, Fitness.SUSPECT, "at most 100 processes and threads"),
        ({"shared_memory": 64 << 20}, Fitness.SUSPECT, "64 MiB free; NCCL and data loaders of 8"),
        ({"temporary_space": None}, Fitness.UNHEALTHY, "cannot be written; set TMPDIR"),
        ({"temporary_space": 5 << 20}, Fitness.SUSPECT, "5 MiB free; logs and evidence"),
        ({"clock_source": "hpet"}, Fitness.SUSPECT, "clock source 'hpet'"),
        ({"calls": {"pidfd_open": "absent"}}, Fitness.SUSPECT, "pidfd_open is refused here; Linux"),
        ({"kills_groups": True}, Fitness.SUSPECT, "takes the launcher with it"),
        ({"no_processes": "/proc is not there"}, Fitness.UNHEALTHY, "/proc is not there"),
    ],
)
def test_what_a_host_lacks_is_told_with_its_numbers(
    change: dict[str, object], verdict: Fitness, words: str
) -> None:
    facts = HostFacts(**{**vars(WELL), **change})  # type: ignore[arg-type]
    [finding] = [f for f in about_host(facts) if f.verdict is verdict]
    assert words in finding.text


def test_what_an_interpreter_was_built_without_is_a_fact_and_no_fault() -> None:
    """The kernel has it, and it is called through the C library."""
    calls = {"pidfd_open": "C library", "memfd_create": "interpreter"}
    [finding] = [f for f in about_host(HostFacts(calls=calls)) if f.subject == "interpreter"]
    assert (finding.verdict, finding.text) == (
        Fitness.HEALTHY,
        "this interpreter was built without pidfd_open; holdfast calls it through the C library",
    )


def test_each_call_that_a_host_may_lack_has_its_consequence() -> None:
    assert set(WITHOUT_CALL) == set(call_sources.survey())


def test_what_cannot_be_found_out_is_not_wrong() -> None:
    facts = HostFacts(temporary_space=1 << 40)
    assert [f for f in about_host(facts) if f.verdict is not Fitness.HEALTHY] == []


# ---------------------------------------------------------------- network and scheduler
THERE = NetworkFacts("n0", 29500, addresses=("10.0.0.1",), is_reached=True)


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        (THERE, Fitness.HEALTHY, "a process listens"),
        (NetworkFacts("n0", 1, ("::1",), is_reached=False), Fitness.UNKNOWN, "no process listens"),
        (NetworkFacts("n0", 1, (), "Name unknown"), Fitness.SUSPECT, "resolve (Name unknown)"),
        (NetworkFacts("n0", 1, ("::1",), is_host=True), Fitness.HEALTHY, "it can listen"),
        (
            NetworkFacts("n0", 1, ("::1",), is_host=True, refusal="Address in use"),
            Fitness.UNHEALTHY,
            "cannot listen there: Address in use",
        ),
    ],
)
def test_whether_launchers_will_find_each_other(
    facts: NetworkFacts, verdict: Fitness, words: str
) -> None:
    first = next(about_network(facts))
    assert first.verdict is verdict
    assert words in first.text


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({"published": Published("10.0.0.2", "a reason")}, Fitness.HEALTHY, "10.0.0.2: a reason"),
        ({"local_addr": "10.0.0.3"}, Fitness.HEALTHY, "10.0.0.3: --local-addr says so"),
        ({"local_addr": "127.0.0.1"}, Fitness.UNHEALTHY, "no other host can"),
        ({"local_addr": "::1", "host": "::1"}, Fitness.HEALTHY, "at ::1"),
        ({"gloo_interface": "eth0"}, Fitness.SUSPECT, "ranks get GLOO_SOCKET_IFNAME=eth0"),
    ],
)
def test_the_doctor_says_what_others_are_given_as_the_address_of_this_host(
    change: dict[str, object], verdict: Fitness, words: str
) -> None:
    facts = {**vars(THERE), "published": Published("10.0.0.2", "a reason"), **change}
    findings = list(about_network(NetworkFacts(**facts)))  # type: ignore[arg-type]
    assert [f for f in findings if f.verdict is verdict and words in f.text]


@pytest.mark.parametrize(("seconds", "words"), [(2.5, "takes 2.5 s"), (None, "does not come")])
def test_a_slow_name_server_is_found_before_ranks_wait_for_it(
    seconds: float | None, words: str
) -> None:
    slow = NetworkFacts(**{**vars(THERE), "reverse_s": seconds})
    assert [text for text in wrong(about_network(slow)) if words in text]


def test_a_grace_that_the_scheduler_does_not_give_is_told() -> None:
    slurm = Cluster("Slurm", nodes=4, node_rank=1)
    assert [text for text in wrong(about_scheduler(slurm, 1800.0)) if "have 1800 s" in text]
    assert wrong(about_scheduler(slurm, 20.0)) == []
    assert list(about_scheduler(None, 1800.0)) == []


# ---------------------------------------------------------------- limits
def test_torchs_own_timeouts_are_what_the_installed_torch_has() -> None:
    """The doctor does not import torch for two numbers."""
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/Backend.hpp"
    found = re.search(
        r"kBackendDefaultTimeout =\s*std::chrono::milliseconds\((.*?)\)", header.read_text()
    )
    assert found
    minutes, seconds, milli = map(int, found[1].split("*"))
    assert minutes * seconds * milli == limits.OTHERS_S * 1000
    with_nccl = torch.distributed.constants.default_pg_nccl_timeout
    assert with_nccl is None or with_nccl.total_seconds() == limits.NCCL_S


def test_a_hang_that_nobody_would_notice_is_told() -> None:
    for auto, then in ((False, "is not noticed"), (True, "is reported after 600 s, and ended at")):
        sections = FaultToleranceConfig(
            rank_section_timeouts={"step": 60.0, "setup": None},
            rank_heartbeat_timeout=None,
            auto_heartbeat=auto,
        )
        told = wrong(limits.judge(sections, {}, monitored=True))
        assert [text for text in told if f"a hang in section setup {then}" in text]
        assert [text for text in told if f"outside of all sections {then}" in text]
    endless = FaultToleranceConfig(exit_timeout=None)
    told = wrong(limits.judge(endless, {}, monitored=True))
    assert [text for text in told if "hangs at its exit" in text]
    assert [
        t for t in wrong(limits.judge(LIMITLESS, {}, monitored=True)) if "no timeout is set" in t
    ]
    assert (
        "not noticed by holdfast at all" in wrong(limits.judge(LIMITLESS, {}, monitored=False))[0]
    )


def test_a_limit_that_kills_healthy_ranks_is_told() -> None:
    """One that asks for heartbeats where there are sections, and the reverse."""
    sections = {"step": 60.0}
    explicit = FaultToleranceConfig(
        rank_section_timeouts=sections, initial_rank_heartbeat_timeout=3600.0
    )
    words = "sends no heartbeat is killed 3600 s after its init"
    assert [t for t in wrong(limits.judge(explicit, {}, monitored=True)) if words in t]
    for fine in (
        FaultToleranceConfig(rank_section_timeouts=sections),
        FaultToleranceConfig(
            rank_section_timeouts=sections,
            initial_rank_heartbeat_timeout=60.0,
            section_ends_initial_timeout=True,
        ),
        FaultToleranceConfig(initial_rank_heartbeat_timeout=60.0),
    ):
        assert not [t for t in wrong(limits.judge(fine, {}, monitored=True)) if "is killed" in t]
    outside = FaultToleranceConfig(rank_out_of_section_timeout=90.0)
    words = "every rank is killed 90 s after its init"
    assert [t for t in wrong(limits.judge(outside, {}, monitored=True)) if words in t]


def test_a_limit_that_torch_gets_ahead_of_is_told() -> None:
    long = FaultToleranceConfig(rank_section_timeouts={"step": 601.0}, rank_heartbeat_timeout=60.0)
    findings = limits.judge(long, {}, monitored=True)
    [text] = [text for text in wrong(findings) if "ended by torch before its timeout here" in text]
    assert "section 'step' (601 s)" in text
    assert "between two heartbeats" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "soon"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"),
        ("TORCH_FR_BUFFER_SIZE", "0"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "false"),
    ],
)
def test_variables_that_take_torchs_help_away_are_told(name: str, value: str) -> None:
    short = FaultToleranceConfig(rank_heartbeat_timeout=60.0, initial_rank_heartbeat_timeout=60.0)
    assert wrong(limits.judge(short, {}, monitored=True)) == []
    assert len(wrong(limits.judge(short, {name: value}, monitored=True))) == 1


# ---------------------------------------------------------------- faults
# ---------------------------------------------------------------- snapshots
MANY = "--nnodes 2:3 --rdzv-endpoint a:1 --max-restarts 3 train.py"


def test_a_fault_of_a_process_costs_a_step_and_that_of_a_node_all_since_the_checkpoint() -> None:
    process, node_, leader, resize, end = losses_of(plan(MANY))
    assert process.with_snapshots.startswith("the step that was in work")
    for loss in (node_, leader, resize, end):
        assert loss.with_snapshots.startswith("all steps since your last checkpoint; ")
    _, kept, leader, both, _, _ = losses_of(plan(f"--ft-snapshot-keep 30 {MANY}"))
    assert kept.with_snapshots == leader.with_snapshots
    assert kept.with_snapshots.startswith("the steps of 30 s (--ft-snapshot-keep) and of the copy")
    assert both.with_snapshots.startswith("all steps since your last checkpoint: ")
    assert {it.without for it in losses_of(plan(MANY))} == {"all steps since your last checkpoint"}
    alone, host, _ = losses_of(plan("--max-restarts 3 train.py"))
    assert alone == process
    assert host.with_snapshots.endswith("the memory of its snapshots is gone with it")
    off, *others = losses_of(plan("--max-restarts 3 --ft-snapshot-memory 0 train.py"))
    assert off.with_snapshots.endswith("--ft-snapshot-memory is 0")
    assert {it.with_snapshots for it in others} == {"all steps since your last checkpoint"}
    assert losses_of(plan("--max-restarts 0 train.py")) == [], "there is no restart"


def test_a_job_that_leaves_its_snapshot_on_disk_loses_no_more_at_its_end(tmp_path: Path) -> None:
    *_, end = losses_of(plan(f"--max-restarts 3 --ft-snapshot-dir {tmp_path} train.py"))
    assert end.with_snapshots.startswith("as after the loss of a rank: ")
    assert "within 60 s (--ft-snapshot-dir-timeout)" in end.with_snapshots


LAST = EarlierRun("r1", 3 << 30, every=4, step_s=0.5, copy_s=2.0)


def test_the_last_run_of_the_script_gives_the_steps_in_numbers() -> None:
    process, kept, leader, *rest = losses_of(plan(f"--ft-snapshot-keep 30 {MANY}"), LAST)
    assert process.steps_max == 4
    assert process.with_snapshots.endswith("In run r1 N was 4: 4 steps, 2 s")
    assert kept.steps_max == leader.steps_max == 32 / 0.5 + 4
    assert "up to 68 steps by 0.5 s a step, and 2 s for the copy" in kept.with_snapshots
    assert all(it.steps_max is None for it in rest)
    off = losses_of(plan(f"--ft-snapshot-memory 0 {MANY}"), LAST)
    assert all(it.steps_max is None for it in off)


def test_a_state_as_large_as_in_the_last_run_has_room_or_not() -> None:
    words = f"--nproc-per-node 2 --ft-snapshot-keep 30 {MANY}"
    memory, kept = about_memory(plan(words), 64 << 30, LAST)
    assert memory.verdict is Fitness.HEALTHY
    assert memory.text.endswith("In run r1 it was 3.0 GiB")
    assert kept.verdict is Fitness.SUSPECT, "16 GiB have not room for 12 of 3 GiB"
    assert "a state of 1.3 GiB for each of 2 ranks, 6 times" in kept.text
    memory, _ = about_memory(plan(words), 32 << 30, LAST)
    assert (memory.verdict, "so snapshots are off" in memory.text) == (Fitness.SUSPECT, True)


def test_the_last_run_is_that_of_the_same_script(tmp_path: Path) -> None:
    """Of two, the newer one that took snapshots; runs of other scripts do not count."""
    start = {"kind": "launcher_started", "name": "train.py", "t": 1.0, "cycle": 0}
    on = {"kind": "snapshots_on", "t": 2.0, "cycle": 0, "slot_bytes": 4096}
    taken = {"kind": "snapshots_taken", "t": 3.0, "cycle": 0, "every": 4, "step_s": 0.5}
    kept = {"kind": "snapshot_kept", "t": 4.0, "cycle": 0, "step": 8, "seconds": 2.0}
    runs = {
        "a": [start, {**on, "slot_bytes": 1}],
        "b": [start, on, taken, kept, {**kept, "seconds": 1.0}],
        "c": [start],
        "d": [{**start, "name": "other.py"}, {**on, "slot_bytes": 2}],
    }
    for number, (name, events) in enumerate(runs.items()):
        (tmp_path / name).mkdir()
        lines = (json.dumps({"wall": 9e9 + number, **event}) for event in events)
        (tmp_path / name / "events-launcher.jsonl").write_text("\n".join(lines) + "\n")
    job = plan(f"--log-dir {tmp_path} train.py")
    found = earlier_run.find(job)
    assert found == EarlierRun("b", 4096, every=4, step_s=0.5, copy_s=2.0)
    assert earlier_run.find(dataclasses.replace(job, name="unknown.py")) is None


@pytest.mark.parametrize(
    ("huge_pages", "has_files", "verdict", "words"),
    [
        ("never", True, Fitness.HEALTHY, "shmem_enabled is never: pages of 4 KiB"),
        ("advise", True, Fitness.HEALTHY, "shmem_enabled is advise: huge pages"),
        (None, True, Fitness.HEALTHY, "ulimit -l"),
        ("advise", False, Fitness.SUSPECT, "memfd_create is refused here"),
    ],
)
def test_the_pages_of_snapshots(
    huge_pages: str | None, has_files: bool, verdict: Fitness, words: str
) -> None:
    (found,) = about_pages(plan("train.py"), huge_pages, has_memory_files=has_files)
    assert (found.verdict, words in found.text) == (verdict, True), found.text
    assert not [*about_pages(plan("--ft-snapshot-memory 0 train.py"), None, has_memory_files=True)]


@pytest.mark.parametrize(
    ("options", "left", "verdict", "words"),
    [
        (
            "",
            64 << 30,
            Fitness.HEALTHY,
            "1/4 of the 64.0 GiB that are left here: room for a state ",
        ),
        ("", 64 << 30, Fitness.HEALTHY, "of 4.0 GiB for each of 2 ranks, twice"),
        ("--ft-snapshot-memory 8GiB", 64 << 30, Fitness.HEALTHY, "a state of 2.0 GiB for each"),
        ("--ft-snapshot-memory 8GiB", 4 << 30, Fitness.SUSPECT, "more than there is"),
        ("--ft-snapshot-memory 0", None, Fitness.HEALTHY, "off: --ft-snapshot-memory is 0"),
        ("", None, Fitness.UNKNOWN, "is not known"),
    ],
)
def test_the_memory_for_snapshots_is_the_state_of_a_rank_that_fits(
    options: str, left: int | None, verdict: Fitness, words: str
) -> None:
    (found,) = about_memory(plan(f"--nproc-per-node 2 {options} train.py"), left)
    assert (found.verdict, words in found.text) == (verdict, True), found.text


def fault(words: str, line: str, **environ: str) -> PlantedFault:
    [found] = [each for each in faults_of(plan(line, environ)) if words in each.name]
    return found


def test_each_hang_has_its_limit_and_each_end_its_exit_code() -> None:
    line = "--max-restarts 2 --ft-rank-section-timeouts step:60 train.py"
    assert fault("section 'step'", line).noticed == "its monitor, after 60 s"
    assert fault("at its exit", line).noticed.startswith(
        "its monitor, 7200 s after the shutdown call"
    )
    never = fault("at its exit", f"--ft-exit-timeout none {line}").noticed
    assert never == "not noticed: --ft-exit-timeout is null"
    assert fault("between two heartbeats", line).noticed == "its monitor, after 2700 s"
    assert fault("cannot be killed", line).noticed.endswith(
        f"{node.UNKILLABLE_AFTER_S:g} s after SIGKILL"
    )
    ends = {
        each.name: each.exit_code for each in faults_of(plan(line)) if each.exit_code is not None
    }
    assert ends["one failure more than 2 restarts (--max-restarts)"] == 1
    assert ends["a rank exits with 93"] == 93


@pytest.mark.parametrize(
    ("place", "otherwise"),
    [
        ("never called init", "not noticed; a warning"),
        ("outside all sections", "if the rank sends heartbeats, by their timeout; otherwise not"),
        ("section 'free'", "by its timeout, once that is learned; if the rank sends heartbeats"),
    ],
)
def test_a_rank_of_which_no_timeout_runs_is_watched_by_its_steps_unless_that_is_off(
    place: str, otherwise: str
) -> None:
    line = "--ft-rank-section-timeouts step:60,free:none train.py"
    found = fault(place, f"--max-restarts 2 --ft-auto-heartbeat-floor 300 {line}")
    assert "optimizer steps" in found.noticed
    assert "after 300 s without progress" in found.noticed
    assert f"otherwise {otherwise}" in found.noticed
    assert "a restart" in found.then
    off = fault(place, f"--ft-auto-heartbeat false {line}")
    assert off.noticed.startswith(otherwise)
    assert off.then == "only torch's own timeouts end it"


def test_min_healthy_on_one_node_restarts_when_no_rank_is_left() -> None:
    for restarts, last in ((2, "a restart"), (0, "no restart (--max-restarts 0)")):
        line = f"--ft-restart-policy min-healthy --max-restarts {restarts} train.py"
        then = fault("a rank is killed", line).then
        assert then.endswith(f"the other ranks continue; when none of them is left, {last}")


def test_a_restart_is_told_as_the_plan_has_it() -> None:
    warm = describe_restart(plan("--max-restarts 2 --workers-stop-timeout 7 train.py"))
    assert "SIGKILL 7 s later" in warm
    assert "from warm standby. At most 2 times (--max-restarts)" in warm
    cold = (
        "--max-restarts 2 --ft-warm-standby no --ft-restart-window 60 --ft-host-checks no train.py"
    )
    text = describe_restart(plan(cold))
    assert "plain start, which imports torch again. At most 2 times within 60 s" in text
    assert "There is no restart" in describe_restart(plan())
    slow = describe_restart(plan("--max-restarts 9 --ft-restart-backoff 5 train.py"))
    assert "wait 5 s, then twice as long each time, at most 300 s. At most 9 times" in slow


def test_who_switches_the_checks_of_the_host_off_is_told_what_that_means() -> None:
    """Otherwise the page would be silent about broken hosts, as if there were none."""
    off = fault("host is not healthy", "--ft-host-checks false train.py")
    assert (off.noticed, off.exit_code) == ("not noticed: --ft-host-checks is false", None)
    assert fault("host is not healthy", "train.py").exit_code == 1
    two = fault("host is not healthy", "--nnodes 2 --rdzv-endpoint h:1 train.py")
    assert two.exit_code == 0
    assert "The launcher that leads stays" in two.then


def test_jobs_of_several_nodes_are_told_of_lost_ones() -> None:
    conf = "--rdzv-endpoint h:1 --rdzv-conf keep_alive_timeout=30"
    assert (
        "after 30 s of silence" in fault("a node is lost", f"--nnodes 2:4 {conf} train.py").noticed
    )
    assert not [each for each in faults_of(plan()) if "a node" in each.name]


def test_without_monitors_no_hang_is_promised_to_be_found() -> None:
    assert (
        "not noticed" in fault("a rank hangs", "train.py", NVRX_DISABLE_RANK_MONITORS="1").noticed
    )


# ---------------------------------------------------------------- the command
def test_what_is_shown_fits_a_terminal_and_says_how_many_errors_there_are() -> None:
    findings = [
        Finding("host", "descriptors", Fitness.UNHEALTHY, "few " * 60),
        Finding("gpu", "GPU 0", Fitness.UNKNOWN, "no answer"),
    ]
    text = page.as_text("a job", findings, [PlantedFault("x " * 60, "y " * 60, "z", 1)], "r " * 60)
    assert max(map(len, text.splitlines())) <= page.WIDTH
    assert "ERROR descriptors" in text
    assert text.endswith("1 error, 0 warnings\n")
    assert not page.is_ok(findings)
    assert json.loads(json.dumps(page.as_json(findings, [])))["ok"] is False


def test_a_look_that_does_not_come_back_is_not_waited_for() -> None:
    import threading

    assert within(0.05, threading.Event().wait, default=True)
    assert within(30.0, lambda: 3, 4) == 3

    def fails() -> int:
        raise OSError

    assert within(30.0, fails, 4) == 4
