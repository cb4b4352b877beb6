"""Which probes a node's health process runs: before each join, and while ranks run."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from holdfast.core.health import Finding
from holdfast.health.bounded import Check
from holdfast.health.wanted import SERVICE_S, Wanted


def before_join(wanted: Wanted) -> list[Check]:
    """Asked while no rank of this node is alive."""
    checks: list[Check] = []
    if wanted.endpoint:
        look = functools.partial(_service, wanted.endpoint)
        checks.append(Check("service", SERVICE_S + 2.0, look))
    return checks


def while_running(wanted: Wanted) -> list[Check]:
    """Asked every ``interval_s`` seconds."""
    del wanted
    return []


def used_mib(wanted: Wanted) -> Mapping[str, float]:
    """Memory in use on each GPU of this node's ranks; nothing where there is no driver."""
    del wanted
    return {}


def memory_holders(wanted: Wanted) -> list[int]:
    """Processes that hold memory there."""
    del wanted
    return []


def _service(endpoint: str) -> list[Finding]:
    from holdfast.health.node_service import ask  # noqa: PLC0415 - gRPC takes its time

    return ask(endpoint, deadline_s=SERVICE_S)
