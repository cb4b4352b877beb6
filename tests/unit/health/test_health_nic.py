"""Which network cards ranks use, whether their links are up, and whether they have lost them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.health
from holdfast.health import nic, own_device, pci
from holdfast.health.nic import Cards, LinkBaseline, LinkDowns, LinkStates, Port
from holdfast.health.pure.health import Finding, Fitness
from tests.unit.fake_gpus import Gpus, gpus

__all__ = ["gpus"]  # a fixture

UP, DOWN, INIT = "4: ACTIVE\n", "1: DOWN\n", "2: INIT\n"
LINK_UP, POLLING, DISABLED = "5: LinkUp\n", "2: Polling\n", "3: Disabled\n"


class Host:
    """A recorded sysfs: cards and GPUs, each behind bridges."""

    def __init__(self, root: Path) -> None:
        self.infiniband, self.pci = root / "class/infiniband", root / "bus/pci/devices"
        self._devices = root / "devices"
        self.infiniband.mkdir(parents=True)
        self.pci.mkdir(parents=True)

    def device(self, way: str, numa_node: int = -1) -> Path:
        folder = self._devices / way
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{numa_node}\n")
        (self.pci / folder.name).symlink_to(folder)
        return folder

    def card(self, name: str, way: str = "", numa_node: int = -1) -> Path:
        card = self.infiniband / name
        card.mkdir()
        if way:
            (card / "device").symlink_to(self.device(way, numa_node))
        return card

    def port(
        self,
        name: str,
        state: str = UP,
        physical: str | None = LINK_UP,
        lost: str | None = "0\n",
        *,
        number: int = 1,
        layer: str = "InfiniBand",
    ) -> None:
        port = self.infiniband / name / "ports" / str(number)
        (port / "counters").mkdir(parents=True, exist_ok=True)
        (port / "state").write_text(state)
        (port / "link_layer").write_text(f"{layer}\n")
        for file, text in (("phys_state", physical), ("counters/link_downed", lost)):
            (port / file).unlink(missing_ok=True)
            if text is not None:
                (port / file).write_text(text)

    def cards(self, **more: object) -> Cards:
        return Cards(
            infiniband=str(self.infiniband),
            pci_devices=str(self.pci),
            **more,  # type: ignore[arg-type]
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "sys")


def verdicts(findings: list[Finding]) -> dict[str, Fitness]:
    return {finding.subject: finding.verdict for finding in findings}


# ---------------------------------------------------------------- link state
@pytest.mark.parametrize(
    ("port", "verdict"),
    [
        (Port("c", "1", "ACTIVE", "LINKUP", 0), Fitness.HEALTHY),
        (Port("c", "1", "ACTIVE", None, 7), Fitness.HEALTHY),
        (Port("c", "1", "DOWN", "POLLING", 3), Fitness.UNHEALTHY),
        (Port("c", "1", "DOWN", "POLLING", 0), Fitness.UNKNOWN),
        (Port("c", "1", "DOWN", "DISABLED", 3), Fitness.UNKNOWN),
        (Port("c", "1", "INIT", "LINKUP", 0), Fitness.UNHEALTHY),
        (Port("c", "1", "DOWN", "PORTCONFIGURATIONTRAINING", None), Fitness.UNHEALTHY),
        (Port("c", "1", "DOWN", None, None), Fitness.UNKNOWN),
        (Port("c", "1", None, None, None), Fitness.UNKNOWN),
    ],
)
def test_a_port_counts_where_something_says_that_it_is_meant_to_be_up(
    port: Port, verdict: Fitness
) -> None:
    """Many hosts have ports without a cable, and they stay in the job."""
    assert nic.judge(port, was_up=False)[0] is verdict


def test_a_port_that_goes_down_after_it_was_seen_up_is_unhealthy(host: Host) -> None:
    """Whatever else sysfs says of it; and it is healthy when it comes back."""
    host.card("mlx5_0")
    host.port("mlx5_0")
    probe = LinkStates(host.cards())
    assert verdicts(probe.look()) == {"mlx5_0 port 1": Fitness.HEALTHY}
    host.port("mlx5_0", DOWN, DISABLED)
    [finding] = probe.look()
    assert finding.verdict is Fitness.UNHEALTHY
    assert finding.text == (
        "link is DOWN, physically DISABLED, and was up before: check cable and switch"
    )
    host.port("mlx5_0")
    assert verdicts(probe.look()) == {"mlx5_0 port 1": Fitness.HEALTHY}


def test_each_port_of_a_card_is_looked_at(host: Host) -> None:
    host.card("mlx5_0")
    host.port("mlx5_0", number=1)
    host.port("mlx5_0", DOWN, POLLING, "2\n", number=2)
    assert verdicts(LinkStates(host.cards()).look()) == {
        "mlx5_0 port 1": Fitness.HEALTHY,
        "mlx5_0 port 2": Fitness.UNHEALTHY,
    }


def test_what_sysfs_does_not_tell_is_unknown(host: Host, tmp_path: Path) -> None:
    """No cards, a card without ports, files with nonsense in them."""
    assert verdicts(LinkStates(host.cards()).look()) == {"cards": Fitness.UNKNOWN}
    assert verdicts(LinkDowns(host.cards()).look()) == {"cards": Fitness.UNKNOWN}
    nowhere = Cards(infiniband=str(tmp_path / "nowhere"))
    assert verdicts(LinkStates(nowhere).look()) == {"cards": Fitness.UNKNOWN}
    host.card("mlx5_0")
    assert verdicts(LinkStates(host.cards()).look()) == {"mlx5_0": Fitness.UNKNOWN}
    assert verdicts(LinkDowns(host.cards()).look()) == {"mlx5_0 link-downs": Fitness.UNKNOWN}
    host.port("mlx5_0", "\n", None, "N/A\n")
    assert verdicts(LinkStates(host.cards()).look()) == {"mlx5_0 port 1": Fitness.UNKNOWN}
    assert verdicts(LinkDowns(host.cards()).look()) == {"mlx5_0 link-downs": Fitness.UNKNOWN}


def test_a_template_leads_to_the_state_of_a_card(host: Host, tmp_path: Path) -> None:
    """It is the file that is meant: what it says counts, without more evidence."""
    for name, state in (("mlx5_0", "up\n"), ("mlx5_1", DOWN)):
        host.card(name)
        (tmp_path / name).write_text(state)
    host.card("mlx5_2")
    cards = host.cards(link_state_path_template=f"{tmp_path}/{{nic}}")
    assert verdicts(LinkStates(cards).look()) == {
        "mlx5_0": Fitness.HEALTHY,
        "mlx5_1": Fitness.UNHEALTHY,
        "mlx5_2": Fitness.UNKNOWN,
    }


def test_the_default_path_as_a_template_says_the_same(host: Host) -> None:
    """As in configurations that name sysfs's own file."""
    host.card("mlx5_0")
    host.port("mlx5_0", DOWN, POLLING)
    cards = host.cards(link_state_path_template=f"{host.infiniband}/{{nic}}/ports/1/state")
    assert verdicts(LinkStates(cards).look()) == {"mlx5_0": Fitness.UNKNOWN}


