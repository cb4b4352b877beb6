"""The start of a job, for people: command line, commit, versions, environment. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.base.pure.wording import count

if TYPE_CHECKING:
    from holdfast.events.pure.schema import LaunchFacts
    from holdfast.tools.run.run_files import Run

_COMMIT = 12
"""Digits of a commit that are shown."""


def facts_of(run: Run) -> list[tuple[str, str]]:
    """Label and text of each fact of the first node; then those in which other nodes differ."""
    of_nodes = [(node.node, node.facts) for node in run.nodes if node.facts.versions]
    if not of_nodes:
        return []
    (first, facts), *others = of_nodes
    rows = [(label, text) for label, text in _facts(facts) if text]
    rows.append(("host", first if not others else f"{first}, and {count(len(others), 'other')}"))
    for name, other in others:
        differs = different_versions(facts, other)
        rows += [("differs", f"{name}: {text}") for text in differs]
    return rows


def _facts(facts: LaunchFacts) -> Iterator[tuple[str, str]]:
    yield "command", command(facts)
    yield "folder", facts.folder
    yield "commit", commit(facts)
    yield "versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield "env", " ".join(f"{name}={value}" for name, value in facts.environment.items())


def command(facts: LaunchFacts) -> str:
    """As it is typed; a hidden value stays readable."""
    return " ".join(word if "***" in word else shlex.quote(word) for word in facts.command)


def commit(facts: LaunchFacts) -> str:
    """``2b473efcfb62 (main)``."""
    branch = f" ({facts.branch})" if facts.branch else ""
    return f"{facts.commit[:_COMMIT]}{branch}" if facts.commit else ""


def different_versions(one: LaunchFacts, other: LaunchFacts) -> list[str]:
    """``torch 2.12.0, not 2.13.0``, for each version, and for the commit."""
    versions = [
        (name, other.versions.get(name, "none"), one.versions.get(name, "none"))
        for name in dict.fromkeys((*one.versions, *other.versions))
    ]
    versions.append(("commit", commit(other) or "none", commit(one) or "none"))
    return [f"{name} {theirs}, not {own}" for name, theirs, own in versions if theirs != own]
