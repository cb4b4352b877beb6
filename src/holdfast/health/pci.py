"""Which of several PCI devices is near another one: they share more of the way to the processor.

The way is a device's place in sysfs, or in a topology file where a virtual machine hides it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xml.etree import ElementTree as ET


@dataclass(frozen=True)
class DevicePlace:
    """Where a device is: the bridges from the processor to it; and its NUMA node, if known."""

    way: tuple[str, ...]
    numa_node: int | None = None


class TopologyError(ValueError):
    """A topology file can't be used; the text says which and why."""


def nearest(to: DevicePlace, candidates: Mapping[str, DevicePlace]) -> set[str]:
    """Those that share the longest way with ``to``; among equals, those on its NUMA node.

    Several that are equally near are all given; there is always a nearest one, however far.
    """
    scores = {
        name: (
            _n_shared(to.way, place.way),
            to.numa_node is not None and to.numa_node == place.numa_node,
        )
        for name, place in candidates.items()
    }
    best = max(scores.values(), default=None)
    return {name for name, score in scores.items() if score == best}


def _n_shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def place_in_sysfs(device: Path) -> DevicePlace | None:
    """Of a device's folder, or a link to it; None where there is no such device."""
    try:
        real = device.resolve(strict=True)
    except OSError:
        return None
    numa_node = None
    with contextlib.suppress(OSError, ValueError):
        number = int((real / "numa_node").read_text())
        numa_node = number if number >= 0 else None
    return DevicePlace(real.parts[:-1], numa_node)


def places_in_file(path: str) -> dict[str, DevicePlace]:
    """By PCI address, ``0000:1b:00.0``, of an XML of nested ``<pci busid=...>``, as NCCL's.

    Raises:
        TopologyError: It cannot be read, is no XML, or names no device.
    """
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - seldom used

    try:
        root = ET.parse(path).getroot()  # noqa: S314 - the user's own
    except (OSError, ET.ParseError) as error:
        raise TopologyError(f"topology file {path}: {error}") from error
    places: dict[str, DevicePlace] = {}

    def walk(element: ET.Element, way: tuple[str, ...], number: int) -> None:
        address = element.get("busid")
        if address:
            places[address.lower()] = DevicePlace(way)
        for position, child in enumerate(element):
            walk(child, (*way, f"{element.tag} {number}"), position)

    walk(root, (), 0)
    if not places:
        raise TopologyError(f"topology file {path}: no element with a busid in it")
    return places
