"""``ft_launcher`` as a module: ``python -m nvidia_resiliency_ext.fault_tolerance.launcher``.

:func:`main` is holdfast's. For programs that take torchrun apart there are the steps that
``torch.distributed.run`` has, too: arguments to a :class:`LaunchConfig` and a command, and the
launch of these.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import UnhealthyNodeException
from holdfast.fault_tolerance.launcher import main

if TYPE_CHECKING:
    from holdfast.fault_tolerance.elastic import LocalElasticAgent, elastic_launch
    from holdfast.options.arguments import get_args_parser, parse_args
    from nvidia_resiliency_ext.fault_tolerance._launch_config import LaunchConfig

__all__ = [
    "LaunchConfig",
    "LocalElasticAgent",
    "UnhealthyNodeException",
    "config_from_args",
    "elastic_launch",
    "get_args_parser",
    "launch_agent",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "run",
]

_HOLDFASTS = "holdfast.fault_tolerance.launcher"
_HOME = {
    "LaunchConfig": "nvidia_resiliency_ext.fault_tolerance._launch_config",
    "LocalElasticAgent": _HOLDFASTS,
    "elastic_launch": _HOLDFASTS,
    "get_args_parser": _HOLDFASTS,
    "parse_args": _HOLDFASTS,
}
"""Loaded when used: the launcher itself needs none of them."""
_DEFAULT_PORT = 29500
_STANDALONE_ENDPOINT = "localhost:0"


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """``"2"`` is (2, 2), ``"1:4"`` is (1, 4).

    Raises:
        RuntimeError: There are more than two numbers.
        ValueError: One is no whole number.
    """
    numbers = nnodes.split(":")
    if len(numbers) > 2:
        raise RuntimeError(f"nnodes={nnodes} is not in MIN:MAX format")
    return int(numbers[0]), int(numbers[-1])


def config_from_args(args: Any) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """The job of a command line, and the command of a rank with its arguments.

    Args:
        args: As :func:`parse_args`, or the parser of :func:`get_args_parser`, returned them.

    Returns:
        For :func:`launch_agent`: configuration, entry point, arguments of the entry point.

    Raises:
        UsageError: A value cannot be used.
        ConfigError: Neither can the configuration file.
        ValueError: ``--no-python`` and ``--module`` were both given.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std  # noqa: PLC0415

    from holdfast.base import facts  # noqa: PLC0415
    from holdfast.fault_tolerance.config import FaultToleranceConfig  # noqa: PLC0415
    from holdfast.options.plan import _nproc  # noqa: PLC0415 - of the same release
    from nvidia_resiliency_ext.fault_tolerance._launch_config import (  # noqa: PLC0415
        LaunchConfig,
    )

    cmd, cmd_args = _command(args)
    config = FaultToleranceConfig.from_args(args)
    min_nodes, max_nodes = parse_min_max_nnodes(str(args.nnodes))
    shown = args.local_ranks_filter
    launch_config = LaunchConfig(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=_nproc(args, os.environ, facts),
        logs_specs=DefaultLogsSpecs(
            log_dir=args.log_dir,
            redirects=Std.from_str(args.redirects),
            tee=Std.from_str(args.tee),
            local_ranks_filter={int(rank) for rank in shown.split(",")} if shown else None,
        ),
        run_id=str(uuid.uuid4()) if args.standalone else args.rdzv_id,
        role=args.role,
        rdzv_endpoint=_endpoint(args),
        rdzv_backend=args.rdzv_backend,
        rdzv_configs=_rdzv_configs(args),
        max_restarts=args.max_restarts,
        monitor_interval=args.monitor_interval,
        start_method=args.start_method,
        log_line_prefix_template=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        local_addr=args.local_addr,
        event_log_handler=args.event_log_handler,
        numa_options=_numa_options(args.numa_binding),
        signals_to_handle=args.signals_to_handle,
        duplicate_stdout_filters=list(args.duplicate_stdout_filters or ()) or None,
        duplicate_stderr_filters=list(args.duplicate_stderr_filters or ()) or None,
        virtual_local_rank=args.virtual_local_rank,
        fault_tol_cfg=config,
        term_timeout=args.term_timeout,
        workers_stop_timeout=args.workers_stop_timeout,
        restart_policy=args.ft_restart_policy,
    )
    return launch_config, cmd, cmd_args


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: Sequence[Any],
    health_check_server: object = None,
) -> dict[int, Any]:
    """Run a job to its end: ``elastic_launch(config, entrypoint)(*args)``.

    Args:
        config: Of the job.
        entrypoint: A function, the path of a Python script, or a program.
        args: Its arguments.
        health_check_server: torch's; has no effect.

    Returns:
        The function's results by global rank; ``None`` for ranks of scripts and programs.

    Raises:
        Exception: Those of ``elastic_launch``; ``TypeError`` where there is no entry point.
    """
    from holdfast.fault_tolerance.elastic import elastic_launch  # noqa: PLC0415

    return elastic_launch(config, entrypoint, health_check_server)(*args)  # type: ignore[arg-type]


def run(args: Any) -> None:
    """Run the job of a command line to its end.

    Args:
        args: As of :func:`config_from_args`.

    Raises:
        Exception: Those of :func:`config_from_args` and :func:`launch_agent`.
    """
    config, command, command_args = config_from_args(args)
    launch_agent(config, command, command_args)


def _command(args: Any) -> tuple[Callable[..., Any] | str, list[str]]:
    rest = list(args.training_script_args)
    if args.run_path:
        from torch.distributed.run import run_script_path  # noqa: PLC0415

        return run_script_path, [args.training_script, *rest]
    if args.no_python:
        if args.module:
            raise ValueError("--no-python and --module exclude each other: a module needs python")
        return args.training_script, rest
    module = ["-m"] if args.module else []
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    return python, ["-u", *module, args.training_script, *rest]


def _endpoint(args: Any) -> str:
    if args.standalone:
        return _STANDALONE_ENDPOINT
    from holdfast.net.pure.address import Endpoint, bare_host  # noqa: PLC0415 - seldom used

    port = args.master_port or _DEFAULT_PORT
    return args.rdzv_endpoint or str(Endpoint(bare_host(args.master_addr), port))


def _rdzv_configs(args: Any) -> dict[str, Any]:
    from holdfast.options.forms import read_rdzv_conf  # noqa: PLC0415

    configs: dict[str, Any] = dict(read_rdzv_conf(args.rdzv_conf))
    if args.node_rank:
        configs.setdefault("rank", args.node_rank)
    return configs


def _numa_options(mode: str | None) -> Any:
    if mode is None:
        return None
    from torch.numa.binding import AffinityMode, NumaOptions  # noqa: PLC0415

    return NumaOptions(affinity_mode=AffinityMode(mode))


if __name__ == "__main__":
    sys.exit(main())
