"""``python -m tests``: two runs of pytest, one exit code, failures at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.__main__ import exit_code_of_all, failures


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((5, 1), 1), ((0, 2), 2)],
)
def test_a_name_that_one_half_has_no_tests_of_is_no_failure(
    codes: tuple[int, ...], code: int
) -> None:
    assert exit_code_of_all(codes) == code


def test_what_failed_is_told_with_its_name_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 + 1 == 3, 'a & b'\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError('no such thing')\n"
        "def test_not_begun(broken): pass\n"
    )
    record = tmp_path / "record.xml"
    bare = "-c", "/dev/null", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"
    command = [sys.executable, "-m", "pytest", *bare, f"--junitxml={record}", str(tmp_path)]
    subprocess.run(command, check=False, capture_output=True)

    bad, not_begun = failures(record.read_text())

    assert bad.startswith("FAILED test_some::test_bad\n")
    assert "AssertionError: a & b" in bad
    assert not_begun.startswith("FAILED test_some::test_not_begun\n")
    assert "no such thing" in not_begun
