"""``nvidia_resiliency_ext``: the names of the specification, and what holds for those of ours."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import nvidia_resiliency_ext
import public_names
from nvidia_resiliency_ext import _former, _shadow
from tests.waiting import BOUND_S, until

COMPAT = Path(nvidia_resiliency_ext.__file__).parents[1]


def has_lightning() -> bool:
    return any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of old places
@pytest.mark.parametrize(
    ("module", "name", "what"), public_names.rows(), ids=lambda text: text.split("(")[0]
)
def test_the_name_is_there_and_takes_what_the_specification_says(module, name, what) -> None:
    """Names, members of enumerations, parameters, their order and their defaults."""
    if module.startswith(public_names.WITH_LIGHTNING) and not has_lightning():
        pytest.skip("needs Lightning")
    assert public_names.problem(module, name, what) is None


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("(a, b=1, *, c=None)", None),
        ("(a, b=1)", None),
        ("(a, other)", "takes no other"),
        ("(b, a)", "takes a too early"),
        ("(a, b=2)", "b is 1 by default, not 2"),
        ("(b=1)", "needs a"),
    ],
)
def test_a_signature_that_differs_is_found(wanted: str, text: str | None) -> None:
    def ours(a, b=1, *args, c=None): ...

    found = public_names._differs(inspect.signature(ours), wanted)
    assert (found or "").startswith(text or "")
    assert (found is None) == (text is None)


def test_the_wrapper_has_the_arguments_and_defaults_of_the_specification() -> None:
    """As attributes, by both generations' names."""
    wrapper, s = ip("wrap").Wrapper(), dt.timedelta(seconds=1)
    expected = {
        "store_factory": ip("store").TCPStore,
        "store_kwargs": {},
        **dict.fromkeys(["initialize", "finalize", "health_check", "rank_filter"]),
        **dict.fromkeys(["monitor_thread_interval", "monitor_process_interval"], s),
        **dict.fromkeys(["heartbeat_interval", "progress_watchdog_interval"], s),
        "soft_timeout": 60 * s,
        "hard_timeout": 90 * s,
        "heartbeat_timeout": 30 * s,
        **dict.fromkeys(["barrier_timeout", "completion_timeout"], 120 * s),
        "last_call_wait": s,
        "termination_grace_time": 5 * s,
        "enabled": True,
        **dict.fromkeys(["monitor_process_logfile", "monitor_process_pidfile"]),
        **dict.fromkeys(["completion", "terminate", "restart_health_check"]),
    }
    assert {name: getattr(wrapper, name) for name in expected} == expected
    assert isinstance(wrapper.abort, ip("abort").AbortTorchDistributed)
    assert [type(each).__name__ for each in wrapper.rank_assignment.instances] == [
        "ActivateAllRanks",
        "ShiftRanks",
    ]


def test_the_package_exports_what_the_specification_lists() -> None:
    """`from nvidia_resiliency_ext.fault_tolerance import *`, say."""
    assert sorted(
        importlib.import_module("nvidia_resiliency_ext.fault_tolerance").__all__
    ) == sorted(public_names.SURFACE["fault_tolerance"])


# ---------------------------------------------------------------- the package
def python(code: str, *options: str, **env: str) -> str:
    """What a fresh interpreter prints on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "PYTHONPATH": str(COMPAT), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    return done.stdout + done.stderr


def test_one_to_one_modules_are_holdfasts_own() -> None:
    """What a program replaces in one takes effect."""
    for name in (
        "fault_tolerance.config",
        "fault_tolerance.rank_monitor_client",
        "inprocess.abort",
        "inprocess.wrap",
    ):
        theirs = importlib.import_module(f"nvidia_resiliency_ext.{name}")
        assert theirs is importlib.import_module(f"holdfast.{name}")
        package = importlib.import_module(f"nvidia_resiliency_ext.{name.split('.')[0]}")
        assert getattr(package, name.split(".")[1]) is theirs


def test_importing_what_a_rank_needs_is_light() -> None:
    code = """import sys, nvidia_resiliency_ext.inprocess
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
import nvidia_resiliency_ext.fault_tolerance.launcher
print([name for name in ("torch", "asyncio", "argparse", "yaml") if name in sys.modules])"""
    assert python(code) == "[]\n"


def test_the_version_is_one_that_clients_can_compare() -> None:
    """PEP 440, at least 0.6.0; a newer holdfast changes the local part."""
    version = nvidia_resiliency_ext.__version__
    release, plus, local = version.partition("+")
    assert tuple(map(int, release.split("."))) >= (0, 6, 0)
    assert plus
    assert local.replace(".", "").isalnum()


@pytest.mark.parametrize(
    "module",
    [
        *("shared_utils.log_manager", "shared_utils.profiling", "shared_utils.proto"),
        "fault_tolerance._torch_elastic_compat",
    ],
)
def test_a_module_that_is_listed_as_not_provided_is_not_there(module: str) -> None:
    """The page calls no module provided that is missing, nor the reverse."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"nvidia_resiliency_ext.{module}")
    assert f"`{module.split('.')[1]}`" in (COMPAT.parent / "README.md").read_text()


