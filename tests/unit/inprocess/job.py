"""Ranks of one job in one thread: their states, and a store that shows them each other's values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.inprocess._plugin_call import AssignmentPlugin
from holdfast.inprocess.rank_assignment import RankDiscarded
from holdfast.inprocess.state import State


class FakeStore:
    """``gather`` for ranks that are threads."""

    def __init__(self, living: set[int]) -> None:
        self._living = living
        self._changed = threading.Condition()
        self._shown: dict[str, dict[int, Any]] = {}
        self.gathers = 0

    def of(self, rank: int) -> OneRanksStore:
        return OneRanksStore(self, rank)

    def leave(self, rank: int) -> None:
        with self._changed:
            self._living.discard(rank)
            self._changed.notify_all()

    def gather(self, rank: int, name: str, value: Any) -> list[Any]:
        with self._changed:
            shown = self._shown.setdefault(name, {})
            self.gathers += not shown
            shown[rank] = value
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._living <= set(shown), 30)
            return [shown[other] for other in sorted(shown)]


class OneRanksStore:
    def __init__(self, store: FakeStore, rank: int) -> None:
        self._store, self._rank = store, rank

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        return self._store.gather(self._rank, name, value)


class Job:
    """All ranks of a job, each with its own plug-ins, as they are in processes."""

    def __init__(
        self,
        world: int,
        assignment: Callable[[], Any],
        rank_filter: Callable[[], Any] = lambda: None,
    ) -> None:
        self.states = {rank: State(rank, world) for rank in range(world)}
        """By initial rank; those who are left."""
        self._calls = {rank: AssignmentPlugin(assignment(), rank_filter()) for rank in range(world)}
        self.discarded: set[int] = set()
        self.gathers = 0

    def lose(self, *lost: int) -> Job:
        """The next iteration, without those who have these numbers now."""
        gone = {initial for initial, state in self.states.items() if state.rank in lost}
        for initial in gone:
            del self.states[initial]
        store = FakeStore({state.rank for state in self.states.values()})

        def assign(initial: int) -> BaseException | None:
            state = self.states[initial]
            rank = state.rank
            try:
                self._calls[initial](state, store.of(rank), set(lost))
            except RankDiscarded:
                store.leave(rank)
                self.discarded.add(initial)
            except BaseException as error:  # noqa: BLE001 - raised again by lose()
                store.leave(rank)
                return error
            return None

        with ThreadPoolExecutor(max(1, len(self.states))) as threads:
            errors = [error for error in threads.map(assign, list(self.states)) if error]
        if errors:
            raise errors[0]
        for initial in self.discarded:
            self.states.pop(initial, None)
        self.gathers += store.gathers
        for state in self.states.values():
            state.advance()
        return self

    @property
    def ranks(self) -> list[int | None]:
        """Number of each initial rank."""
        return self._of_all("rank")

    @property
    def active(self) -> list[int | None]:
        """Active number of each initial rank."""
        return self._of_all("active_rank")

    def _of_all(self, name: str) -> list[int | None]:
        world = len(self._calls)
        return [getattr(self.states.get(rank), name, None) for rank in range(world)]
