"""How a row of the table is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def promise(where: str, sentence: str) -> pytest.MarkDecorator:
    """The test below shows what this sentence promises.

    Args:
        where: Document and section.
        sentence: What a program may rely on.
    """
    return pytest.mark.parametrize((), [pytest.param(id=f"{where}: {sentence}")])


def promises(where: str, names: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    """The test below is made once for each sentence, with the values beside it.

    Args:
        where: Document and section.
        names: Of the values, as ``pytest.mark.parametrize`` takes them.
        rows: Values by sentence; of several names, a tuple.
    """
    several = "," in names
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(*(row if several else (row,)), id=f"{where}: {sentence}")
            for sentence, row in rows.items()
        ],
    )
