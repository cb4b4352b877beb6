"""Endpoints as people write them; the address that a host publishes; what gloo has to be told."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.net import address
from holdfast.net.pure.address import (
    Endpoint,
    EndpointError,
    bare_host,
    gloo_needs_interface,
    is_loopback,
    parse_endpoint,
    published_address,
    unmapped,
)

# ---------------------------------------------------------------- endpoints


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("n0", "n0", None),
        ("n0:29500", "n0", 29500),
        (" n0.cluster.local:1 ", "n0.cluster.local", 1),
        ("10.0.0.1", "10.0.0.1", None),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:29500", "::1", 29500),
        ("[fd00::1]", "fd00::1", None),
        ("[fe80::1%eth0]:29500", "fe80::1%eth0", 29500),
        ("::1", "::1", None),
        ("fd00::1", "fd00::1", None),
        ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", None),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1", None),
        ("fd00::a:b", "fd00::a:b", None),
        # as torchrun reads them, where they can be nothing else
        ("fd00::1:29400", "fd00::1", 29400),
        ("1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8", 9),
    ],
)
def test_an_endpoint_is_a_host_and_perhaps_a_port(text: str, host: str, port: int | None) -> None:
    assert parse_endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a host"),
        (":29500", "is not a host"),
        ("n0:", "a port of 1 to 65535, not ''"),
        ("n0:0", "a port of 1 to 65535, not '0'"),
        ("n0:65536", "a port of 1 to 65535"),
        ("n0:²", "a port of 1 to 65535"),
        ("fd00::1:0x1", "several colons"),
        ("n0:n1:29500", "several colons"),
        ("http://n0:29500", "several colons"),
        ("[n0]:29500", "a host in brackets is an IPv6 address"),
        ("[::1", "a host in brackets is an IPv6 address"),
        ("[::1]29500", "a host in brackets is an IPv6 address"),
        ("[::1]:", "a port of 1 to 65535"),
        ("fd00::1:2940", "write [fd00::1:2940] or [fd00::1]:2940"),
    ],
)
def test_what_is_no_endpoint_or_could_be_two_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(EndpointError) as raised:
        parse_endpoint(text)
    assert words in str(raised.value)


@given(
    st.one_of(
        st.integers(0, 2**32 - 1).map(lambda number: str(IPv4Address(number))),
        st.integers(0, 2**128 - 1).map(lambda number: str(IPv6Address(number))),
        st.text("ab.-", min_size=1, max_size=30),
    ),
    st.none() | st.integers(1, 65535),
)
def test_what_is_shown_of_an_endpoint_is_read_as_the_same(host: str, port: int | None) -> None:
    endpoint = Endpoint(host, port)
    assert parse_endpoint(str(endpoint)) == endpoint


@given(st.text(alphabet="0123456789abcdef:.[]%n/ ", max_size=30))
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(EndpointError):
        endpoint = parse_endpoint(text)
        assert endpoint.host
        assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("written", "meant"), [("[::1]", "::1"), ("::1", "::1"), ("n0", "n0"), ("[n0]", "[n0]")]
)
def test_torch_takes_an_ipv6_address_without_brackets(written: str, meant: str) -> None:
    """MASTER_ADDR goes to getaddrinfo as it is."""
    assert bare_host(written) == meant


def test_an_ipv4_caller_of_a_listener_of_both_families_has_its_own_address() -> None:
    assert unmapped("::ffff:10.0.0.1") == "10.0.0.1"
    assert unmapped("fd00::1") == "fd00::1"
    assert unmapped("10.0.0.1") == "10.0.0.1"


# ---------------------------------------------------------------- what is published


@pytest.mark.parametrize(
    ("endpoint", "seen", "own", "published"),
    [
        # the way to the endpoint tells, also between several interfaces
        ("n0", ["10.1.0.2"], ["192.168.0.2", "10.1.0.2"], "10.1.0.2"),
        ("10.1.0.1", ["10.1.0.2"], ["192.168.0.2"], "10.1.0.2"),
        ("fd00::1", ["fd00::2"], ["10.0.0.2"], "fd00::2"),
        # Debian: this host's own name leads to 127.0.1.1 here, and to its address elsewhere
        ("n0", ["127.0.0.1"], ["10.0.0.1"], "n0"),
        ("n0", ["::1", "127.0.0.1"], ["10.0.0.1"], "n0"),
        # the name has a loopback address here among others
        ("n0", ["127.0.0.1", "10.0.0.1"], ["10.0.0.1"], "10.0.0.1"),
        # dual stack: who has only one family reaches the host that is meant by its name
        ("n0", ["fd00::1", "10.0.0.1"], ["10.0.0.1", "fd00::1"], "n0"),
        ("n0", ["fe80::1%eth0", "fd00::2"], ["fd00::2"], "fd00::2"),
        # all are on this host
        ("127.0.0.1", ["127.0.0.1"], ["10.0.0.1"], "127.0.0.1"),
        ("::1", ["::1"], ["10.0.0.1"], "::1"),
        ("localhost", ["::1", "127.0.0.1"], ["10.0.0.1"], "::1"),
        ("localhost", [], [], "localhost"),
        # the name does not resolve yet, or there is none
        ("n0", [], ["10.0.0.1", "fd00::1"], "10.0.0.1"),
        ("", [], ["10.0.0.1"], "10.0.0.1"),
        ("n0", [], [], "this-host"),
    ],
)
def test_a_host_publishes_what_leads_others_to_it(
    endpoint: str, seen: Sequence[str], own: Sequence[str], published: str
) -> None:
    found = published_address(endpoint, seen, own, "this-host")
    assert found.address == published
    assert found.why


_LOOPBACK = st.sampled_from(["127.0.0.1", "127.0.1.1", "::1"])
_FAR = st.sampled_from(["10.0.0.1", "192.168.7.7", "fd00::1"])


@given(
    st.sampled_from(["n0", "10.0.0.9", "fd00::9", ""]),
    st.lists(_LOOPBACK | _FAR),
    st.lists(_FAR),
)
def test_a_loopback_address_is_never_published_to_another_host(
    endpoint: str, seen: Sequence[str], own: Sequence[str]
) -> None:
    assert not is_loopback(published_address(endpoint, seen, own, "this-host").address)


@pytest.mark.parametrize(
    ("leads_to", "published", "needs"),
    [
        (["10.0.0.1"], "10.0.0.1", False),
        (["127.0.1.1"], "10.0.0.1", True),
        (["127.0.1.1"], "n0", True),
        ([], "10.0.0.1", True),  # it does not resolve, or to an address of no interface here
        (["127.0.0.1", "10.0.0.1"], "10.0.0.1", True),  # gloo takes the first
        ([], "127.0.0.1", False),  # all ranks are on this host
        (["127.0.1.1"], "localhost", False),
    ],
)
def test_gloo_is_told_where_to_listen_if_it_would_choose_loopback(
    leads_to: Sequence[str], published: str, *, needs: bool
) -> None:
    assert gloo_needs_interface(leads_to, published) is needs


# ---------------------------------------------------------------- this host


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What names lead to; this host is called ``here``."""
    known = {"here": "127.0.1.1"}
    resolve = socket.getaddrinfo

    def look_up(name: bytes, *args: Any, **kwargs: Any) -> list[Any]:
        host = name.decode()
        if host[:1].isalpha() and host != "localhost":
            host = known.get(host, "")
            if not host:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    return known


