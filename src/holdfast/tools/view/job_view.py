"""A job at one instant, as live views show it: its nodes and ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1
WAITING = "waiting"
"""State of no job: none has begun."""
OVER = (WAITING, "succeeded", "failed", "gone")
"""States that nothing follows."""


@dataclass
class RankView:
    """One rank. Seconds; ``None``: not known, or there is none.

    Attributes:
        ``rank``, ``node``, ``local_rank``, ``pid``: which one.
        ``state``: ``running``, ``overdue``, ``completed``, ``failed``; ``gone`` with its launcher.
        ``section``, ``section_age_s``, ``section_limit_s``: the open section that is nearest to its
            timeout, since when it is open, its timeout.
        ``heartbeat_age_s``, ``heartbeat_limit_s``: since the last heartbeat; its timeout.
        ``used``: the largest share of a timeout that is over; 1: it has run out.
        ``iteration``, ``per_s``: of the training; iterations, or optimizer steps, per second, of a
            live view alone: one look shows none.
        ``steps``, ``step_age_s``, ``step_limit_s``: optimizer steps in this cycle, of a rank that
            reports nothing else; of one that is watched by steps at present: since its last
            progress, the time after which a stall is reported.
        ``slow``: null, or ``[section, factor]``: so many times the median of all ranks ([slow
            ranks](#slow-ranks)).
    """

    rank: int
    node: str
    local_rank: int
    pid: int | None = None
    state: str = "running"
    section: str | None = None
    section_age_s: float | None = None
    section_limit_s: float | None = None
    heartbeat_age_s: float | None = None
    heartbeat_limit_s: float | None = None
    used: float | None = None
    iteration: int | None = None
    per_s: float | None = None
    slow: tuple[str, float] | None = None
    steps: int | None = None
    step_age_s: float | None = None
    step_limit_s: float | None = None


@dataclass
class NodeView:
    """One node.

    Attributes:
        state: ``running``, ``restarting``, ``spare``, ``succeeded``, ``failed`` or ``gone``.
        is_here: Its ranks can be looked at.
        run_dir: Its run folder.
    """

    node: str
    state: str
    cycle: int
    is_here: bool
    run_dir: str


@dataclass
class JobView:
    """A job; :meth:`as_json` describes its fields."""

    name: str = ""
    run_id: str = ""
    wall: float = 0.0
    age_s: float = 0.0
    restarts: int = 0
    restarts_left: int | None = None
    nodes: list[NodeView] = field(default_factory=list)
    ranks: list[RankView] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    restarts_in_place: int = 0
    verdict: dict[str, Any] | None = None
    history: list[tuple[float, float | None]] = field(default_factory=list)
    snapshots: dict[str, Any] | None = None

    @property
    def state(self) -> str:
        """Of the job: the first of these that one of its nodes is in; ``waiting``: for a run."""
        if not self.nodes:
            return WAITING
        states = {node.state for node in self.nodes}
        order = ("restarting", "running", "failed", "gone", "spare", "succeeded")
        return next((state for state in order if state in states), "gone")

    def as_json(self) -> dict[str, Any]:
        """For programs; docs/live-views.md is made from this list.

        Fields:
            ``schema_version``: 1.
            ``name``, ``run_id``: script; ``--rdzv-id``.
            ``state``: of the job: the first of ``restarting``, ``running``, ``failed``, ``gone``,
                ``spare``, ``succeeded`` that a node is in; ``waiting``: there is no run yet.
            ``wall``, ``age_s``: when this was seen, since 1970; since the first launcher started,
                until now or the end of the job.
            ``restarts``, ``restarts_left``: so far; when a cycle was last over.
            ``restarts_in_place``: so far, of the function ([in place](inprocess.md)).
            ``nodes``: all whose folders were given: ``node``, ``state`` (as above; ``gone``: its
                launcher was killed), ``cycle`` (the latest; -1: none yet), ``is_here`` (its ranks
                can be inspected), ``run_dir``.
            ``ranks``: of the latest cycle, in order.
            ``incidents``: hangs, the newest last: ``path`` of the [incident.json](incidents.md),
                ``node``, ``cycle``, ``wall``, ``kind``, ``culprits``, ``reason``.
            ``events``: the newest 200, the newest last: ``wall``, ``node``, ``text``.
            ``snapshots``: null where the job takes [none](snapshots.md), or ``step`` of the newest
                that all ranks have, ``age_s``, ``every`` (one step of so many; 0: not agreed),
                ``taken`` and ``seconds`` (so many, and their cost, of one rank in all cycles),
                ``off`` (why there are none; empty: there are); ``kept_step``, ``kept_age_s``: of
                the [kept step](snapshots.md#lost-nodes), null: there is none; ``copies``: of each
                node that keeps steps, ``node``, ``peer`` (that gets its copies), ``step`` and
                ``age_s`` (of the newest copy), ``why`` (a later one failed; empty: none did).
            ``verdict``: null, or the last failure: ``cycle``, ``wall``, ``ranks`` at fault,
                ``text``, ``path`` of its incident.json (null: a crash has none).
            ``history``: at most 60 pairs: begin of a span of time, since 1970, and the median of
                ``per_s`` in it, or null.
        """
        return {"schema_version": SCHEMA_VERSION, "state": self.state, **asdict(self)}
