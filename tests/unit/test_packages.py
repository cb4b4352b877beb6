"""What the packages promise, and the files that other machines read: seen without building."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import holdfast
import holdfast.inprocess
import nvidia_resiliency_ext.fault_tolerance
import nvidia_resiliency_ext.inprocess
import nvidia_resiliency_ext.shared_utils
from nvidia_resiliency_ext._version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pypi_readme import absolute, address_of, source_of, urls  # noqa: E402

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(
    re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def toml(path: str) -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]


def test_both_distributions_have_one_version() -> None:
    """They use each other's private modules, and are released together."""
    assert holdfast.__version__ == DISTRIBUTION
    (needs,) = map(Requirement, toml("compat/pyproject.toml")["dependencies"])
    assert needs.name == "holdfast"
    assert needs.specifier.contains(holdfast.__version__, prereleases=True)


def test_an_installation_brings_torch_and_two_small_packages() -> None:
    """Everything else is an extra."""
    project = toml("pyproject.toml")
    assert {Requirement(text).name for text in project["dependencies"]} == {
        *("torch", "PyYAML", "nvidia-ml-py"),
    }
    assert {"lightning", "transformers", "health-service", "dev"} <= set(
        project["optional-dependencies"]
    )


def test_each_development_tool_is_pinned() -> None:
    """A range that is resolved afresh breaks a build that nobody has touched."""
    pins = {
        Requirement(line).name.lower()
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    extras = toml("pyproject.toml")["optional-dependencies"]
    names = {Requirement(text).name.lower() for text in extras["dev"]} - {"holdfast"}
    assert names - pins == set()


README = "![Demo](docs/demo.svg) [a page](docs/a.md#b), [elsewhere](https://x.org/y), [here](#z)"
THERE = "https://host/owner/project"


def test_links_of_the_readme_lead_somewhere_from_pypi() -> None:
    """Of a release to its tag; of a development version to the newest; elsewhere as they are."""
    kept = "[elsewhere](https://x.org/y), [here](#z)"
    assert absolute(README, f"{THERE}/", "1.2.0") == (
        f"![Demo]({THERE}/raw/v1.2.0/docs/demo.svg) "
        f"[a page]({THERE}/blob/v1.2.0/docs/a.md#b), {kept}"
    )
    assert f"{THERE}/blob/HEAD/docs/a.md#b" in absolute(README, THERE, "1.3.0.dev0")
    assert absolute(README, None, "1.2.0") == f" a page, {kept}"


def test_no_link_of_the_readme_stays_relative_and_its_clone_command_has_the_address() -> None:
    text = absolute((ROOT / "README.md").read_text(encoding="utf-8"), THERE, "1.0")
    assert [each for each in re.findall(r"\]\(([^)]*)\)", text) if ":" not in each] == []
    assert f"git clone {THERE} holdfast && cd holdfast\n" in text


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://host.org/owner/name.git\n", "https://host.org/owner/name"),
        ("https://user:word@host.org/owner/name", "https://host.org/owner/name"),
        ("git@host.org:owner/name.git", "https://host.org/owner/name"),
        ("ssh://git@host.org/owner/name/", "https://host.org/owner/name"),
        ("/home/me/name", None),
        ("../name.git", None),
        ("file:///srv/name.git", None),
    ],
)
def test_the_address_of_a_build_is_that_of_its_clone(remote: str, address: str | None) -> None:
    """And no password of it. A clone of a folder has none."""
    assert address_of(remote) == address


def test_a_build_of_an_sdist_has_the_addresses_of_the_sdist(tmp_path: Path) -> None:
    """It is no clone; a variable comes before."""
    about = urls(THERE, "1.0")
    lines = [f"Project-URL: {label}, {address}" for label, address in about.items()]
    (tmp_path / "PKG-INFO").write_text("\n".join(["Name: holdfast", *lines, "", "text"]))

    assert source_of(tmp_path, {}) == THERE
    assert source_of(tmp_path, {"HOLDFAST_SOURCE": "https://other/x/"}) == "https://other/x"
    (tmp_path / "PKG-INFO").write_text("Name: holdfast\n")
    assert source_of(tmp_path, {}) is None
    assert urls(None, "1.0") == {}
    assert set(about) == {"Source", "Documentation", "Changelog", "Issues"}


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, ROOT / ".readthedocs.yaml"], ids=lambda path: path.name
)
def test_a_workflow_calls_what_people_call(path: Path) -> None:
    """Targets of the Makefile; the steps beside them only bring Python and keep results."""
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    called = re.findall(r"\bmake ([a-z-]+)", text)
    assert called
    assert [target for target in called if target not in TARGETS] == []
    runs = re.findall(r"run: (.*)", text)
    assert [run for run in runs if not run.startswith("make ")] == []


def test_the_workflow_tests_each_python_that_the_package_names() -> None:
    """In the classifiers, which PyPI shows."""
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == named


@pytest.mark.parametrize(
    "package",
    [
        holdfast.inprocess,
        nvidia_resiliency_ext,
        nvidia_resiliency_ext.fault_tolerance,
        nvidia_resiliency_ext.inprocess,
        nvidia_resiliency_ext.shared_utils,
    ],
    ids=lambda package: package.__name__,
)
def test_type_checkers_know_the_submodules_that_are_loaded_when_used(package: Any) -> None:
    """``inprocess.abort.AbortTorchDistributed`` after ``import ...inprocess`` alone."""
    source = Path(package.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"^ +(\w+) as \1,$", source, re.MULTILINE)) == package._SUBMODULES
