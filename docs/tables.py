"""Tables of the pages that follow from the code, written when the site is built (``docs/conf.py``).

A page has three lines in the place of a table:

    ```{from-code} events
    ```

so each sentence has one source: the help of an option, the docstring of a record, the list of exit
codes. ``python -m docs.tables NAME`` prints a table, without a name all.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from holdfast.base import facts
from holdfast.events.pure.schema import KINDS
from holdfast.events.run.accounts import ACCOUNTS, MEANINGS
from holdfast.evidence.pure.evidence import NONE, UNKNOWN
from holdfast.evidence.pure.verdict import RULES
from holdfast.fault_tolerance.config import SETTINGS
from holdfast.job.pure.exit_codes import Ending
from holdfast.options.arguments import parse_args
from holdfast.options.help import show
from holdfast.options.option import GROUPS, Option
from holdfast.options.options import OPTIONS, default_of
from holdfast.options.plan import make_plan
from holdfast.options.values import NOT_YET
from holdfast.options.variables import IDLE_VARIABLES, VARIABLES
from holdfast.testing.inject import Fault
from holdfast.tools.chaos.command import chaos_parser
from holdfast.tools.doctor.faults import faults_of
from holdfast.tools.log_lines import EXPLANATIONS
from holdfast.tools.observer.metric_table import METRICS

ROOT = Path(__file__).parents[1]
EXAMPLE = (
    "--nnodes 2:3 --nproc-per-node 8 --max-restarts 3 --rdzv-endpoint node0:29500 "
    "--ft-rank-section-timeouts step:60 --ft-checkpoint-iteration-file /data/iteration"
)
"""The job whose faults docs/failure-model.md lists."""
UNDECIDED = ("None of these.", f"`{UNKNOWN}`", NONE)
"""After all rules of a hang."""
EVIDENCE = (
    (
        "its incident records what every rank of the job does: stacks of all threads, state in "
        "/proc, open sections, collectives (within 1 s), then SIGKILL"
    ),
    "an incident with the evidence of all ranks, then SIGKILL",
)
"""Words of the doctor, and those of a page that links to docs/incidents.md."""
LINKS = {
    "health checks": "health.md",
    "WorkloadAction": "api-launch.md",
}
"""In the table of exit codes."""
_FLAG = re.compile(r"(?<![\w`-])(--[a-z][\w-]*|min-healthy|WorkloadAction\.\w+)")
MARK = re.compile(r"^```\{from-code\} (.*)\n```$", re.MULTILINE)

Rows = Iterable[tuple[str, ...]]


def table(head: tuple[str, ...], rows: Rows, right: str = "") -> list[str]:
    """As Markdown; ``right``: the column whose numbers are aligned."""
    rule = "|".join("--:" if name and name == right else "---" for name in head)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], f"|{rule}|", *lines[1:]]


def cell(text: str) -> str:
    """Text within a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """As code; nothing for no text."""
    return f"`{cell(text)}`" if text else ""


def names(text: str) -> str:
    """``A, B`` as two pieces of code."""
    return ", ".join(map(code, text.split(", ")))


# ---------------------------------------------------------------- options and variables
def options(group: str) -> list[str]:
    """The options of a group that have an effect.

    With the reason for an empty default, which says what it means; --help-all has all reasons.
    """
    rows = (
        (
            f"{code(each.name)}{f', `{each.short}`' if each.short else ''}",
            code(each.kind.unit) if each.kind else "",
            _default(each),
            f"{cell(each.help)}{'' if _default(each) or not each.why else f' ({cell(each.why)})'}",
        )
        for each in OPTIONS
        if each.group == group and each.has_effect
    )
    return table((group, "value", "default", "effect"), rows)


def has_effect(group: str) -> bool:
    """Whether an option of the group has."""
    return any(each.group == group and each.has_effect for each in OPTIONS)


def _default(option: Option) -> str:
    shown = show(default_of(option), option.kind) if option.kind else ""
    return "" if shown in ("null", "none") else code(shown)


