"""Put the instants of several hosts on one axis of time. Pure.

Monotonic clocks of hosts are unrelated, and wall clocks may be wrong or be set meanwhile. But a
decision of the leader reaches all nodes within milliseconds, so that a cycle, and a call of a
function restarted in place, begin at one instant on all of them. These are the *marks*::

    host a, the axis   --m0---------------m1----m2--->
    host b                 --m0---------------m1----m2--->    is moved until all marks meet

Between two marks the difference is interpolated, as clocks drift; before the first and after the
last it is constant. So events of a host keep their order, and those before a mark on one host come
before it on all. Wall clocks place only hosts that have no mark in common with the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median_low

from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event

Mark = tuple[Hashable, ...]
Knot = tuple[float, float]
"""An instant on the clock of a host, and on the axis."""


class ClockMarks:
    """The clocks of one launcher, as its events show them.

    Args:
        host: Launchers for which this is equal share their monotonic clock.

    Attributes:
        began_at: Instant of the first event.
        offset_s: Wall time minus monotonic time when the launcher started.
        set_by_s: The most by which the wall clock was moved since then; also by a suspension.
        at: Instants that are the same on all nodes.
        without: Instants at which a cycle started without this node.
    """

    def __init__(self, host: Hashable) -> None:
        self.host = host
        self.began_at: float | None = None
        self.offset_s = 0.0
        self.set_by_s = 0.0
        self.at: dict[Mark, float] = {}
        self.without: dict[int, float] = {}
        self._cycle: Mark = ()

    def take(self, event: Event) -> None:
        """Take the next event."""
        t, wall, body = event.t, event.wall, event.body
        if wall is not None:
            if self.began_at is None or isinstance(body, schema.LauncherStarted):
                self.offset_s = wall - t
            elif abs(by_s := wall - t - self.offset_s) > abs(self.set_by_s):
                self.set_by_s = by_s
        if self.began_at is None:
            self.began_at = t
        match body:
            case schema.CycleJoined(master_port=port):  # it tells jobs with the same run id apart
                self._cycle = event.cycle, port
                self.at.setdefault(self._cycle, t)
            case schema.InPlaceRestart(call=call, entered_at=entered_at) if self._cycle:
                self.at.setdefault((*self._cycle, call), entered_at)
            case schema.StandingBy(without_us=cycle):
                self.without.setdefault(cycle, t)

    def knots(self, axis: Mapping[Mark, float]) -> list[Knot]:
        """Where the marks are, as far as that is known."""
        found = [(t, axis[mark]) for mark, t in self.at.items() if mark in axis]
        for cycle, t in self.without.items():
            starts = [at for mark, at in axis.items() if len(mark) == 2 and mark[0] == cycle]
            found += [(t, starts[0])] if len(starts) == 1 else []
        return found


class Axis:
    """The way from the monotonic clock of a host to the common axis.

    Args:
        knots: Marks, in any order; those that contradict an earlier one are passed over.

    Attributes:
        ahead_s: How far the wall clock of the host was ahead of the one that counts.
    """

    def __init__(self, knots: Iterable[Knot] = ()) -> None:
        self._knots: list[Knot] = []
        self.ahead_s = 0.0
        for knot in sorted(knots):
            last = self._knots[-1] if self._knots else None
            if last is None or (knot[0] > last[0] and knot[1] > last[1]):
                self._knots.append(knot)

    @property
    def is_moved(self) -> bool:
        """Instants on it differ from those of the host."""
        return bool(self._knots)

    def at(self, t: float) -> float:
        """An instant of the host, on the axis. Order is kept."""
        if not self._knots:
            return t
        after = bisect_right(self._knots, (t, float("inf")))
        there, here = self._knots[max(0, after - 1)]
        if not 0 < after < len(self._knots):
            return here + (t - there)
        there_next, here_next = self._knots[after]
        return here + (t - there) * ((here_next - here) / (there_next - there))


def on_one_axis(nodes: Sequence[ClockMarks]) -> tuple[list[Axis], float]:
    """The axis of each node, and the difference from it to seconds since 1970.

    The axis is the clock of the host with the most marks. The wall clock that counts is the one in
    the middle, of two hosts the one that is behind.
    """
    if not nodes:
        return [], 0.0
    base, *waiting = sorted(_hosts(nodes), key=lambda host: -len(host.at))
    axes = {base.host: Axis()}
    leads = {base.host: base.offset_s}
    known = dict(base.at)
    offset_s: float | None = None
    while waiting:
        met = ((k, knots) for k, host in enumerate(waiting) if (knots := host.knots(known)))
        k, knots = next(met, (0, []))
        host = waiting.pop(k)
        if knots:
            lead = median_low(host.offset_s + there - here for there, here in knots)
            leads.setdefault(host.host, lead)
        else:  # all others are where they belong
            offset_s = median_low(leads.values()) if offset_s is None else offset_s
            began_at = host.began_at or 0.0
            knots = [(began_at, began_at + host.offset_s - offset_s)]
        axes[host.host] = Axis(knots)
        for mark, t in host.at.items():
            known.setdefault(mark, axes[host.host].at(t))
    if offset_s is None:
        offset_s = median_low(leads.values())
    for name, lead in leads.items():
        axes[name].ahead_s = lead - offset_s
    return [axes[node.host] for node in nodes], offset_s


def _hosts(nodes: Iterable[ClockMarks]) -> Iterable[ClockMarks]:
    """The marks of all launchers of each host together."""
    hosts: dict[Hashable, ClockMarks] = {}
    for node in sorted(nodes, key=lambda node: node.began_at or 0.0):
        if (host := hosts.get(node.host)) is None:
            host = hosts[node.host] = ClockMarks(node.host)
            host.began_at, host.offset_s = node.began_at, node.offset_s
        for mark, t in node.at.items():
            host.at[mark] = min(t, host.at.get(mark, t))
        host.without.update(node.without)
    return hosts.values()