# ---------------------------------------------------------------- link-downs
def test_a_link_that_was_lost_since_the_look_before_is_unhealthy_once(host: Host) -> None:
    """What was lost before the first look is history; a link that came back is well again."""
    host.card("mlx5_0")
    host.port("mlx5_0", lost="3\n")
    probe = LinkDowns(host.cards())
    assert [finding.verdict for finding in probe.look()] == [Fitness.HEALTHY]
    host.port("mlx5_0", lost="5\n")
    [finding] = probe.look()
    assert finding.verdict is Fitness.UNHEALTHY
    assert finding.text == "lost its link (3 times before, 5 now)"
    assert [finding.verdict for finding in probe.look()] == [Fitness.HEALTHY]


def test_the_network_device_counts_for_a_card_on_ethernet(host: Host) -> None:
    folder = host.card("mlx5_0", "pci0000:00/0000:01:00.0") / "device/net/eth0"
    folder.mkdir(parents=True)
    (folder / "carrier_down_count").write_text("4\n")
    host.port("mlx5_0", layer="Ethernet")
    assert host.cards().n_lost() == {"mlx5_0": 4}
    host.port("mlx5_0", layer="InfiniBand")
    assert host.cards().n_lost() == {"mlx5_0": 0}


def test_a_template_leads_to_the_counter_of_a_card(host: Host, tmp_path: Path) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        host.card(name)
    (tmp_path / "mlx5_0").write_text("9\n")
    assert host.cards(link_down_path_template=f"{tmp_path}/{{nic}}").n_lost() == {"mlx5_0": 9}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 5))))
