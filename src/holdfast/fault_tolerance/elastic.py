"""Start a job from a program: torch's ``elastic_launch`` and ``LocalElasticAgent``.

    program ──plan, function──► launcher process ──► ranks, monitors
       ▲  └─signals─►                 │                │ results
       └────────────outcome───────────┘◄───────────────┘

The launcher is a process of its own (``_launcher_process.py``), so that it never reaps or signals
other children of the program, and the program may launch from any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle  # noqa: TID251 - decision 20: files of the program itself
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import process, spawn
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.base import facts
from holdfast.base.processes import child
from holdfast.base.processes.job_name import new_job
from holdfast.errors import LaunchError, UnhealthyNodeException
from holdfast.fault_tolerance.launch_config import LaunchConfig, plan_of
from holdfast.job.pure.workload import text_digest
from holdfast.node.processes import function_rank
from holdfast.node.records import run_dirs
from holdfast.options.numa import GPUS_PER_NUMA

if TYPE_CHECKING:
    from holdfast.fault_tolerance.config import FaultToleranceConfig
    from holdfast.options.plan import LaunchPlan

Entrypoint = Callable[..., Any] | str | os.PathLike[str]
_LAUNCHER = str(Path(__file__).with_name("_launcher_process.py"))
_LEAVES = ("UNHEALTHY", "EXCLUDED")
"""Ends after which this node takes no part any more, and the job may go on without it."""
_IN_SPEC = (
    *("role", "max_restarts", "monitor_interval", "local_addr", "event_log_handler"),
    "numa_options",
    *("duplicate_stdout_filters", "duplicate_stderr_filters", "virtual_local_rank"),  # from 2.11 on
)
"""Fields of torch's ``WorkerSpec`` that :class:`.LaunchConfig` has, too."""


class FunctionError(LaunchError, pickle.PicklingError):
    """A function, its arguments, or its result cannot be handed to another process."""


