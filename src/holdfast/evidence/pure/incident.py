"""Words for one hung rank: a line for the log, and a report, from the fields of its JSON. Pure."""

from __future__ import annotations

from holdfast.base.pure.wording import count
from holdfast.page.pure import clocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_OPTION = {
    clocks.INITIAL_HEARTBEAT: "--ft-initial-rank-heartbeat-timeout",
    clocks.HEARTBEAT: "--ft-rank-heartbeat-timeout",
    clocks.SECTION: "--ft-rank-section-timeouts",
    clocks.OUTSIDE_SECTIONS: "--ft-rank-out-of-section-timeout",
    clocks.EXIT: "--ft-exit-timeout",
    clocks.STEP: "--ft-auto-heartbeat-floor",
    clocks.PAUSE: "--ft-auto-heartbeat-floor",
    clocks.FIRST_REPORT: "--ft-first-call-timeout",
}
_TEN_S = 10.0


def seconds(value: float) -> str:
    """A duration as people read it: ``312.4 s``, ``0.25 s``."""
    return f"{value:.1f} s" if value >= _TEN_S else f"{value:.2f} s"


def describe_clock(record: Mapping[str, Any]) -> str:
    """Which clock, how old, and how old it may become.

    Args:
        record: Has the fields of ``monitor_messages.Overdue``.
    """
    age = seconds(record["age_s"])
    text = {
        clocks.INITIAL_HEARTBEAT: f"Did not get initial heartbeat for {age}",
        clocks.HEARTBEAT: f"Did not get subsequent heartbeat for {age}",
        clocks.SECTION: f"Section '{record['name']}' has been open for {age}",
        clocks.OUTSIDE_SECTIONS: f"Was out of section for {age}",
        clocks.STEP: f"Has made no optimizer step for {age}",
        clocks.PAUSE: f"Has made no optimizer step for {age}",
        clocks.EXIT: f"Its process has run on for {age} since it left its monitor",
        clocks.FIRST_REPORT: "Has not called init_workload_monitoring() for "
        f"{age} since another rank did",
    }[record["clock"]]
    return f"{text}, timeout {seconds(record['limit_s'])}"


def advice(record: Mapping[str, Any]) -> str:
    """The option to change if the rank was just slow."""
    if record["learned"]:
        return "The timeout was learned from this job; the next one will be at least twice as long"
    twice = f"{2.0 * record['limit_s']:.6g}"
    value = twice if record["name"] is None else f"{record['name']}:{twice}"
    return f"To allow longer: {_OPTION[record['clock']]} {value}"


def named(record: Mapping[str, Any]) -> str:
    """The rank, in the words used everywhere."""
    return f"rank {record['rank']} (pid {record['pid']}, node {record['node']})"


def described(record: Mapping[str, Any]) -> str:
    """Whether it hangs, or only waits for one that does; completes "rank 3"."""
    return str(record.get("is") or "is hung")


def report(record: Mapping[str, Any], stacks: str) -> str:
    """The text of an incident. ``record`` has the fields of its JSON."""
    return "\n".join(
        [
            f"{named(record)} {described(record)}: {describe_clock(record)}.",
            "",
            f"time            {record['time']}",
            f"cycle           {record['cycle']}",
            f"local rank      {record['local_rank']}",
            f"iteration       {_or_unknown(record['iteration'], 'not reported')}",
            f"open sections   {_sections(record['open_sections'])}",
            f"process         {_process(record['process'])}",
            f"evidence        {_evidence(record)}",
            *_listed("collectives", record.get("operations", ())),
            *_listed("done", record["actions"]),
            "",
            advice(record) + ".",
            "",
            stacks.rstrip() or f"No stacks: {record['why_not']}.",
            "",
        ]
    )


def sight(record: Mapping[str, Any], stacks: str) -> str:
    """The text of a rank that was looked at because another one is hung; its digest's fields."""
    section = record["section"]
    state = f"state {record['state'] or '?'}"
    state += f" in {record['wchan']}" if record["wchan"] else ""
    return "\n".join(
        [
            f"{named(record)} was inspected: {record['overdue'] or 'it has not timed out'}.",
            "",
            f"time            {record['time']}",
            f"cycle           {record['cycle']}",
            f"iteration       {_or_unknown(record['iteration'], 'not reported')}",
            f"open section    {section} for {seconds(record['section_s'])}"
            if section
            else "open section    none",
            f"process         {state}",
            f"missing         {record['lacks'] or 'nothing'}",
            *_listed("collectives", record["operations"]),
            "",
            stacks.rstrip() or "No stacks.",
            "",
        ]
    )


def _listed(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{'' if at else label:<16}{line}" for at, line in enumerate(lines)]


def _or_unknown(value: Any, unknown: str) -> str:
    return unknown if value is None else str(value)


def _sections(sections: Mapping[str, float]) -> str:
    if not sections:
        return "none"
    return ", ".join(f"{name} for {seconds(age_s)}" for name, age_s in sections.items())


def _process(state: Mapping[str, Any] | None) -> str:
    if state is None:
        return "gone"
    asleep = f" in {state['wchan']}" if state["wchan"] else ""
    mib = state["rss_kib"] / 1024
    return (
        f"state {state['state']}{asleep}, {count(state['threads'], 'thread')}, {mib:.0f} MiB "
        "resident"
    )


def _evidence(record: Mapping[str, Any]) -> str:
    stopped = "; the rank was stopped (SIGSTOP?)" if record["was_stopped"] else ""
    if record["why_not"] is not None:
        return f"no stacks: {record['why_not']}{stopped}"
    return f"stacks in {record['stacks']}, took {seconds(record['took_s'])}{stopped}"