@pytest.mark.parametrize("name", ["checkpointing", "attribution", "straggler", "health"])
def test_what_is_not_provided_is_not_there(name: str) -> None:
    """Clients probe for it."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"nvidia_resiliency_ext.{name}")
    with pytest.raises(AttributeError):
        getattr(nvidia_resiliency_ext, name)


def test_lightning_callbacks_are_holdfasts_or_an_error_that_says_what_to_install() -> None:
    if not has_lightning():
        with pytest.raises(ImportError, match=r"pip install 'holdfast\[lightning\]'"):
            importlib.import_module("nvidia_resiliency_ext.ptl_resiliency")
        return
    theirs = importlib.import_module("nvidia_resiliency_ext.ptl_resiliency")
    ours = importlib.import_module("holdfast.integrations.lightning")
    for name in theirs.__all__:
        assert getattr(theirs, name) is getattr(ours, name)


def test_the_other_distribution_is_found_beside_this_one_and_elsewhere(tmp_path: Path) -> None:
    """And the warning says which module Python sees."""
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.mkdir()
    (theirs / "nvidia_resiliency_ext-0.5.0.dist-info").mkdir(parents=True)
    (ours / "holdfast_nvrx_compat-0.7.0.dist-info").mkdir()
    path = [str(ours), str(tmp_path / "missing"), ""]

    assert _shadow.conflict(path, str(ours)) is None
    shadowed = _shadow.conflict([*path, str(theirs)], str(ours))
    mixed = _shadow.conflict([str(theirs)], str(theirs))

    assert str(theirs) in shadowed
    assert "shadows it" in shadowed
    assert "overwritten files of each other" in mixed
    assert "UserWarning: nvidia-resiliency-ext is installed" in python(
        "import nvidia_resiliency_ext", PYTHONPATH=f"{COMPAT}:{theirs}"
    )


@pytest.mark.parametrize("place", ["tools.inject_fault", "rank_filter"])
def test_an_old_place_warns_once(place: str) -> None:
    code = f"""import importlib
for _ in range(2):
    module = importlib.import_module("nvidia_resiliency_ext.inprocess.{place}")
print(module.__name__)"""
    printed = python(code, "-Wdefault")
    assert printed.count("DeprecationWarning: nvidia_resiliency_ext.inprocess") == 1, printed


def test_an_old_place_is_an_attribute_of_its_package() -> None:
    """As in ``import nvidia_resiliency_ext.inprocess as inprocess``."""
    code = """import nvidia_resiliency_ext.inprocess as inprocess