class elastic_launch:  # noqa: N801 - the name is public API
    """Start a job and wait for its end: ``elastic_launch(config, function)(*args)``.

    ::

        def train(lr): ...

        if __name__ == "__main__":
            results = elastic_launch(LaunchConfig(1, 1, nproc_per_node=2), train)(1e-4)

    A function is handed to its ranks by pickle, as by multiprocessing: it is defined at the top
    level of a module or script, and a script launches below ``if __name__ == "__main__"``.

    Args:
        config: Of the job.
        entrypoint: A function; or the path of a Python script (``*.py``); or a program.
        health_check_server: torch's; it has no effect here.

    Raises:
        TypeError: ``entrypoint`` is neither.
    """

    def __init__(
        self, config: LaunchConfig, entrypoint: Entrypoint, health_check_server: object = None
    ) -> None:
        if not (callable(entrypoint) or isinstance(entrypoint, (str, os.PathLike))):
            raise TypeError(
                f"entrypoint must be a function, the path of a Python script or a program, got "
                f"{entrypoint!r}"
            )
        del health_check_server
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job to its end.

        Args:
            args: Of the function; of a script or program, as text.

        Returns:
            The function's results by global rank, for the ranks of this node; None for each rank
            of a script or program.

        Raises:
            ChildFailedError: Ranks of this node failed, and no restart is left (torch's class).
            SignalException: The program was signalled meanwhile; the ranks have ended (torch's).
            UnhealthyNodeException: This node leaves the job: a rank asked for it, or the host is
                not healthy.
            FunctionError: Function, arguments or result cannot be pickled.
            LaunchError: The job could not be run, or failed elsewhere; the log says why.
            UsageError: The configuration cannot be used.
            RuntimeError: A script launches while its ranks import it.
        """
        outcome = run_job(self._config, self._entrypoint, args)
        if outcome.failures:
            from torch.distributed.elastic.multiprocessing.errors import (  # noqa: PLC0415 - a second
                ChildFailedError,
            )

            raise ChildFailedError(outcome.name, outcome.process_failures())
        outcome.raise_for_node()
        return outcome.return_values


class LocalElasticAgent:
    """torch's agent of one node: ``LocalElasticAgent(spec, logs_specs).run()``.

    The rendezvous handler of the specification says the job's name and size, and is not used:
    launchers of several nodes meet through :class:`elastic_launch`.

    Args:
        spec: torch's ``WorkerSpec``.
        logs_specs: torch's ``LogsSpecs``.
        start_method: Without effect, as in :class:`.LaunchConfig`.
        exit_barrier_timeout: Without effect: launchers leave when the job is over for all.
        log_line_prefix_template: Starts a teed line.
        shutdown_timeout: Of ranks, once the program was signalled; seconds.
        health_check_server: Without effect.
        uninterruptible_state_timeout: Without effect: a rank that cannot be ended is reported.
        fault_tol_cfg: How ranks are watched; None: the defaults.
        term_timeout: Goes before ``shutdown_timeout``.
        workers_stop_timeout: From SIGTERM to SIGKILL when ranks are stopped for a restart.
        restart_policy: ``any-failed`` or ``min-healthy``.

    Raises:
        LaunchError: The job has several nodes.
    """

    def __init__(
        self,
        spec: Any,
        logs_specs: Any,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: object = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        fault_tol_cfg: FaultToleranceConfig | None = None,
        term_timeout: float | None = None,
        workers_stop_timeout: float = 15.0,
        restart_policy: str = "any-failed",
    ) -> None:
        del exit_barrier_timeout, health_check_server, uninterruptible_state_timeout
        handler = spec.rdzv_handler
        settings = getattr(handler, "settings", None)
        nodes = getattr(settings, "max_nodes", None) or getattr(handler, "world_size", 1)
        if nodes != 1:
            raise LaunchError(
                f"LocalElasticAgent runs jobs of one node, and this rendezvous is for {nodes}: use "
                "elastic_launch(LaunchConfig(min_nodes, max_nodes, ...), entrypoint)"
            )
        self._spec = spec
        self._config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=spec.local_world_size,
            logs_specs=logs_specs,
            run_id=str(handler.get_run_id()) if handler is not None else "",
            start_method=start_method,
            log_line_prefix_template=log_line_prefix_template,
            **{name: getattr(spec, name) for name in _IN_SPEC if hasattr(spec, name)},
            shutdown_timeout=shutdown_timeout,
            fault_tol_cfg=fault_tol_cfg,
            term_timeout=term_timeout,
            workers_stop_timeout=workers_stop_timeout,
            restart_policy=restart_policy,
        )

    def run(self, role: str = "default") -> Any:
        """Run the ranks to their end; returns torch's ``RunResult``.

        Args:
            role: Without effect, as in torch.

        Raises:
            SignalException, UnhealthyNodeException, FunctionError, LaunchError, UsageError: As of
                :class:`elastic_launch`.
        """
        from torch.distributed.elastic.agent.server.api import (  # noqa: PLC0415 - see elastic_launch
            RunResult,
            WorkerState,
        )

        del role
        outcome = run_job(self._config, self._spec.entrypoint, self._spec.args)
        if outcome.failures:
            return RunResult(WorkerState.FAILED, failures=outcome.process_failures())
        outcome.raise_for_node()
        return RunResult(WorkerState.SUCCEEDED, return_values=outcome.return_values)


@dataclass
class Outcome:
    """How a job ended, as far as this node knows.

    Attributes:
        name: Of script or function.
        exit_code: The launcher's.
        end: Name of its :class:`~holdfast.node.pure.launcher.LauncherEnd`; None: it never got so
            far.
        return_values: By global rank.
        failures: By global rank: local rank, pid, exit code, path of the error file; and why.
    """

    name: str
    exit_code: int
    end: str | None = None
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, tuple[tuple[int, int, int, str], str]] = field(default_factory=dict)

    def process_failures(self) -> dict[int, Any]:
        """The failures in torch's form; reads error files."""
        from torch.distributed.elastic.multiprocessing.errors import (  # noqa: PLC0415 - as above
            ProcessFailure,
        )

        failures = {}
        for rank, (how, why) in self.failures.items():
            failures[rank] = failure = ProcessFailure(*how)
            if not Path(how[-1]).is_file():  # torch has only the signal's name to say then
                failure.message = why
        return failures

    def raise_for_node(self) -> None:
        """Raise where the job did not end well, and no rank of this node failed."""
        if self.end in _LEAVES:
            raise UnhealthyNodeException(
                f"{self.name}: this node leaves the job; the launcher's log says why"
            )
        if self.exit_code != 0:
            raise LaunchError(
                f"{self.name}: the launcher exited with code {self.exit_code}, and no rank of "
                "this node failed; its log, on stderr, says why"
            )


def run_job(config: LaunchConfig, entrypoint: Entrypoint, args: Sequence[Any]) -> Outcome:
    """Run a job to its end.

    Raises:
        Exception: See :class:`elastic_launch`, except for failures of ranks.
    """
    if getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            "a job is launched while its own ranks import the script that defines their function; "
            'put the launch below `if __name__ == "__main__":`'
        )
    # Named after this process: if it is killed, the next launcher of this user removes the folder.
    folder = run_dirs.make_spare_dir(new_job())
    try:
        plan = _plan(config, entrypoint, args, folder)
        signalled = _run_launcher(plan, folder, has_stdin=not callable(entrypoint))
        if signalled is None:
            return _read_outcome(plan.name, folder, returns=callable(entrypoint))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    from torch.distributed.elastic.multiprocessing.api import (  # noqa: PLC0415 - see above
        SignalException,
    )

    raise SignalException(
        f"{plan.name}: got {signalled.name}; all ranks of this node have ended", signalled
    )


def _plan(
    config: LaunchConfig, entrypoint: Entrypoint, args: Sequence[Any], folder: str
) -> LaunchPlan:
    if callable(entrypoint):
        _hand_over(entrypoint, args, folder)
        words = [function_rank.__file__, folder]
        # A function runs in this program's interpreter, and is never bound (specification 10).
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHON_EXEC", GPUS_PER_NUMA)}
        return _of_function(plan_of(config, words, environ, name=_name(entrypoint)), entrypoint)
    script = os.fspath(entrypoint)
    is_python = script.endswith(".py") and Path(script).is_file()
    words = [*([] if is_python else ["--no-python"]), script, *map(str, args)]
    return plan_of(config, words, os.environ, name=script)


def _of_function(plan: LaunchPlan, function: Callable[..., Any]) -> LaunchPlan:
    """Its ranks run the function, and not the script and folder that bring them there."""
    if plan.workload is None:
        return plan
    module = getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    program = getattr(sys.modules["__main__"], "__file__", None) if module == "__main__" else None
    contents = (facts.script_digest(program, program=False) or "") if program else ""
    workload = dataclasses.replace(
        plan.workload,
        kind="function",
        name=f"{module}.{name}",
        contents=contents,
        path=text_digest(facts.absolute(program)) if program and contents else "",
        arguments="",  # no text: values that may differ in form and mean the same
    )
    return dataclasses.replace(plan, workload=workload)


def _hand_over(function: Callable[..., Any], args: Sequence[Any], folder: str) -> None:
    name = _name(function)
    try:
        data = pickle.dumps((function, tuple(args)))
    except Exception as error:
        raise FunctionError(
            f"{name} cannot be handed to its ranks with these arguments: {error}. Define the "
            "function at the top level of a module or script (no lambda, none within another "
            "function), and pass arguments that pickle takes; ranks are processes of their own, "
            "whatever start_method says"
        ) from error
    preparation = spawn.get_preparation_data(name)
    del preparation["authkey"], preparation["name"]
    if b"__main__" not in data:  # ranks need not import the program, which takes its time
        preparation.pop("init_main_from_name", None)
        preparation.pop("init_main_from_path", None)
    elif not {"init_main_from_name", "init_main_from_path"} & set(preparation):
        raise FunctionError(
            f"{name} cannot be handed to its ranks: it or an argument is defined in an interactive "
            "session (or with -c, or in a notebook), which they cannot import. Put it into a module"
        )
    Path(folder, "function").write_bytes(pickle.dumps(preparation) + data)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def _run_launcher(plan: LaunchPlan, folder: str, *, has_stdin: bool) -> signal.Signals | None:
    """Returns the signal that the program got meanwhile.

    ``has_stdin``: the program's stdin is the launcher's; under torch, functions have none.
    """
    Path(folder, "path").write_text(json.dumps([str(Path(entry).absolute()) for entry in sys.path]))
    Path(folder, "plan").write_bytes(pickle.dumps(plan))
    command = [sys.executable, _LAUNCHER, folder, str(os.getpid())]
    # In a session of its own: a terminal's Ctrl-C comes to the program, and is passed on once.
    launcher = child.spawn(command, os.environ, {0: 0} if has_stdin and _is_open(0) else {})
    with _passing_on(launcher, plan.signals_to_handle) as received:
        try:
            _await(launcher)
        except BaseException:
            child.send_signal(launcher, signal.SIGTERM)
            _await(launcher)
            raise
    return signal.Signals(received[0]) if received else None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _await(launcher: int) -> None:
    with contextlib.suppress(ChildProcessError):  # the program reaps all its children by itself
        os.waitpid(launcher, 0)


@contextlib.contextmanager
def _passing_on(launcher: int, signums: Sequence[int]) -> Iterator[list[int]]:
    """Pass signals on to the launcher, where this is the main thread; gives those that came."""
    received: list[int] = []

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        child.send_signal(launcher, signum)

    handlers: Mapping[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Not an ignored one (nohup), nor one with a handler in C (None): it could not be put back.
        wanted = [s for s in signums if signal.getsignal(s) not in (signal.SIG_IGN, None)]
        handlers = {signum: signal.signal(signum, pass_on) for signum in wanted}
    try:
        yield received
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _read_outcome(name: str, folder: str, *, returns: bool) -> Outcome:
    try:
        said = json.loads(Path(folder, "outcome").read_text())
    except OSError:
        raise LaunchError(
            f"{name}: the launcher ended before the job did; its last lines on stderr say why"
        ) from None
    outcome = Outcome(name, said["exit_code"], said["end"])
    for rank in said["ranks"]:
        number = rank["rank"]
        if rank["failed"]:
            how = (rank["local_rank"], rank["pid"], rank["exit_code"], rank["error_file"])
            outcome.failures[number] = how, rank["why"]
        elif rank["exit_code"] == 0:
            result = f"result.{said['cycle']}.{number}"
            outcome.return_values[number] = _read_result(name, folder, result) if returns else None
    if outcome.exit_code == 0:
        outcome.failures.clear()  # min-healthy: the job goes on, or has ended well, without them
    return outcome


def _read_result(name: str, folder: str, result: str) -> Any:
    try:
        with function_rank.open_own(folder, result) as file:
            return function_rank.take(file)
    except FileNotFoundError:  # the function ended its process itself, with exit code 0
        return None
    except Exception as error:
        raise FunctionError(f"{name}: what a rank returned cannot be read: {error}") from error
