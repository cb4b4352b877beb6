"""Every text that holdfast writes for people, replaced by another one: what decides reads none.

Two ways to the same end. Functions that render, those of the modules below, return nonsense
wherever they have been imported. Fields that carry what was rendered, which are those of type
``Text``, arrive with nonsense at the other end of a wire.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

from holdfast.base.pure import codec, wording
from holdfast.events.run import run_words
from holdfast.evidence.pure import evidence_words, failure, rank_words
from holdfast.evidence.pure.job_evidence import JobEvidence
from holdfast.job.pure import job_words
from holdfast.job.pure.assign import AssignmentError
from holdfast.node.pure import incident_words
from holdfast.node.records import report

WORDS: tuple[ModuleType, ...] = (
    evidence_words,
    rank_words,
    incident_words,
    job_words,
    wording,
    failure,
    report,
    run_words,
)
NONSENSE = "colourless green ideas sleep furiously"


def _instead(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def said(*args: Any, **named: Any) -> Any:
        found = function(*args, **named)
        if isinstance(found, str):
            return found and NONSENSE
        if isinstance(found, list):
            return [NONSENSE if isinstance(each, str) else each for each in found]
        return found

    return said


def _renderers() -> dict[Callable[..., Any], Callable[..., Any]]:
    return {
        function: _instead(function)
        for module in WORDS
        for function in vars(module).values()
        if isinstance(function, FunctionType) and function.__module__ == module.__name__
    }


@contextmanager
def other_words() -> Iterator[None]:
    """Texts are nonsense meanwhile."""
    instead = _renderers()
    places = [
        (module, name, instead[value])
        for module in list(sys.modules.values())
        if module.__name__.startswith("holdfast")
        for name, value in list(vars(module).items())
        if isinstance(value, FunctionType) and value in instead
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    concludes = JobEvidence.verdict

    def verdict(self: JobEvidence, culprits: Any, kind: str, _reason: str, sure: str) -> Any:
        return concludes(self, culprits, kind, NONSENSE, sure)

    with (
        patch.object(codec, "for_people", lambda text, _most=0: text and NONSENSE),
        patch.object(JobEvidence, "verdict", verdict),
        patch.object(AssignmentError, "__str__", lambda _: NONSENSE),
    ):
        try:
            for module, name, value in places:
                setattr(module, name, value)
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)