print(inprocess.tools.inject_fault.Fault.SIGKILL.name, inprocess.rank_filter.RankFilter.__name__)"""
    assert python(code, "-Wignore") == "SIGKILL RankFilter\n"


def test_a_warning_is_given_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            _former.warn_once("only here")
    assert len(seen) == 1


# ---------------------------------------------------------------- fault_tolerance
def ft(module: str):
    return importlib.import_module(f"nvidia_resiliency_ext.fault_tolerance.{module}")


def ip(module: str):
    return importlib.import_module(f"nvidia_resiliency_ext.inprocess.{module}")


def test_nested_containers_are_mapped_compared_and_merged() -> None:
    module = ft("dict_utils")
    old = {"a": [1, {"b": 2}], "c": (3,)}
    assert module.dict_list_map_outplace(str, old) == {"a": ["1", {"b": "2"}], "c": "(3,)"}
    assert list(module.nested_values(old)) == [1, 2, (3,)]
    new = {"a": [1, {"b": "2"}, 4], "d": 5}
    assert module.diff(old, new) == ([("c",)], [("d",), ("a", 2)], [(("a", 1, "b"), int, str)])
    tensors = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert module.diff(*tensors)[2] == [(("w",), torch.Tensor, torch.Tensor)]
    assert module.diff(tensors[0], {"w": torch.zeros(2)}) == ([], [], [])
    into = {"a": [{"x": 1}], "e": {}}
    assert module.merge(into, {"a": [{"y": 2}, 3], "e": {"f": 4}}) is into
    assert into == {"a": [{"x": 1, "y": 2}, 3], "e": {"f": 4}}
    with pytest.raises(ValueError, match=r"int and int at \('e', 'f'\)"):
        module.merge(into, {"e": {"f": 5}})


def test_a_process_says_which_rank_it_is(monkeypatch) -> None:
    module = ft("utils")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    assert (module.get_rank(), module.is_slurm_job_array()) == (5, False)
    assert ft("data").RankInfo.get_for_current_rank().global_rank == 5
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert module.is_slurm_job_array()
    monkeypatch.delenv("RANK")
    with pytest.raises(RuntimeError, match="RANK is not set"):
        module.get_rank()
    named = {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "n7", "SLURM_PROCID": "2"}
    assert module.get_infrastructure_rank(named) == 7
    assert module.get_infrastructure_rank(named, skip_nodename_logic=True) == 2
    assert module.DEFAULT_NO_RESTART_EXIT_CODE == 93


class Lines(list):
    log_restarter_event = list.append


def test_the_state_machine_follows_messages_by_name() -> None:
    module = ft("rank_monitor_state_machine")
    state, lines = module.RankMonitorState, Lines()
    machine = module.RankMonitorStateMachine(lines)
    seen = []
    for event, details in (
        (machine.handle_heartbeat_msg, ("message",)),
        (machine.handle_ipc_connection_lost, ()),
        (machine.periodic_restart_check, ()),
        (machine.handle_section_msg, ()),
        (machine.handle_signal, (signal.SIGTERM, None)),
    ):
        event(*details)
        seen.append(machine.state)
    assert seen == [
        state.INITIALIZE,
        state.HANDLING_START,
        state.HANDLING_PROCESSING,
        state.HANDLING_COMPLETED,
        state.FINALIZED,
    ]
    assert lines[1] == "[NestedRestarter] name=[InJob] state=handling stage=starting"
    assert machine.can_transition_to(state.FINALIZED)
    assert not machine.can_transition_to(state.INITIALIZE)
    with pytest.raises(module.InvalidStateTransitionException):
        machine.transition_to(state.INITIALIZE)


def test_the_monitors_logger_writes_the_lines_of_restarts_if_asked(capsys) -> None:
    make = ft("rank_monitor_server").RankMonitorLogger
    for logger in (make("quiet"), make("told", logging.INFO, is_restarter_logger=True)):
        machine = ft("rank_monitor_state_machine").RankMonitorStateMachine(logger)
        machine.handle_heartbeat_msg()
    written = capsys.readouterr().err
    assert written.count("[NestedRestarter] name=[InJob] state=initialize") == 1


def test_timeouts_follow_from_the_events(monkeypatch) -> None:
    """Safety factor times the longest interval; averaged with what was calculated before."""
    module, data = ft("timeouts_calc"), ft("data")
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    calc = module.TimeoutsCalc(sections=["step"], safety_factor=2.0)
    assert not calc.can_get_hb_timeouts()
    with pytest.raises(module.TimeoutsCalcError, match="first heartbeat"):
        calc.get_hb_timeouts()

    for after_s in (3.0, 1.0, 2.0):
        now[0] += after_s
        calc.update_on_heartbeat()
    assert calc.get_hb_timeouts() == data.HeartbeatTimeouts(6.0, 4.0, were_calculated=True)
    current = data.HeartbeatTimeouts(2.0, 2.0, were_calculated=True)
    assert calc.get_hb_timeouts(current).initial == 4.0

    assert not calc.can_get_section_timeouts()
    assert not calc.can_get_section_timeouts(["step"], calc_out_of_section=False)
    calc.update_on_section_start("step")
    now[0] += 5.0
    calc.update_on_section_end("step")
    now[0] += 7.0
    timeouts = calc.get_section_timeouts()
    assert (timeouts.section, timeouts.out_of_section) == ({"step": 10.0}, 14.0)
    assert timeouts.were_calculated
    kept = calc.get_section_timeouts([], calc_out_of_section=False, current=timeouts)
    assert kept == timeouts
    with pytest.raises(KeyError):
        calc.can_get_section_timeouts(["other"])
    for wrong in (calc.update_on_section_end, calc.update_on_section_start):
        with pytest.raises(module.TimeoutsCalcError, match="other"):
            wrong("other")
    with pytest.raises(module.TimeoutsCalcError, match="process group"):
        calc.synchronize_all()


def test_timeouts_follow_from_the_times_of_the_caller() -> None:
    """Also the time outside sections, whose clock began at 0 and not when this host started."""
    module, action = ft("timeouts_calc"), ft("data").SectionAction
    calc = module.TimeoutsCalc(["step", "save"], 0.0, 2.0)
    calc.update_on_heartbeat(hb_time=3.0)
    calc.update_on_heartbeat(hb_time=4.0)
    calc.update_on_section_event("step", action.OPEN, 10.0)
    calc.update_on_section_event("save", action.OPEN, event_time=11.0)
    calc.update_on_section_event("step", action.CLOSE, event_time=12.0)
    calc.update_on_section_event(None, action.CLOSE_ALL, event_time=14.0)
    calc.update_on_heartbeat(hb_time=15.0)

    assert (calc.get_hb_timeouts().initial, calc.get_hb_timeouts().subsequent) == (6.0, 22.0)
    timeouts = calc.get_section_timeouts(["step"])
    assert timeouts.section == {"step": 4.0, "save": None}
    assert timeouts.out_of_section == 20.0
    assert timeouts.calculated_sections == {"step"}


def test_the_longest_interval_of_any_rank_counts() -> None:
    """Over the default process group; here of one rank."""
    calc = ft("timeouts_calc").TimeoutsCalc(start_time=time.monotonic() - 60)
    calc.update_on_heartbeat()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        calc.synchronize_all()
    finally:
        dist.destroy_process_group()
    assert calc.initial_max == pytest.approx(60, abs=30)


def messages() -> list[object]:
    data, config = ft("data"), ft("config")
    info = data.RankInfo(1, 0, "host", 7)
    request = data.WorkloadControlRequest(data.WorkloadAction.ExcludeThisNode, "why")
    return [
        "text",
        None,
        [1, 2.5, True],
        {"a": {"b": ()}},
        {1: "number", "!": "mark"},
        {3, 4},
        (5, request),
        data.InitMsg(info, 3),
        data.HeartbeatMsg(1, {"step": 3}),
        data.SectionMsg(1, "step", data.SectionAction.CLOSE),
        data.UpdateConfigMsg(data.HeartbeatTimeouts(1.0, 2.0), data.SectionTimeouts({"a": None})),
        data.OkMsg(config.FaultToleranceConfig(safety_factor=3.0)),
        data.ErrorMsg("cause"),
        data.AuthkeyMsg("key"),
    ]


def test_messages_arrive_as_the_objects_that_were_sent(tmp_path: Path) -> None:
    """Without pickle; other objects are refused before anything is sent."""
    path = str(tmp_path / "socket")
    mailbox = ft("ipc_connector").IpcConnector(path)
    mailbox.start_receiving()
    try:
        for message in messages():
            ft("ipc_connector").IpcConnector(path).send(message)
        with pytest.raises(TypeError, match="object objects are not sent"):
            mailbox.send([object()])
    finally:
        mailbox.stop_receiving()
    assert mailbox.peek_received() == messages()
    assert mailbox.fetch_received() == messages()
    assert mailbox.fetch_received() == []


@pytest.fixture
def monitored(tmp_path: Path, monkeypatch):
    """A client of a monitor that this process started by the old name.

    What it learns here are milliseconds: the signal that ends a rank must not end these tests.
    """
    rank, launcher = str(tmp_path / "rank"), str(tmp_path / "launcher")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", rank)
    monkeypatch.setenv("FT_LAUNCHER_IPC_SOCKET", launcher)
    package = importlib.import_module("nvidia_resiliency_ext.fault_tolerance")
    config = package.FaultToleranceConfig(safety_factor=2.0, rank_termination_signal=signal.SIGURG)
    server = package.RankMonitorServer.run_in_subprocess(config, rank, mp_ctx=None)
    client = package.RankMonitorClient()
    client.init_workload_monitoring()
    yield client, launcher
    client.shutdown_workload_monitoring()
    server.terminate()
    server.join(BOUND_S)


def test_a_monitor_by_the_old_name_learns_exactly_and_its_client_talks_to_a_mailbox(
    monitored,
) -> None:
    """No floor below what is learned; a request arrives as the pair of rank and request."""
    client, launcher = monitored
    client.send_heartbeat()
    client.send_heartbeat()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert client.calculate_and_set_hb_timeouts()
    finally:
        dist.destroy_process_group()
    assert 0 < client.hb_timeouts.subsequent < 29

    mailbox = ft("ipc_connector").IpcConnector(launcher)
    mailbox.start_receiving()
    try:
        data = ft("data")
        request = data.WorkloadControlRequest(data.WorkloadAction.ShutdownWorkload, "why")
        client.send_workload_control_request(request)
        assert mailbox.fetch_received() == [(5, request)]
    finally:
        mailbox.stop_receiving()


def test_a_pair_of_rank_and_request_is_written_as_the_client_writes_it() -> None:
    """So that a launcher takes it."""
    data, wired = ft("data"), []
    request = data.WorkloadControlRequest(data.WorkloadAction.Continue, "why")
    connector = ft("ipc_connector")
    wired = connector._to_wire((3, request))
    assert wired == {"op": "control", "rank": 3, "action": "Continue", "description": "why"}
    assert connector._to_wire([3, request]) != wired


def test_a_keyword_that_means_nothing_is_warned_of_once() -> None:
    launcher, progress = ft("launcher"), ft("progress_tracker")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            config = launcher.LaunchConfig(1, max_nodes=1, nproc_per_node=2, newer=3)
            progress.ProgressTracker(other=1)
    assert (config.min_nodes, config.nproc_per_node) == (1, 2)
    assert [str(each.message).partition(":")[0] for each in seen] == [
        "LaunchConfig",
        "ProgressTracker",
    ]


def test_messages_pass_through_an_asyncio_stream() -> None:
    class Written:
        data = b""

        def write(self, data: bytes) -> None:
            self.data += data

        async def drain(self) -> None:
            pass

    async def round_trip(message: object) -> object:
        written, stream = Written(), asyncio.StreamReader()
        await ft("utils").write_obj_to_ipc_stream(message, written)
        stream.feed_data(written.data)
        return await ft("utils").read_obj_from_ipc_stream(stream)

    for message in messages():
        assert asyncio.run(round_trip(message)) == message


@pytest.mark.parametrize(
    "plain",
    [{"!": "Popen", "value": {}}, {"!": "RankInfo", "value": {}}, {"!": "RankInfo"}, {"!": []}],
)
def test_what_nobody_sends_is_refused(plain: object) -> None:
    """S-1: bytes from a socket make no objects but those of the table."""
    with pytest.raises(ft("_plain").FrameError):
        ft("_plain").from_plain(plain)


def test_leaves_of_nested_containers_are_replaced_in_place() -> None:
    tree = {"a": [1, {"b": 2}], "c": (3,)}
    inner = tree["a"]
    assert ft("dict_utils").dict_list_map_inplace(lambda leaf: leaf * 2, tree) is tree
    assert tree == {"a": [2, {"b": 4}], "c": (3, 3)}
    assert tree["a"] is inner
    assert ft("dict_utils").dict_list_map_inplace(str, 5) == "5"


def test_cycles_without_progress_are_counted(tmp_path: Path) -> None:
    """And forgotten with the first that makes some."""
    file = tmp_path / "iteration"
    tracker = ft("progress_tracker").ProgressTracker(10, 2, str(file))
    outcomes = []
    for iteration in ("5", "20", "21", "22"):
        file.write_text(iteration)
        outcomes.append((tracker.analyze_previous_cycle(), tracker.should_terminate_early()))
    assert outcomes == [(False, False), (True, False), (False, False), (False, True)]
    idle = ft("progress_tracker").ProgressTracker(max_no_progress_cycles=0)
    assert not idle.is_enabled
    assert idle.analyze_previous_cycle()


def test_the_log_of_a_cycle_has_the_rank_before_each_line(tmp_path: Path) -> None:
    module = ft("per_cycle_logs")
    with module.PerCycleLog(str(tmp_path / "run.txt"), cycle=2, world_size=12) as log:
        log.write(3, "one\ntwo\n")
        log.write(11, ["three"])
    assert (tmp_path / "run_cycle2.txt").read_text() == " 3: one\n 3: two\n11: three\n"
    with pytest.raises(ValueError, match="absolute"):
        module.get_cycle_log_path("run.log", 0)


@pytest.mark.parametrize(("text", "nodes"), [("2", (2, 2)), ("1:4", (1, 4))])
def test_node_counts_are_read(text: str, nodes: tuple[int, int]) -> None:
    assert ft("launcher").parse_min_max_nnodes(text) == nodes


def test_a_command_line_becomes_a_configuration_and_a_command() -> None:
    """By our own reader, and by the argparse parser."""
    words = [
        "--nnodes",
        "1",
        "--nproc_per_node=2",
        "--tee",
        "0:3,1:1",
        "--redirects",
        "2",
        "--max-restarts",
        "3",
        "--rdzv-conf",
        "a=b",
        "--ft-safety-factor",
        "2",
        "--local-ranks-filter",
        "1",
        "-m",
        "work",
        "--flag",
    ]
    launcher = ft("launcher")
    for args in (launcher.parse_args(words), launcher.get_args_parser().parse_args(words)):
        config, command, command_args = launcher.config_from_args(args)
        assert (config.min_nodes, config.nproc_per_node, config.max_restarts) == (1, 2, 3)
        assert config.rdzv_endpoint == "127.0.0.1:29500"
        assert config.rdzv_configs["a"] == "b"
        assert config.fault_tol_cfg.safety_factor == 2.0
        assert (command, command_args) == (sys.executable, ["-u", "-m", "work", "--flag"])


def test_arguments_become_a_launch(monkeypatch) -> None:
    launched = []

    class Launch:
        def __init__(self, *args: object) -> None:
            launched.append(args)

        def __call__(self, *args: object) -> dict[int, object]:
            launched.append(args)
            return {0: None}

    monkeypatch.setattr("holdfast.fault_tolerance.elastic.elastic_launch", Launch)
    launcher = ft("launcher")
    args = launcher.parse_args(["--no-python", "true", "a"])
    config, command, command_args = launcher.config_from_args(args)
    assert launcher.launch_agent(config, command, command_args) == {0: None}
    assert launched == [(config, "true", None), ("a",)]


# ---------------------------------------------------------------- inprocess
def test_records_are_told_in_one_line(monkeypatch) -> None:
    module = ip("attribution")
    kinds = module.Interruption
    records = [module.InterruptionRecord(rank, kinds.TERMINATED) for rank in (3, 1, 2)]
    records.append(module.InterruptionRecord(7, kinds.EXCEPTION))
    assert module.format_interruption_records(records) == (
        "Interruption.TERMINATED affecting ranks {1, 2, 3}, "
        "Interruption.EXCEPTION affecting ranks {7}"
    )
    monkeypatch.setenv("NVRX_LOG_RANK_FORMAT_VERBOSE", "1")
    assert "{1-3}" in module.format_interruption_records(records)


def test_values_are_put_where_the_annotation_says() -> None:
    substitute = ip("param_utils").substitute_param_value

    def fn(a, b: int | None = None, *, c: float = 0.5, call_wrapper=None): ...

    assert substitute(fn, (1, 2), {}, {int: 9}) == ((1, 9), {"c": 0.5, "call_wrapper": None})
    assert substitute(fn, (1,), {"c": 1.0}, {complex: 9}) == ((1,), {"c": 1.0})


def test_restarter_lines_have_their_prefix(capsys) -> None:
    module = ip("nested_restarter")
    module.NestedRestarterLogger().log_restarter_event("state=initialize")
    assert capsys.readouterr().out == "[NestedRestarter] name=[InProcess] state=initialize\n"
    assert issubclass(module.NestedRestarterAborted, module.NestedRestarterCallback)


class Injected(BaseException):
    pass


def spin() -> None:
    until(lambda: False, "the exception")


def test_an_exception_arrives_in_another_thread() -> None:
    caught, waits = [], threading.Event()

    def wait() -> None:
        try:
            waits.set()
            spin()
        except Injected as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(BOUND_S)
    ip("monitor_thread").async_raise(thread.ident, Injected)
    thread.join(BOUND_S)
    assert caught
    with pytest.raises(ValueError, match="no thread"):
        ip("monitor_thread").async_raise(2**40, Injected)
    with pytest.raises(TypeError, match="class of exceptions"):
        ip("monitor_thread").async_raise(threading.get_ident(), Injected())


def test_an_exception_that_del_swallows_is_raised_again() -> None:
    class Swallows:
        def __del__(self) -> None:
            raise Injected

    before = sys.unraisablehook
    with pytest.raises(Injected), ip("monitor_thread").reraise_if_unraisable(Injected):  # noqa: PT012
        Swallows()
        spin()
    assert sys.unraisablehook is before


@pytest.fixture
def store(tmp_path: Path):
    return ip("store").FileStore(str(tmp_path / "store"), 2)


def record(rank: int, kind: str):
    module = ip("attribution")
    return module.InterruptionRecord(rank, module.Interruption[kind])


def test_the_monitor_thread_aborts_and_interrupts(store) -> None:
    module, order = ip("monitor_thread"), []
    thread = module.MonitorThread(
        ip("state").State(0, 2), store, order.append, interval=dt.timedelta(seconds=10)
    )
    with pytest.raises(module.RankShouldRestart):  # noqa: PT012
        thread.start()
        store.record_interrupted([record(1, "EXCEPTION")])
        spin()
    thread.shutdown()  # before the next exception
    assert [state.rank for state in order] == [0]
    assert thread.message == "Interruption.EXCEPTION affecting ranks {1}"


def test_the_watchdog_marks_the_main_thread_and_pings() -> None:
    reports = []
    watchdog = ip("progress_watchdog").ProgressWatchdog(
        dt.timedelta(seconds=0.01), lambda *marks: reports.append(marks)
    )
    began = watchdog.automatic_timestamp
    watchdog.start()
    try:
        until(lambda: watchdog.automatic_timestamp > began, "the main thread runs")
        assert watchdog.manual_timestamp is None
        watchdog.ping()
        until(lambda: reports[-1][1] == watchdog.manual_timestamp, "the ping is reported")
        watchdog.pause_and_synchronize()
        paused, n_reports = watchdog.automatic_timestamp, len(reports)
        until(lambda: len(reports) > n_reports + 2, "it still reports")
        assert watchdog.automatic_timestamp == paused
        watchdog.resume()
        until(lambda: watchdog.automatic_timestamp > paused, "it goes on")
    finally:
        watchdog.shutdown()


def test_a_silent_sibling_is_recorded_as_unresponsive(store) -> None:
    monitor = ip("sibling_monitor").SiblingMonitor(store, 0, 2, dt.timedelta(seconds=60))
    store.send_heartbeat(1)
    assert monitor.check() == set()
    monitor.heartbeat_timeout = dt.timedelta(0)
    assert monitor.check() == {1}
    assert monitor.check() == set()
    assert store.get_terminated_ranks() == {1}
    assert store.get_interruption_records() == [record(1, "UNRESPONSIVE")]
    store.iteration_barrier([0], 2, dt.timedelta(seconds=5))


MONITORED = """import os, sys, time, datetime as dt
from nvidia_resiliency_ext.inprocess.monitor_process import MonitorProcess
from nvidia_resiliency_ext.inprocess.store import FileStore
s = dt.timedelta(seconds=1)
def monitor(name, **times): return MonitorProcess(
    0, 1, FileStore, {"file_name": name, "world_size": 9},
    termination_grace_time=0.1 * s, logfile=name + ".log", pidfile=name + ".pid",
    **{kind: seconds * s for kind, seconds in times.items()})
