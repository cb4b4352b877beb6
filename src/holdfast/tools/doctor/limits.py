"""Timeouts of holdfast beside torch's own: the shorter one notices a hang. Pure.

A hang that a monitor finds first leaves stacks of all threads, and takes seconds. One that torch
finds first ends the rank with an exception (gloo) or an abort (NCCL's watchdog), without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.health.pure.health import Finding, Fitness

PROBE = "limits"
NCCL_S = 600.0
"""Default timeout of a collective over NCCL; ``torch.distributed.constants``: 10 minutes."""
OTHERS_S = 1800.0
"""Of every other backend; ``kBackendDefaultTimeout`` in torch's c10d/Backend.hpp: 30 minutes."""
NCCL_HEARTBEAT_S = 480.0
"""Of NCCL's watchdog itself; ProcessGroupNCCL.cpp: 8 minutes, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC."""
_NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
_ASYNC = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP = "TORCH_NCCL_DUMP_ON_TIMEOUT"


def judge(
    config: FaultToleranceConfig, environ: Mapping[str, str], *, monitored: bool
) -> list[Finding]:
    """Findings about the timeouts of a job."""
    if not monitored:
        text = "NVRX_DISABLE_RANK_MONITORS is set: hangs are not noticed by holdfast at all"
        return [Finding(PROBE, "monitors", Fitness.SUSPECT, text)]
    return [*_own(config), *_beside_torchs(config), *_torchs(environ)]


def in_force(config: FaultToleranceConfig) -> dict[str, float]:
    """The timeouts that a hang can exceed, by name; seconds."""
    sign = "heartbeat or section" if config.is_initial_ended_by_section else "heartbeat"
    limits = {
        f"no {sign} since the start": config.initial_rank_heartbeat_timeout,
        "between two heartbeats": config.rank_heartbeat_timeout,
        "outside all sections": config.rank_out_of_section_timeout,
        **{f"section {name!r}": limit for name, limit in config.rank_section_timeouts.items()},
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _without_timeout(config: FaultToleranceConfig) -> str:
    if not config.auto_heartbeat:
        return "is not noticed"
    floor_s = config.auto_heartbeat_floor
    return f"is reported after {floor_s:g} s, and ended at proof alone, if optimizer steps are made"


def _own(config: FaultToleranceConfig) -> Iterator[Finding]:
    unlimited = sorted(name for name, s in config.rank_section_timeouts.items() if s is None)
    if unlimited:
        text = (
            f"a hang in section {', '.join(unlimited)} {_without_timeout(config)}: it has no "
            "timeout, and none was learned"
        )
        yield Finding(PROBE, "sections", Fitness.SUSPECT, text)
    if config.rank_section_timeouts and config.rank_out_of_section_timeout is None:
        text = (
            f"a hang outside of all sections {_without_timeout(config)}: give "
            "--ft-rank-out-of-section-timeout, or send heartbeats as well"
        )
        yield Finding(PROBE, "out of sections", Fitness.SUSPECT, text)
    initial_s = config.initial_rank_heartbeat_timeout
    asks_for_heartbeats = initial_s is not None and not config.is_initial_ended_by_section
    if config.rank_section_timeouts and asks_for_heartbeats:
        text = (
            f"a rank that opens sections and sends no heartbeat is killed {initial_s:g} s after "
            "its init: you gave --ft-initial-rank-heartbeat-timeout. Leave it out, or give "
            "--ft-section-ends-initial-timeout true"
        )
        yield Finding(PROBE, "first heartbeat", Fitness.SUSPECT, text)
    outside_s = config.rank_out_of_section_timeout
    if outside_s is not None and not config.rank_section_timeouts:
        text = (
            f"no section is configured, so every rank is killed {outside_s:g} s after its init, "
            "whatever it does: give --ft-rank-section-timeouts, or leave "
            "--ft-rank-out-of-section-timeout out"
        )
        yield Finding(PROBE, "out of sections", Fitness.SUSPECT, text)
    if config.exit_timeout is None:
        text = (
            "a rank that hangs at its exit, after shutdown_workload_monitoring(), is not noticed: "
            "--ft-exit-timeout is null"
        )
        yield Finding(PROBE, "exit", Fitness.SUSPECT, text)
    if not in_force(config):
        text = "no timeout is set: hangs are noticed only by torch, or once timeouts are learned"
        yield Finding(PROBE, "limits", Fitness.SUSPECT, text)


def _beside_torchs(config: FaultToleranceConfig) -> Iterator[Finding]:
    long = {name: limit_s for name, limit_s in in_force(config).items() if limit_s > NCCL_S}
    for name, limit_s in in_force(config).items():
        if name not in long:
            text = f"{limit_s:g} s: sooner than torch gives up on a collective (NCCL: {NCCL_S:g} s)"
            yield Finding(PROBE, name, Fitness.HEALTHY, text)
    if long:
        each = ", ".join(f"{name} ({limit_s:g} s)" for name, limit_s in long.items())
        text = (
            "a rank that hangs in a collective is ended by torch before its timeout here runs "
            "out, without its "
            f"stacks: after {NCCL_S:g} s over NCCL, {OTHERS_S:g} s over gloo, unless "
            f"init_process_group(timeout=...) says otherwise. Longer than that: {each}"
        )
        yield Finding(PROBE, "beside torch's", Fitness.SUSPECT, text)


def _torchs(environ: Mapping[str, str]) -> Iterator[Finding]:
    text = environ.get(_NCCL_HEARTBEAT)
    heartbeat_s = _number(text, NCCL_HEARTBEAT_S)
    if heartbeat_s is None:
        yield Finding(
            PROBE, _NCCL_HEARTBEAT, Fitness.SUSPECT, f"{text!r} is not a number of seconds"
        )
    elif text is not None:
        said = f"{heartbeat_s:g} s: a rank whose NCCL watchdog is stuck aborts after that"
        yield Finding(PROBE, _NCCL_HEARTBEAT, Fitness.HEALTHY, said)
    if environ.get(_ASYNC) == "0":
        said = (
            "0: NCCL collectives that time out do not end their rank; only the timeouts of "
            "holdfast do"
        )
        yield Finding(PROBE, _ASYNC, Fitness.SUSPECT, said)
    sizes = {name: environ[name] for name in _BUFFERS if name in environ}
    off = [name for name, size in sizes.items() if _number(size, 0.0) == 0]
    if off:
        said = f"{off[0]}=0: torch's flight recorder is off; it says which collective a rank was in"
        yield Finding(PROBE, "flight recorder", Fitness.SUSPECT, said)
    if environ.get(_DUMP, "1").lower() in ("0", "false", "no", "off"):
        said = f"{_DUMP}={environ[_DUMP]}: the flight recorder is not written when torch gives up"
        yield Finding(PROBE, _DUMP, Fitness.SUSPECT, said)


def _number(text: str | None, default: float) -> float | None:
    try:
        return default if text is None else float(text)
    except ValueError:
        return None
