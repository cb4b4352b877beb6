"""Do the network cards that ranks use have their links? From sysfs; needs no tool and no right.

A card is one under ``/sys/class/infiniband``: InfiniBand, RoCE, EFA and the like. Many hosts have
ports that are not in use. A port that is down counts when it is meant to be up:

    up                                                        healthy
    down, and it was up before (seen so, or its counter of
        lost links is not zero)                               unhealthy
    down, but physically linked or training                   unhealthy (subnet manager? cable?)
    down, disabled by an administrator                        unknown
    down, and nothing says that it ever was up                unknown (no cable?)

Where it is known which cards belong to the GPUs of the ranks, others are suspect at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.pure.wording import count
from holdfast.health import nvml, pci
from holdfast.health.nvml import NvmlError
from holdfast.health.pure.health import Finding, Fitness

PROBE = "nic"
_NIC = "{nic}"
_PHYSICALLY_LINKED = frozenset({"LINKUP", "LINKERRORRECOVERY", "PORTCONFIGURATIONTRAINING"})


# ---------------------------------------------------------------- verdicts
@dataclass(frozen=True)
class Port:
    """A port as sysfs shows it.

    Attributes:
        card: ``mlx5_0``.
        number: As in sysfs; empty where a template of the user's leads to one file per card.
        state: ``ACTIVE``, ``DOWN``, ``INIT``, ...; None: cannot be read.
        physical: ``LINKUP``, ``POLLING``, ``DISABLED``, ...; None: cannot be read.
        n_lost: How often it has lost its link; None: cannot be read.
    """

    card: str
    number: str = ""
    state: str | None = None
    physical: str | None = None
    n_lost: int | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.card} port {self.number}" if self.number else self.card

    @property
    def is_up(self) -> bool:
        """Traffic passes."""
        return self.state in ("ACTIVE", "UP")


def judge(port: Port, *, was_up: bool, was_named: bool = False) -> tuple[Fitness, str]:
    """The verdict that the state of a port leads to, and why.

    Args:
        port: As it is now.
        was_up: It has been seen up.
        was_named: A path of the user's leads to its state.
    """
    if port.state is None:
        return Fitness.UNKNOWN, "its state cannot be read"
    if port.is_up:
        return Fitness.HEALTHY, ""
    how = port.state if port.physical is None else f"{port.state}, physically {port.physical}"
    if was_up:
        return Fitness.UNHEALTHY, f"link is {how}, and was up before: check cable and switch"
    if port.physical == "DISABLED":
        return Fitness.UNKNOWN, f"link is {how}: not meant to be used?"
    if port.n_lost:
        before = f"and was lost before ({count(port.n_lost, 'time')})"
        return Fitness.UNHEALTHY, f"link is {how}, {before}: check cable and switch"
    if port.physical in _PHYSICALLY_LINKED:
        remedy = "check the subnet manager, the cable and the switch"
        return Fitness.UNHEALTHY, f"link is {how}: {remedy}"
    if port.physical is None and was_named:
        return Fitness.UNHEALTHY, f"link is {how}: check cable and switch"
    return Fitness.UNKNOWN, f"link is {how}, and nothing says that it ever was up: no cable?"


@dataclass
class LinkBaseline:
    """Counters of lost links, compared with those of the look before. Pure."""

    _before: dict[str, int] = field(default_factory=dict, init=False)

    def lost(self, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Cards whose counter has grown: from, to. Each loss is reported once.

        A card that is new has lost nothing, nor has one with a counter that was reset.
        """
        before = self._before
        self._before = {**before, **counts}
        return {
            card: (before[card], count)
            for card, count in counts.items()
            if card in before and count > before[card]
        }


# ---------------------------------------------------------------- cards
@dataclass(frozen=True)
class Cards:
    """Where to look.

    Attributes:
        visible_devices, limit: See :meth:`.Nvml.visible`.
        pci_topo_file: XML that says which devices are near each other, instead of sysfs.
        link_state_path_template: Of the file with a card's link state; ``{nic}`` is the card. None:
            all ports of ``<infiniband>/{nic}``.
        link_down_path_template: Of the file with its counter of lost links; likewise.
        infiniband: sysfs's folder of cards.
        pci_devices: sysfs's folder of PCI devices.
    """

    visible_devices: str | None = None
    limit: int | None = None
    pci_topo_file: str | None = None
    link_state_path_template: str | None = None
    link_down_path_template: str | None = None
    infiniband: str = "/sys/class/infiniband"
    pci_devices: str = "/sys/bus/pci/devices"

    def names(self) -> list[str]:
        """Of all cards."""
        try:
            return sorted(card.name for card in Path(self.infiniband).iterdir())
        except OSError:
            return []

    def ports(self) -> list[Port]:
        """Of all cards; with a template, one of each."""
        template = self.link_state_path_template
        if template is None:
            return [port for card in self.names() for port in self._ports(card)]
        states = {card: Path(template.replace(_NIC, card)) for card in self.names()}
        return [_read_port(card, "", state.parent, state) for card, state in states.items()]

    def n_lost(self) -> dict[str, int]:
        """How often each card has lost a link; those that do not say are not in it."""
        found: dict[str, int] = {}
        for card in self.names():
            if self.link_down_path_template is not None:
                counts = [_number(Path(self.link_down_path_template.replace(_NIC, card)))]
            else:
                counts = [port.n_lost for port in self._ports(card)]
            known = [count for count in counts if count is not None]
            if known:
                found[card] = sum(known)
        return found

    def users(self) -> dict[str, set[int]]:
        """Cards that are nearest to GPUs of the ranks, and the positions of those GPUs.

        Nothing where there is no driver, or no GPU whose place is known.

        Raises:
            pci.TopologyError: The file of the user's says nothing.
        """
        in_file = None if self.pci_topo_file is None else pci.places_in_file(self.pci_topo_file)
        cards: dict[str, pci.DevicePlace] = {}
        for card in self.names():
            device = Path(self.infiniband, card, "device")
            place = self._place(device, in_file)
            if place is not None:
                cards[card] = place
        users: dict[str, set[int]] = {}
        for position, address in self._gpu_addresses().items():
            gpu = self._place(Path(self.pci_devices, address), in_file)
            if gpu is not None:
                for card in pci.nearest(gpu, cards):
                    users.setdefault(card, set()).add(position)
        return users

    def _place(
        self, device: Path, in_file: Mapping[str, pci.DevicePlace] | None
    ) -> pci.DevicePlace | None:
        if in_file is None:
            return pci.place_in_sysfs(device)
        with contextlib.suppress(OSError):
            device = device.resolve()
        return in_file.get(device.name.lower())

    def _gpu_addresses(self) -> dict[int, str]:
        found: dict[int, str] = {}
        with contextlib.suppress(NvmlError):
            library, gpus = nvml.visible(self.visible_devices, self.limit)
            for gpu in gpus:
                if gpu.error is not None:  # its place is not known
                    continue
                with contextlib.suppress(NvmlError):
                    found[gpu.position] = library.pci_address(gpu.handle)
        return found

    def _ports(self, card: str) -> list[Port]:
        folder = Path(self.infiniband, card, "ports")
        try:
            numbers = sorted(port.name for port in folder.iterdir())
        except OSError:
            return [Port(card)]
        return [
            _read_port(card, number, folder / number, folder / number / "state")
            for number in numbers
        ]


