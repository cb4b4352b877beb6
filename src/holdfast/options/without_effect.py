"""Options and variables that were given, and have nothing to do in this job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.fault_tolerance.config import SETTINGS, FaultToleranceConfig, Resolved, option_of
from holdfast.options.option import NODES, RESTARTS
from holdfast.options.options import OPTIONS
from holdfast.options.values import NOT_YET
from holdfast.options.variables import IDLE_VARIABLES

_IDLE = [option for option in OPTIONS if option.idle not in ("", NOT_YET)]
_OF_CARDS = ("pci_topo_file", "link_down_path_template", "link_state_path_template")
"""Settings that say more about network cards, which only some checks look at."""
_OF_CARE = {option.field for option in OPTIONS if option.group == "Health"}
"""Settings of the health checks."""


def later(args: Any, config: FaultToleranceConfig) -> list[str]:
    """Options in use that have no effect yet, wherever they were given."""
    usual = FaultToleranceConfig()
    options = [
        option.name
        for option in OPTIONS
        if option.idle == NOT_YET
        and option.field is None
        and getattr(args, option.dest, option.default) != option.default
    ]
    fields = [
        option_of(name)
        for name, setting in SETTINGS.items()
        if setting.idle == NOT_YET and getattr(config, name) != getattr(usual, name)
    ]
    return [*options, *fields]


def warnings(args: Any, resolved: Resolved, environ: Mapping[str, str]) -> list[str]:
    """Settings of a user that another setting, or a missing one, leaves without effect."""
    idle, unmeasured = _idle(args, resolved.config), _unmeasured(resolved)
    return [*idle, *unmeasured, *variables_without_effect(environ)]


def notes(args: Any, resolved: Resolved, *, is_alone: bool) -> list[str]:
    """One line for each reason why options that were given have nothing to do here."""
    given = {
        dest for dest in getattr(args, "origins", ()) if getattr(args, dest, None) is not None
    } | {f"ft_{name}" for name, origin in resolved.origins.items() if origin != "default"}
    idle = [f"{each.name} ({each.idle})" for each in _IDLE if each.dest in given]
    lines = [f"without effect here: {', '.join(idle)}"] if idle else []
    asked = {dest for dest in given if getattr(args, dest, None) not in ("", [], False)}
    if is_alone and (names := _names(asked, NODES)):
        lines.append(f"without effect, as this job has one node: {names}")
    if args.max_restarts == 0 and not args.ft_warm_start and (names := _names(asked, RESTARTS)):
        lines.append(f"without effect, as --max-restarts is 0: {names}")
    return lines


def _names(dests: Collection[str], needs: str) -> str:
    named = (each.name for each in OPTIONS if each.needs == needs and each.dest in dests)
    return ", ".join(named)


def variables_without_effect(environ: Mapping[str, str]) -> list[str]:
    """One sentence for variables that are set in vain; usually none."""
    idle: dict[str, list[str]] = {}
    for name, why in IDLE_VARIABLES.items():
        if environ.get(name, "").strip() not in ("", "0"):
            idle.setdefault(why, []).append(name)
    return [f"{', '.join(names)}: without effect here; {why}" for why, names in idle.items()]


def _unmeasured(resolved: Resolved) -> list[str]:
    """One line where progress was to be measured, and nothing says how far the job is."""
    config, origins = resolved.config, resolved.origins
    if config.checkpoint_iteration_file or not config.is_progress_tracking_enabled:
        return []
    names = [
        option_of(name)
        for name in ("max_no_progress_cycles", "min_progress_iterations")
        if origins.get(name, "default") != "default"
    ]
    if not names:
        return []
    remedy = f"{option_of('checkpoint_iteration_file')} with the latest checkpoint's iteration"
    return [f"without effect: {', '.join(names)}: no file says how far the job is; give {remedy}"]


def _idle(args: Any, config: FaultToleranceConfig) -> list[str]:
    """One line for options that were given and that another one leaves without effect."""
    usual = FaultToleranceConfig()
    given = {name for name in SETTINGS if getattr(config, name) != getattr(usual, name)}
    if not args.ft_host_checks:
        idle = sorted(given & _OF_CARE)
        names = [option_of(name) for name in idle]
        if args.ft_node_health_check_endpoint:
            names.insert(0, "--ft-node-health-check-endpoint")
        because = "--ft-host-checks is false"
    elif not (config.enable_nic_healthcheck or config.enable_nic_monitor):
        names = [option_of(name) for name in sorted(given & {*_OF_CARDS})]
        because = "neither --ft-enable-nic-healthcheck nor --ft-enable-nic-monitor is on"
    else:
        return []
    return [f"without effect, as {because}: {', '.join(names)}"] if names else []
