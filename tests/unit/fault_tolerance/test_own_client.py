"""``client()``: what a script can always call, with a launcher and without one."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.fault_tolerance as ft
from holdfast.fault_tolerance import _own_client as own_client
from holdfast.net import endpoint
from tests.unit.fake_monitor import BOUND_S, FakeMonitor, rank_environment

ROOT = Path(__file__).parents[3]
LEARNED = {"current_timeouts": {"heartbeat": {"initial": 5.0, "subsequent": 1.0}}}


@pytest.fixture(autouse=True)
def nothing_before(monkeypatch):
    """No launcher, and no client of an earlier test."""
    monkeypatch.setattr(own_client._Own, "client", None)
    monkeypatch.setattr(own_client._Own, "refused_by", None)
    for name in ("FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def monitor(tmp_path, monkeypatch):
    monitor = FakeMonitor(tmp_path, rank_section_timeouts={"step": 60.0})
    for name, value in rank_environment(monitor).items():
        monkeypatch.setenv(name, value)
    yield monitor
    monitor.close()


def test_under_a_launcher_it_is_the_rank_s_client_initialised(monitor) -> None:
    """The class that programs know, without a layer: a heartbeat costs what it costs there."""
    client = ft.client()

    assert type(client) is ft.RankMonitorClient
    assert client.is_initialized
    assert ft.client() is client
    assert monitor.operations() == ["hello", "armed"]
    client.shutdown_workload_monitoring()


def test_after_a_shutdown_it_is_initialised_again(monitor) -> None:
    """The same client, so that sections that a program has kept go on to work."""
    client = ft.client()
    step = client.section("step")
    client.shutdown_workload_monitoring()

    assert ft.client() is client
    with step:
        assert monitor.slot("step")[0] > 0.0
    client.shutdown_workload_monitoring()


def test_it_follows_the_environment_where_no_client_is_in_use(monkeypatch, tmp_path) -> None:
    """A function that a program starts as a rank: its module was imported before it was one."""
    before = ft.client()
    monitor = FakeMonitor(tmp_path)
    for name, value in rank_environment(monitor).items():
        monkeypatch.setenv(name, value)
    watched = ft.client()
    assert (before.is_initialized, watched.is_initialized) == (False, True)
    watched.shutdown_workload_monitoring()
    monitor.close()

    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET")
    after = ft.client()
    after.send_heartbeat()
    assert not after.is_initialized


@pytest.mark.parametrize("connects", ["before", "after"])
def test_a_rank_without_a_monitor_goes_on_unwatched(
    monkeypatch, tmp_path, caplog, connects
) -> None:
    """Its launcher could start none, and refuses: the script would have run under torchrun."""
    path = str(tmp_path / "s")
    listener = endpoint.listen(path)
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", path)
    monkeypatch.setenv("RANK", "0")
    if connects == "before":
        connect = endpoint.connect

        def connect_and_be_refused(path: str, timeout_s: float) -> endpoint.Connection:
            connection = connect(path, timeout_s)
            listener.close()
            return connection

        monkeypatch.setattr("holdfast.net.endpoint.connect", connect_and_be_refused)
    listener.close() if connects == "after" else None

    client = ft.client()
    with client.section("step"):
        assert not client.is_initialized
    assert ft.client() is client
    assert caplog.text.count("this rank runs unwatched") == 1


def test_a_monitor_that_is_not_there_is_an_error(monkeypatch, tmp_path) -> None:
    """A job that believes that it is watched must be."""
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ft.RankMonitorClientError, match="its monitor cannot be reached"):
        ft.client()


def test_without_a_launcher_every_call_does_nothing(caplog) -> None:
    """Each public method of the class, and the log says it once."""
    caplog.set_level(logging.INFO)
    client = ft.client()

    assert isinstance(client, ft.RankMonitorClient)
    client.init_workload_monitoring()
    client.init_workload_monitoring(3)
    client.send_heartbeat()
    for _ in range(2):
        client.start_section("step")
    client.end_section("step")
    client.end_section("never opened")
    client.end_all_sections()
    with client.section("step"), client.section("other"):
        pass
    assert client.calculate_and_set_hb_timeouts() is False
    assert client.calculate_and_set_section_timeouts(["step"]) is False
    client.send_workload_control_request(
        ft.WorkloadControlRequest(ft.WorkloadAction.ShutdownWorkload)
    )
    client.shutdown_workload_monitoring()
    assert not client.is_initialized
    assert client.hb_timeouts is client.section_timeouts is client.cfg is client.rank_info is None
    assert ft.client() is client
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "no launcher watches this process: its ha"
    ]
    public = {name for name in dir(ft.RankMonitorClient) if name[0] != "_"}
    assert public - {"CURRENT_TIMEOUTS_STATE_KEY", "hb_timeouts", "section_timeouts"} == {
        "init_workload_monitoring",
        "shutdown_workload_monitoring",
        "send_heartbeat",
        "start_section",
        "end_section",
        "end_all_sections",
        "section",
        "calculate_and_set_hb_timeouts",
        "calculate_and_set_section_timeouts",
        "state_dict",
        "load_state_dict",
        "send_workload_control_request",
    }, "a method that is not called above"


def test_learned_timeouts_outlast_a_run_without_a_launcher() -> None:
    """They come with a checkpoint, and go into the next one as they came; so do damaged ones."""
    client = ft.client()
    assert client.state_dict() == {"current_timeouts": {}}
    client.load_state_dict(LEARNED)
    assert client.state_dict() == LEARNED
    client.load_state_dict({})
    assert client.state_dict() == {"current_timeouts": {}}


def test_only_rank_0_says_that_no_launcher_watches(caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("RANK", "1")
    ft.client()
    assert caplog.records == []


def test_the_compatible_constructor_still_refuses() -> None:
    """It is the original's: no monitor is an error."""
    client = ft.RankMonitorClient()
    with pytest.raises(RuntimeError, match="RANK is not set"):
        client.init_workload_monitoring()


SPAWNS = """
import multiprocessing, sys
import holdfast.fault_tolerance as ft
client = ft.client()
def worker(answer):
    own = ft.client()
    own.send_heartbeat()
    answer.put((own.is_initialized, own is client))
if __name__ == "__main__":
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        answer = context.SimpleQueue()
        child = context.Process(target=worker, args=(answer,))
        child.start()
        print(method, *answer.get())
        child.join()
    client.shutdown_workload_monitoring()
"""


def test_a_child_that_imports_the_script_again_is_not_the_rank(monitor, tmp_path) -> None:
    """A data-loader worker, spawned or forked: it does not ask for its rank's monitor."""
    script = tmp_path / "script.py"
    script.write_text(SPAWNS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, "spawn", "fork"],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.splitlines() == ["spawn False True", "fork True True"]
    assert monitor.operations() == ["hello", "armed", "leavemonitor"]


def test_asking_for_it_is_light() -> None:
    """No torch, nothing of the launcher; as the client itself."""
    script = """
import sys
import holdfast.fault_tolerance as ft
assert "logging" not in sys.modules
ft.client().send_heartbeat()
heavy = {"torch", "numpy", "asyncio", "yaml", "argparse", "multiprocessing", "subprocess"}
heavy |= {"holdfast.fault_tolerance." + name for name in ("launch", "launcher", "monitor")}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