def test_every_growth_of_a_counter_is_told_once(looks: list[dict[str, int]]) -> None:
    """Between two looks that could read it; a reset counter, and a new card, have lost nothing."""
    baseline, last = LinkBaseline(), dict[str, int]()
    for counts in looks:
        expected = {
            card: (last[card], count)
            for card, count in counts.items()
            if count > last.get(card, count)
        }
        assert baseline.lost(counts) == expected
        last |= counts


# ---------------------------------------------------------------- whose card
def two_switches(host: Host, gpus: Gpus) -> None:
    """Two GPUs and their cards, a switch each, and a card for storage on the first processor."""
    gpus({"pci": "00000000:1B:00.0"}, {"pci": "00000000:A5:00.0"})
    host.device("pci0000:16/0000:16:01.0/0000:18:00.0/0000:1b:00.0", 0)
    host.device("pci0000:a0/0000:a0:01.0/0000:a2:00.0/0000:a5:00.0", 1)
    host.card("mlx5_0", "pci0000:16/0000:16:01.0/0000:19:00.0/0000:1c:00.0", 0)
    host.card("mlx5_1", "pci0000:a0/0000:a0:01.0/0000:a3:00.0/0000:a6:00.0", 1)
    host.card("mlx5_2", "pci0000:16/0000:16:05.0/0000:30:00.0", 0)
    for name in ("mlx5_0", "mlx5_1", "mlx5_2"):
        host.port(name)


def test_a_card_belongs_to_the_gpu_it_shares_the_longest_way_with(host: Host, gpus: Gpus) -> None:
    two_switches(host, gpus)
    assert host.cards().users() == {"mlx5_0": {0}, "mlx5_1": {1}}
    assert host.cards(visible_devices="1").users() == {"mlx5_1": {0}}
    assert host.cards(limit=1).users() == {"mlx5_0": {0}}


def test_the_place_of_a_lost_gpu_is_not_known(host: Host, gpus: Gpus) -> None:
    two_switches(host, gpus)
    gpus({"error": 15}, {"pci": "00000000:A5:00.0"})
    assert host.cards().users() == {"mlx5_1": {1}}


def test_the_link_of_a_card_that_no_rank_uses_keeps_nobody_out(host: Host, gpus: Gpus) -> None:
    two_switches(host, gpus)
    states, downs = LinkStates(host.cards()), LinkDowns(host.cards())
    states.look(), downs.look()
    for name in ("mlx5_1", "mlx5_2"):
        host.port(name, DOWN, POLLING, "1\n")
    for findings in (states.look(), downs.look()):
        _, used, unused = findings
        assert (used.verdict, used.device) == (Fitness.UNHEALTHY, 1)
        assert (unused.verdict, unused.device) == (Fitness.SUSPECT, None)
        assert "no GPU of this node's ranks" in unused.text


def test_without_a_driver_every_card_counts(host: Host, gpus: Gpus) -> None:
    """Ranks without GPUs use network cards as well."""
    host.card("mlx5_0", "pci0000:16/0000:1c:00.0")
    host.port("mlx5_0", DOWN, POLLING, "1\n")
    assert host.cards().users() == {}
    assert verdicts(LinkStates(host.cards()).look()) == {"mlx5_0 port 1": Fitness.UNHEALTHY}


