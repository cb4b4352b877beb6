"""``ft_launcher``: start the ranks of a node, watch them, and start them again when they fail.

The command line is torchrun's, and more (``ft_launcher --help``). Its exit codes are those of
:class:`holdfast.core.exit_codes.Ending`; docs/exit-codes.md is for people.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from holdfast.core.exit_codes import Ending
from holdfast.errors import UnhealthyNodeException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.fault_tolerance.agent import LocalElasticAgent
    from holdfast.fault_tolerance.command_line.arguments import get_args_parser, parse_args
    from holdfast.fault_tolerance.plan import LaunchPlan
    from holdfast.fault_tolerance.plan import LaunchPlan as LaunchConfig
    from holdfast.host.controlled_process import ControlledProcess

__all__ = [
    "LaunchConfig",
    "LocalElasticAgent",
    "UnhealthyNodeException",
    "elastic_launch",
    "get_args_parser",
    "main",
    "parse_args",
]

_HOME = {
    "LaunchConfig": ("plan", "LaunchPlan"),
    "LocalElasticAgent": ("agent", "LocalElasticAgent"),
    "get_args_parser": ("command_line.arguments", "get_args_parser"),
    "parse_args": ("command_line.arguments", "parse_args"),
}
"""Public names, and where they live. Loaded when used: who presses Ctrl-C meanwhile is answered by
:func:`main`, which could not be there before the imports of this module are."""

_FAILED = Ending.CANNOT_START.code()
_USAGE = Ending.USAGE.code()
_INTERRUPTED = Ending.INTERRUPTED.code()
_PROGRAM = "ft_launcher"


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - seldom used

    module, original = _HOME[name]
    value: object = getattr(import_module(f"holdfast.fault_tolerance.{module}"), original)
    globals()[name] = value
    return value


def run(plan: LaunchPlan) -> int:
    """Carry out a plan; returns the exit code. Main thread only."""
    from importlib.util import find_spec  # noqa: PLC0415 - see _HOME

    from holdfast.errors import ConfigError, LaunchError  # noqa: PLC0415

    if plan.meeting is not None and find_spec("torch") is None:
        _say(
            f"cannot go on: a job of several nodes needs torch, and {sys.executable} has none: "
            "launchers meet through its TCPStore. Install torch there, or use one node"
        )
        return _FAILED
    from holdfast.host.run_dirs import new_job  # noqa: PLC0415

    job = new_job()
    health = _start_health_process(plan, job)
    from holdfast.fault_tolerance.agent import LocalElasticAgent  # noqa: PLC0415 - meanwhile

    try:
        return LocalElasticAgent(plan, dict(os.environ), job, health).run()
    except (OSError, ConfigError, LaunchError) as error:
        _say(f"cannot go on: {error}")
        return _FAILED
    finally:
        if health is not None:  # else nobody ends it where the launcher is part of a program
            health.control.close()


def _start_health_process(plan: LaunchPlan, job: str) -> ControlledProcess | None:
    """It gets ready while we do: the first start waits for its answer."""
    if plan.care is None:
        return None
    from holdfast.host.health_process import start_health_process  # noqa: PLC0415 - see _HOME

    try:
        return start_health_process(plan.care.to_wire(), job)
    except OSError:  # it is tried again, and told of then
        return None


def main(args: Sequence[str] | None = None) -> int:
    """The command ``ft_launcher``; returns the exit code.

    Args:
        args: Words of the command line after the program's name; None: this process's, which then
            is at its end, and not interrupted any more.
    """
    try:
        exit_code = _main(args)
    except KeyboardInterrupt:  # nothing runs yet: later it is an event, and the ranks are ended
        exit_code = _INTERRUPTED
    if args is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if exit_code == _INTERRUPTED:
        _say("interrupted before anything was started")
    return exit_code


def _main(args: Sequence[str] | None) -> int:
    from holdfast.errors import ConfigError  # noqa: PLC0415 - see _HOME
    from holdfast.fault_tolerance.command_line.arguments import (  # noqa: PLC0415
        UsageError,
        parse_args,
    )
    from holdfast.fault_tolerance.plan import make_plan  # noqa: PLC0415
    from holdfast.host.standard_streams import open_closed_ones  # noqa: PLC0415

    open_closed_ones()
    try:
        arguments = parse_args(args)
        if arguments.print_config:
            from holdfast.fault_tolerance.command_line.help import describe_config  # noqa: PLC0415

            sys.stdout.write(f"{describe_config(arguments)}\n")
            return 0
        plan = make_plan(arguments, os.environ)
    except UsageError as error:
        _say(f"error: {error}")
        return _USAGE
    except ConfigError as error:
        _say(f"error: {error}")
        return _FAILED
    exit_code = run(plan)
    if plan.meeting is not None and plan.meeting.other is not None:
        # A backend that is not ours may have left a thread in C++, and the end would abort there.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


class elastic_launch:  # noqa: N801 - the name is public API
    """Start a job from a program: ``elastic_launch(config, "train.py")("--lr", "0.1")``.

    Args:
        config: What the job looks like; its ``command`` is replaced.
        entrypoint: Path of a Python script. A function cannot be handed to processes that are
            started by exec; put the call into a script.

    Raises:
        TypeError: ``entrypoint`` is no path.
    """

    def __init__(self, config: LaunchPlan, entrypoint: str | os.PathLike[str]) -> None:
        if not isinstance(entrypoint, (str, os.PathLike)):
            raise TypeError(
                f"entrypoint must be the path of a Python script, got {entrypoint!r}: ranks are "
                "started by exec, which cannot hand over a function; put the call into a script"
            )
        self._config = config
        self._script = os.fspath(entrypoint)

    def __call__(self, *args: object) -> int:
        """Run the job to its end with these arguments of the script; returns the exit code."""
        import dataclasses  # noqa: PLC0415 - see _HOME

        command = (sys.executable, "-u", self._script, *map(str, args))
        return run(dataclasses.replace(self._config, command=command, name=self._script))


def _say(text: str) -> None:
    sys.stderr.write(f"{_PROGRAM}: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