@pytest.fixture
def outward() -> str:
    """An address of this host that is not loopback."""
    own = address.own_addresses()
    if not own:
        pytest.skip("this host has no address but loopback")
    return own[0]


def test_the_name_of_this_host_is_its_own_whatever_it_leads_to(names: dict[str, str]) -> None:
    """One host of a job has to host the store, also where its own name does not resolve."""
    assert address.is_own_address("here")
    del names["here"]
    assert address.is_own_address("here")
    names["other"] = "192.0.2.99"
    assert not address.is_own_address("other")
    assert not address.is_own_address("nowhere")


def test_a_host_finds_a_store_of_its_own_also_where_its_name_leads_nowhere(
    names: dict[str, str],
) -> None:
    assert address.way_to_endpoint("here") == "here"
    assert address.way_to_endpoint("nowhere") == "nowhere"
    names["here"] = "192.0.2.99"
    assert address.way_to_endpoint("here") == "127.0.0.1"
    del names["here"]
    assert address.way_to_endpoint("here") == "127.0.0.1"


def test_a_name_that_leads_to_loopback_is_published_itself(names: dict[str, str]) -> None:
    assert address.publish("here").address == "here"
    assert address.publish("127.0.1.1").address.startswith("127.")


def test_a_name_that_leads_nowhere_has_an_address_published(
    names: dict[str, str], outward: str
) -> None:
    """Hostile hosts: the own name does not resolve, or leads to an address of no interface."""
    del names["here"]
    assert address.publish("here").address == outward
    names["here"] = "192.0.2.99"
    assert address.publish("here").address in address.own_addresses()
    interface = address.gloo_interface("10.0.0.1")
    assert interface is not None
    assert outward in address.interfaces()[interface]


def test_gloo_is_left_alone_where_the_name_of_this_host_leads_to_its_address(
    names: dict[str, str], outward: str
) -> None:
    names["here"] = outward
    assert address.gloo_interface(outward) is None


def test_this_hosts_interfaces_are_listed_with_loopback(outward: str) -> None:
    found = address.interfaces()
    assert "127.0.0.1" in found["lo"]
    assert any(outward in addresses for addresses in found.values())
    assert not any(is_loopback(one) for one in address.own_addresses())
