"""Addresses of this host, and the ones that others see. Every look-up may wait for a resolver."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from holdfast.base.bounded import call_within
from holdfast.base.loopback import own_loopback
from holdfast.net.look_up import look_up
from holdfast.net.pure.address import (
    Published,
    gloo_needs_interface,
    is_link_local,
    is_loopback,
    published_address,
    unmapped,
)

_FAR_AWAY = ("192.0.2.1", "2001:db8::1")
"""For documentation (RFC 5737, 3849): their route is the default one. Nothing is sent there."""
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40
_NAME_BYTES = 16
_IF_INET6 = "/proc/net/if_inet6"
_PORT = 9  # some port: a datagram socket that is connected sends nothing
_OWN_NAME_S = 2.0
"""For the look-up of this host's own name: a name server that is gone takes up to a minute."""


def is_own_address(host: str) -> bool:
    """Whether ``host`` names this machine: its own name, or an address of one of its interfaces."""
    return host == socket.gethostname() or bool(addresses_here(host))


def way_to_endpoint(host: str) -> str:
    """Where a process of this host finds a listener at ``host``: there, with one exception.

    This host's own name may lead nowhere on itself, or to an address of no interface, while others
    reach it by that name.
    """
    if host == socket.gethostname() and not addresses_here(host):
        return own_loopback()
    return host


def addresses_here(host: str) -> tuple[str, ...]:
    """Addresses of ``host`` that are this host's: a socket can be bound to them."""
    found = []
    for probe, address in _probes(host, 0, socket.SOCK_STREAM):
        with contextlib.suppress(OSError):
            probe.bind(address)
            found.append(str(address[0]))
    return tuple(found)


def publish(endpoint: str, seen: str | None = None) -> Published:
    """The address or name that this host gives to others that meet it at ``endpoint``.

    ``endpoint`` is a host as given; empty: not known. ``seen`` is this host's address as seen from
    there, where it is known already.
    """
    ways = (seen,) if seen else routes_to(endpoint) if endpoint else ()
    return published_address(
        endpoint, tuple(map(unmapped, ways)), own_addresses(), socket.gethostname()
    )


def gloo_interface(published: str) -> str | None:
    """The interface that gloo needs (``GLOO_SOCKET_IFNAME``); None: it finds a good one.

    ``published`` is the address or name by which others know this host.
    """
    if is_loopback(published) or not gloo_needs_interface(_own_name_leads_to(), published):
        return None
    candidates = map(interface_of, (published, *own_addresses()))
    return next((name for name in candidates if name is not None), None)


def interface_of(own_address: str) -> str | None:
    """The interface that has an address; None: none has."""
    return next((name for name, found in interfaces().items() if own_address in found), None)


def _own_name_leads_to() -> tuple[str, ...]:
    try:
        return call_within(_OWN_NAME_S, lambda: addresses_here(socket.gethostname()))
    except TimeoutError:
        return ()


def routes_to(host: str, port: int = _PORT) -> tuple[str, ...]:
    """This host's addresses as seen from ``host``, one per route to its addresses, in order."""
    return tuple(dict.fromkeys(own for own, _ in _routes(host, port)))


def resolved(host: str, port: int) -> str:
    """The first address that a name has and that there is a way to; the name, if there is none."""
    for _, address in _routes(host, port):
        with contextlib.suppress(OSError):
            return socket.getnameinfo(address, socket.NI_NUMERICHOST)[0]
    return host


def _routes(host: str, port: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """This host's end and the other end of each route to ``host``, in the resolver's order."""
    for probe, address in _probes(host, port, socket.SOCK_DGRAM):
        with contextlib.suppress(OSError):
            probe.connect(address)
            yield str(probe.getsockname()[0]), address


def _probes(
    host: str, port: int, kind: socket.SocketKind
) -> Iterator[tuple[socket.socket, tuple[Any, ...]]]:
    """A socket for each address of ``host``; none: the name does not resolve."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, protocol, _, address in look_up(host, port, kind):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                yield probe, address


def own_addresses() -> tuple[str, ...]:
    """Addresses of this host that are not loopback: those of default routes, then by interface.

    Interfaces of hardware come before bridges and other virtual ones.
    """
    found = [own for far_away in _FAR_AWAY for own in routes_to(far_away)]
    by_interface = interfaces()
    for name in sorted(by_interface, key=_is_virtual):
        found += by_interface[name]
    outward = [at for at in found if not is_loopback(at)]
    return tuple(sorted(dict.fromkeys(outward), key=is_link_local))


def interfaces() -> dict[str, list[str]]:
    """Addresses of each interface."""
    found: dict[str, list[str]] = {}
    for name, address in (*_ipv4(), *_ipv6()):
        found.setdefault(name, []).append(address)
    return found


def _ipv4() -> list[tuple[str, str]]:
    size = 64 * _IFREQ_BYTES
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while True:
            records = array.array("B", bytes(size))
            asked = struct.pack("iL", size, records.buffer_info()[0])
            filled = struct.unpack("iL", fcntl.ioctl(asking.fileno(), _SIOCGIFCONF, asked))[0]
            if filled < size:
                break
            size *= 2
    found = []
    for at in range(0, filled, _IFREQ_BYTES):
        record = records[at : at + _IFREQ_BYTES].tobytes()
        name = record[:_NAME_BYTES].split(b"\0", 1)[0].decode()
        address = socket.inet_ntoa(record[_NAME_BYTES + 4 : _NAME_BYTES + 8])
        found.append((name.partition(":")[0], address))  # eth0:1 is a label of eth0
    return found


def _ipv6() -> list[tuple[str, str]]:
    found = []
    with contextlib.suppress(OSError), open(_IF_INET6, encoding="ascii") as file:
        for line in file:
            digits, *_, name = line.split()
            found.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    return found


def _is_virtual(interface: str) -> bool:
    return not os.path.exists(f"/sys/class/net/{interface}/device")