def test_among_cards_that_are_equally_far_those_of_the_same_numa_node_are_near() -> None:
    gpu = pci.DevicePlace(("/", "sys", "pci0000:16"), 0)
    far, near = (
        pci.DevicePlace(("/", "sys", "pci0000:a0"), 1),
        pci.DevicePlace(("/", "sys", "pci0000:30"), 0),
    )
    assert pci.nearest(gpu, {"far": far, "near": near}) == {"near"}
    assert pci.nearest(gpu, {"far": far}) == {"far"}
    assert pci.nearest(pci.DevicePlace(gpu.way), {"far": far, "near": near}) == {"far", "near"}
    assert pci.nearest(gpu, {}) == set()


TOPOLOGY = """<system version="1"><cpu numaid="0">
  <pci busid="ffff:ff:01.0" class="0x060400">
    <pci busid="0001:00:00.0" class="0x030200"/><pci busid="0101:00:00.0" class="0x020700"/></pci>
  <pci busid="ffff:ff:02.0" class="0x060400">
    <pci busid="0002:00:00.0" class="0x030200"/><pci busid="0102:00:00.0" class="0x020700"/></pci>
</cpu></system>"""


def test_a_topology_file_says_whose_a_card_is_where_a_virtual_machine_hides_it(
    host: Host, gpus: Gpus, tmp_path: Path
) -> None:
    gpus({"pci": "00000002:00:00.0"}, {"pci": "00000001:00:00.0"})
    for way in ("VMBUS/a/pci0001:00/0001:00:00.0", "VMBUS/b/pci0002:00/0002:00:00.0"):
        host.device(way)
    host.card("mlx5_0", "VMBUS/c/pci0101:00/0101:00:00.0")
    host.card("mlx5_1", "VMBUS/d/pci0102:00/0102:00:00.0")
    (tmp_path / "topology.xml").write_text(TOPOLOGY)
    assert host.cards().users() == {"mlx5_0": {0, 1}, "mlx5_1": {0, 1}}
    cards = host.cards(pci_topo_file=str(tmp_path / "topology.xml"))
    assert cards.users() == {"mlx5_0": {1}, "mlx5_1": {0}}


@pytest.mark.parametrize("text", [None, "no xml", "<system><cpu/></system>"])
def test_a_topology_file_that_says_nothing_is_named_and_every_card_counts(
    host: Host, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "topology.xml"
    if text is not None:
        file.write_text(text)
    host.card("mlx5_0")
    host.port("mlx5_0")
    topology, port = LinkStates(host.cards(pci_topo_file=str(file))).look()
    assert (topology.subject, topology.verdict) == ("topology", Fitness.UNKNOWN)
    assert str(file) in topology.text
    assert port.verdict is Fitness.HEALTHY


# ---------------------------------------------------------------- asked by a rank
def test_a_rank_hears_about_the_links_of_its_own_card(
    host: Host, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says nothing is not in it, and nothing is where there is no driver."""
    host.card("mlx5_0")
    host.port("mlx5_0", lost="1\n")
    monkeypatch.setattr(own_device, "Cards", host.cards)
    assert holdfast.health.link_downed_counts(0) == {}
    assert holdfast.health.link_downed_counts(None) == {"mlx5_0": 1}
    (host.infiniband / "mlx5_0").rename(host.infiniband / "mlx5_9")
    two_switches(host, gpus)
    host.port("mlx5_1", lost="2\n")
    assert holdfast.health.link_downed_counts(1) == {"mlx5_1": 2}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # its own device only: 0 for CUDA
    assert holdfast.health.link_downed_counts(1) == {"mlx5_1": 2}
    host.port("mlx5_1", lost=None)
    assert holdfast.health.link_downed_counts(1) == {}
    counter = host.infiniband / "mlx5_1" / "counter"
    counter.write_text("5\n")
    template = str(counter).replace("mlx5_1", "{nic}")
    counts = holdfast.health.link_downed_counts(1, link_down_path_template=template)
    assert counts == {"mlx5_1": 5}


def test_this_host_is_looked_at_without_an_exception() -> None:
    assert LinkStates(Cards()).look()
    assert LinkDowns(Cards()).look()
