"""``fault_tolerance``: its configuration, its client, its state machine, and a job of two ranks."""

from __future__ import annotations

import argparse
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import nvidia_resiliency_ext
import nvidia_resiliency_ext.fault_tolerance as ft
from nvidia_resiliency_ext.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
    RankMonitorState,
    RankMonitorStateMachine,
    WorkloadAction,
    WorkloadControlRequest,
)
from nvidia_resiliency_ext.fault_tolerance.data import HeartbeatTimeouts, SectionTimeouts
from nvidia_resiliency_ext.fault_tolerance.launcher import parse_args
from nvidia_resiliency_ext.fault_tolerance.timeouts_calc import TimeoutsCalc
from tests.promises.rows import promise, promises
from tests.real.harness import Job, launcher

HERE = "fault-tolerance"

# ---------------------------------------------------------------- the package
NAMES = (
    "FaultToleranceConfig WorkloadAction WorkloadControlRequest RankMonitorClient "
    "RankMonitorClientError RankMonitorServer InvalidStateTransitionException RankMonitorState "
    "RankMonitorStateMachine"
)


@promise(f"{HERE} 1", "The package exports nine names, and no others")
def test_exports() -> None:
    assert sorted(ft.__all__) == sorted(NAMES.split())


# ---------------------------------------------------------------- the configuration
@promises(
    f"{HERE} 2.2",
    "field, given, value",
    {
        f"`{field}` takes {given!r}": (field, given, value)
        for field, given, value in (
            ("rank_termination_signal", "SIGUSR1", signal.SIGUSR1),
            ("rank_termination_signal", "sigterm", signal.SIGTERM),
            ("rank_termination_signal", 9, signal.SIGKILL),
            ("rank_termination_signal", signal.SIGINT, signal.SIGINT),
            ("log_level", "debug", logging.DEBUG),
            ("log_level", "DBG", logging.DEBUG),
            ("log_level", "Warn", logging.WARNING),
            ("log_level", 40, logging.ERROR),
        )
    },
)
def test_normalised(field: str, given: Any, value: Any) -> None:
    assert getattr(FaultToleranceConfig(**{field: given}), field) == value


@promises(
    f"{HERE} 2.2",
    "field, given",
    {
        f"`{field}` refuses {given!r} with a ValueError": (field, given)
        for field, given in (
            ("rank_termination_signal", None),
            ("rank_termination_signal", "9"),
            ("rank_termination_signal", "SIGNOTHING"),
            ("log_level", None),
            ("log_level", "10"),
            ("log_level", 51),
        )
    },
)
def test_refused(field: str, given: Any) -> None:
    with pytest.raises(ValueError):
        FaultToleranceConfig(**{field: given})


@promise(f"{HERE} 2.1", "`is_progress_tracking_enabled` is `max_no_progress_cycles > 0`")
def test_progress_tracking() -> None:
    for cycles in (-1, 0, 1):
        config = FaultToleranceConfig(max_no_progress_cycles=cycles)
        assert config.is_progress_tracking_enabled is (cycles > 0)


@promise(f"{HERE} 2.3", "`from_kwargs` passes over unknown names, or refuses them if told so")
def test_from_kwargs() -> None:
    assert FaultToleranceConfig.from_kwargs(safety_factor=3, other=1).safety_factor == 3
    with pytest.raises(ValueError, match="other"):
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, other=1)


