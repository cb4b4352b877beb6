"""The preparation of .venv: from each state to the steps that mend it, or to one line."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import prepare  # noqa: E402
from prepare import INSTALL, MAKE, MAKE_AGAIN, Environment, Found  # noqa: E402

NEW = (MAKE, INSTALL)
AGAIN = (MAKE_AGAIN, INSTALL)


@pytest.mark.parametrize(
    ("environment", "steps", "why"),
    [
        pytest.param(None, NEW, "preparing .venv", id="none"),
        pytest.param(Environment(), (), "", id="ready"),
        pytest.param(Environment(up_to_date=False), (INSTALL,), "constraints.txt", id="older"),
        pytest.param(Environment(lacks=("torch",)), (INSTALL,), "lacks torch", id="torch-gone"),
        pytest.param(Environment(other_checkout="/b"), (INSTALL,), "sources in /b", id="other"),
        pytest.param(Environment(pip=False), NEW, "no pip", id="no-pip"),
        pytest.param(Environment(interrupted=True), AGAIN, "interrupted", id="interrupted"),
        pytest.param(Environment(starts="No such file"), AGAIN, "No such file", id="python-gone"),
        pytest.param(Environment(moved_from="/a/python"), AGAIN, "start /a/python", id="moved"),
        pytest.param(Environment(moved_from="/a", pip=False), AGAIN, "moved", id="moved-no-pip"),
    ],
)
def test_the_steps_follow_from_the_state(
    environment: Environment | None, steps: tuple[str, ...], why: str
) -> None:
    """A new environment only where nothing less helps."""
    plan = prepare.decide(Found(environment=environment))
    assert (plan.steps, plan.missing) == (steps, "")
    assert why in plan.why


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(Found(platform="darwin"), ("Linux", "darwin"), id="platform"),
        pytest.param(
            Found(version=(3, 9, 2)), ("3.9.2", "3.10", "PYTHON=python3.12"), id="old-python"
        ),
        pytest.param(
            Found(version=(3, 9, 2), newer="python3.11"),
            ("use make PYTHON=python3.11", "python3.11 try.py"),
            id="old-python-beside-a-newer",
        ),
        pytest.param(
            Found(ensurepip=False), ("ensurepip", "apt-get install python3-venv"), id="ensurepip"
        ),
        pytest.param(
            Found(unwritable="Read-only file system"), ("Read-only", "make VENV="), id="read-only"
        ),
        pytest.param(
            Found(environment=Environment(is_one=False)), ("remove it", "VENV="), id="foreign"
        ),
        pytest.param(
            Found(environment=Environment(starts="gone", may_be_deleted=False)),
            ("does not start (gone)", "remove it"),
            id="broken-and-of-another",
        ),
    ],
)
def test_where_nothing_can_be_done_one_line_says_what_is_missing(
    found: Found, words: tuple[str, ...]
) -> None:
    """And the command that brings it."""
    plan = prepare.decide(found)
    assert plan.steps == ()
    assert "\n" not in plan.missing
    assert [word for word in words if word not in plan.missing] == []


def test_an_environment_that_is_ready_needs_nothing_of_the_machine() -> None:
    """A read-only checkout, an old python3 and a package that went away are no hindrance."""
    found = Found(
        version=(3, 6, 8),
        ensurepip=False,
        unwritable="Read-only file system",
        environment=Environment(),
    )
    assert prepare.decide(found) == prepare.Plan()


def test_the_pip_of_the_system_does_where_ensurepip_is_missing() -> None:
    """Debian has python3-pip and python3-venv apart; a user of a cluster may install neither."""
    assert prepare.decide(Found(ensurepip=False, pip=True)).steps == NEW


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "x: Temporary failure in name resolution\nERROR: No matching distribution",
            "PIP_INDEX_URL",
        ),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        (
            "ERROR: A\n  ERROR: No matching distribution found for torch==2.13.0",
            "pip failed: No match",
        ),
        ("", "no reason"),
    ],
)
def test_a_failure_of_pip_is_one_line_too(output: str, line: str) -> None:
    """All of its output is in a file, which the line names."""
    said = prepare.why_pip_failed(output, ".venv/pip.log")
    assert line in said
    assert ".venv/pip.log" in said
    assert "\n" not in said


def test_a_full_disk_is_named_though_not_even_the_log_can_be_written(tmp_path: Path) -> None:
    """Instead of a traceback of the preparation itself."""
    pip = [sys.executable, "-c", "raise SystemExit('No space left on device')"]
    with pytest.raises(prepare.CannotPrepareError, match="the disk is full"):
        prepare._pip(str(tmp_path / "full"), pip)


@pytest.mark.parametrize(
    ("configuration", "has_gpu", "wanted"),
    [
        ("", False, True),
        ("global.timeout='60'", False, True),
        ("", True, False),
        ("global.index-url='https://mirror'", False, False),
        (":env:.find-links='/wheels'", False, False),
        ("pip-no-index", False, False),
    ],
)
def test_torch_for_cpus_is_asked_for_where_nothing_speaks_against_it(
    configuration: str, has_gpu: bool, wanted: bool
) -> None:
    """PyPI's torch brings 3 GB of CUDA. An index that the user has chosen stays the only one."""
    assert prepare.wants_cpu_wheels(configuration, has_gpu=has_gpu) is wanted


