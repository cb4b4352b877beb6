"""``ft_launcher``: start the ranks of a node, watch them, and start them again when they fail.

The command line is torchrun's, and more (``ft_launcher --help``). Its exit codes are those of
:class:`holdfast.job.pure.exit_codes.Ending`; docs/exit-codes.md is for people.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from holdfast import __version__
from holdfast.errors import UnhealthyNodeException
from holdfast.job.pure.exit_codes import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from holdfast.fault_tolerance.elastic import LocalElasticAgent, elastic_launch
    from holdfast.fault_tolerance.launch_config import LaunchConfig
    from holdfast.node.agent import NodeAgent
    from holdfast.node.part import MakePart
    from holdfast.node.processes.controlled_process import ControlledProcess
    from holdfast.options.arguments import get_args_parser, parse_args
    from holdfast.options.plan import LaunchPlan

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
    "LaunchConfig": "holdfast.fault_tolerance.launch_config",
    "LocalElasticAgent": "holdfast.fault_tolerance.elastic",
    "elastic_launch": "holdfast.fault_tolerance.elastic",
    "get_args_parser": "holdfast.options.arguments",
    "parse_args": "holdfast.options.arguments",
}
"""Homes of public names. Loaded when used: :func:`main` answers Ctrl-C, and imports delay it."""

_FAILED = Ending.CANNOT_START.code()
_USAGE = Ending.USAGE.code()
_INTERRUPTED = Ending.INTERRUPTED.code()
_PROGRAM = "ft_launcher"


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - seldom used

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def run(
    plan: LaunchPlan,
    on_end: Callable[[NodeAgent], None] | None = None,
    *,
    owns_process: bool = False,
) -> int:
    """Carry out a plan; returns the exit code. Main thread only.

    Args:
        plan: Of the command line.
        on_end: Called with the agent once the job is over, however it ended.
        owns_process: This process does nothing else: all its children are the launcher's to reap.
    """
    from importlib.util import find_spec  # noqa: PLC0415 - see _HOME

    from holdfast.errors import ConfigError, LaunchError  # noqa: PLC0415

    backend = plan.meeting.place.other if plan.meeting is not None else None
    if backend is not None and find_spec("torch") is None:
        _say(
            f"cannot start: --rdzv-backend {backend.name} is a backend of torch, and "
            f"{sys.executable} has none. Install torch there, or use --rdzv-backend c10d"
        )
        return _FAILED
    from holdfast.base.processes.job_name import new_job  # noqa: PLC0415
    from holdfast.base.processes.proc import why_unusable  # noqa: PLC0415

    if (missing := why_unusable()) is not None:
        _say(f"cannot start: {missing}")
        return _FAILED
    job = new_job()
    health = _start_health_process(plan, job)
    from holdfast.node.agent import NodeAgent  # noqa: PLC0415 - meanwhile

    try:
        agent = NodeAgent(
            plan,
            dict(os.environ),
            job,
            health,
            owns_process=owns_process,
            parts=_parts(plan),
        )
        exit_code = agent.run()
    except (OSError, ConfigError, LaunchError) as error:
        _say(f"cannot continue: {error}")
        return _FAILED
    else:
        if on_end is not None:
            on_end(agent)
        return exit_code
    finally:
        if health is not None:  # else it would outlive a launcher that is part of a program
            health.control.close()


def _parts(plan: LaunchPlan) -> list[MakePart]:
    if plan.warm is None:
        return []
    from holdfast.standby.standbys import part_of  # noqa: PLC0415 - where used

    return [part_of(plan.warm, plan)]


def _start_health_process(plan: LaunchPlan, job: str) -> ControlledProcess | None:
    """It gets ready beside the launcher: the first start waits for its answer."""
    if plan.care is None:
        return None
    from holdfast.base.pure.codec import encode  # noqa: PLC0415 - see _HOME
    from holdfast.health.messages import ConfigureHealth  # noqa: PLC0415
    from holdfast.node.processes.controlled_process import start_health_process  # noqa: PLC0415

    try:
        return start_health_process(encode(ConfigureHealth(plan.care, tuple(sys.path))), job)
    except OSError:  # the agent tries again, and logs that
        return None


def main(args: Sequence[str] | None = None) -> int:
    """The command ``ft_launcher``; returns the exit code.

    Args:
        args: Words of the command line after the program's name; None: this process's, which then
            is at its end, and not interrupted any more.
    """
    return _main(args, is_program=False)


def _main(args: Sequence[str] | None, *, is_program: bool) -> int:
    try:
        exit_code = _launch(args, is_program=is_program)
    except KeyboardInterrupt:  # nothing runs yet: later it is an event, and the ranks are ended
        exit_code = _INTERRUPTED
    if args is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if exit_code == _INTERRUPTED:
        _say("interrupted before anything was started")
    return exit_code


def command() -> NoReturn:
    """The program ``ft_launcher``: :func:`main`, and an end at once.

    Its first lines are in ``holdfast/ft_launcher.py``, so that a signal finds them.

    Python would take all modules apart first, which is half the time from the last rank's end to
    the launcher's.
    """
    exit_code = _main(None, is_program=True)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # no reader: Python reports it
        sys.exit(exit_code)
    os._exit(exit_code)


def _launch(args: Sequence[str] | None, *, is_program: bool) -> int:
    from holdfast._early_signals import hold_signals  # noqa: PLC0415
    from holdfast.base.processes import process_defaults  # noqa: PLC0415
    from holdfast.errors import ConfigError  # noqa: PLC0415 - see _HOME
    from holdfast.job.pure.job_secret import drop_secret  # noqa: PLC0415 - see _HOME
    from holdfast.options.arguments import UsageError, parse_args  # noqa: PLC0415
    from holdfast.options.plan import make_plan  # noqa: PLC0415

    process_defaults.open_closed_ones()
    if is_program:
        process_defaults.keep_from_children(sys.argv)
    try:
        arguments = parse_args(args)
        if arguments.version:
            return _print(f"{_PROGRAM} (holdfast) {__version__}\n")
        if arguments.print_config or arguments.print_config_all:
            from holdfast.options.help import describe_config  # noqa: PLC0415

            text = describe_config(arguments, shows_all=arguments.print_config_all)
            return _print(f"{text}\n")
        if arguments.print_completion:
            from holdfast.options.completion import script_for  # noqa: PLC0415

            return _print(f"{script_for(arguments.print_completion)}\n")
        plan = make_plan(arguments, os.environ)
        if args is None:  # else the environment is a program's, which may launch again
            drop_secret(os.environ)  # no child needs it
    except UsageError as error:
        _say(f"error: {error}")
        return _USAGE
    except ConfigError as error:
        _say(f"error: {error}")
        return _FAILED
    process_defaults.raise_descriptor_limit()
    if is_program:
        hold_signals(plan.signals_to_handle)  # from here on there is something to end first
    exit_code = run(plan, owns_process=args is None)
    if plan.meeting is not None and plan.meeting.place.other is not None:
        # A foreign backend may have left a thread in C++, and the end would abort there.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def _print(text: str) -> int:
    from holdfast.base.command_output import guarded  # noqa: PLC0415 - no job needs it

    def write() -> int:
        sys.stdout.write(text)
        return 0

    return guarded(_PROGRAM, write)


def _say(text: str) -> None:
    sys.stderr.write(f"{_PROGRAM}: {text}\n")


if __name__ == "__main__":
    command()
