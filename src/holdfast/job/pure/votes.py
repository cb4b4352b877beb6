"""The votes that a launcher has: for which term, until when it keeps them, and whether they elect.

Pure. Times are seconds on the launcher's clock. Those of the launchers of the last round count, its
spares' too. A round may be on its way when its leader dies: a launcher that has it needs a majority
of the round before as well, and of each before that, back to one that is settled
(:mod:`.following`). Thus two candidates always need one launcher both.

Votes that come to no majority are *held* from ``ask_s`` after the first of their term on: this
launcher looks for another candidate, or for more votes, and its voters wait. ``ask_s`` later they
have their votes back, which is before they believe that it has died (``fence_s``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.base.pure.deadlines import earliest
from holdfast.job.pure.membership import Offer, Successor, elector
from holdfast.job.pure.succession_messages import Release
from holdfast.job.pure.timing import Pace


def is_majority(votes: Iterable[str], electorate: frozenset[str]) -> bool:
    """More than half of the electorate."""
    return 2 * len(electorate.intersection(map(elector, votes))) > len(electorate)


@dataclass
class Votes:
    """Of other launchers for this one; its own is one of them if it votes for itself."""

    pace: Pace

    _offers: dict[str, Offer] = field(default_factory=dict, init=False)
    _patient_until: dict[int, float] = field(default_factory=dict, init=False)
    """By term: when its votes are held, or given back."""
    _held: set[str] = field(default_factory=set, init=False)
    """Launchers of which the votes are held."""

    def __iter__(self) -> Iterator[Offer]:
        return iter([*self._offers.values()])

    @property
    def are_held(self) -> bool:
        """All that are here, if any is: this launcher had each of them in vain."""
        return self._offers.keys() <= self._held

    def take(self, offer: Offer, now: float) -> None:
        """The vote of this launcher, in the place of an earlier one."""
        self._offers[offer.node] = offer
        self._patient_until.setdefault(offer.term, now + self.pace.ask_s)

    def replace(self, offer: Offer) -> None:
        """The same vote, which says something else."""
        self._offers[offer.node] = offer

    def of(self, node: str) -> Offer | None:
        """The vote of this launcher, if it is here."""
        return self._offers.get(node)

    def drop(self, node: str) -> None:
        """Its vote does not count any more."""
        self._offers.pop(node, None)
        self._held.discard(node)

    def clear(self) -> None:
        """None counts any more, and none is to be given back."""
        self._offers.clear()
        self.keep()

    # ------------------------------------------------------------ an election
    def elect(self, term: int, electorates: Collection[frozenset[str]]) -> bool:
        """Whether those for this term are a majority of each electorate."""
        if not self._are_many(len(self._offers), electorates):
            return False
        votes = {offer.node for offer in self if offer.term == term}
        return all(is_majority(votes, electorate) for electorate in electorates)

    def would_elect(self, own: str, electorates: Collection[frozenset[str]]) -> bool:
        """The same, if all were for one term, and the own one, too."""
        if not self._are_many(len(self._offers) + 1, electorates):
            return False
        votes = {own, *self._offers}
        return all(is_majority(votes, electorate) for electorate in electorates)

    def _are_many(self, n: int, electorates: Collection[frozenset[str]]) -> bool:
        """More than half of each electorate, by number alone: else none needs to be looked up."""
        return all(2 * n > len(electorate) for electorate in electorates)

    # ------------------------------------------------------------ giving back
    def release(
        self, nodes: list[str], term: int, ahead: Successor | None = None, *, asks: bool = False
    ) -> list[Release]:
        """From now on the votes of these are never counted."""
        for node in nodes:
            self.drop(node)
        return [Release(tuple(nodes), term, asks, ahead)] if nodes else []

    def release_all(self, term: int) -> list[Release]:
        """This launcher leads in none of the terms before this one."""
        return self.release([*self._offers], term)

    def ask_again(self, term: int) -> list[Release]:
        """Those for earlier terms are asked for in this one."""
        earlier = [offer.node for offer in self if offer.term < term]
        return self.release(earlier, term, asks=True)

    def hold(self, term: int, own: str, now: float) -> None:
        """This launcher had those for this term in vain: its own one is free."""
        self.drop(own)
        if voters := {offer.node for offer in self if offer.term == term}:
            self._held |= voters
            self._patient_until[term] = now + self.pace.ask_s

    def keep(self) -> None:
        """None of those that are here is held, or given back, for its age."""
        self._patient_until.clear()
        self._held.clear()

    def due(self, now: float) -> Iterator[tuple[int, list[str]]]:
        """The terms of which votes are held, or given back, and the launchers that gave them."""
        for term in [term for term, until in self._patient_until.items() if now >= until]:
            del self._patient_until[term]
            yield term, [offer.node for offer in self if offer.term == term]

    def next_deadline(self) -> float | None:
        """When the first are held, or given back; None: never."""
        return earliest(*self._patient_until.values())
