"""Decide how long a start waits for the GPU memory of ranks that have ended. Pure.

A driver frees the memory of a process in steps, some time after its end. Whoever starts ranks
before runs out of memory in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_FIRST_LOOK_S = 0.01
_REPORT_AFTER_S = 1.0
_SHOWN = 8
_SAMPLES_LAST = 3


@dataclass(frozen=True)
class Wait:
    """Look again after so long, or when a process that holds memory has ended.

    ``text``: for a person who waits; once.
    """

    seconds: float
    text: str = ""


@dataclass(frozen=True)
class Over:
    """Nothing more is waited for; ``is_free``: because all of ``n_gpus`` GPUs are free.

    ``text``: for each GPU the memory in use now, and at the looks before.
    """

    is_free: bool
    n_gpus: int
    text: str


@dataclass
class Reclaim:
    """One wait, with the times and the tolerance of :class:`.HealthConfig`.

    ``before_mib``: used on each GPU before this job had ranks: others' memory is not waited for.
    """

    timeout_s: float
    tolerance_mib: float
    poll_s: float
    before_mib: Mapping[str, float] = field(default_factory=dict)

    _began_at: float | None = field(default=None, init=False)
    _next_s: float = field(default=_FIRST_LOOK_S, init=False)
    _is_reported: bool = field(default=False, init=False)
    _samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict, init=False)
    """By GPU, for looks at which it was not free: seconds since the beginning, MiB in use."""

    def look(self, used_mib: Mapping[str, float], now: float) -> Wait | Over:
        """The next step when each GPU has so much memory in use."""
        if self._began_at is None:
            self._began_at = now
        waited_s = now - self._began_at
        taken = {gpu: used for gpu, used in used_mib.items() if used > self._free_at(gpu)}
        if not taken:
            text = f"GPU memory is free after {waited_s:.2f} s: {self._each(used_mib)}"
            return Over(is_free=True, n_gpus=len(used_mib), text=text)
        some = list(taken.items())[:_SHOWN]
        shown = ", ".join(f"{gpu}: {used:.0f} MiB" for gpu, used in some)
        since = f"{waited_s:.1f} s after the ranks have ended"
        if waited_s >= self.timeout_s:
            free = {gpu: used for gpu, used in used_mib.items() if gpu not in taken}
            text = (
                f"GPU memory is still in use {since}: {self._each(taken)} (tolerance "
                f"{self.tolerance_mib:g} MiB)"
                f"{'; free: ' + self._each(free) if free else ''}; starting anyway"
            )
            return Over(is_free=False, n_gpus=len(used_mib), text=text)
        for gpu, used in taken.items():
            self._samples.setdefault(gpu, []).append((waited_s, used))
        seconds = min(self._next_s, self.poll_s, self.timeout_s - waited_s)
        self._next_s *= 2
        if self._is_reported or waited_s < _REPORT_AFTER_S:
            return Wait(seconds)
        self._is_reported = True
        return Wait(
            seconds,
            f"waiting for GPU memory, in use {since}: {shown}; at most {self.timeout_s:g} s "
            "(--ft-gpu-memory-reclaim-timeout)",
        )

    def _free_at(self, gpu: str) -> float:
        before = self.before_mib.get(gpu, 0.0)
        return self.tolerance_mib + (before if before > self.tolerance_mib else 0.0)

    def _each(self, used_mib: Mapping[str, float]) -> str:
        return "; ".join(
            f"{gpu}: {mib:.0f} MiB{self._before(gpu)}" for gpu, mib in used_mib.items()
        )

    def _before(self, gpu: str) -> str:
        """The first look at a GPU that was not free, and the last ones."""
        samples = self._samples.get(gpu, [])
        shown = [*samples[:1], *samples[1:][-_SAMPLES_LAST:]]
        if not shown:
            return ""
        return f" (before that {', '.join(f'{used:.0f} MiB at {at:.2f} s' for at, used in shown)})"
