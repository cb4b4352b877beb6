"""The data of one epoch in Lightning: which batches are behind the training, and how to get there.

A new process makes the iterator under the random states that the old one made it under, so that it
shuffles alike, and passes over the batches that were used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.snapshot import _random_state as random_state


class EpochData:
    """Lightning's ``fit_loop`` makes the first iterator in its setup, others as an epoch begins."""

    def __init__(self, fit_loop: Any) -> None:
        self._loop = fit_loop
        self._setup: dict[str, Any] = {}
        self._begin: dict[str, Any] = {}
        self._before = 0
        self._fetcher: Any = None

    # ------------------------------------------------------------------ an epoch that is trained

    def setup(self, original: Any) -> None:
        """Where the training begins, and where it reloads its data."""
        if self._loop._combined_loader is None or self._loop._should_reload_train_dl:
            self._setup = random_state.read()
        original()

    def begin(self, original: Any, fetcher: Any) -> None:
        """Before the first batch of an epoch is asked for."""
        is_made_here = self._is_made_here()
        made_under = random_state.read() if is_made_here else self._setup
        original(fetcher)
        self._opened(fetcher, made_under, is_made_here=is_made_here)

    def _is_made_here(self) -> bool:
        loop = self._loop
        return bool(
            loop.trainer.current_epoch > 0
            and not loop.is_resuming
            and not loop.epoch_loop.restarting
        )

    def _opened(self, fetcher: Any, made_under: dict[str, Any], *, is_made_here: bool) -> None:
        self._fetcher = fetcher
        self._before = fetcher.fetched - _n_prefetched(fetcher)
        self._begin = {
            "is_made_here": is_made_here,
            "made_under": made_under,
            "asked_under": random_state.read(),
        }

    def state(self) -> dict[str, Any]:
        """Of the epoch that is open; plain data and tensors."""
        fetcher = self._fetcher
        fetched = 0 if fetcher is None else fetcher.fetched - _n_prefetched(fetcher) - self._before
        loader = self._loop._combined_loader
        stateful = [] if loader is None else loader._state_dicts()
        return {**self._begin, "fetched": fetched, "offset": self._before, "loaders": stateful}

    # ------------------------------------------------------------------ an epoch that goes on

    def setup_again(self, original: Any, state: dict[str, Any]) -> None:
        """As :meth:`setup` of the old process; loaders that keep their own place go there."""
        if state and not state["is_made_here"]:
            random_state.write(state["made_under"])
        self._setup = random_state.read()
        loop = self._loop
        if state and state["loaders"]:
            loop._combined_loader_states_to_load = state["loaders"]
            loop._restarting = True
        try:
            original()
        finally:
            loop._restarting = False

    def go_on(self, original: Any, fetcher: Any, state: dict[str, Any]) -> None:
        """As :meth:`begin` of the old process, and pass over the batches that it used."""
        loop = self._loop
        is_made_here = state["is_made_here"] and not state["loaders"]
        n_used = 0 if state["loaders"] else state["fetched"]
        if is_made_here:
            random_state.write(state["made_under"])
        skipped = self._skip_indices(fetcher, n_used, is_made_here=is_made_here)
        # An iterator that setup has made is kept; Lightning makes another unless it resumes.
        loop._resuming_from_checkpoint = not is_made_here
        original(fetcher)
        random_state.write(state["asked_under"])
        if skipped is not None:
            skipped.start()
            fetcher.fetched += n_used
        else:
            batches: Iterator[Any] = getattr(fetcher, "iterator_wrapper", fetcher)
            for _ in range(n_used):
                next(batches)
        if state["loaders"]:
            fetcher.fetched += state["fetched"]
        fetcher.fetched += state["offset"]
        if fetcher.length is not None:
            fetcher.done = fetcher.fetched >= fetcher.length
        self._fetcher, self._before = fetcher, state["offset"]
        self._begin = {key: state[key] for key in ("is_made_here", "made_under", "asked_under")}

    def _skip_indices(
        self, fetcher: Any, n_batches: int, *, is_made_here: bool
    ) -> _SkipOnce | None:
        """Have one plain loader leave out the indices of its first batches; None: it cannot."""
        from torch.utils.data import BatchSampler, DataLoader, IterableDataset  # noqa: PLC0415

        loaders = self._loop._combined_loader.flattened
        if (
            not n_batches
            or len(loaders) != 1
            or fetcher.length is None
            or hasattr(fetcher, "iterator_wrapper")
        ):
            return None
        [loader] = loaders
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return None
        sampler = loader.batch_sampler
        if type(sampler) is not BatchSampler or (loader.num_workers and not is_made_here):
            return None
        sampler.sampler = skipped = _SkipOnce(sampler.sampler, n_batches * sampler.batch_size)
        return skipped


class _SkipOnce:
    """A sampler whose next iteration begins later."""

    def __init__(self, sampler: Any, n: int) -> None:
        self._sampler = sampler
        self._n = n
        self._started: Iterator[Any] | None = None

    def start(self) -> None:
        """Draw random numbers for the order now, unless an iteration has begun."""
        n, self._n = self._n, 0
        if n:
            self._started = iter(self._sampler)
            for _ in range(n):
                next(self._started, None)

    def __iter__(self) -> Iterator[Any]:
        self.start()
        started, self._started = self._started, None
        return iter(self._sampler) if started is None else started

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _n_prefetched(fetcher: Any) -> int:
    """Batches that were fetched to know which one is the last."""
    return len(getattr(fetcher, "batches", ()))
