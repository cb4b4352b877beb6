"""Jobs that a program starts: torch's launcher API on real processes."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from multiprocessing import process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import LaunchError
from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.launcher import LaunchConfig, LocalElasticAgent, elastic_launch
from holdfast.node.processes import function_rank
from holdfast.node.records import run_dirs
from nvidia_resiliency_ext.fault_tolerance.utils import is_process_alive
from tests.processes import bystander
from tests.real import elastic_functions as functions
from tests.waiting import BOUND_S, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of runs that failed stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_function_returns_by_rank_and_the_program_keeps_what_is_its_own() -> None:
    """Its children are neither ended nor reaped; its signal handlers are as they were."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with bystander() as living, subprocess.Popen(["sh", "-c", "exit 5"]) as ended:
        results = elastic_launch(LaunchConfig(1, 1, 2), functions.place)("x")

        assert results == {0: ("0", "2", "x"), 1: ("1", "2", "x")}
        assert ended.wait() == 5
        assert living.poll() is None
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


def test_a_script_that_a_program_launches_reads_the_programs_stdin(tmp_path: Path) -> None:
    """As under torch."""
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nopen({str(tmp_path / 'read')!r}, 'w').write(sys.stdin.read())")
    program = (
        "from holdfast.fault_tolerance.launcher import LaunchConfig, elastic_launch\n"
        f"elastic_launch(LaunchConfig(1, 1, 1), {str(script)!r})()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=b"hello",
        timeout=BOUND_S,
        check=False,
    )

    assert done.returncode == 0
    assert (tmp_path / "read").read_text() == "hello"


def test_the_launcher_of_a_program_uses_all_descriptors_and_its_ranks_the_programs_limit() -> None:
    """As under ft_launcher: a launcher that leads many nodes needs thousands."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        results = elastic_launch(LaunchConfig(1, 1, 1), functions.descriptors)()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert results == {0: (500, min(before[1], 1 << 20))}


def test_an_exception_in_one_rank_is_torchs_error() -> None:
    """With rank, exit code and traceback; the rank that was stopped is no failure."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with pytest.raises(ChildFailedError, match="ValueError: boom") as caught:
        elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), functions.fail_on_rank_1)("boom")

    assert caught.value.name == "fail_on_rank_1"
    (rank, failure) = caught.value.get_first_failure()
    assert (list(caught.value.failures), rank, failure.exitcode) == ([1], 1, 1)


def test_a_hung_rank_is_explained_in_torchs_error() -> None:
    """Torch would know the signal only."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    ft = FaultToleranceConfig(rank_heartbeat_timeout=0.3)
    config = LaunchConfig(1, 1, 1, max_restarts=0, fault_tol_cfg=ft)
    with pytest.raises(ChildFailedError, match="heartbeat") as caught:
        elastic_launch(config, functions.fall_silent)()
    assert caught.value.failures[0].exitcode == -signal.SIGKILL


def test_ranks_are_restarted_and_watched_as_configured() -> None:
    """What counts is what the last cycle returned."""
    config = LaunchConfig(
        1,
        1,
        2,
        max_restarts=1,
        fault_tol_cfg=FaultToleranceConfig(rank_heartbeat_timeout=77.0),
    )
    results = elastic_launch(config, functions.limit_in_second_cycle)()
    assert results == {0: ("1", 77.0), 1: ("1", 77.0)}


@pytest.mark.parametrize(
    ("entrypoint", "args", "why"),
    [
        (lambda: None, (), "no lambda, none within another function"),
        (functions.place, (threading.Lock(),), "place cannot be handed to its ranks"),
    ],
    ids=["lambda", "lock"],
)
def test_what_cannot_be_handed_to_ranks_says_so(entrypoint: Any, args: Any, why: str) -> None:
    """Before anything is started."""
    with pytest.raises(LaunchError, match=why) as caught:
        elastic_launch(LaunchConfig(1, 1, 2), entrypoint)(*args)
    assert isinstance(caught.value, pickle.PicklingError)


def test_a_result_that_cannot_be_handed_back_says_so(tmp_path: Path) -> None:
    """In the rank, which fails by it."""
    with pytest.raises(TypeError, match=r"cannot be pickled.* lock|lock.*cannot be pickled"):
        function_rank._keep(str(tmp_path), threading.Lock())


def test_a_script_that_launches_while_its_ranks_import_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by multiprocessing: else each rank would start ranks."""
    monkeypatch.setattr(process.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match='below `if __name__ == "__main__":`'):
        elastic_launch(LaunchConfig(1, 1, 1), functions.place)("x")