@promise(f"{HERE} 2.3", "The map `fault_tolerance` is found at any depth of a YAML file")
def test_nested(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    file.write_text("a: [1, {b: {fault_tolerance: {rank_heartbeat_timeout: 7}}}]")
    assert FaultToleranceConfig.from_yaml_file(str(file)).rank_heartbeat_timeout == 7


@promises(
    f"{HERE} 2.3",
    "text, error",
    {
        "A YAML file without the map: ValueError": ("a: 1", ValueError),
        "An empty map: ValueError": ("fault_tolerance:", ValueError),
        "A missing file: FileNotFoundError": (None, FileNotFoundError),
        "Malformed YAML: yaml's error": ("a: [", yaml.YAMLError),
    },
)
def test_bad_files(tmp_path: Path, text: str | None, error: type[Exception]) -> None:
    file = tmp_path / "ft.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(error):
        FaultToleranceConfig.from_yaml_file(str(file))


@promise(f"{HERE} 2.3", "`to_yaml_file` and back gives an equal object; the signal is a name there")
def test_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    config = FaultToleranceConfig(
        rank_termination_signal="SIGUSR1", rank_section_timeouts={"step": 5.0, "save": None}
    )
    config.to_yaml_file(str(file))
    written = yaml.safe_load(file.read_text())["fault_tolerance"]
    assert (written["rank_termination_signal"], written["log_level"]) == ("SIGUSR1", logging.INFO)
    assert FaultToleranceConfig.from_yaml_file(str(file)) == config


@promise(f"{HERE} 2.1", "`null` in YAML is None, and that is no limit")
def test_null(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance: {rank_heartbeat_timeout: null}")
    assert FaultToleranceConfig.from_yaml_file(str(file)).rank_heartbeat_timeout is None


@promises(
    f"{HERE} 2.4",
    "option, field, value",
    {
        f"`{option}`": (option, field, value)
        for option, field, value in (
            ("--ft-rank-heartbeat-timeout=450", "rank_heartbeat_timeout", 450.0),
            ("--ft-rank_heartbeat_timeout=450", "rank_heartbeat_timeout", 450.0),
            ("--ft-rank-heartbeat-timeout=none", "rank_heartbeat_timeout", None),
            ("--ft-rank-heartbeat-timeout=NULL", "rank_heartbeat_timeout", None),
            ("--ft-rank-heartbeat-timeout=", "rank_heartbeat_timeout", None),
            (
                "--ft-rank-section-timeouts=setup:600, step:180,save:null",
                "rank_section_timeouts",
                {"setup": 600.0, "step": 180.0, "save": None},
            ),
            ("--ft-rank-section-timeouts=", "rank_section_timeouts", {}),
            ("--ft-rank-termination-signal=sigusr2", "rank_termination_signal", signal.SIGUSR2),
            ("--ft-enable-nic-monitor=no", "enable_nic_monitor", False),
            ("--ft-enable-nic-monitor=yes", "enable_nic_monitor", True),
            ("--ft-skip-section-response=false", "skip_section_response", False),
            ("--ft-max-no-progress-restarts=3", "max_no_progress_cycles", 3),
        )
    },
)
def test_command_line(option: str, field: str, value: Any) -> None:
    args: argparse.Namespace = parse_args([option, "train.py"])
    assert getattr(FaultToleranceConfig.from_args(args), field) == value


@promise(f"{HERE} 2.4", "An option on the command line is stronger than the file")
def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance: {rank_heartbeat_timeout: 7, safety_factor: 3}")
    args = parse_args([f"--ft-cfg-path={file}", "--ft-rank-heartbeat-timeout=8", "train.py"])
    config = FaultToleranceConfig.from_args(args)
    assert (config.rank_heartbeat_timeout, config.safety_factor) == (8.0, 3.0)


# ---------------------------------------------------------------- timeouts, as values
@promise(f"{HERE} 3.2", "HeartbeatTimeouts are valid if both are set; `str()` has two decimals")
def test_heartbeat_timeouts() -> None:
    assert not HeartbeatTimeouts(initial=1.0).are_valid
    timeouts = HeartbeatTimeouts(initial=1.0, subsequent=2.345)
    assert timeouts.are_valid
    assert "1.00" in str(timeouts)
    assert "None" in str(HeartbeatTimeouts())


@promise(
    f"{HERE} 3.2", "SectionTimeouts are valid if all are set, calculated if all were calculated"
)
def test_section_timeouts() -> None:
    timeouts = SectionTimeouts({"a": 1.0}, 2.0, ["a"], True)  # type: ignore[arg-type]
    assert timeouts.calculated_sections == {"a"}
    assert timeouts.are_valid
    assert timeouts.were_calculated
    assert not SectionTimeouts({"a": None}, 2.0).are_valid
    assert not SectionTimeouts({"a": 1.0}, 2.0, {"a"}, False).were_calculated


@pytest.fixture
def calc(monkeypatch: pytest.MonkeyPatch) -> TimeoutsCalc:
    """Heartbeats after 2 s and then every 3 s."""
    calc = TimeoutsCalc(start_time=100.0, safety_factor=5.0)
    calc.initial_max, calc.subsequent_max = 2.0, 3.0
    return calc


@promise(f"{HERE} 3.4", "A new timeout is `safety_factor` times the longest interval")
def test_calculated(calc: TimeoutsCalc) -> None:
    timeouts = calc.get_hb_timeouts()
    assert (timeouts.initial, timeouts.subsequent, timeouts.were_calculated) == (10.0, 15.0, True)


@promise(
    f"{HERE} 3.4", "It replaces one that was not calculated, and is averaged with one that was"
)
def test_merged(calc: TimeoutsCalc) -> None:
    given = HeartbeatTimeouts(100.0, 200.0, were_calculated=False)
    learned = HeartbeatTimeouts(20.0, 25.0, were_calculated=True)
    assert calc.get_hb_timeouts(given).subsequent == 15.0
    assert calc.get_hb_timeouts(learned).subsequent == 20.0


# ---------------------------------------------------------------- the client, without a launcher
@promises(
    f"{HERE} 3.1",
    "name, value",
    {
        f"Before init `{name}` is {value}": (name, value)
        for name, value in {
            "is_initialized": False,
            "hb_timeouts": None,
            "section_timeouts": None,
            "cfg": None,
            "rank_info": None,
            "CURRENT_TIMEOUTS_STATE_KEY": "current_timeouts",
        }.items()
    },
)
def test_members_before_init(name: str, value: Any) -> None:
    assert getattr(RankMonitorClient(), name) == value


@promises(
    f"{HERE} 3.1",
    "call",
    {
        f"Before init `{name}` raises RankMonitorClientError": (name, args)
        for name, args in {
            "send_heartbeat": (),
            "start_section": ("step",),
            "end_section": ("step",),
            "end_all_sections": (),
        }.items()
    },
)
def test_calls_before_init(call: tuple[str, tuple[Any, ...]]) -> None:
    name, args = call
    with pytest.raises(RankMonitorClientError):
        getattr(RankMonitorClient(), name)(*args)


@promise(f"{HERE} 3.1", "Init without `FT_RANK_MONITOR_IPC_SOCKET`: RankMonitorClientError")
def test_init_without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RankMonitorClientError):
        RankMonitorClient().init_workload_monitoring()


@promise(f"{HERE} 3.1", "Shutdown never raises, and does nothing where nothing was initialised")
def test_shutdown() -> None:
    RankMonitorClient().shutdown_workload_monitoring()


@promise(f"{HERE} 3.6", "A request has its action and its description, and a text for people")
def test_requests() -> None:
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode)
    assert (request.action, request.description) == (WorkloadAction.ExcludeThisNode, "<not set>")
    assert "ExcludeThisNode" in str(request)
    assert [action.value for action in WorkloadAction] == [0, 1, 2]


