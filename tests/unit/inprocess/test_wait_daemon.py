from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.inprocess.wait_daemon import main


def test_the_end_of_the_process_is_waited_for(tmp_path: Path) -> None:
    """Of one that runs, and of one that is gone."""
    file = tmp_path / "pid"
    with subprocess.Popen(["sleep", "0.1"]) as process:
        file.write_text(f"{process.pid}\n")
        assert main([str(file)]) == 0
        assert process.poll() == 0
    assert main([str(file)]) == 0


@pytest.mark.parametrize(("given", "code"), [(["no such file"], 1), ([], 2), (["a", "b"], 2)])
def test_nothing_to_wait_for_is_said(
    given: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == code
    assert capsys.readouterr().err
