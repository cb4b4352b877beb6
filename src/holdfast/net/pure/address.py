"""Endpoints as people write them, and the address that a host publishes for others. Pure.

A loopback address means another host to each reader, so it is published only where all readers are
on this host: where the endpoint itself is one (``127.0.0.1``, ``::1``, ``localhost``). A *name*
that leads to loopback here is another matter: Debian's ``/etc/hosts`` says ``127.0.1.1
<hostname>``. Others have reached this host by that name, so the name is published.
"""

from __future__ import annotations

from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv6Address

_PORT_MOST = 65535
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


class EndpointError(ValueError):
    """A text that is no endpoint; the message shows one."""


class Endpoint(Value):
    """A host, and a port (1 to 65535) if one was given.

    An IPv6 address is without brackets, as ``getaddrinfo`` and torch's stores take it.
    """

    host: str
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """``HOST``, ``HOST:PORT``, ``[IPV6]``, ``[IPV6]:PORT``, or an IPv6 address without brackets.

    An IPv6 address and a port without brackets, which torchrun takes, are read as such where they
    cannot be an address alone (``fd00::1:29400``).

    Raises:
        EndpointError: It is none of these, or could be two of them.
    """
    text = text.strip()
    if text.startswith("["):
        inside, closed, after = text[1:].partition("]")
        if not closed or not is_ipv6(inside) or (after and not after.startswith(":")):
            raise EndpointError(
                "a host in brackets is an IPv6 address, with a port after it: [fd00::1]:29400"
            )
        return Endpoint(inside, _port(after[1:]) if after else None)
    host, colon, port = text.rpartition(":")
    if not colon:
        return Endpoint(_host(text))
    if ":" not in host:
        return Endpoint(_host(host), _port(port))
    has_port = is_ipv6(host) and port.isascii() and port.isdigit()
    if not is_ipv6(text):
        if has_port:
            return Endpoint(host, _port(port))
        raise EndpointError(
            "it has several colons and is not an IPv6 address; it takes HOST:PORT, or [IPV6]:PORT"
        )
    if has_port and int(port) > 0:
        raise EndpointError(
            f"it could be the IPv6 address {text}, or {host} with the port {port}: write "
            f"[{text}] or [{host}]:{port}"
        )
    return Endpoint(text)


def _host(text: str) -> str:
    if not text or any(character.isspace() or character in "[]/" for character in text):
        raise EndpointError(f"{text!r} is not a host; it takes HOST:PORT, or [IPV6]:PORT")
    return text


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) <= _PORT_MOST:
        return int(text)
    raise EndpointError(f"it takes HOST:PORT with a port of 1 to {_PORT_MOST}, not {text!r}")


def bare_host(text: str) -> str:
    """A host that may have been written in brackets, as in an endpoint."""
    inside = text[1:-1]
    return inside if text[:1] + text[-1:] == "[]" and is_ipv6(inside) else text


def is_address(host: str) -> bool:
    """Whether it is an address, IPv4 or IPv6, and no name."""
    return _address(host) is not None


def is_ipv6(text: str) -> bool:
    """Whether it is an IPv6 address without brackets; it may name an interface (``fe80::1%eth0``).

    >>> is_ipv6("::1"), is_ipv6("10.0.0.1"), is_ipv6("n0")
    (True, False, False)
    """
    return ":" in text and _address(text) is not None


def is_loopback(host: str) -> bool:
    """Whether it is an address of the loopback interface, or the name that always leads there.

    What another name leads to is the resolver's business, and differs from host to host.
    """
    address = _address(host)
    if address is None:
        name = host.rstrip(".").lower()
        return name in _LOOPBACK_NAMES or name.endswith(".localhost")
    return address.is_loopback


def is_link_local(host: str) -> bool:
    """Whether it means a host only together with the name of an interface, known there alone."""
    address = _address(host)
    return address is not None and address.is_link_local


def unmapped(host: str) -> str:
    """An IPv4 address that a socket of both families calls ``::ffff:10.0.0.1``, as itself."""
    prefix, _, rest = host.rpartition(":")
    return rest if prefix.lower() == "::ffff" and "." in rest else host


def _address(text: str) -> IPv4Address | IPv6Address | None:
    from ipaddress import ip_address  # noqa: PLC0415 - takes 3 ms, seldom needed

    try:
        return ip_address(text)
    except ValueError:
        return None


class Published(Value):
    """The address that a host gives to others, or a name that leads them to it.

    ``why``: in words, after "because".
    """

    address: str
    why: str


def published_address(
    endpoint: str, seen: Sequence[str], own: Sequence[str], hostname: str
) -> Published:
    """The address or name by which others reach this host.

    Args:
        endpoint: Host at which all meet, as given; empty: not known.
        seen: Own addresses as seen from there: of the routes to every address that the endpoint's
            name has here, in the resolver's order. Empty: it does not resolve, or there is no way.
        own: The other addresses, the most likely one to be reached first; none is loopback.
        hostname: Of this host.
    """
    if is_loopback(endpoint):
        return Published(next(iter(seen), endpoint), f"{endpoint} is for this host alone")
    far = [address for address in seen if not is_loopback(address)]
    far.sort(key=is_link_local)
    named = _address(endpoint) is None
    if far and not (named and _is_of_both_families(far) and set(far) <= set(own)):
        return Published(far[0], f"it is this host's address on the way to {endpoint}")
    if seen and named:
        leads_to = "both families" if far else "loopback here"
        return Published(
            endpoint, f"others have reached this host by this name, which leads to {leads_to}"
        )
    if own:
        found = f"there is no route to {endpoint} yet" if endpoint else "no endpoint is known"
        return Published(own[0], f"{found}, and this is the host's first address")
    return Published(hostname, "this host has no address but loopback")


def _is_of_both_families(addresses: Sequence[str]) -> bool:
    return len({is_ipv6(address) for address in addresses}) > 1


def gloo_needs_interface(hostname_leads_to: Sequence[str], published: str) -> bool:
    """Whether gloo needs the name of an interface to listen on (``GLOO_SOCKET_IFNAME``).

    Left to itself it listens on the address that the host's own name leads to, the first that is an
    address of this host; on loopback, if there is none. Others cannot reach loopback.

    Args:
        hostname_leads_to: Its own addresses that the name of this host leads to here, in the
            resolver's order.
        published: Known to others by this; loopback: there are no others.
    """
    leads_astray = not hostname_leads_to or is_loopback(hostname_leads_to[0])
    return leads_astray and not is_loopback(published)
