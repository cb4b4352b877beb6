"""Answers for a rank about the device it uses, or about all that it sees. Raises nothing.

A device index is CUDA's in this process, its place in ``CUDA_VISIBLE_DEVICES``; None: all that it
sees. Where that names one device, all indices mean it: a process that is given its own device only
(a MIG instance, for one) has number 0 for it, and often asks with its local rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.health import gpu, nvlink, pci
from holdfast.health.nic import Cards
from holdfast.health.pure.health import Finding, Fitness, why_unfit


def gpu_problem(device_index: int | None) -> str | None:
    """Why the GPU must not be used; None: it may be used, or that is not known."""
    return why_unfit(_of(device_index, gpu.look(_visible_devices())))


def nvlink_problem(device_index: int | None) -> str | None:
    """The fault of the GPU's NVLinks; None: there is none, or that is not known."""
    findings = _of(device_index, nvlink.look(_visible_devices()))
    wrong = [str(finding) for finding in findings if finding.verdict is Fitness.SUSPECT]
    return "; ".join(wrong) or None


def link_downed_counts(
    device_index: int | None,
    *,
    pci_topo_file: str | None = None,
    link_down_path_template: str | None = None,
) -> dict[str, int]:
    """How often the network cards nearest to the GPU have lost their links, by card.

    Without those that do not say. Nothing where it is not known which card belongs to the GPU:
    another GPU's link says nothing about this rank. For the other arguments see :class:`.Cards`.
    """
    cards = Cards(
        visible_devices=_visible_devices(),
        pci_topo_file=pci_topo_file,
        link_down_path_template=link_down_path_template,
    )
    counts = cards.n_lost()
    place = _place(device_index)
    if place is None:
        return counts
    try:
        users = cards.users()
    except pci.TopologyError:
        return {}
    return {card: counts[card] for card in counts if place in users.get(card, ())}


def _of(device_index: int | None, findings: Iterable[Finding]) -> list[Finding]:
    place = _place(device_index)
    return [found for found in findings if place is None or found.device == place]


def _place(device_index: int | None) -> int | None:
    """Of the device in ``CUDA_VISIBLE_DEVICES``."""
    visible = _visible_devices()
    names_one = visible is not None and "," not in visible
    return 0 if device_index is not None and names_one else device_index


def _visible_devices() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")
