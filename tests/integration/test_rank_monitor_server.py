"""A monitor without a launcher, with the real client in ranks that are real processes."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base.processes.proc import process_state
from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.node.processes.controlled_process import ControlledProcess
from holdfast.watch.pure.monitor_messages import ConfigureMonitor
from nvidia_resiliency_ext.fault_tolerance import RankMonitorServer, rank_monitor_server
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorProcess
from tests.waiting import BOUND_S, until

COMPAT = {"PYTHONPATH": str(Path(__file__).parents[2] / "compat" / "src")}
RANK = """
import sys, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
print("up", flush=True)
{}
"""


@pytest.fixture
def socket_path(tmp_path: Path) -> str:
    """Where ranks find their monitor."""
    return str(tmp_path / "rmon.socket")


@pytest.fixture
def start(socket_path: str) -> Iterator[Callable[..., RankMonitorProcess]]:
    """Start a monitor."""
    started = []

    def start(*, restarter: bool = False, **fields: object) -> RankMonitorProcess:
        cfg = FaultToleranceConfig(**fields)
        process = RankMonitorServer.run_in_subprocess(cfg, socket_path, restarter)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.join(BOUND_S)
        assert not process.is_alive()


def run_rank(socket_path: str, then: str) -> subprocess.CompletedProcess[str]:
    """A rank's whole life."""
    return subprocess.run(
        [sys.executable, "-c", RANK.format(then)],
        env=os.environ | {"FT_RANK_MONITOR_IPC_SOCKET": socket_path, "RANK": "2"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def read_until(capfd: pytest.CaptureFixture[str], *words: str) -> None:
    """Until these words are on stderr: a signal is sent before it is said."""
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return all(each in said for each in words)

    until(is_said)


def test_it_looks_like_a_process(
    start: Callable[..., RankMonitorProcess], socket_path: str
) -> None:
    """What code written for multiprocessing does with it."""
    process = start()

    assert process.is_alive()
    assert process.daemon
    assert process.exitcode is None
    assert str(process.pid) in process.name
    assert process.ident == process.pid
    process.join(timeout=0.0)
    with pytest.raises(ValueError, match="still runs"):
        process.close()

    process.terminate()
    assert select.select([process.sentinel], [], [], BOUND_S)[0]
    process.join()

    assert process.exitcode == 0
    assert not process.is_alive()
    process.close()
    assert not Path(socket_path).exists()


def test_its_rank_gets_the_configured_signal_and_no_other(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documented; a rank that saves its work may take longer than any grace of ours."""
    told = []

    def start_monitor(_listener: int, config: ConfigureMonitor, _env: object) -> ControlledProcess:
        told.append(config)
        raise OSError("enough")

    monkeypatch.setattr(rank_monitor_server, "start_monitor", start_monitor)
    with pytest.raises(OSError, match="enough"):
        RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), socket_path)
    assert [config.grace_s for config in told] == [None]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])
def test_signals_end_it_in_order(
    start: Callable[..., RankMonitorProcess], socket_path: str, name: str
) -> None:
    """Its socket is removed by itself."""
    process = start()
    os.kill(process.pid, getattr(signal, name))

    until(lambda: not Path(socket_path).exists())
    process.join(BOUND_S)
    assert process.exitcode == 0


def test_nothing_is_left_of_a_killed_one(
    start: Callable[..., RankMonitorProcess],
    socket_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Socket, page and dump file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where nobody else is at work
    process = start()
    process.kill()
    process.join()

    assert process.exitcode == -signal.SIGKILL
    assert not Path(socket_path).exists()
    assert not list(tmp_path.glob("holdfast_*"))


def test_nothing_is_left_of_one_whose_maker_was_killed(socket_path: str, tmp_path: Path) -> None:
    """Its folder in /tmp stayed for ever."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    source = f"""
import time
from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorServer
kept = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), {socket_path!r})
print("up", flush=True)
time.sleep(1000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, **COMPAT, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
    ) as maker:
        try:
            assert maker.stdout is not None
            maker.stdout.readline()
            assert list(folder.iterdir())
        finally:
            maker.kill()
    until(lambda: not list(folder.iterdir()) and not Path(socket_path).exists())


def test_a_stale_socket_is_replaced(
    start: Callable[..., RankMonitorProcess], socket_path: str
) -> None:
    """And the path serves again."""
    start().kill()
    start()

    assert run_rank(socket_path, "client.send_heartbeat()").returncode == 0


def test_one_that_ends_late_leaves_the_socket_of_its_successor(
    start: Callable[..., RankMonitorProcess], socket_path: str
) -> None:
    """Asked to end, not awaited, and replaced: on its way out it removed the other one's socket."""
    first = start()
    os.kill(first.pid, signal.SIGSTOP)
    first.terminate()
    start()
    os.kill(first.pid, signal.SIGCONT)
    first.join(BOUND_S)

    assert first.exitcode == 0
    assert run_rank(socket_path, "client.send_heartbeat()").returncode == 0


def test_a_hung_rank_is_ended_and_its_stacks_are_shown(
    start: Callable[..., RankMonitorProcess],
    socket_path: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """There is no run directory, so all of it goes to stderr; each rank has stacks of its own."""
    start(rank_section_timeouts={"step": 0.2})
    for hang in ("all_reduce_for_ever", "read_for_ever"):
        rank = run_rank(
            socket_path,
            f"def {hang}():\n    client.start_section('step')\n    time.sleep(1000)\n{hang}()",
        )

        assert rank.returncode == -signal.SIGKILL
        read_until(capfd, "Section 'step' has been open for", f"in {hang}")


def test_ranks_come_and_go(start: Callable[..., RankMonitorProcess], socket_path: str) -> None:
    """One monitor outlives them all: finished, failed, and hung ones."""
    process = start(initial_rank_heartbeat_timeout=2.0, rank_heartbeat_timeout=2.0)
    stay = "client.send_heartbeat()\ntime.sleep(1000)"
    leave = "client.shutdown_workload_monitoring()\ntime.sleep(2.2)"

    codes = [run_rank(socket_path, then).returncode for then in (leave, "sys.exit(7)", stay, leave)]

    assert codes == [0, 7, -signal.SIGKILL, 0]
    assert process.is_alive()


def test_a_section_ends_an_initial_limit_that_nobody_chose(
    start: Callable[..., RankMonitorProcess],
    socket_path: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Said of a short one here, which the default is not; the limits of sections hold."""
    start(
        initial_rank_heartbeat_timeout=2.0,
        section_ends_initial_timeout=True,
        rank_section_timeouts={"step": 1.0},
    )

    rank = run_rank(
        socket_path,
        "with client.section('step'): pass\ntime.sleep(2.2)\nprint('lives', flush=True)\n"
        "client.start_section('step')\ntime.sleep(1000)",
    )

    assert (rank.stdout, rank.returncode) == ("up\nlives\n", -signal.SIGKILL)
    read_until(capfd, "Section 'step' has been open for")


def test_layered_restarts_are_told(
    start: Callable[..., RankMonitorProcess],
    socket_path: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In lines that others parse; that of a restart which goes on is repeated."""
    told: list[str] = []

    def has_told(state: str) -> bool:
        for line in capfd.readouterr().out.splitlines():
            before, _, new = line.partition("state=")
            assert before == "[NestedRestarter] name=[InJob] "
            if told[-1:] != [new]:
                told.append(new)
        return told[-1:] == [state]

    process = start(restarter=True, restart_check_interval=0.05)
    for _ in range(2):
        run_rank(socket_path, "client.send_heartbeat()")
        until(lambda: has_told("handling stage=processing"))
    process.terminate()
    process.join(BOUND_S)
    has_told("aborted")

    gone = ["handling stage=starting", "handling stage=processing"]
    assert told == ["initialize", *gone, "handling stage=completed", *gone, "aborted"]


def test_it_leaves_with_its_maker(tmp_path: Path) -> None:
    """Killed or finished, without terminate."""
    code = (
        "import os, sys\n"
        "from nvidia_resiliency_ext.fault_tolerance import (\n"
        "    FaultToleranceConfig, RankMonitorServer)\n"
        "p = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), sys.argv[1])\n"
        "print(p.pid, flush=True)\n"
        "if sys.argv[2] == 'killed': os.kill(os.getpid(), 9)\n"
    )
    for end, exit_code in (("killed", -signal.SIGKILL), ("finished", 0)):
        path = tmp_path / end
        maker = subprocess.run(
            [sys.executable, "-c", code, str(path), end],
            env=os.environ | COMPAT,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert maker.returncode == exit_code, maker.stderr
        pid = int(maker.stdout)
        until(lambda pid=pid: has_ended(pid))
        until(lambda path=path: not path.exists())


def test_a_process_that_started_its_own_monitor_may_go_on_without_it(tmp_path: Path) -> None:
    """A notebook: nobody said that it would end."""
    code = (
        "import os, sys, time\n"
        "from nvidia_resiliency_ext.fault_tolerance import (\n"
        "    FaultToleranceConfig, RankMonitorClient, RankMonitorServer)\n"
        "cfg = FaultToleranceConfig(exit_timeout=0.2)\n"
        "p = RankMonitorServer.run_in_subprocess(cfg, sys.argv[1])\n"
        "client = RankMonitorClient()\n"
        "client.init_workload_monitoring()\n"
        "client.shutdown_workload_monitoring()\n"
        "time.sleep(0.6)\n"
    )
    path = str(tmp_path / "socket")
    maker = subprocess.run(
        [sys.executable, "-c", code, path],
        env=os.environ | COMPAT | {"FT_RANK_MONITOR_IPC_SOCKET": path, "RANK": "0"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert maker.returncode == 0, maker.stderr


def has_ended(pid: int) -> bool:
    state = process_state(pid)
    return state is None or state.state == "Z"


def test_a_path_that_cannot_be_listened_on_is_an_error(tmp_path: Path) -> None:
    """Before any process is started."""
    with pytest.raises(OSError, match="cannot listen"):
        RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), str(tmp_path / "no" / "dir"))
