"""docs/from-nvrx.md has every difference that the decision records know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import public_names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/from-nvrx.md").read_text(encoding="utf-8")
_CODE = re.compile(r"`([^`]+)`")
INSIDE = {
    *(1, 2, 4, 5, 7, 9, 11, 12, 16, 17, 20, 25, 26, 35, 43, 46, 47, 48, 49, 50, 52, 53, 54, 55),
    *(56, 57, 58, 59),
}
"""Numbers of the decisions that users of nvidia-resiliency-ext meet no difference by."""


def linked() -> set[int]:
    return {int(number) for number in re.findall(r"decisions/(\d{4})-", PAGE)}


@pytest.mark.parametrize(
    "record", sorted((ROOT / "docs/decisions").glob("*.md")), ids=lambda path: path.stem[:4]
)
def test_a_decision_is_linked_from_the_page_or_known_to_change_nothing_there(record: Path) -> None:
    """A new record is one or the other: its author says which."""
    number = int(record.name[:4])
    assert (number in linked()) != (number in INSIDE)


def test_modules_of_which_one_import_is_changed_have_all_names_in_holdfast() -> None:
    """And the page has all of these modules."""
    listed = PAGE.partition("## Change one import")[2].partition("\n## ")[0]
    same = {
        module
        for module, names in public_names.SURFACE.items()
        if not module.startswith(public_names.WITH_LIGHTNING)
        and all(
            public_names.problem(module, name, what, "holdfast") is None
            for name, what in names.items()
        )
    }
    assert {name for name in _CODE.findall(listed) if not name.startswith("holdfast")} == same
