"""Names, docstrings and comments of the code, read as the messages are (``test_words.py``).

A reader of a docstring wants a subject, an active verb and the field's word for the thing.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_docs import ROOT

SRC = ROOT / "src" / "holdfast"
FILES = sorted(SRC.rglob("*.py"))

_ONE = "is|was|were|are|cannot|can|has|had|its|they|it|this|the|a|an|may|must|will|else|all|each"
PHRASES = {
    r"\b(some|any|every|no)body\b|\b(some|every)one\b": "name the process or the person",
    r"\bwhoever\b|(^|[.;:,(] )who(m|se)?\b(?![^.;:]*\?)"
    r"|\b(of|to|for|by|with|from|tells?"
    r"|knows?|says?|decides?|sees?|asks?|and|or|at) who(m|se)?\b": (
        "a clause needs a subject: 'the rank that'"
    ),
    rf"\b[Ww]hat ({_ONE}|breaks|takes|comes|ranks|pickle|goes|other|others|holds|kept|makes|made"
    r"|follows|happens|happened|one|to|remains|stands|torch|torchrun|holdfast)\b": (
        "a clause needs a subject: 'the files that', 'the value'"
    ),
    r"\b(is|are|was|were|be|been|being|not|as|when|and) told\b"
    r"|\btold (of|by|to|about|how|what|that)\b": ("name the process that reports, and to which"),
    r"\b([Hh]ears?|[Hh]eard|[Hh]earing)\b": "processes receive messages; they are silent",
    r"\b([Ww]e|us|[Oo]urs?|[Oo]urselves)\b": "name the process: the launcher, this rank",
    r"\b(its|another|earlier|this|each|one|whole) life\b|\blives of\b": "a cycle, a start",
    r"\bgoodbye\b|\bhung up\b|\blooks? after\b|\bneeds? a look\b|\btakes? care\b|\bkin\b"
    r"|\bbur(y|ied|ies)\b|\bseats?\b|\blets? go\b|\bsick\b|\bnot well\b|\bstand(s|ing)? by\b"
    r"|\bno use\b|\bmakes? no sense\b|\ball the same\b|\bwithout a word\b": "the field's word",
}
"""Regular expressions for docstrings and comments, and the better way to write it."""

_WORDS = (
    "hear|hears|heard|told|tell|tells|whose|who|whom|what|nobody|somebody|anybody|everybody|our|ours"
    "|us|we|kin|seat|seats|visitor|visitors|stranger|strangers|sick|complaint|complaints|goodbye"
    "|begs?|bury|buried"
)
IDENTIFIER = re.compile(rf"(^|_)({_WORDS})(_|$)")
"""Words that no name of a file, class, function, argument or variable has."""


DOCUMENTED = {"what", "who", "without_us"}
"""Fields of documented events and messages."""
SHARED = {"FaultToleranceCallback", "SnapshotCallback"}
"""Public names that the clients of two frameworks import."""


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments with their first line; what stands in backticks is code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


@functools.cache
def prose_of_all() -> list[tuple[str, str]]:
    """Of all files: where a docstring or comment begins, and its words without what is code."""
    return [
        (where(path, line), " ".join(re.sub(r"``?[^`]*``?", "Q", text).split()))
        for path in FILES
        for line, text in prose_of(path.read_text(encoding="utf-8"))
    ]


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Names that a module gives, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(SRC)}:{line}"


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_docstring_or_comment_has_a_banned_phrase(phrase: str) -> None:
    found = [
        (place, match[0]) for place, text in prose_of_all() for match in re.finditer(phrase, text)
    ]
    assert found == [], PHRASES[phrase]


def test_no_name_is_a_banned_word() -> None:
    """A name says what the thing is, not what somebody does with it."""
    found = [
        (where(path, line), name)
        for path in FILES
        for line, name in [
            *names_in(path.read_text(encoding="utf-8")),
            *((0, part) for part in path.relative_to(SRC).with_suffix("").parts),
        ]
        if IDENTIFIER.search(name) and name not in DOCUMENTED
    ]
    assert found == []


def test_a_class_name_stands_for_one_class() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(where(path, node.lineno))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in SHARED} == {}
