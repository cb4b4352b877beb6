"""The code of pages runs as it is pasted; their commands are known, with their options."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys

import pytest

from holdfast import cli
from tests.unit.test_site import ROOT, blocks

PYTHON: dict[str, list[str]] = {}
for _page, _text in blocks("python"):
    if ">>>" not in _text and not _page.startswith("CONTRIBUTING"):
        PYTHON.setdefault(_page, []).append(_text)


@pytest.fixture(scope="module")
def tracebacks() -> dict[str, str]:
    pytest.importorskip("sphinx", reason="needs pip install 'holdfast[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.page_code"],
        input=json.dumps(PYTHON),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(page: str, tracebacks: dict[str, str]) -> None:
    """With stand-ins for the model, the data and the trainer that a reader has."""
    assert tracebacks[page] == ""


@pytest.mark.parametrize(("page", "text"), blocks("sh"))
def test_commands_of_a_page_are_shell(page: str, text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def tool_commands() -> list[tuple[str, str]]:
    """Every command ``holdfast ...`` of a page, in a block of code or within its text."""
    found = set()
    for page, text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:srun \S+ )?holdfast ([^|#]*)", line):
                found.add((page, match[1].partition(" -- ")[0]))
    return sorted(found)


@pytest.mark.parametrize(("page", "words"), tool_commands())
def test_a_command_of_a_page_is_one_that_holdfast_has(
    page: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its options is in the help of the command, or of the launcher (doctor)."""
    command, *rest = shlex.split(words)
    with contextlib.suppress(SystemExit):
        assert cli.main([command, "--help"]) == 0
    described = capsys.readouterr().out
    options = [word.partition("=")[0] for word in rest if word.startswith("-")]
    if command == "doctor":  # its words are those of ft_launcher
        options = [option for option in options if option == "--json"]
    assert [option for option in options if option not in described] == []