# ---------------------------------------------------------------- the state machine
S = RankMonitorState
ALLOWED = {
    S.UNINITIALIZED: {S.INITIALIZE, S.FINALIZED},
    S.INITIALIZE: {S.HANDLING_START, S.FINALIZED},
    S.HANDLING_START: {S.HANDLING_COMPLETED, S.HANDLING_PROCESSING, S.ABORTED},
    S.HANDLING_PROCESSING: {S.HANDLING_COMPLETED, S.HANDLING_PROCESSING, S.ABORTED},
    S.HANDLING_COMPLETED: {S.HANDLING_START, S.FINALIZED},
    S.ABORTED: {S.FINALIZED},
    S.FINALIZED: {S.FINALIZED},
}
WAYS = {
    S.UNINITIALIZED: [],
    S.INITIALIZE: [S.INITIALIZE],
    S.HANDLING_START: [S.INITIALIZE, S.HANDLING_START],
    S.HANDLING_PROCESSING: [S.INITIALIZE, S.HANDLING_START, S.HANDLING_PROCESSING],
    S.HANDLING_COMPLETED: [S.INITIALIZE, S.HANDLING_START, S.HANDLING_COMPLETED],
    S.ABORTED: [S.INITIALIZE, S.HANDLING_START, S.ABORTED],
    S.FINALIZED: [S.FINALIZED],
}


class Silent:
    def log_restarter_event(self, message: str) -> None:
        pass


def machine_in(state: RankMonitorState) -> RankMonitorStateMachine:
    machine = RankMonitorStateMachine(Silent())
    for step in WAYS[state]:
        machine.transition_to(step)
    return machine


@promises(
    f"{HERE} 4.6",
    "state",
    {f"From {state.name} only those states are allowed that the table has": state for state in S},
)
def test_transitions(state: RankMonitorState) -> None:
    assert {other for other in S if machine_in(state).can_transition_to(other)} == ALLOWED[state]


@promise(f"{HERE} 4.6", "Any other transition: InvalidStateTransitionException, state unchanged")
def test_invalid_transition() -> None:
    machine = machine_in(S.ABORTED)
    with pytest.raises(
        ft.InvalidStateTransitionException,
        match=r"Invalid transition attempted from .*ABORTED.* to .*INITIALIZE",
    ):
        machine.transition_to(S.INITIALIZE)
    assert machine.state is S.ABORTED