PROGRAM = """
import os
from holdfast.fault_tolerance.launcher import LaunchConfig, elastic_launch

class Result:
    def __init__(self, value):
        self.value = value

def work(first):
    return Result(first + int(os.environ["RANK"]))

if __name__ == "__main__":
    results = elastic_launch(LaunchConfig(1, 1, 2), work)(7)
    print({rank: result.value for rank, result in results.items()})
"""


@pytest.mark.parametrize("words", [["program.py"], ["-m", "package.program"]], ids=" ".join)
def test_functions_and_classes_of_a_program_are_found_in_its_ranks(
    tmp_path: Path, words: list[str]
) -> None:
    """Of a script, and of a module that is run."""
    (tmp_path / "package").mkdir()
    for path in ("program.py", "package/program.py"):
        (tmp_path / path).write_text(PROGRAM)
    done = run_program(tmp_path, words)
    assert (done.returncode, done.stdout) == (0, "{0: 7, 1: 8}\n"), done.stderr


def test_a_function_of_an_interactive_session_says_that_it_must_move(tmp_path: Path) -> None:
    """Ranks cannot import what was typed."""
    done = run_program(tmp_path, ["-c", PROGRAM])
    assert "work cannot be handed to its ranks: it or an argument is defined in" in done.stderr
    assert "cycle 0" not in done.stderr


def test_scripts_and_programs_are_entry_points_too_and_any_thread_may_launch(
    tmp_path: Path,
) -> None:
    """They return nothing; arguments become text."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nopen(f'{sys.argv[1]}/{sys.argv[2]}.{os.environ[\"RANK\"]}', 'w').close()\n"
    )
    config = LaunchConfig(1, 1, 2)
    results: list[object] = []

    def launch() -> None:
        results.append(elastic_launch(config, str(script))(tmp_path, 1))
        results.append(elastic_launch(config, sys.executable)(script, tmp_path, 2))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join(2 * BOUND_S)
    assert results == [{0: None, 1: None}] * 2
    assert all((tmp_path / name).exists() for name in ("1.0", "1.1", "2.0", "2.1"))


SIGNALLED = """
import sys
from holdfast.fault_tolerance.launcher import LaunchConfig, elastic_launch
from tests.real.elastic_functions import note_pid_and_wait
try:
    elastic_launch(LaunchConfig(1, 1, 2), note_pid_and_wait)(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error.sigval.name)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_signalled_leaves_no_rank(tmp_path: Path, signum: signal.Signals) -> None:
    """What it can handle is passed on, and is torch's exception; it may be killed, too."""
    out = tmp_path / "out"
    with out.open("w") as stream:
        program = subprocess.Popen(
            [sys.executable, "-c", SIGNALLED, str(tmp_path)], cwd=ROOT, stdout=stream
        )
    try:
        paths = [tmp_path / str(rank) for rank in range(2)]
        until(lambda: all(path.exists() for path in paths), "both ranks")
        pids = [int(path.read_text()) for path in paths]
        program.send_signal(signum)
        program.wait(BOUND_S)
    finally:
        program.kill()
        program.wait()
    until(lambda: not any(map(is_process_alive, pids)), "the end of the ranks")
    is_handled = signum is not signal.SIGKILL
    assert out.read_text() == (f"SignalException {signum.name}\n" if is_handled else "")
    left = [path.name.removeprefix("holdfast_") for path in tmp_path.glob("holdfast_[0-9]*")]
    assert [run_dirs.is_living(job) for job in left] == ([] if is_handled else [False])


def test_torchs_agent_runs_a_specification_to_torchs_result(tmp_path: Path) -> None:
    """Values of the function; output where the logs' specification says."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    handler: Any = SimpleNamespace(get_run_id=lambda: "job7", world_size=1)
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        rdzv_handler=handler,
        entrypoint=functions.place,
        args=("x",),
        max_restarts=0,
        monitor_interval=5,
    )
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL)
    result = LocalElasticAgent(spec, logs, log_line_prefix_template="[${rank}]").run()

    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {0: ("0", "2", "x"), 1: ("1", "2", "x")}
    assert len(list((tmp_path / "logs").glob("job7_*/attempt_0/*/stdout.log"))) == 2

    handler.world_size = 2
    with pytest.raises(LaunchError, match="runs jobs of one node, and this rendezvous is for 2"):
        LocalElasticAgent(spec, logs)


def run_program(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=2 * BOUND_S,
        check=False,
    )