first = monitor(sys.argv[1] + ".first", interval=60, heartbeat_interval=60)
second = monitor(
    sys.argv[1], interval=0.05, soft_timeout=float(sys.argv[2]), hard_timeout=float(sys.argv[3]))
first.start()
first.shutdown()
second.start()
if sys.argv[4] == "die":
    os._exit(7)
time.sleep(1000)"""


@pytest.mark.parametrize(
    ("what", "soft_s", "hard_s", "exit_code", "kinds"),
    [
        ("die", 60, 90, 7, ["TERMINATED"]),
        ("hang", 0.1, 0.5, -signal.SIGTERM, ["SOFT_TIMEOUT", "HARD_TIMEOUT"]),
        ("late", 0.1, 0.1, -signal.SIGTERM, ["SOFT_TIMEOUT", "HARD_TIMEOUT"]),
    ],
)
def test_the_monitor_process_says_what_became_of_its_rank(
    tmp_path: Path, what: str, soft_s: float, hard_s: float, exit_code: int, kinds: list[str]
) -> None:
    path = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", MONITORED, str(path), str(soft_s), str(hard_s), what],
        env={**os.environ, "PYTHONPATH": str(COMPAT)},
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == exit_code, (tmp_path / "store.log").read_text()
    for pid in (tmp_path / "store.first.pid", tmp_path / "store.pid"):
        number = int(pid.read_text())
        until(lambda n=number: not ip("monitor_process").is_process_active(n), "the monitor ends")
    left = ip("store").FileStore(f"{path}.first", 9)
    assert left.get_interruption_records() == []
    assert left.get_all_heartbeats(world_size=1) == [None]
    store = ip("store").FileStore(str(path), 9)
    assert [each.interruption.name for each in store.get_interruption_records()] == kinds
    assert store.get_terminated_ranks() == {0}
    assert "target_pid=" in (tmp_path / "store.log").read_text()


def test_handlers_are_attached_for_a_while() -> None:
    logger = logging.getLogger("nvidia_resiliency_ext.inprocess")
    above = logging.getLogger("nvidia_resiliency_ext")
    handler = logging.StreamHandler()
    above.addHandler(handler)
    try:
        with ip("logging").attach_handlers() as attached:
            assert attached.handlers == [handler]
        assert logger.handlers == []
        assert logger.propagate
    finally:
        above.removeHandler(handler)


def test_arguments_are_enforced_by_their_names() -> None:
    module = ip("param_utils")

    def check(count: object, kind: object) -> None:
        module.enforce_type("count", (int, float))
        module.enforce_subclass("kind", Exception)
        module.enforce_value(count != 3)

    check(1, ValueError)
    with pytest.raises(TypeError, match="count should be int or float, is str: 'one'"):
        check("one", ValueError)
    with pytest.raises(TypeError, match="kind should be a class derived from Exception"):
        check(1, 2)
    with pytest.raises(ValueError, match="count != 3"):
        check(3, ValueError)


def test_a_rank_that_stands_by_waits_until_one_has_completed(store) -> None:
    """And says so to its watchdog meanwhile."""

    class Watchdog:
        def ping(self) -> None:
            store.record_completed()

    ip("utils").spare_fn(store, Watchdog(), interval=dt.timedelta(milliseconds=1))


def test_an_exception_is_logged_in_one_line(caplog) -> None:
    ip("utils").log_exc(ip("state").State(2, 4), ValueError("no\nmore"), "train")
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR] == [
        "rank 2: train raised ValueError('no\\nmore')"
    ]


def test_a_callback_prints_its_state_on_one_rank(capsys) -> None:
    """With the logger that it is given."""
    module = ip("nested_restarter")
    state, lines = ip("state").State(1, 2), Lines()
    of_1 = module.NestedRestarterCallback(1, "handling", "starting")
    assert of_1(state) is state
    module.NestedRestarterCallback(0, "handling")(state)
    module.NestedRestarterCallback(special_rank=1, restarter_state="x", restarter_logger=lines)(
        state
    )
    expected = "[NestedRestarter] name=[InProcess] state=handling stage=starting\n"
    assert capsys.readouterr().out == expected
    assert lines == ["state=x"]
    aborted = module.NestedRestarterAborted()
    assert isinstance(aborted, module.NestedRestarterCallback)
    assert not isinstance(lines, module.NestedRestarterCallback)


# ---------------------------------------------------------------- shared_utils
def shared(module: str):
    return importlib.import_module(f"nvidia_resiliency_ext.shared_utils.{module}")


def test_a_workload_exception_waits_until_it_is_asked_for() -> None:
    module, called = shared("inject_fault"), []
    for clears in (True, False):
        module.dispatch_fault_injection(
            module.Fault.WORKLOAD_EXC, delay=0.0, callback=lambda: called.append(1)
        ).join(BOUND_S)
        if clears:
            module.clear_workload_exception()
            module.maybe_raise_workload_exception()
    with pytest.raises(module.InjectedException):
        module.maybe_raise_workload_exception()
    module.maybe_raise_workload_exception()
    assert called == [1, 1]


def test_faults_have_the_names_of_version_0_2_too() -> None:
    fault = shared("inject_fault").Fault
    old = [fault[name] for name in ("GPU", "ABORT", "GIL", "INT", "KILL", "TERM", "STOP")]
    assert [each.name for each in old] == [
        *("GPU_ERROR", "OS_ABORT", "LOCK_GIL", "SIGINT", "SIGKILL", "SIGTERM", "SIGSTOP")
    ]


@pytest.mark.parametrize("name", ["ASYNC_EXC", "SIGNAL_EXC"])
def test_an_exception_is_injected_into_the_main_thread(name: str) -> None:
    module = shared("inject_fault")
    with pytest.raises(module.InjectedException):  # noqa: PT012
        module.dispatch_fault_injection(name)
        spin()


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("OS_ABORT", -signal.SIGABRT),
        ("SEGFAULT", -signal.SIGSEGV),
        ("SIGKILL", -signal.SIGKILL),
        ("SIGTERM", -signal.SIGTERM),
    ],
)
def test_a_fatal_fault_ends_the_process(name: str, exit_code: int) -> None:
    code = f"""import time
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault, dispatch_fault_injection
dispatch_fault_injection(Fault.{name}, delay=0.01)
time.sleep(1000)"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(COMPAT)},
        stderr=subprocess.DEVNULL,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == exit_code