def fields() -> list[str]:
    """The fields of the YAML file that have an effect, by group of their options."""
    groups: dict[str, list[str]] = {}
    for each in OPTIONS:
        if each.field and each.has_effect:
            groups.setdefault(each.group, []).append(f"`{each.field}`")
    return table(("options", "keys"), ((group, ", ".join(each)) for group, each in groups.items()))


def _by_reason(reasons: Iterable[tuple[str, str]], head: tuple[str, str]) -> list[str]:
    found: dict[str, list[str]] = {}
    for name, reason in reasons:
        text = "not in this release" if reason == NOT_YET else reason
        found.setdefault(text, []).append(code(name))
    return table(head, ((", ".join(each), cell(reason)) for reason, each in found.items()))


def idle_fields() -> list[str]:
    """The fields of the YAML file without effect."""
    idle = ((name, each.idle) for name, each in SETTINGS.items() if each.idle)
    return _by_reason(idle, ("keys", "without effect"))


def idle_options(*, later: bool) -> list[str]:
    """Options without effect."""
    idle = (
        (each.name, each.idle) for each in OPTIONS if each.idle and (each.idle == NOT_YET) == later
    )
    return _by_reason(idle, ("option", "why"))


def variables(group: str) -> list[str]:
    """Environment variables that count in one place."""
    rows = ((names(each), cell(effect)) for each, effect in VARIABLES[group].items())
    return table(("variable", "effect"), rows)


# ---------------------------------------------------------------- faults and exit codes
def faults() -> list[str]:
    """As the doctor lists them for the example."""
    plan = make_plan(parse_args([*EXAMPLE.split(), __file__], {}), {}, facts)
    rows = (
        (
            fault.name,
            fault.noticed,
            fault.then.replace(*EVIDENCE),
            "-" if fault.exit_code is None else str(fault.exit_code),
        )
        for fault in faults_of(plan)
    )
    return table(("fault", "noticed by", "then", "exit code"), rows, right="exit code")


def exit_codes() -> list[str]:
    """Every way in which a launcher ends."""
    rows = (
        (str(ending.code()), _linked(_FLAG.sub(r"`\1`", ending.happened)), ending.again)
        for ending in Ending
    )
    return table(("code", "this launcher, or its job", "start again?"), rows, right="code")


def _linked(text: str) -> str:
    for words, page in LINKS.items():
        text = re.sub(rf"`({words}[^`]*)`|\b({words})\b", rf"[\g<0>]({page})", text, count=1)
    return text


def metrics() -> list[str]:
    """Each metric, as the observer serves it."""
    rows = (
        (code(f"holdfast_{name}"), names(", ".join(each.labels)), cell(each.text))
        for name, each in METRICS.items()
    )
    return table(("metric", "labels", "meaning"), rows)


# ---------------------------------------------------------------- hangs and lines of the log
def rules() -> list[str]:
    """How the culprit of a hang is found, in order: the docstrings of the rules."""
    rows = []
    for rule in RULES:
        text = " ".join(_docstring(rule).split()).replace("``", "`")
        when, _, verdict = text.partition(" Kind: ")
        kind, _, confidence = verdict.removesuffix(".").partition(". Confidence: ")
        rows.append((cell(when), kind, confidence))
    return table(("rule", "`kind`", "`confidence`"), [*rows, UNDECIDED])


def messages(subject: str) -> list[str]:
    """As ``holdfast explain`` has them."""
    rows = (
        (
            ", ".join(map(code, each.phrases)),
            cell(_FLAG.sub(r"`\1`", each.meaning))
            + (f" ([more]({each.page}))" if each.page else ""),
        )
        for each in EXPLANATIONS[subject]
    )
    return table(("the line has", "what happened; what to do"), rows)


# ---------------------------------------------------------------- records and their fields
def events() -> list[str]:
    """Every kind of event, from the docstring of its record.

    Fields that a kind before has are named by that kind.
    """
    first: dict[str, str] = {}
    rows = []
    for kind, record in KINDS.items():
        shown = _of_event(record)
        before = first.setdefault(shown, kind)
        if before != kind and "(" in shown:
            shown = f"as `{before}`"
        rows.append((code(kind), cell(_summary(record)), cell(shown)))
    return table(("kind", "when", "fields"), rows)


