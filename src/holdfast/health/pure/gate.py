"""Decide how a host is checked before it may have ranks, and when its ranks must end. Pure.

    launcher ── Asked ────────►  HealthGate  ── Ask ──►  health process (probes, health service,
             ◄─ Checked ───────              ◄─ Found ──                 GPU memory)
             ◄─ HostUnhealthy ─              ◄─ Noticed ── (periodically, without being asked)

One :class:`Checked` answers each :class:`Asked`, in bounded time, whatever becomes of the process:
a fact that is not known by then does not keep a node out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.base.pure.budget import Budget
from holdfast.base.pure.codec import Count
from holdfast.base.pure.common_events import Begin, Note, TimePassed
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.health.pure.health import Finding, Fitness, why_unfit

DEATHS = 3
DEATHS_PERIOD_S = 600.0
"""A health process that ends more often than this is not started again to watch."""


# ---------------------------------------------------------------- events
class Asked(Value):
    """The launcher wants to know; ``after_ranks``: GPU memory of ranks that ended is awaited."""

    after_ranks: bool


class Found(Value):
    """One fact, in answer to the question of this number."""

    number: Count
    finding: Finding


class Answered(Value):
    """That was all there is to say to the question of this number."""

    number: Count


class Noticed(Value):
    """A fact that the health process reports unasked."""

    finding: Finding


class HealthProcessDied(Value):
    """The health process has ended by itself, or could not be started."""

    how: str


Event = Begin | Asked | Found | Answered | Noticed | HealthProcessDied | TimePassed


# ---------------------------------------------------------------- effects
class Start(Value):
    """Start the health process."""


class Ask(Value):
    """Have it check this host, as a message to it; ``after_ranks``: when GPU memory is free."""

    number: Count
    after_ranks: bool


class KillHealthProcess(Value):
    """End it: it does not answer."""


class Checked(Value):
    """The answer; ``problem``: why this node must not have ranks."""

    problem: str | None


class HostUnhealthy(Value):
    """Ranks that run here can't be trusted to go on."""

    finding: Finding


Effect = Start | Ask | KillHealthProcess | Checked | HostUnhealthy | Note


@dataclass
class HealthGate:
    """One node's dealings with its health process; limits as in :class:`.HealthConfig`."""

    limit_s: float
    memory_limit_s: float = 0.0

    _is_running: bool = field(default=False, init=False)
    _number: int = field(default=0, init=False)
    _asked: Asked | None = field(default=None, init=False)
    """A question without an answer yet."""
    _deadline: float | None = field(default=None, init=False)
    _has_died: bool = field(default=False, init=False)
    """Since it was asked."""
    _findings: list[Finding] = field(default_factory=list, init=False)
    _said: dict[tuple[str, str], Fitness] = field(default_factory=dict, init=False)
    _deaths: Budget = field(default_factory=lambda: Budget(DEATHS, DEATHS_PERIOD_S), init=False)

    def next_deadline(self) -> float | None:
        """When :class:`TimePassed` would do something; None: never."""
        return self._deadline

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        effects: list[Effect] = []
        match event:
            case Begin():  # a question will come soon: the process gets ready meanwhile
                self._start(effects)
            case Asked():
                self._asked, self._has_died = event, False
                self._ask(now, effects)
            case Found(number, finding):
                if self._asked and number == self._number:
                    self._findings.append(finding)
                    self._say(finding, effects)
            case Answered(number):
                if self._asked and number == self._number:
                    self._answer(effects)
            case Noticed(finding):
                is_new = self._verdict(finding) is not finding.verdict
                self._say(finding, effects)
                if finding.verdict is Fitness.UNHEALTHY and is_new:
                    effects.append(HostUnhealthy(finding))
            case HealthProcessDied(how):
                self._on_death(how, now, effects)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        if self._deadline is not None and now >= self._deadline:
            self._give_up(now, effects)
        return effects

    # ------------------------------------------------------------ inside
    def _start(self, effects: list[Effect]) -> None:
        if not self._is_running:
            self._is_running = True
            effects.append(Start())

    def _ask(self, now: float, effects: list[Effect]) -> None:
        assert self._asked is not None
        self._start(effects)
        self._number += 1
        self._findings.clear()
        after_ranks = self._asked.after_ranks
        self._deadline = now + self.limit_s + (self.memory_limit_s if after_ranks else 0.0)
        effects.append(Ask(self._number, after_ranks))

    def _answer(self, effects: list[Effect]) -> None:
        self._asked = self._deadline = None
        problem = why_unfit(self._findings)
        if problem is None:  # ranks may run: a fault under them is reported again
            for thing in [thing for thing, is_ in self._said.items() if is_ is Fitness.UNHEALTHY]:
                del self._said[thing]
        effects.append(Checked(problem))

    def _on_death(self, how: str, now: float, effects: list[Effect]) -> None:
        self._is_running = False
        if self._asked is None:
            self._replace(how, now, effects)
        elif not self._has_died:
            self._has_died = True
            self._ask(now, effects)
        else:
            text = (
                f"checking this host ended twice without an answer ({how}); continuing without it"
            )
            effects.append(Note("warning", text))
            self._answer(effects)
            self._replace(how, now, effects)

    def _replace(self, how: str, now: float, effects: list[Effect]) -> None:
        """Start another, to watch while ranks run."""
        if self._deaths.take(now):
            self._start(effects)
        else:
            text = (
                f"the process that checks this host ended more than {DEATHS} times in "
                f"{DEATHS_PERIOD_S:.0f} s ({how}); faults of the host are not noticed while "
                "ranks run. The next check starts it again"
            )
            effects.append(Note("warning", text))

    def _give_up(self, now: float, effects: list[Effect]) -> None:
        self._is_running = False
        text = (
            "checking this host took too long, perhaps a driver or a file system hangs; continuing "
            "with the answers so far"
        )
        effects += [KillHealthProcess(), Note("warning", text)]
        self._answer(effects)
        self._replace("killed", now, effects)

    def _verdict(self, finding: Finding) -> Fitness | None:
        return self._said.get((finding.probe, finding.subject))

    def _say(self, finding: Finding, effects: list[Effect]) -> None:
        """Once, until it changes."""
        before = self._verdict(finding)
        self._said[finding.probe, finding.subject] = finding.verdict
        level = _LEVELS.get(finding.verdict)
        if level is not None and before is not finding.verdict:
            effects.append(Note(level, str(finding)))


_LEVELS = {Fitness.UNHEALTHY: "error", Fitness.SUSPECT: "warning", Fitness.UNKNOWN: "info"}
