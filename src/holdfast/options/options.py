"""Every option of ``ft_launcher``, once: parser, help and ``--print-config`` read this. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.options.ft_options import FT_OPTIONS
from holdfast.options.launch_options import LAUNCH_OPTIONS
from holdfast.options.option import Option

OPTIONS: tuple[Option, ...] = (*LAUNCH_OPTIONS, *FT_OPTIONS)
BY_NAME: Mapping[str, Option] = {
    spelling: option for option in OPTIONS for spelling in (option.name, *option.twins)
}
BY_LETTER: Mapping[str, Option] = {option.short: option for option in OPTIONS if option.short}
BY_DEST: Mapping[str, Option] = {option.dest: option for option in OPTIONS}

COMMON: tuple[str, ...] = (
    "--nnodes",
    "--nproc-per-node",
    "--module",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--max-restarts",
    "--ft-rank-section-timeouts",
    "--ft-rank-heartbeat-timeout",
    "--log-dir",
    "--tee",
    "--ft-metrics-port",
    "--ft-on-incident",
)
"""The options that most jobs need: ``--help`` shows these, ``--help-all`` all."""

FORMER: Mapping[str, str] = {
    "--fault-tol-cfg-path": "--ft-cfg-path",
    "--ignore-missing-fault-tol-cfg": "--ft-ignore-missing-cfg",
    "--ft-max-no-progress-restarts": "--ft-max-no-progress-cycles",
    "--ft-base-logfile": "--ft-per-cycle-applog-prefix",
    "--restart-policy": "--ft-restart-policy",
    # versions up to 0.4 had one --ft-param- option for each field of the configuration
    **{
        spelling.replace("--ft-", "--ft-param-", 1): option.name
        for option in OPTIONS
        if option.field is not None
        for spelling in (option.name, *option.twins)
    },
}
"""Spellings of earlier generations, and today's."""


def default_of(option: Option) -> Any:
    """The default of an option; of a field, the configuration's."""
    if option.field is not None:
        return getattr(FaultToleranceConfig(), option.field)
    return option.default


def spellings(name: str) -> list[str]:
    """A name with dashes only, with underscores only, and with underscores after ``--ft-``."""
    heads = ["--", *(head for head in ("--ft-", "--ft-param-") if name.startswith(head))]
    with_underscores = (head + name[len(head) :].replace("-", "_") for head in heads)
    return list(dict.fromkeys([name, *with_underscores]))
