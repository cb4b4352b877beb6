"""``python -m tests``: two runs of pytest, one exit code."""

from __future__ import annotations

import pytest

from tests.__main__ import exit_code_of_all


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((5, 1), 1), ((0, 2), 2)],
)
def test_a_name_that_one_half_has_no_tests_of_is_no_failure(
    codes: tuple[int, ...], code: int
) -> None:
    assert exit_code_of_all(codes) == code