def _of_event(record: type[object]) -> str:
    texts: dict[str, str] = {}
    for each in reversed(record.__mro__):
        texts |= {name: f" ({_within(text)})" for name, text in documented(each)}
    match_args: tuple[str, ...] = getattr(record, "__match_args__", ())
    own = [name for name in match_args if name != "cycle"]  # that of every event
    return ", ".join(f"`{name}`{texts.get(name, '')}" for name in own)


def _summary(record: object) -> str:
    """Up to its attributes, as part of a row."""
    text = inspect.cleandoc(record.__doc__ or "").partition("Attributes:")[0]
    return _within(" ".join(text.split()).replace("``", "`").removesuffix("."))


def _within(sentence: str) -> str:
    """As part of a row; names stay in capitals."""
    is_name = sentence[1:2].isupper()
    return sentence if is_name else f"{sentence[:1].lower()}{sentence[1:]}"


def documented(thing: object) -> Iterator[tuple[str, str]]:
    """Names and texts of a docstring's ``Attributes:`` or ``Fields:``."""
    _, _, found = re.sub(r"\n(Attributes|Fields):\n", "\n\0", _docstring(thing)).partition("\0")
    for text in re.split(r"\n(?= {4}\S)", f"\n{found}")[1:]:
        name, _, words = " ".join(text.split()).partition(": ")
        yield name.replace("`", ""), words.removesuffix(".").replace("``", "`")


def _docstring(thing: object) -> str:
    return f"\n{inspect.cleandoc(thing.__doc__ or '')}"


def record(path: str, *more: str) -> Callable[[], list[str]]:
    """The fields that the docstring of ``module:name`` has, and ``more`` that need no words."""

    def rows() -> list[str]:
        path_of_module, _, name = path.partition(":")
        module = importlib.import_module(f"holdfast.{path_of_module}")
        thing: object = module
        for part in name.split("."):
            thing = getattr(thing, part)

        def in_json(text: str) -> str:
            values = re.sub(r":data:`(\w+)`", lambda each: f"`{getattr(module, each[1])}`", text)
            return re.sub(r"\bNone\b", "null", values)

        known = [(names(each), cell(_within(in_json(text)))) for each, text in documented(thing)]
        return table(("field", ""), [*((names(each), "") for each in more), *known])

    return rows


def accounts() -> list[str]:
    """Where a second of a rank is booked."""
    rows = ((code(name), *map(cell, MEANINGS[name])) for name in ACCOUNTS)
    return table(("account", "from", "to"), rows)


PROBES = (
    "gpu",
    "xid",
    "nvlink",
    "nic:LinkStates",
    "nic:LinkDowns",
    "storage:Storage",
    "host_probe",
)
"""Modules of holdfast.health, or a class in one."""


def probes() -> list[str]:
    """Of each probe: its first sentence, how it is asked for, and the verdicts that it may give."""
    rows = []
    for path in PROBES:
        module, _, name = path.partition(":")
        thing: object = importlib.import_module(f"holdfast.health.{module}")
        text = _docstring(getattr(thing, name) if name else thing).replace("``", "`")
        parts = [" ".join(part.split()) for part in text.split("\n\n")]
        verdicts = dict(part.split(": ", 1) for part in parts if part.startswith(("Unh", "Sus")))
        shown = [parts[0], *(part for part in parts if part.startswith("With "))]
        found = (verdicts[verdict].removesuffix(".") for verdict in ("Unhealthy", "Suspect"))
        named = code(module.removesuffix("_probe"))
        rows.append((f"{named} {cell(' '.join(shown))}", *map(cell, found)))
    return table(("probe", "unhealthy", "suspect"), rows)


# ---------------------------------------------------------------- holdfast chaos
def options_of_chaos() -> list[str]:
    """As its ``--help`` shows them."""
    rows = []
    for action in chaos_parser()._actions:  # noqa: SLF001 - argparse has no other list
        if action.help and action.option_strings[-1:] not in ([], ["--help"]):
            value = action.metavar or "|".join(action.choices or ())
            name = f"{action.option_strings[-1]} {value}".strip()
            rows.append((code(name), cell(action.help)))
    return table(("option", "(default)"), rows)