@promises(
    f"{HERE} 4.6",
    "state, event, after",
    {
        f"{event} in {state.name} leads to {after.name}": (state, event, after)
        for state, event, after in (
            (S.UNINITIALIZED, "handle_heartbeat_msg", S.INITIALIZE),
            (S.UNINITIALIZED, "handle_section_msg", S.INITIALIZE),
            (S.HANDLING_START, "handle_heartbeat_msg", S.HANDLING_COMPLETED),
            (S.HANDLING_PROCESSING, "handle_section_msg", S.HANDLING_COMPLETED),
            (S.INITIALIZE, "handle_ipc_connection_lost", S.HANDLING_START),
            (S.HANDLING_COMPLETED, "handle_ipc_connection_lost", S.HANDLING_START),
            (S.HANDLING_START, "handle_ipc_connection_lost", S.ABORTED),
            (S.ABORTED, "handle_ipc_connection_lost", S.ABORTED),
            (S.HANDLING_START, "periodic_restart_check", S.HANDLING_PROCESSING),
            (S.HANDLING_START, "handle_signal", S.ABORTED),
            (S.UNINITIALIZED, "handle_signal", S.UNINITIALIZED),
            (S.HANDLING_COMPLETED, "handle_signal", S.FINALIZED),
        )
    },
)
def test_events(state: RankMonitorState, event: str, after: RankMonitorState) -> None:
    machine = machine_in(state)
    getattr(machine, event)()
    assert machine.state is after


