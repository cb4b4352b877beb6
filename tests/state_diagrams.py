"""State diagrams of docs/state-machines.md: ``python -m tests.state_diagrams`` draws them again.

The arrows are not written down anywhere: they are the transitions that machines made in simulated
jobs with faults, with the events that led to them. A test holds that none is missing.
"""

from __future__ import annotations

import enum
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.sax.saxutils import escape

from holdfast.job.pure import cycles, leader, member
from holdfast.node.pure import node
from holdfast.watch.pure import layered_restart
from tests.simulation.simulate import simulate

FOLDER = Path(__file__).parents[1] / "docs" / "_static"
SEEDS, NODES = 800, 4
Arrows = Mapping[tuple[str, str], set[str]]
"""Names of two states, and of the events that lead from the one to the other."""
MACHINES: Mapping[str, tuple[type, type, type[enum.Enum]]] = {
    "leader": (leader.Leader, cycles.JobCycles, cycles.JobPhase),
    "member": (member.Member, member.Member, member.MemberPhase),
    "node": (node.Node, node.Node, node.NodePhase),
}
"""Each handles events; it or its part is in one of these states."""
STATES = {
    **{name: [state.value for state in states] for name, (*_, states) in MACHINES.items()},
    "restarts": [state.name.lower() for state in layered_restart.RankMonitorState],
}
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
_ARROW_HEAD = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>'
)
WIDTH, HEIGHT, GAP = 190, 34, 62
"""Of a box, and between two boxes; pixels."""
LANE, BARE_LANE = 165, 30
"""Width of the room for an arrow that passes other states, with and without the names of events."""


def from_table() -> Arrows:
    """The states of a restart, for which there is a table."""
    return {
        (state.name.lower(), following.name.lower()): set()
        for state, after in layered_restart.TRANSITIONS.items()
        for following in after
        if following is not state
    }


def observed(seeds: range) -> dict[str, Arrows]:
    """The transitions of all machines in simulated jobs."""
    seen: dict[str, dict[tuple[str, str], set[str]]] = {name: defaultdict(set) for name in MACHINES}
    with watched(seen):
        for seed in seeds:
            simulate(seed, NODES)
    return {**seen, "restarts": from_table()}


@contextmanager
def watched(seen: Mapping[str, dict[tuple[str, str], set[str]]]) -> Iterator[None]:
    """While this is open, machines write their transitions down."""
    handled: list[str] = []

    def patches(name: str, machine: Any, part: Any) -> Iterator[Any]:
        plain, handle = part.__setattr__, machine.handle

        def set_attribute(self: Any, attribute: str, value: Any) -> None:
            old = getattr(self, "phase", None)
            if attribute == "phase" and old is not None and old is not value and handled:
                seen[name][old.value, value.value].add(handled[-1])
            plain(self, attribute, value)

        def noted(self: Any, event: Any, now: float) -> Any:
            inner = getattr(event, "message", getattr(event, "decision", event))
            handled.append(type(inner).__name__)
            try:
                return handle(self, event, now)
            finally:
                handled.pop()

        yield patch.object(part, "__setattr__", set_attribute)
        yield patch.object(machine, "handle", noted)

    active = [each for name, (*both, _) in MACHINES.items() for each in patches(name, *both)]
    for each in active:
        each.start()
    try:
        yield
    finally:
        for each in reversed(active):
            each.stop()


# ---------------------------------------------------------------- drawing
def lanes(spans: list[tuple[int, int]]) -> list[int]:
    """A lane for each arrow, so that those in one lane do not meet."""
    taken: list[list[tuple[int, int]]] = []
    found = []
    for low, high in spans:
        free = (
            number
            for number, others in enumerate(taken)
            if all(high <= begin or end <= low for begin, end in others)
        )
        if (lane := next(free, len(taken))) == len(taken):
            taken.append([])
        taken[lane].append((low, high))
        found.append(lane)
    return found


def draw(states: list[str], arrows: Arrows) -> str:
    """States from top to bottom; arrows down on the right, up on the left."""
    lane = LANE if any(arrows.values()) else BARE_LANE
    rank = {state: number for number, state in enumerate(states)}
    near = [pair for pair in arrows if rank[pair[1]] == rank[pair[0]] + 1]
    far = sorted(set(arrows) - set(near), key=lambda pair: abs(rank[pair[0]] - rank[pair[1]]))
    sides = {
        side: [pair for pair in far if (rank[pair[1]] > rank[pair[0]]) == (side == 1)]
        for side in (1, -1)
    }
    placed = {}
    for pairs in sides.values():
        spans = [(min(rank[a], rank[b]), max(rank[a], rank[b])) for a, b in pairs]
        placed.update(zip(pairs, lanes(spans), strict=True))
    left = lane * (1 + max((placed[pair] for pair in sides[-1]), default=-1)) + 30
    right = lane * (1 + max((placed[pair] for pair in sides[1]), default=0)) + 30
    middle = left + WIDTH / 2
    width, height = left + WIDTH + right, len(states) * (HEIGHT + GAP) - GAP + 8

    def top(state: str) -> float:
        return 4 + rank[state] * (HEIGHT + GAP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        _ARROW_HEAD,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<g font-family="{_FONT}" font-size="11" fill="#57606a">',
    ]
    labels: list[str] = []
    for pair, events in sorted(arrows.items()):
        begin, end = pair
        if pair in near:
            x, y = middle, top(begin) + HEIGHT
            path = f"M{x} {y} V{top(end) - 2}"
            labels += _label(events, x + 8, y + GAP / 2)
        else:
            side = 1 if rank[end] > rank[begin] else -1
            edge = middle + side * WIDTH / 2
            x = edge + side * (24 + lane * placed[pair])
            out, back = top(begin) + HEIGHT * 0.68, top(end) + HEIGHT * 0.32
            path = f"M{edge} {out} H{x} V{back} H{edge + side * 2}"
            anchor = "start" if side == 1 else "end"
            labels += _label(events, x + side * 6, (out + back) / 2, anchor)
        parts.append(
            f'<path d="{path}" data-arrow="{begin}>{end}" fill="none" stroke="#57606a" '
            'marker-end="url(#end)"/>'
        )
    parts += ['<g stroke="#fff" stroke-width="4" paint-order="stroke">', *labels, "</g>"]
    parts.append(f'</g><g font-family="{_FONT}" font-size="14" text-anchor="middle">')
    for state in states:
        box = f'x="{left}" y="{top(state)}" width="{WIDTH}" height="{HEIGHT}" rx="8"'
        parts += [
            f'<rect {box} fill="#ddf4ff" stroke="#0969da"/>',
            f'<text x="{middle}" y="{top(state) + 22}">{escape(state.replace("_", " "))}</text>',
        ]
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _label(events: set[str], x: float, y: float, anchor: str = "start") -> Iterator[str]:
    rows = textwrap.wrap(", ".join(sorted(events)), 22)
    for number, row in enumerate(rows):
        at = y + 4 + 13 * (number - (len(rows) - 1) / 2)
        yield f'<text x="{x}" y="{at}" text-anchor="{anchor}">{row}</text>'


def main() -> None:
    """Draw all."""
    for name, arrows in observed(range(SEEDS)).items():
        (FOLDER / f"states-{name}.svg").write_text(draw(STATES[name], arrows), encoding="utf-8")


if __name__ == "__main__":
    main()