def _read_port(card: str, number: str, folder: Path, state: Path) -> Port:
    n_lost = _number(folder / "counters" / "link_downed")
    if _word(folder / "link_layer") == "ETHERNET":  # there, the network device counts
        carriers = folder.parent.parent.glob("device/net/*/carrier_down_count")
        counts = [count for count in map(_number, carriers) if count is not None]
        n_lost = sum(counts, n_lost or 0) if counts else n_lost
    return Port(card, number, _word(state), _word(folder / "phys_state"), n_lost)


def _word(path: Path) -> str | None:
    """``4: ACTIVE`` is ``ACTIVE``."""
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return None
    return text.rpartition(":")[2].strip().upper() or None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# ---------------------------------------------------------------- the probes
class LinkStates:
    """Looks at the state of each network port, and remembers those that were up.

    With ``--ft-enable-nic-healthcheck``, every port below ``/sys/class/infiniband``.

    Unhealthy: not ACTIVE, and was up before or is physically linked.

    Suspect: the same of a card that is nearest to no GPU of this node's ranks.
    """

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._was_up: set[str] = set()

    def look(self) -> list[Finding]:
        """One finding for each port."""
        ports = self._cards.ports()
        if not ports:
            return [_no_cards(self._cards)]
        users, findings = _users(self._cards)
        was_named = self._cards.link_state_path_template is not None
        for port in ports:
            if port.is_up:
                self._was_up.add(port.name)
            was_up = port.name in self._was_up
            verdict, text = judge(port, was_up=was_up, was_named=was_named)
            findings.append(_finding(port.card, port.name, verdict, text, users))
        return findings


class LinkDowns:
    """Looks whether network cards have lost their links since the look before.

    With ``--ft-enable-nic-monitor``: ``link_downed``, on Ethernet also ``carrier_down_count``.

    Unhealthy: the counter has grown; once.

    Suspect: the same of a card that is nearest to no GPU of this node's ranks.
    """

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._baseline = LinkBaseline()

    def look(self) -> list[Finding]:
        """One finding for each card."""
        names = self._cards.names()
        if not names:
            return [_no_cards(self._cards)]
        counts = self._cards.n_lost()
        lost = self._baseline.lost(counts)
        users, findings = _users(self._cards) if lost else ({}, [])
        for card in names:
            verdict, text = Fitness.HEALTHY, ""
            if card not in counts:
                verdict, text = Fitness.UNKNOWN, "its counter of lost links cannot be read"
            elif card in lost:
                before, now = lost[card]
                verdict = Fitness.UNHEALTHY
                text = f"lost its link ({count(before, 'time')} before, {now} now)"
            findings.append(_finding(card, f"{card} link-downs", verdict, text, users))
        return findings


def _users(cards: Cards) -> tuple[dict[str, set[int]], list[Finding]]:
    """And a finding where it cannot be known."""
    try:
        return cards.users(), []
    except pci.TopologyError as error:
        text = f"which card belongs to which GPU is not known: {error}"
        return {}, [Finding(PROBE, "topology", Fitness.UNKNOWN, text)]


def _finding(
    card: str, subject: str, verdict: Fitness, text: str, users: Mapping[str, set[int]]
) -> Finding:
    if users and card not in users and verdict is Fitness.UNHEALTHY:
        verdict, text = Fitness.SUSPECT, f"{text} (nearest to no GPU of this node's ranks)"
    return Finding(PROBE, subject, verdict, text, min(users.get(card, ()), default=None))


def _no_cards(cards: Cards) -> Finding:
    text = f"no InfiniBand or RoCE card in {cards.infiniband}: nothing is known about links"
    return Finding(PROBE, "cards", Fitness.UNKNOWN, text)
