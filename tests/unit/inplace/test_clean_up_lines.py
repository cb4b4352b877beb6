from __future__ import annotations

import sys
from types import FrameType

from holdfast.inplace.clean_up_lines import clean_up_of

HERE: dict[str, int] = {}


def here(name: str) -> None:
    frame: FrameType = sys._getframe(1)
    HERE[name] = frame.f_lineno


def fail() -> None:
    raise ValueError


def sample(fails: bool) -> None:
    here("before")
    try:
        here("body")
        try:
            if fails:
                fail()
        except ValueError:
            here("except")
        else:
            here("else")
    finally:
        here("finally")

        for _ in range(2):
            here("loop in finally")
    here("after")


class Sample:
    def method(self) -> None:
        text = """
unindented lines of a string do not confuse it
"""
        try:
            here("method body")
        finally:
            here("method finally")
        assert text


def test_bodies_of_finally_and_except_are_clean_up_and_nothing_else() -> None:
    """By line, nested blocks and both ways through."""
    sample(fails=True)
    sample(fails=False)
    lines = clean_up_of(sample.__code__).lines
    assert {name for name, line in HERE.items() if line in lines} >= {
        "except",
        "finally",
        "loop in finally",
    }
    assert not {HERE[name] for name in ("before", "body", "else", "after")} & lines


def test_a_method_is_parsed_by_itself() -> None:
    """Indented, with text that is not."""
    Sample().method()
    found = clean_up_of(Sample.method.__code__)
    assert HERE["method finally"] in found.lines
    assert HERE["method body"] not in found.lines


def test_the_except_that_catches_is_the_innermost_one() -> None:
    """Of a line in the body of two, the inner; of one outside, none."""
    sample(fails=True)
    found = clean_up_of(sample.__code__)
    assert found.catcher(HERE["body"] + 2) == HERE["except"] - 1
    assert found.catcher(HERE["before"]) == 0


def test_code_without_source_has_no_clean_up() -> None:
    """Text that was compiled, functions of other origins."""
    scope: dict[str, object] = {}
    exec("def made():\n    try:\n        pass\n    finally:\n        print()\n", scope)
    made = scope["made"]
    assert clean_up_of(made.__code__).lines == frozenset()  # type: ignore[attr-defined]
