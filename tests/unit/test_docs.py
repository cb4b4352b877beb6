"""The pages that people read: their form, and that their links lead somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from docs.tables import EXAMPLE, MARK, TABLES, documented, with_tables

from holdfast.base.pure.value import Value
from holdfast.events.pure.schema import KINDS
from holdfast.job.pure.exit_codes import Ending
from holdfast.options.options import OPTIONS
from holdfast.options.variables import described

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "decisions", ROOT / "compat")
    for path in folder.glob("*.md")
)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def prose(text: str) -> list[str]:
    """Lines outside of code, tables and headings; those of code are empty."""
    lines, in_code = [], False
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        is_prose = not (in_code or is_fence or line.startswith(("|", "#", "    ")))
        lines.append(line if is_prose else "")
    return lines


def test_there_are_pages() -> None:
    assert {"README.md", "docs/sections.md", "compat/README.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_prose_is_at_most_100_columns_wide(page: str) -> None:
    """Code, tables and headings excepted: they cannot be broken."""
    lines = prose((ROOT / page).read_text(encoding="utf-8"))
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_to_files(page: str) -> None:
    """Relative to the page, as on the web."""
    path = ROOT / page
    targets = _LINK.findall(path.read_text(encoding="utf-8").replace("\n", " "))
    local = [target for target in targets if not target.startswith("http")]
    assert [target for target in local if not (path.parent / target).exists()] == []


def headings(page: Path) -> set[str]:
    """Their anchors, as GitHub and MyST make them."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    found = [re.sub(r"\]\([^)]*\)", "", words) for words in _HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", words).strip().lower().replace(" ", "-") for words in found}


@pytest.mark.parametrize("page", PAGES)
def test_links_to_parts_of_pages_lead_to_a_heading(page: str) -> None:
    """Also those of pages that Sphinx does not read, such as README.md."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8").replace("\n", " ")
    links = re.findall(r"\]\(([^)#\s:]*\.md|)#([^)\s]+)\)", text)
    known = {target: headings(path.parent / target if target else path) for target, _ in links}
    assert [link for link in links if link[1] not in known[link[0]]] == []


# ---------------------------------------------------------------- tables
MARKS = [(page, name) for page in PAGES for name in MARK.findall((ROOT / page).read_text("utf-8"))]


def built(page: str) -> str:
    """The text of a page, with the tables that the code has."""
    return with_tables((ROOT / page).read_text(encoding="utf-8"))


def test_each_table_of_the_code_is_on_one_page() -> None:
    assert sorted(name for _, name in MARKS) == sorted(TABLES)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "rooms"])
def test_each_row_of_a_table_of_the_code_has_all_its_cells(name: str) -> None:
    """Head, rule, and a row at least; a bar within a text would begin another cell."""
    bars = [len(re.findall(r"(?<!\\)\|", row)) for row in TABLES[name]()]
    assert len(bars) > 2
    assert len(set(bars)) == 1


@pytest.mark.parametrize(
    ("page", "items"),
    [
        ("options", [each.name for each in OPTIONS if each.has_effect]),
        ("environment", [each.name for each in OPTIONS if each.idle]),
        ("environment", [name for name, _ in described()]),
        ("run-folder", list(KINDS)),
        ("run-folder", [name for record in KINDS.values() for name, _ in documented(record)]),
    ],
)
def test_a_page_has_every_item_that_the_code_knows(page: str, items: list[str]) -> None:
    text = built(f"docs/{page}.md")
    assert len(items) > 5
    assert [name for name in items if f"`{name}`" not in text] == []


def test_the_page_of_exit_codes_has_every_way_to_end() -> None:
    rows = re.findall(r"^\| (\d+) \|", built("docs/exit-codes.md"), re.MULTILINE)
    assert [int(code) for code in rows] == [ending.code() for ending in Ending]


def test_each_rule_of_a_hang_has_condition_kind_and_confidence() -> None:
    rows = [row.strip("|").split(" | ") for row in TABLES["rules of a hang"]()[2:]]
    assert len(rows) > 10
    assert [row for row in rows if not all(map(str.strip, row))] == []
    assert all(re.search("high|medium|low|none", row[2]) for row in rows)


def test_a_field_of_a_docstring_is_read_with_its_text() -> None:
    class Record(Value):
        """A record.

        Attributes:
            one: Words, until
                the next name: these.
            ``two``, ``three``: Of ``x``.
        """

    assert list(documented(Record)) == [
        ("one", "Words, until the next name: these"),
        ("two, three", "Of `x`"),
    ]


def test_the_command_line_of_the_failure_model_is_the_one_of_its_table() -> None:
    text = (ROOT / "docs" / "failure-model.md").read_text(encoding="utf-8")
    assert " ".join(EXAMPLE.split()) in " ".join(text.replace("\\\n", " ").split())


# ---------------------------------------------------------------- glossary
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| word"))
]
NAMES = [(row[0], name) for row in ROWS for name in re.findall(r"`([^`]+)`", row[-1])]


@pytest.mark.parametrize(("word", "name"), NAMES)
def test_a_word_of_the_glossary_is_in_the_code(word: str, name: str) -> None:
    """Its class, function, constant or field is there under that name."""
    module, _, path = name.partition(":")
    found: object = importlib.import_module(f"holdfast.{module}")
    for part in path.split("."):
        fields = {*getattr(found, "__annotations__", ()), *getattr(found, "__slots__", ())}
        found = getattr(found, part, part if part in fields else None)
        assert found is not None, f"{word}: holdfast.{module} has no {path}"


def test_the_glossary_names_each_word_once_with_its_place() -> None:
    words = [word for row in ROWS for word in row[0].split(", ")]
    assert len(words) == len(set(words)) > 40
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


def test_the_files_that_the_architecture_names_are_there() -> None:
    """``job_log.py`` and ``node/processes/ranks.py`` are found by the end of a path.

    Also those that the docstring of a room names.
    """
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8") + "\n".join(TABLES["rooms"]())
    rooms = ("src", "compat", "tests", "docs", "tools")
    paths = [f"/{path.relative_to(ROOT)}" for room in rooms for path in (ROOT / room).rglob("*.py")]
    paths += [f"/{path.name}" for path in ROOT.glob("*.py")]
    names = set(re.findall(r"[\w/]+\.py\b", text))
    assert len(names) > 200
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in paths)] == []
