"""Facts about this host and its network, each looked up within a bound. Judges nothing."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from holdfast.base import clock, memory
from holdfast.base.bounded import call_within
from holdfast.base.processes import proc
from holdfast.net.address import gloo_interface, is_own_address, publish
from holdfast.net.tcp import bound_socket
from holdfast.options.meeting_plan import MeetingPlan
from holdfast.tools.doctor import call_sources
from holdfast.tools.doctor.advice import SHARED_MEMORY, HostFacts, NetworkFacts

BOUND_S = 5.0
"""For one look: a name server or a file system may not answer at all."""
_CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
_T = TypeVar("_T")
_Resolved = tuple[tuple[str, ...], str]
"""Addresses of a host, and why there are none."""


def facts(nproc: int, environ: Mapping[str, str]) -> HostFacts:
    """About this host."""
    folder = environ.get("TMPDIR") or tempfile.gettempdir()
    group = next(iter(memory.groups()), "")
    return HostFacts(
        nproc=nproc,
        descriptors=_limit(resource.RLIMIT_NOFILE),
        processes=_least(_limit(resource.RLIMIT_NPROC), _number(f"{group}/pids.max")),
        shared_memory=within(BOUND_S, lambda: _free(SHARED_MEMORY), None),
        temporary_folder=folder,
        temporary_space=within(BOUND_S, lambda: _writable(folder), None),
        clock_source=_text(_CLOCK_SOURCE),
        calls=call_sources.survey(),
        kills_groups=_text(f"{group}/memory.oom.group") == "1",
        memory_limit=_number(f"{group}/memory.max"),
        no_processes=proc.why_unusable(),
        huge_pages=_chosen(_text(_HUGE_PAGES)),
    )


def network_facts(meeting: MeetingPlan) -> NetworkFacts:
    """About the place where launchers meet; tries to listen there, where this host will."""
    host, port = meeting.place.host, meeting.place.port
    silence: _Resolved = ((), f"no answer within {BOUND_S:g} s")
    addresses, why_not = within(BOUND_S, lambda: _resolve(host), silence)
    hosts = meeting.place.is_host
    if hosts is None:
        hosts = within(BOUND_S, lambda: is_own_address(host), default=False)
    refusal = _refusal(port) if hosts else None
    published = within(BOUND_S, lambda: publish(host), None)
    address = meeting.place.local_addr or (published.address if published else host)
    return NetworkFacts(
        host=host,
        port=port,
        addresses=addresses,
        why_not=why_not,
        is_host=hosts,
        refusal=refusal,
        is_reached=None if hosts or not addresses else _is_reached(addresses[0], port),
        reverse_s=within(BOUND_S, lambda: _reverse(addresses[0]), None) if addresses else 0.0,
        published=published,
        local_addr=meeting.place.local_addr,
        gloo_interface=within(BOUND_S, lambda: gloo_interface(address), None),
    )


def within(bound_s: float, look: Callable[[], _T], default: _T) -> _T:
    """What ``look`` returns, or ``default``: it fails, or has not come back by then."""
    try:
        return call_within(bound_s, look)
    except (OSError, UnicodeError):  # UnicodeError: a name of an impossible form
        return default


def _resolve(host: str) -> _Resolved:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return (), error.strerror or str(error)
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos)), ""


def _reverse(address: str) -> float:
    began_at = clock.monotonic()
    with contextlib.suppress(OSError):
        socket.getnameinfo((address, 0), 0)
    return clock.monotonic() - began_at


def _refusal(port: int) -> str | None:
    """Why nothing can listen on a port, on all addresses as torch's store does; None: it can."""
    try:
        with bound_socket(port) as listener:
            listener.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _is_reached(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), BOUND_S).close()
    except OSError:
        return False
    return True


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _free(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _writable(folder: str) -> int:
    with tempfile.TemporaryFile(dir=folder):
        return _free(folder)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def _chosen(text: str | None) -> str | None:
    """``always advise [never]``: the one in brackets."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None
