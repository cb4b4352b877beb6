"""From the longest intervals that ranks measured to limits for all of them.

The rules are in ``watch/pure/learned.py``; here they meet the other ranks.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from holdfast.errors import TimeoutsCalcError
from holdfast.page.pure.clocks import Learned, Timeouts
from holdfast.page.pure.page import MAX_SECTIONS
from holdfast.watch.pure.learned import NEVER, OUTSIDE, learn, missing

__all__ = ["TimeoutsCalc", "TimeoutsCalcError"]

_FINGERPRINT_MASK = 0xFFFFFF  # 24 bits: what float32 carries exactly
_NO_GROUP = (
    "timeouts are calculated from the durations on all ranks, which needs the default process "
    "group; call torch.distributed.init_process_group() first"
)


@dataclass(kw_only=True, eq=False)
class TimeoutsCalc:
    """Longest intervals, in seconds; -1 where one has not been seen.

    Args:
        initial_max: From the start to the first heartbeat.
        subsequent_max: Between heartbeats.
        section_max: Per section, all configured ones.
        out_of_section_max: Outside all sections.
        safety_factor: A limit is this many times the longest interval ...
        floor_s: ... and not below this, ...
        given: ... nor below these.
        may_shorten: A limit may become shorter than the current one, see :func:`.learn`; after
            :meth:`merge_over_ranks` only if that is so on all ranks.
        machine: Number of up to 24 bits for the kind of machine; after :meth:`merge_over_ranks` 0
            if ranks have different ones.
    """

    initial_max: float = NEVER
    subsequent_max: float = NEVER
    section_max: dict[str, float] = field(default_factory=dict)
    out_of_section_max: float = NEVER
    safety_factor: float = 5.0
    floor_s: float = 0.0
    given: Timeouts = field(default_factory=Timeouts)
    may_shorten: bool = True
    machine: int = 0

    def merge_over_ranks(self) -> None:
        """Replace all intervals by the longest of any rank. A collective.

        Raises:
            TimeoutsCalcError: No process group, or the ranks have different sections.
            RuntimeError: The process group has neither gloo nor nccl, or the collective failed.
        """
        names = sorted(self.section_max)
        # Always equally many numbers: ranks that disagree must find out, not wait for ever.
        padding = [NEVER] * (MAX_SECTIONS - len(names))
        mark = float(zlib.crc32(json.dumps(names).encode()) & _FINGERPRINT_MASK)
        facts = [float(not self.may_shorten), float(self.machine), -float(self.machine)]
        mine = [self.initial_max, self.subsequent_max, self.out_of_section_max, mark, -mark, *facts]
        merged = max_over_ranks([*mine, *(self.section_max[name] for name in names), *padding])
        if (merged[3], merged[4]) != (mark, -mark):
            raise TimeoutsCalcError(
                f"the ranks of this job have different sections (this one: {names}); all nodes "
                "must use the same rank_section_timeouts"
            )
        self.initial_max, self.subsequent_max, self.out_of_section_max = merged[:3]
        self.may_shorten = not merged[5]
        self.machine = int(merged[6]) if merged[6] == -merged[7] else 0
        self.section_max = dict(zip(names, merged[len(mine) :], strict=False))

    def missing_for_heartbeats(self) -> list[str]:
        """Intervals that have not been measured yet; empty: ready."""
        wanted = {"first heartbeat": self.initial_max, "second heartbeat": self.subsequent_max}
        return [name for name, longest_s in wanted.items() if longest_s <= 0]

    def missing_for_sections(
        self, selected: Collection[str] | None = None, *, calc_out_of_section: bool = True
    ) -> list[str]:
        """Intervals that have not been measured yet; empty: ready.

        Raises:
            KeyError: A selected section is not configured.
        """
        lacking = missing(
            self.section_max,
            self.out_of_section_max,
            selected=selected,
            with_outside=calc_out_of_section,
        )
        return ["time outside sections" if n == OUTSIDE else f"section {n!r}" for n in lacking]

    def with_heartbeats(self, current: Timeouts) -> Timeouts:
        """The current limits, with those of heartbeats; call only where nothing is missing."""
        learned, given = current.learned, self.given
        initial = self._limit(
            self.initial_max,
            current.initial,
            given.initial,
            current_is_learned=learned.heartbeat,
        )
        subsequent = self._limit(
            self.subsequent_max,
            current.subsequent,
            given.subsequent,
            current_is_learned=learned.heartbeat,
        )
        is_new = (initial, subsequent) != (current.initial, current.subsequent)
        is_learned = learned.heartbeat or self.may_shorten or is_new
        return current.but(
            initial=initial, subsequent=subsequent, learned=learned.but(heartbeat=is_learned)
        )

    def with_sections(
        self,
        current: Timeouts,
        selected: Collection[str] | None = None,
        *,
        calc_out_of_section: bool = True,
    ) -> Timeouts:
        """The current limits, with those of sections; call only where nothing is missing.

        Args:
            current: Limits in force; those not asked for are kept.
            selected: Sections to calculate, ``None`` for all.
            calc_out_of_section: Calculate the limit outside sections, too.
        """
        names = list(self.section_max) if selected is None else selected
        before, learned = current.sections, current.learned
        sections = dict(before)
        for name in names:
            sections[name] = self._limit(
                self.section_max[name],
                sections.get(name),
                self.given.sections.get(name),
                current_is_learned=name in learned.sections,
            )
        outside = current.out_of_section
        if calc_out_of_section:
            outside = self._limit(
                self.out_of_section_max,
                outside,
                self.given.out_of_section,
                current_is_learned=learned.out_of_section,
            )
        fresh = {n for n in names if self.may_shorten or sections[n] != before.get(n)}
        is_outside_learned = (
            learned.out_of_section
            or (calc_out_of_section and self.may_shorten)
            or outside != current.out_of_section
        )
        return current.but(
            sections=sections,
            out_of_section=outside,
            learned=Learned(
                learned.heartbeat,
                is_outside_learned,
                tuple(sorted(fresh.union(learned.sections))),
            ),
        )

    def _limit(
        self,
        longest_s: float,
        current_s: float | None,
        given_s: float | None,
        *,
        current_is_learned: bool,
    ) -> float | None:
        return learn(
            longest_s,
            safety_factor=self.safety_factor,
            floor_s=self.floor_s,
            current_s=current_s,
            current_is_learned=current_is_learned,
            given_s=given_s,
            may_shorten=self.may_shorten,
        )


def max_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise maximum of ``values`` over all ranks of the default process group.

    A collective: every rank calls it, with equally many values. Carried out in float32, on the CPU
    where the group has gloo, else on the current CUDA device where it has nccl.

    Raises:
        TimeoutsCalcError: There is no default process group.
        RuntimeError: The process group has neither gloo nor nccl, or the collective failed.
    """
    # A program with a process group has imported this; others need not wait for torch.
    if "torch.distributed" not in sys.modules:
        raise TimeoutsCalcError(_NO_GROUP)
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if not (dist.is_available() and dist.is_initialized()):
        raise TimeoutsCalcError(_NO_GROUP)
    tensor = torch.tensor(values, dtype=torch.float32, device=_device(dist.get_backend_config()))
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    maxima: list[float] = tensor.tolist()
    return maxima


def _device(backend_config: str) -> str:
    """Where tensors for a group have to be; ``backend_config`` is like ``cpu:gloo,cuda:nccl``."""
    backends = {}
    for part in backend_config.split(","):
        device, _, backend = part.rpartition(":")
        backends[device or backend] = backend
    if "gloo" in (backends.get("cpu"), backends.get("gloo")):
        return "cpu"
    if "nccl" in (backends.get("cuda"), backends.get("nccl")):
        return "cuda"
    raise RuntimeError(
        f"timeouts can be calculated over gloo or nccl, the default process group has "
        f"{backend_config!r}"
    )