def test_a_held_interpreter_lock_stops_all_threads(tmp_path: Path) -> None:
    """As seen from outside: the process lives, and its file is not written any more."""
    ticks = tmp_path / "ticks"
    code = f"""import time
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault, dispatch_fault_injection
dispatch_fault_injection(Fault.LOCK_GIL, callback=lambda: open({str(ticks)!r}, "w").close())
time.sleep(0.01)
while True:
    open({str(ticks)!r}, "a").write(".")"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(COMPAT)}
    )
    try:
        until(ticks.exists, "the fault is near")

        def stands_still() -> bool:
            before = ticks.stat().st_size
            time.sleep(0.2)
            return ticks.stat().st_size == before

        until(stands_still, "no thread writes")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_ranks_agree_on_who_fails(monkeypatch) -> None:
    module, dispatched = shared("inject_fault"), []
    monkeypatch.setattr(module, "dispatch_fault_injection", lambda *given: dispatched.append(given))
    monkeypatch.setenv("WORLD_SIZE", "8")
    drawn = {}
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        drawn[rank] = module.inject_fault(
            ["SIGKILL", "SEGFAULT"], num_faults=3, seed=1, delay=(1, 2)
        )
    assert sum(fault is not None for fault in drawn.values()) == 3
    assert all(1 <= delay_s <= 2 for _, delay_s, _ in dispatched)
    assert module.inject_fault(["SIGKILL"], (8, 9)) is module.Fault.SIGKILL


def test_health_checks_pass_where_nothing_can_be_determined(tmp_path: Path) -> None:
    module = shared("health_check")
    checks = [
        module.GPUHealthCheck(0),
        module.NVLHealthCheck(),
        module.NicHealthCheck(0),
        module.NodeHealthCheck(str(tmp_path / "nobody")),
        module.NodeHealthCheck(None),
        module.StoragePathHealthCheck([tmp_path]),
    ]
    for check in checks:
        assert check()
        assert check.failure is None


def test_a_failed_health_check_says_why_and_calls_back(tmp_path: Path) -> None:
    module, called = shared("health_check"), []
    check = module.StoragePathHealthCheck(
        f"{tmp_path},{tmp_path}/missing", 0.01, lambda: called.append(1)
    )
    assert not check.check()
    assert "missing" in check.failure
    asyncio.run(check.async_check())
    assert called == [1]


def test_waiting_for_a_daemon_works_by_the_old_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nvidia_resiliency_ext.shared_utils.wait_daemon", tmp_path / "none"],
        env={**os.environ, "PYTHONPATH": str(COMPAT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no process to wait for" in done.stderr