@pytest.mark.parametrize("name", ["try.py", "tools/prepare.py"])
def test_an_old_python_can_read_the_preparation(name: str) -> None:
    """It says that it is too old, instead of a SyntaxError."""
    ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 6))


# ---------------------------------------------------------------- real folders
@pytest.fixture
def there(tmp_path: Path) -> Path:
    """An environment without packages: its Python starts, its pip is a script."""
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    python = Path(sys.executable).resolve()
    settings = f"home = {python.parent}\ninclude-system-site-packages = false\n"
    (folder / "pyvenv.cfg").write_text(settings)
    (folder / "bin" / "python").symlink_to(python)
    (folder / "bin" / "pip").write_text(f"#!{folder}/bin/python3\n")
    return folder


def seen(folder: Path) -> Environment:
    found = prepare.look(str(folder), ()).environment
    assert found is not None
    return found


def test_a_half_made_environment_is_seen_as_it_is(there: Path) -> None:
    """As Debian's python3 leaves it without python3-venv: Python starts, and there is no pip."""
    found = seen(there)
    assert (found.is_one, found.starts, found.moved_from, found.pip) == (True, "", "", False)
    assert not found.may_be_deleted  # holdfast did not make it


def test_a_moved_environment_is_seen(there: Path) -> None:
    """Its programs start a Python that is gone, or that of the original of a copy."""
    moved = there.rename(there.with_name("moved"))
    assert seen(moved).moved_from == f"{there}/bin/python"
    shutil.copytree(moved, there, symlinks=True)
    assert seen(moved).moved_from == f"{there}/bin/python"
    assert seen(there).moved_from == ""


def test_an_environment_behind_a_link_is_not_a_moved_one(there: Path) -> None:
    link = there.with_name("link")
    link.symlink_to(there)
    assert seen(link).moved_from == ""


def test_a_python_that_is_gone_is_seen(there: Path) -> None:
    """After an upgrade of the system's Python, or on another machine."""
    (there / "bin" / "python").unlink()
    (there / "bin" / "python").symlink_to("/nowhere/python3")
    assert seen(there).starts == "No such file or directory"


def test_a_folder_with_other_things_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert not seen(tmp_path).is_one
    assert not seen(tmp_path / "thesis.tex").is_one


def test_a_broken_environment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a Python that does not start to one that does; the runs of pip are only recorded."""
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/nowhere/python3")
    (folder / prepare.RECORD).write_text('{"made": true, "installing": true}')
    look, installed = prepare.look, []
    without_ensurepip = {"ensurepip": False, "pip": True}  # ensurepip takes seconds
    monkeypatch.setattr(prepare, "look", lambda *words: look(*words)._replace(**without_ensurepip))
    monkeypatch.setattr(prepare, "_pip", lambda _, command: installed.append(command[-1]))
    monkeypatch.setattr(prepare, "_install", lambda *_, **__: installed.append("holdfast"))

    prepare.prepare(str(folder))

    assert installed == ["pip", "holdfast"]
    assert seen(folder).starts == ""