def kinds_of_faults() -> list[str]:
    """Each member of the enumeration, and the text below it; those that are signals have none."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(Fault)).body
        if isinstance(node, ast.ClassDef)
    )
    texts = {
        before.targets[0].id: node.value.value
        for before, node in itertools.pairwise(body)
        if isinstance(before, ast.Assign)
        and isinstance(before.targets[0], ast.Name)
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
    }
    rows = (
        (code(fault.value), cell(str(texts.get(fault.name, "The signal.")).replace("``", "`")))
        for fault in Fault
    )
    plain = (
        (kind, re.sub(r":\w+:`(\w+)`", r"`holdfast.testing.inject.\1()`", text))
        for kind, text in rows
    )
    return table(("kind", "fault"), plain)


# ---------------------------------------------------------------- the code itself
def rooms() -> list[str]:
    """A list: each package with the first sentence of its docstring, and the part with files."""
    lines = []
    for path in sorted((ROOT / "src" / "holdfast").rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        summary, *rest = (" ".join(part.split()) for part in text.split("\n\n"))
        files = " ".join(part for part in rest if ".py`" in part)
        room = path.parent.relative_to(ROOT / "src" / "holdfast").as_posix()
        if room != "." and (files or not room.endswith("pure")):
            words = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", f"{summary} {files}".strip())
            lines.append(f"- **{code(f'{room}/')}** {words.replace('``', '`')}")
    return lines


# ---------------------------------------------------------------- the GPU suite
SEEN = ROOT / "tests" / "gpu" / "seen.json"
"""By test of the suite: whether its claim held on a GPU, and the figures."""


def claims() -> Iterator[tuple[str, str]]:
    """Each test of the GPU suite, and what it claims: its docstring."""
    for path in sorted(SEEN.parent.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name, " ".join((ast.get_docstring(node) or "").split())


def seen_on_a_gpu() -> list[str]:
    """Each claim, in the order of the list of results."""
    results, claim = json.loads(SEEN.read_text(encoding="utf-8")), dict(claims())
    rows = ((claim[name].replace("``", "`"), *found) for name, found in results.items())
    return table(("claim", "seen on a GPU", "figures"), rows)


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "faults": faults,
    "exit codes": exit_codes,
    "events": events,
    "YAML keys": fields,
    "YAML keys without effect": idle_fields,
    "options without effect": partial(idle_options, later=False),
    "options of later releases": partial(idle_options, later=True),
    "variables without effect": lambda: _by_reason(IDLE_VARIABLES.items(), ("variable", "instead")),
    "report fields": record("tools.report.report:as_json"),
    "incident fields": record("node.pure.incident_words:to_json"),
    "live view fields": record("tools.view.job_view:JobView.as_json"),
    "live view fields of a rank": record("tools.view.job_view:RankView"),
    "rank digest fields": record(
        "evidence.pure.evidence:RankDigest", "rank, node, local_rank, pid"
    ),
    "process group fields": record("evidence.pure.evidence:GroupDigest"),
    "metrics": metrics,
    "rules of a hang": rules,
    "accounts": accounts,
    "probes": probes,
    "options of chaos": options_of_chaos,
    "kinds of faults": kinds_of_faults,
    "rooms": rooms,
    "claims seen on a GPU": seen_on_a_gpu,
    **{f"options: {group}": partial(options, group) for group in GROUPS if has_effect(group)},
    **{f"messages: {subject}": partial(messages, subject) for subject in EXPLANATIONS},
    **{f"variables: {group}": partial(variables, group) for group in VARIABLES},
}
"""By the name that a page gives."""


def with_tables(text: str) -> str:
    """A page, its tables in it."""
    return MARK.sub(lambda mark: "\n".join(TABLES[mark[1]]()), text)


def main(asked: list[str]) -> None:
    """Print tables."""
    for name in asked or TABLES:
        print(f"## {name}\n", *TABLES[name](), "", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
