"""Kept steps: who takes whose snapshots, and which step a job can go back to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena.pure.kept_steps import kept_step, replicas_in_use
from holdfast.arena.pure.lineage import last_life
from holdfast.arena.pure.peers import peers
from holdfast.arena.pure.snapshots import Held, Holdings, SnapshotId

PLACES = {"a": range(1), "b": range(1, 2)}
LIFE = (last_life(0, 0),)
THREE, SIX = SnapshotId(0, 0, 3), SnapshotId(0, 0, 6)


def held(rank: int, step: int, *, term: int = 0) -> Held:
    return Held(rank, 2, 0, 0, step, term)


# ---------------------------------------------------------------- peers
@given(st.lists(st.sampled_from([None, "rack 1", "rack 2", "rack 3"]), max_size=9))
def test_each_node_has_one_peer_and_is_the_peer_of_one(domains: list[str | None]) -> None:
    found = peers(domains)
    assert sorted(found) == ([] if len(domains) < 2 else [*range(len(domains))])
    assert all(peer != node for node, peer in enumerate(found))


@given(st.integers(2, 4), st.integers(1, 4))
def test_no_peer_is_of_the_same_domain_where_domains_are_equal_in_size(n: int, size: int) -> None:
    """As group ranks are given: the nodes of a domain one after the other."""
    domains = [f"rack {k // size}" for k in range(n * size)]
    assert all(domains[node] != domains[peer] for node, peer in enumerate(peers(domains)))


def test_nodes_without_domains_and_nodes_of_one_domain_take_the_next() -> None:
    assert peers([None, None, None]) == [1, 2, 0]
    assert peers(["rack"] * 3) == [1, 2, 0]


def test_as_many_nodes_as_can_be_are_kept_apart() -> None:
    domains = ["rack 1", "rack 1", "rack 1", "rack 2"]
    found = peers(domains)
    assert sum(domains[k] != domains[peer] for k, peer in enumerate(found)) == 2


# ---------------------------------------------------------------- the kept step
def test_the_newest_that_any_launcher_knows_of_is_the_kept_step() -> None:
    """The leader may have died before the others knew of the last one."""
    everything = (held(0, 3), held(1, 3), held(0, 6), held(1, 6))
    holdings = {"a": Holdings(everything, kept=SIX), "b": Holdings(everything, kept=THREE)}
    assert kept_step(holdings, ["a", "b"], THREE, PLACES, LIFE) == SIX
    assert kept_step(holdings, ["a", "b"], None, PLACES, LIFE) == SIX


def test_a_step_that_all_nodes_have_sent_is_kept_although_only_the_dead_leader_knew() -> None:
    everything = (held(0, 3), held(1, 3), held(0, 6), held(1, 6))
    sent = Holdings(everything, kept=THREE, complete=SIX)
    late = Holdings(everything, kept=THREE, complete=THREE)
    assert kept_step({"a": sent, "b": sent}, ["a", "b"], THREE, PLACES, LIFE) == SIX
    assert kept_step({"a": sent, "b": late}, ["a", "b"], THREE, PLACES, LIFE) == THREE
    # A spare has sent nothing, and need not have.
    assert kept_step({"a": sent, "b": late}, ["a"], THREE, PLACES, LIFE) == SIX


def test_a_step_of_which_a_part_is_lost_is_kept_no_longer() -> None:
    holdings = {
        "a": Holdings((held(0, 3), held(1, 3), held(0, 6)), kept=SIX),
        "b": Holdings((held(1, 3),), kept=THREE),
        "spare": Holdings((held(1, 6),)),
    }
    assert kept_step(holdings, ["a", "b"], SIX, PLACES, LIFE) == THREE


def test_a_step_of_another_history_is_kept_no_longer() -> None:
    holdings = {"a": Holdings((held(0, 3, term=1), held(1, 3, term=1)), kept=THREE)}
    assert kept_step(holdings, ["a"], THREE, PLACES, LIFE) is None


def test_a_node_without_ranks_and_a_job_without_snapshots_have_none() -> None:
    assert kept_step({}, [], None, PLACES, LIFE) is None


# ---------------------------------------------------------------- replicas
def test_a_replica_counts_while_all_ranks_of_its_node_have_the_same_step() -> None:
    """A restart in place that gives a step up voids it there, and knows of no replica."""
    replicas = [held(1, 3), held(1, 6)]
    assert [*replicas_in_use([{THREE, SIX}, {THREE}], replicas)] == [held(1, 3)]
    assert [*replicas_in_use([{THREE, SIX}], replicas)] == replicas
    assert [*replicas_in_use([], replicas)] == []
