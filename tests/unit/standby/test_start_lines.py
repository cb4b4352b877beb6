"""Lines of ``.pth`` files, which run before a parked interpreter can watch anything."""

from __future__ import annotations

import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.standby.parked.start_lines import doubt

PER_CYCLE = {"RANK", "MASTER_PORT"}
SETUPTOOLS = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == "
    "'local'; enabled and __import__('_distutils_hack').add_shim(); "
)
COVERAGE = "import os, sys;exec('if \"COV_CORE_SOURCE\" in os.environ: import pytest_cov')"


def doubt_of(folder: Path, line: str) -> str | None:
    (folder / "lines.pth").write_text(f"# a comment with os.environ\n/a/folder\n{line}\n")
    return doubt([str(folder), "/not/there"], {}, PER_CYCLE, "/holdfast/")


@pytest.mark.parametrize(
    "line",
    [
        "/srv/environ",
        SETUPTOOLS,
        COVERAGE,
        "import __editable___mine_finder; __editable___mine_finder.install()",
        "import _virtualenv",
        "import os; 'NO_COLOR' in os.environ or os.getenv('TERM', '') or os.environ['HOME']",
    ],
)
def test_lines_that_every_environment_has_make_no_difference(tmp_path: Path, line: str) -> None:
    assert doubt_of(tmp_path, line) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os; os.makedirs('/scratch/rank' + os.environ.get('RANK', '0'))", "reads RANK"),
        ("import os; name = 'RANK'; rank = os.getenv(name)", "reads RANK"),
        ("import os; first = 'MASTER_PORT' in os.environ", "reads MASTER_PORT"),
        ("import os; copied = dict(os.environ)", "does not name"),
        ("import os; name = 'RA'; name = 'NK'; os.getenv(name)", "does not name"),
        ("import os; from os import environ as e; e['RANK']", "does not name"),
        ("import os; where = os.path.expandvars('/scratch/$RANK')", "does not name"),
        ("import os; exec('port = os.environ[\"MASTER_PORT\"]')", "reads MASTER_PORT"),
        ("import os; exec(open('/etc/cluster.py').read())", "runs code that is not in its text"),
        ("import subprocess; subprocess.run(['register'])", "starts processes"),
        ("import )", "cannot be read"),
    ],
)
def test_a_line_that_may_depend_on_the_cycle_is_named(
    tmp_path: Path, line: str, reason: str
) -> None:
    found = doubt_of(tmp_path, line)

    assert found is not None
    assert reason in found
    assert str(tmp_path / "lines.pth") in found


def test_modules_that_lines_have_imported_are_read_as_well(tmp_path: Path) -> None:
    """Not the standard library's, and not holdfast's own; an extension module cannot be read."""

    def loaded(name: str, text: str) -> ModuleType:
        path = tmp_path / name
        path.write_text(text)
        module = ModuleType(path.stem)
        module.__spec__ = spec_from_file_location(path.stem, path)
        return module

    plain = loaded("plain.py", "import os\nhome = os.environ['HOME']\n")
    cluster = loaded("cluster.py", "import os\n\ndef scratch():\n    return os.environ['RANK']\n")
    extension = loaded(f"fast{'.so'}", "")

    def found(module: ModuleType, own: str = "/holdfast/") -> str | None:
        return doubt([], {"os": sys.modules["os"], "it": module}, PER_CYCLE, own)

    assert found(plain) is None
    assert "cluster.py, loaded when Python starts, reads RANK" in str(found(cluster))
    assert "fast.so is loaded when Python starts, and cannot be read" in str(found(extension))
    assert found(cluster, f"{tmp_path}/") is None
