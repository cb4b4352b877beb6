"""The tables of the pages that the code has, too: ``python -m tests.tables`` writes them again.

A test compares each with its page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.base import facts
from holdfast.events.pure.schema import KINDS
from holdfast.fault_tolerance.config import SETTINGS
from holdfast.options.arguments import parse_args
from holdfast.options.help import show
from holdfast.options.option import GROUPS, Option
from holdfast.options.options import OPTIONS, default_of
from holdfast.options.plan import make_plan
from holdfast.options.values import NOT_YET
from holdfast.tools.doctor.faults import faults_of

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = (
    "--nnodes 2:3 --nproc-per-node 8 --max-restarts 3 --rdzv-endpoint node0:29500 "
    "--ft-rank-section-timeouts step:60 --ft-checkpoint-iteration-file /data/iteration"
)
"""The job whose faults docs/failure-model.md lists."""


EVIDENCE = (
    (
        "its incident records what every rank of the job does: stacks of all threads, state in "
        "/proc, open sections, collectives (within 1 s), then SIGKILL"
    ),
    "an incident with the evidence of all ranks, then SIGKILL",
)
"""Words of the doctor, and those of a page that links to docs/incidents.md."""


def faults() -> list[str]:
    """Rows of docs/failure-model.md."""
    plan = make_plan(parse_args([*EXAMPLE.split(), __file__], {}), {}, facts)
    return [
        f"| {fault.name} | {fault.noticed} | {fault.then.replace(*EVIDENCE)} | "
        f"{'-' if fault.exit_code is None else fault.exit_code} |"
        for fault in faults_of(plan)
    ]


def cell(text: str) -> str:
    """Text within a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def options(group: str) -> list[str]:
    """Rows of docs/options.md: the options of a group that have an effect.

    With the reason for an empty default, which says what it means; --help-all has all reasons.
    """
    return [
        f"| {code(each.name)}{f', `{each.short}`' if each.short else ''} | "
        f"{code(each.kind.unit) if each.kind else ''} | {_default(each)} | "
        f"{cell(each.help)}{'' if _default(each) or not each.why else f' ({cell(each.why)})'} |"
        for each in OPTIONS
        if each.group == group and each.has_effect
    ]


def _default(option: Option) -> str:
    shown = show(default_of(option), option.kind) if option.kind else ""
    return "" if shown in ("null", "none") else code(shown)


def fields() -> list[str]:
    """Rows of docs/yaml.md: the fields that have an effect, by group of their options."""
    groups: dict[str, list[str]] = {}
    for each in OPTIONS:
        if each.field and each.has_effect:
            groups.setdefault(each.group, []).append(f"`{each.field}`")
    return [f"| {group} | {', '.join(names)} |" for group, names in groups.items()]


def idle_fields() -> list[str]:
    """Rows of docs/yaml.md: the fields without effect, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, each in SETTINGS.items():
        if each.idle:
            reasons.setdefault(_no_effect(each.idle), []).append(f"`{name}`")
    return [f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()]


def _no_effect(idle: str) -> str:
    return "not in this release" if idle == NOT_YET else idle


def idle_options(*, later: bool) -> list[str]:
    """Rows of docs/environment.md: options without effect, by reason."""
    reasons: dict[str, list[str]] = {}
    for each in OPTIONS:
        if each.idle and (each.idle == NOT_YET) == later:
            reasons.setdefault(_no_effect(each.idle), []).append(f"`{each.name}`")
    return [f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()]


def events() -> list[str]:
    """Rows of docs/run-folder.md: every kind of event, from the docstring of its record.

    Fields that a kind before has are named by that kind.
    """
    first: dict[str, str] = {}
    rows = []
    for kind, record in KINDS.items():
        fields = _fields(record)
        before = first.setdefault(fields, kind)
        shown = f"as `{before}`" if before != kind and "(" in fields else fields
        rows.append(f"| `{kind}` | {cell(_summary(record))} | {cell(shown)} |")
    return rows


def _summary(record: type[object]) -> str:
    """Up to its attributes, as part of a row."""
    text = inspect.cleandoc(record.__doc__ or "").partition("Attributes:")[0]
    words = " ".join(text.split()).replace("``", "`").removesuffix(".")
    return _within(words)


def _within(sentence: str) -> str:
    """As part of a row; names stay in capitals."""
    is_name = sentence[1:2].isupper()
    return sentence if is_name else f"{sentence[:1].lower()}{sentence[1:]}"


def _fields(record: type[object]) -> str:
    texts: dict[str, str] = {}
    for each in reversed(record.__mro__):
        _, _, attributes = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")
        for text in re.split(r"\n(?= {4}\w)", f"\n{attributes}")[1:]:
            name, _, words = " ".join(text.split()).partition(": ")
            words = words.removesuffix(".").replace("``", "`")
            texts[name] = f" ({_within(words)})"
    names = [name for name in record.__match_args__ if name != "cycle"]  # that of every event
    return ", ".join(f"`{name}`{texts.get(name, '')}" for name in names)


TABLES: Mapping[tuple[str, str], list[str]] = {
    ("failure-model.md", "| fault | noticed by | then | exit code |"): faults(),
    ("run-folder.md", "| kind | when | fields |"): events(),
    ("environment.md", "| option | why |"): idle_options(later=False),
    ("environment.md", "| options | effect |"): idle_options(later=True),
    ("yaml.md", "| options | keys |"): fields(),
    ("yaml.md", "| keys | without effect |"): idle_fields(),
    **{
        ("options.md", f"| {group} | value | default | effect |"): options(group)
        for group in GROUPS
        if options(group)
    },
}
"""By page and head of the table.

Written by hand: docs/exit-codes.md, whose rows have links, and variables in docs/environment.md.
"""


def rows_of(page: str, head: str) -> list[str]:
    """The rows of a table as the page has them."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    first = lines.index(head) + 2
    last = next((at for at in range(first, len(lines)) if lines[at][:1] != "|"), len(lines))
    return lines[first:last]


def main() -> None:
    """Write every table into its page."""
    for (page, head), rows in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        rule = text[text.index(head) :].splitlines()[1]
        before = "\n".join([head, rule, *rows_of(page, head)])
        (DOCS / page).write_text(text.replace(before, "\n".join([head, rule, *rows])))


if __name__ == "__main__":
    main()
