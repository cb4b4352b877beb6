"""Hosts of their own, as far as network, name and ``/etc/hosts`` go: namespaces on one bridge."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_BECOME = (
    'hostname "$1" && mount --make-rprivate / && mount --bind "$2/hosts" /etc/hosts && '
    'mount --bind "$2/resolv.conf" /etc/resolv.conf || exit 99; shift 2; exec "$@"'
)
NO_NAMES = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
"""An ``/etc/hosts`` that knows no host but this one."""


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("ip") or "/usr/sbin/ip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


class Network:
    """Hosts on one bridge; host number n has the addresses ending in n + 1."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"hf{os.getpid() % 100000}"
        self.subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.subnet_6 = f"fd00:{os.getpid() % 0x10000:x}:"
        self.hosts: list[str] = []
        self.must("link", "add", self._name, "type", "bridge")
        self.must("link", "set", self._name, "up")

    def must(self, *arguments: str) -> None:
        done = ip(*arguments)
        if done.returncode:
            pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr}")

    def add(self, *, v4: bool = True, v6: bool = False) -> Sequence[str]:
        """One more host; returns the command that executes another there."""
        number = len(self.hosts)
        host, inner = f"{self._name}n{number}", self.interface(number)
        self.hosts.append(host)
        self.must("netns", "add", host)
        self.must("link", "add", host, "type", "veth", "peer", "name", inner)
        self.must("link", "set", inner, "netns", host)
        self.must("link", "set", host, "master", self._name, "up")
        addresses = [f"{self.v4(number)}/24"] * v4 + [f"{self.v6(number)}/64"] * v6
        for address in addresses:
            duplicates = ("nodad",) if ":" in address else ()
            self.must("-n", host, "addr", "add", address, "dev", inner, *duplicates)
        for device in (inner, "lo"):
            self.must("-n", host, "link", "set", device, "up")
        return ("ip", "netns", "exec", host)

    def lead_astray(self, number: int) -> None:
        """A second interface, with the default route, and the same address on each host."""
        host = self.hosts[number]
        far = ("peer", "name", "nowhere")
        self.must("-n", host, "link", "add", "astray", "type", "veth", *far)
        self.must("-n", host, "addr", "add", "10.99.99.1/24", "dev", "astray")
        for device in ("astray", "nowhere"):
            self.must("-n", host, "link", "set", device, "up")
        self.must("-n", host, "route", "add", "default", "via", "10.99.99.2")

    def add_named(self, name: str, hosts: str, *, v4: bool = True, v6: bool = False) -> list[str]:
        """One more host with a name and an ``/etc/hosts`` of its own, and no name server."""
        number = len(self.hosts)
        execute = self.add(v4=v4, v6=v6)
        etc = self._folder / f"etc{number}"
        etc.mkdir()
        (etc / "hosts").write_text(NO_NAMES + hosts)
        (etc / "resolv.conf").write_text("options timeout:1 attempts:1\n")
        become = ("unshare", "--mount", "--uts", "sh", "-c", _BECOME, "sh", name, str(etc))
        return [*execute, *become]

    def lose(self, source: int, target: int) -> None:
        """What one host sends to another is lost on its way, without a word to either."""
        nowhere = ("lladdr", "02:00:00:00:00:01", "dev", self.interface(source), "nud", "permanent")
        self.must("-n", self.hosts[source], "neigh", "replace", self.v4(target), *nowhere)

    def deliver(self, source: int, target: int) -> None:
        """It arrives again."""
        device = ("dev", self.interface(source))
        self.must("-n", self.hosts[source], "neigh", "del", self.v4(target), *device)

    def interface(self, number: int) -> str:
        """The one that leads to the others."""
        return f"{self._name}i{number}"

    def v4(self, number: int) -> str:
        return f"{self.subnet}.{number + 1}"

    def v6(self, number: int) -> str:
        return f"{self.subnet_6}:{number + 1}"

    def close(self) -> None:
        for host in self.hosts:
            ip("link", "del", host)
            ip("netns", "del", host)
        ip("link", "del", self._name)


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    """No namespace and no bridge stays when the block is over."""
    if os.geteuid() != 0 or shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        pytest.skip("making network namespaces takes root and the command ip")
    several = Network(folder)
    try:
        yield several
    finally:
        several.close()