# ---------------------------------------------------------------- a job
TRAIN = """
import json, os, sys
import light_torch
import torch, torch.distributed as dist
import nvidia_resiliency_ext.fault_tolerance as ft

CYCLE, OUT = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["OUT"]
facts = {"environment": dict(os.environ)}

def refused(call, *args):
    try:
        call(*args)
    except ft.RankMonitorClientError as error:
        return str(error)

client = ft.RankMonitorClient()  # before there is a process group
client.init_workload_monitoring()
facts["configured"] = [
    client.is_initialized, client.rank_info.global_rank, client.rank_info.local_rank,
    client.rank_info.pid == os.getpid(), client.cfg.rank_section_timeouts,
    client.hb_timeouts.initial, client.hb_timeouts.were_calculated,
    client.section_timeouts.section, client.section_timeouts.out_of_section,
]
facts["again"] = refused(client.init_workload_monitoring)
dist.init_process_group("gloo")
facts["not ready"] = client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
facts["not ready, raised"] = refused(client.calculate_and_set_hb_timeouts)
for _ in range(3):
    client.send_heartbeat()
client.start_section("step")
facts["open twice"] = refused(client.start_section, "step")
client.start_section("save")  # sections may overlap
client.end_section("step")
client.end_section("save")
facts["closed twice"] = refused(client.end_section, "step")
client.start_section("unknown")
client.end_section("unknown")
client.start_section("step")
client.end_all_sections()
client.start_section("step")
client.end_section("step")
facts["learned"] = [
    client.calculate_and_set_hb_timeouts(),
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False),
]
state = client.state_dict()
facts["state"] = json.loads(json.dumps(state))
client.send_workload_control_request(
    ft.WorkloadControlRequest(action=ft.WorkloadAction.Continue, description="as the guide has it"))
client.shutdown_workload_monitoring()
client.shutdown_workload_monitoring()
client.init_workload_monitoring()  # allowed after a shutdown
facts["after a shutdown"] = [client.is_initialized, client.hb_timeouts.were_calculated]
client.load_state_dict(state)
facts["loaded"] = [client.hb_timeouts.were_calculated, client.section_timeouts.section["step"]]
client.shutdown_workload_monitoring()
with open(f"{OUT}/{os.environ['RANK']}.{CYCLE}", "w") as file:
    json.dump(facts, file)
dist.barrier()
dist.destroy_process_group()
sys.exit(7 if CYCLE == 0 and os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two ranks that use the client as the guides show it; the first cycle fails."""
    with launcher(tmp_path_factory.mktemp("launcher")) as ft_launcher:
        job = ft_launcher.start(
            *("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "-r3"),
            "--ft-rank_section_timeouts=step:180,save:null",
            "--ft-rank-out-of-section-timeout=300",
            *("--ft-initial-rank-heartbeat-timeout", "1200", "--ft-rank-heartbeat-timeout", "900"),
            ft_launcher.script(TRAIN),
            module="nvidia_resiliency_ext.fault_tolerance.launcher",
            env={"PYTHONPATH": str(Path(nvidia_resiliency_ext.__file__).parents[1])},
        )
        job.wait()
        yield job


def facts(job: Job, rank: int = 0, cycle: int = 0) -> dict[str, Any]:
    file = job.folder / f"{rank}.{cycle}"
    assert file.exists(), job.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@promise(f"{HERE} 7.6", "All ranks end with 0 after a restart: exit code 0")
def test_success(job: Job) -> None:
    assert job.wait() == 0, job.stderr


@promise(f"{HERE} 7.2", "A rank that fails: all are started again, and the cycle counts from 0")
def test_restart(job: Job) -> None:
    counts = [
        facts(job, rank, cycle)["environment"]["TORCHELASTIC_RESTART_COUNT"]
        for rank in range(2)
        for cycle in range(2)
    ]
    assert counts == ["0", "1", "0", "1"]


VARIABLES = (
    "LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS FT_LAUNCHER_IPC_SOCKET "
    "FT_RANK_MONITOR_IPC_SOCKET"
)


@promises(
    f"{HERE} 6",
    "name",
    {f"Each rank has `{name}` in its environment": name for name in VARIABLES.split()},
)
def test_environment(job: Job, name: str) -> None:
    assert facts(job)["environment"][name]


@promise(f"{HERE} 3.1", "After init the client has its rank, and the launcher's configuration")
def test_members_after_init(job: Job) -> None:
    sections = {"step": 180.0, "save": None}
    assert facts(job, 1)["configured"] == [
        *(True, 1, 1, True, sections, 1200.0, False, sections, 300.0)
    ]


@promises(
    f"{HERE} 3.1",
    "what",
    {
        "A second init: RankMonitorClientError": "again",
        "The same section opened twice: RankMonitorClientError": "open twice",
        "A section closed that is not open: RankMonitorClientError": "closed twice",
        "Timeouts calculated too early: RankMonitorClientError": "not ready, raised",
    },
)
def test_refused_by_the_client(job: Job, what: str) -> None:
    assert facts(job)[what]


@promise(f"{HERE} 3.1", "... or False, with `skip_if_not_ready`")
def test_not_ready(job: Job) -> None:
    assert facts(job)["not ready"] is False


@promise(f"{HERE} 3.3", "Sections overlap, unknown ones are ignored, `end_all_sections` closes all")
def test_sections(job: Job) -> None:
    assert facts(job)["learned"] == [True, True]


@promise(f"{HERE} 3.5", "The state is JSON with the calculated timeouts, and the same on all ranks")
def test_state(job: Job) -> None:
    state = facts(job)["state"]["current_timeouts"]
    assert set(state["heartbeat"]) == {"initial", "subsequent", "were_calculated"}
    assert state["heartbeat"]["were_calculated"] is True
    assert state["section"]["calculated_sections"] == ["step"]
    assert state["section"]["is_out_of_section_calculated"] is False
    assert state["section"]["section"]["save"] is None
    assert state["section"]["out_of_section"] == 300.0
    assert facts(job, 1)["state"] == facts(job, 0)["state"]


@promise(f"{HERE} 3.1", "Timeouts that were pushed to the monitor come back after a restart")
def test_pushed(job: Job) -> None:
    first, second = (facts(job, 0, cycle) for cycle in range(2))
    sections = first["state"]["current_timeouts"]["section"]["section"]
    assert second["configured"][7] == sections


@promise(
    f"{HERE} 3.1", "Init after a shutdown is allowed; timeouts are then not flagged as calculated"
)
def test_init_again(job: Job) -> None:
    assert facts(job)["after a shutdown"] == [True, False]


@promise(f"{HERE} 3.5", "`load_state_dict` applies at once to an initialised client")
def test_load(job: Job) -> None:
    found = facts(job)
    state = found["state"]["current_timeouts"]["section"]["section"]
    assert found["loaded"] == [True, state["step"]]


@promise(f"{HERE} 3.6", "A request that is sent neither kills the rank nor starts a restart")
def test_control(job: Job) -> None:
    assert sorted(file.name for file in job.folder.glob("?.?")) == ["0.0", "0.1", "1.0", "1.1"]


@promise(
    f"{HERE} 11", "`--log-dir` and `-r 3`: a folder for each attempt and local rank, as torchrun's"
)
def test_logs(job: Job) -> None:
    found = {
        str(file.relative_to(job.run_dir)) for file in job.run_dir.glob("attempt_*/*/std*.log")
    }
    assert found == {
        f"attempt_{cycle}/{rank}/{stream}.log"
        for cycle in range(2)
        for rank in range(2)
        for stream in ("stdout", "stderr")
    }
