"""The command ``holdfast doctor``, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import __version__


def holdfast(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "SLURM", "JOB_"))}
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words],
        cwd=folder,
        env={**inherited, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_job_is_explained_without_anything_being_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "torch.py").write_text("")  # the real one takes seconds
    (tmp_path / "ft.yaml").write_text(
        "fault_tolerance: {rank_section_timeouts: {step: 60}, max_no_progress_restarts: 2}"
    )

    done = holdfast(
        tmp_path,
        *("doctor", "--nnodes=2", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=is_host=0"),
        *("--ft-cfg-path=ft.yaml", "--max-restarts=3", "train.py"),
    )
    assert (done.returncode, done.stderr) == (2, _port_error())

    done = holdfast(
        tmp_path,
        *("doctor", "--nnodes=2", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-conf=is_host=0"),
        *("--ft-cfg-path=ft.yaml", "--max-restarts=3", "train.py"),
        PYTHONPATH=str(tmp_path / "site-packages"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "train.py: 1 rank on this node, of 2" in said
    assert "max_no_progress_restarts is an old name" in said
    assert "its monitor, after 60 s" in said
    assert "no process listens there yet" in said
    assert "a node is lost" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("", "warm standby: on: a trial with this script was ready after"),
        ("print('hello')", "leaves out lib1: importing lib1 changes stdout or stderr (it writes)"),
    ],
)
def test_warm_standby_is_tried(tmp_path: Path, library: str, said: str) -> None:
    """With the libraries that the script names; the script does not run."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    for name, source in (("lib1", library), ("torch", "")):
        (installed / f"{name}.py").write_text(source)
    (tmp_path / "train.py").write_text("import lib1\nopen('ran', 'w')")
    import_from = {"PYTHONPATH": str(installed)}

    done = holdfast(tmp_path, "doctor", "--max-restarts=3", "train.py", **import_from)

    assert said in " ".join(done.stdout.split())
    assert "warm standby: on:" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_a_program_can_read_it(tmp_path: Path) -> None:
    done = holdfast(tmp_path, "doctor", "--json")
    found = json.loads(done.stdout)
    assert set(found) == {"ok", "findings", "faults", "losses"}
    assert set(found["findings"][0]) == {"topic", "subject", "verdict", "text"}
    assert found["faults"] == found["losses"] == [], "of no job in particular"


def test_an_error_is_an_exit_code(tmp_path: Path) -> None:
    """A temporary folder that is not there, for example."""
    done = holdfast(tmp_path, "doctor", TMPDIR=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "cannot be written; set TMPDIR" in " ".join(done.stdout.split())
    assert "1 error" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["doctor", "--ft-typo", "x.py"], 2, "holdfast doctor: error: unknown option --ft-typo"),
        (["doctor", "no_such.py"], 2, "holdfast doctor: error: no such script: 'no_such.py'"),
        (["doctor", "--ft-cfg-path=no.yaml", __file__], 1, "holdfast doctor: error:"),
        (["nurse"], 2, "holdfast: error: unknown command 'nurse'; it knows: chaos, doctor"),
    ],
)
def test_mistakes_are_one_clear_line(
    tmp_path: Path, words: list[str], code: int, text: str
) -> None:
    done = holdfast(tmp_path, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(text)
    assert done.stderr.count("\n") == 1


def test_help_is_to_be_had(tmp_path: Path) -> None:
    assert "doctor" in holdfast(tmp_path, "--help").stdout
    assert "usage: holdfast doctor" in holdfast(tmp_path, "doctor", "--help").stdout
    assert holdfast(tmp_path).returncode == 2


def _port_error() -> str:
    return (
        "holdfast doctor: error: --rdzv-endpoint: '127.0.0.1:0' cannot be used; it takes HOST:PORT "
        "with a port of 1 to 65535, not '0', the same on all nodes\n"
    )


def test_help_and_version_come_first_or_after_the_form(tmp_path: Path) -> None:
    """The doctor's own help, not that of the command line it looks at."""
    assert holdfast(tmp_path, "doctor", "--json", "--help").stdout.startswith("usage: holdfast")
    done = holdfast(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"holdfast {__version__}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A full disk, a reader that has gone."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", "doctor"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
    error = "holdfast doctor: error: cannot write: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, error)
