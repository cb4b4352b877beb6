"""No file imports in a circle, whether at its top, in a function, or for type checkers alone."""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast

ROOT = Path(holdfast.__file__).parent


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of holdfast that a file imports anywhere in it."""
    found = set()
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(each, ast.ImportFrom) and each.module and not each.level:
            parts = {f"{each.module}.{alias.name}" for alias in each.names}
            found |= (parts & modules.keys()) or {each.module}
        elif isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names}
    return found & modules.keys()


def circles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules each of which reaches all others of its set."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen, pending = set[str](), [start]
        while pending:
            new = edges[pending.pop()] - seen
            seen |= new
            pending += new
        reached[start] = seen
    return {
        frozenset(other for other in reached[each] if each in reached[other])
        for each in edges
        if each in reached[each]
    }


def test_no_file_imports_in_a_circle() -> None:
    modules = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in ROOT.rglob("*.py")
    }
    edges = {name: imports_of(path, modules) - {name} for name, path in modules.items()}
    assert circles(edges) == set()


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert circles(edges) == {frozenset({"b", "c"})}
