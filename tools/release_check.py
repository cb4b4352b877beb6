"""``make release-check``: build both distributions and use them as a stranger would.

Everything happens in a temporary folder, outside of the checkout: wheels and sdists are built,
examined, installed into a new environment without development tools, and used from there. What
passes is left in ``dist/``. Needs a network or a mirror of PyPI.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import prepare
import pypi_readme

ROOT = Path(prepare.CHECKOUT)
CONSTRAINTS = ROOT / "constraints.txt"
SOURCES = {"holdfast": ROOT, "holdfast_nvrx_compat": ROOT / "compat"}
PACKAGES = {"holdfast": "src/holdfast", "holdfast_nvrx_compat": "src/nvidia_resiliency_ext"}
TOOLS = ("build", "twine", "check-jsonschema", "pyright[nodejs]", "mypy", "types-PyYAML")
AT_RUN_TIME = {
    "holdfast": ["nvidia-ml-py", "pyyaml", "torch"],
    "holdfast_nvrx_compat": ["holdfast"],
}
EXAMPLE_SOURCE = "https://host.example/owner/holdfast"
NOT_FOR_USERS = {"dev", "docs"}  # extras
CONSUMERS = "tests/typing"  # programs as users write them


class FailedError(Exception):
    """What is wrong, for the person who releases."""


class Release:
    """The folder in which it happens, and the steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dist = folder / "dist"
        self.sdists: dict[str, Path] = {}
        self.wheels: dict[str, Path] = {}
        self.extras: set[str] = set()

    def make_tools(self) -> str:
        """Builders and checkers, in an environment of their own."""
        self.make_environment("tools")
        self.install("tools", *TOOLS)
        return ", ".join(TOOLS)

    def build(self) -> str:
        """An sdist of each distribution, and the wheel from this sdist."""
        for source in SOURCES.values():
            self.run(self.python("tools"), "-m", "build", "--outdir", self.dist, source)
        for name in SOURCES:
            (self.sdists[name],) = self.dist.glob(f"{name}-*.tar.gz")
            (self.wheels[name],) = self.dist.glob(f"{name}-*.whl")
        return ", ".join(sorted(path.name for path in self.dist.iterdir()))

    def examine_metadata(self) -> str:
        """As PyPI would, and with the same version and few requirements."""
        self.run(self.python("tools"), "-m", "twine", "check", "--strict", *self.dist.iterdir())
        versions = set()
        for name, wheel in self.wheels.items():
            metadata = metadata_of(wheel)
            needs = [
                text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text
            ]
            names = sorted(re.split(r"[^\w-]", text)[0].lower() for text in needs)
            demand(names == AT_RUN_TIME[name], f"{name} requires {names}")
            versions.add(metadata["Version"])
            nowhere = re.findall(r"\]\((?!https?:|#)([^)]*)\)", str(metadata.get_payload()))
            demand(not nowhere, f"the page of {name} on PyPI has relative links: {nowhere}")
            self.extras |= set(metadata.get_all("Provides-Extra", []))
        demand(len(versions) == 1, f"the distributions have the versions {sorted(versions)}")
        return f"version {versions.pop()}; requirements: {', '.join(AT_RUN_TIME['holdfast'])}"

    def check_addresses(self) -> str:
        """``[project.urls]``, links, picture and clone command of PyPI's page, with an address.

        That of this clone, or one of an example where it was cloned from a folder.
        """
        own = pypi_readme.source_of(ROOT, os.environ)
        source, there = own or EXAMPLE_SOURCE, self.folder / "addresses"
        builder = self.python("tools"), "-m", "build", "--wheel", "--outdir", there
        self.run(*builder, self.unpacked("holdfast"), more_env={pypi_readme.VARIABLE: source})
        (wheel,) = there.glob("*.whl")
        self.run(self.python("tools"), "-m", "twine", "check", "--strict", wheel)
        metadata = metadata_of(wheel)
        found = dict(text.split(", ", 1) for text in metadata.get_all("Project-URL", []))
        expected = pypi_readme.urls(source, metadata["Version"])
        demand(found == expected, f"project.urls are {found}, not {expected}")
        page = str(metadata.get_payload())
        targets = re.findall(r"\]\(([^)]*)\)", page)
        elsewhere = [each for each in targets if not each.startswith((f"{source}/", "#"))]
        demand(bool(targets) and not elsewhere, f"links that lead elsewhere: {elsewhere}")
        demand(".svg)" in page, "the page has no picture")
        demand(f"git clone {source} " in page, "the page does not say where to clone from")
        known = "its own" if own else f"no address yet (git remote, or {pypi_readme.VARIABLE})"
        return f"{len(targets)} links below {source}: {known}"

    def examine_contents(self) -> str:
        """A wheel has the package and nothing else; the sdist has all that git knows."""
        for name, wheel in self.wheels.items():
            package = PACKAGES[name]
            known = {path.removeprefix("src/") for path in files_of(SOURCES[name], package)}
            with zipfile.ZipFile(wheel) as archive:
                found = {path for path in archive.namelist() if ".dist-info/" not in path}
            demand(found == known, f"{wheel.name} differs in {sorted(found ^ known)}")
            demand(f"{Path(package).name}/py.typed" in found, f"{wheel.name} has no py.typed")
            with tarfile.open(self.sdists[name]) as archive:
                files = {path.partition("/")[2] for path in archive.getnames()}
                archive.extractall(self.folder / "sdist", filter="data")
            lacking = set(files_of(SOURCES[name], ".")) - files
            demand(not lacking, f"{self.sdists[name].name} lacks {sorted(lacking)}")
        return "wheels: the packages, py.typed; sdists: every file of the repository"

    def install_wheels(self) -> str:
        """Into a new environment, which gets nothing else."""
        self.make_environment("new")
        self.install("new", *self.wheels.values())
        self.run(self.python("new"), "-m", "pip", "check")
        code = "import holdfast, nvidia_resiliency_ext as n; print(holdfast.__file__, n.__file__)"
        homes = self.run(self.python("new"), "-c", code).split()
        demand(all("site-packages" in home for home in homes), f"imported from {homes}")
        return f"pip check; imported from {Path(homes[0]).parents[1]}"

    def import_everything(self) -> str:
        """Every documented name of the original, and a job, by command and by module."""
        program = self.unpacked("holdfast_nvrx_compat") / "check_install.py"
        said = self.run(self.python("new"), program)
        self.run(self.python("new"), program, "--module")
        return said.strip().splitlines()[-1]

    def resolve_extras(self) -> str:
        """Every extra can be installed beside the pinned torch."""
        extras = ",".join(sorted(self.extras - NOT_FOR_USERS))
        self.install("new", f"{self.wheels['holdfast']}[{extras}]", "--dry-run")
        return extras

    def run_demo(self) -> str:
        """With the wheel, and the examples of the sdist."""
        self.install("new", f"{self.wheels['holdfast']}[demo]")
        demos = self.unpacked("holdfast") / "examples"
        said = self.run(self.python("new"), demos / "demo.py").splitlines()
        self.run(self.python("new"), demos / "demo_inprocess.py")
        return next(line for line in reversed(said) if "weights equal" in line)

    def check_types(self) -> str:
        """Of programs that use the installed packages, by mypy and by pyright."""
        there = shutil.copytree(ROOT / CONSUMERS, self.folder / "consumers")
        programs = sorted(there.glob("*.py"))
        python = self.python("new")
        self.run(
            self.python("tools"), "-m", "mypy", "--strict", "--python-executable", python, *programs
        )
        self.run(self.python("tools"), "-m", "pyright", "--pythonpath", python, *programs)
        return ", ".join(path.name for path in programs)

    def test_sdist(self) -> str:
        """Its unit tests, with the wheel."""
        self.install("new", f"{self.wheels['holdfast']}[dev]")
        folder = self.unpacked("holdfast")
        words = ("-m", "pytest", "-q", "-n", "2", "tests/unit")
        return self.run(self.python("new"), *words, at=folder).strip().splitlines()[-1]

    def check_workflows(self) -> str:
        """Against the schemas of those who read them."""
        tool = self.folder / "tools" / "bin" / "check-jsonschema"
        workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        self.run(tool, "--builtin-schema", "vendor.github-workflows", *workflows)
        self.run(tool, "--builtin-schema", "vendor.readthedocs", ROOT / ".readthedocs.yaml")
        return ", ".join(path.name for path in workflows)

    # ------------------------------------------------------------ helpers
    def python(self, environment: str) -> Path:
        return self.folder / environment / "bin" / "python"

    def unpacked(self, name: str) -> Path:
        return self.folder / "sdist" / self.sdists[name].name.removesuffix(".tar.gz")

    def make_environment(self, name: str) -> None:
        self.run(sys.executable, "-m", "venv", self.folder / name)

    def install(self, environment: str, *words: object) -> None:
        python = self.python(environment)
        options = [
            "--quiet",
            "--no-compile",
            "--constraint",
            CONSTRAINTS,
            *prepare.cpu_wheels(str(python)),
        ]
        self.run(python, "-m", "pip", "install", *options, *words)

    def run(
        self,
        *command: object,
        at: Path | None = None,
        more_env: Mapping[str, str] | None = None,
    ) -> str:
        """The output of a command that succeeds, started away from the checkout."""
        env = {key: os.environ[key] for key in os.environ if not key.startswith("PYTHON")}
        done = subprocess.run(
            [str(word) for word in command],
            cwd=at or self.folder,
            env={**env, **(more_env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            text = " ".join(map(str, command))
            raise FailedError(f"{text}: exit code {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout


def metadata_of(wheel: Path) -> Message:
    """What PyPI shows."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
        return HeaderParser().parsestr(archive.read(path).decode())


def files_of(folder: Path, part: str) -> list[str]:
    """That git knows below a folder, by their path from there."""
    command = ["git", "-C", str(folder), "ls-files", "-z", part]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")[
        :-1
    ]


def demand(holds: bool, problem: str) -> None:  # noqa: FBT001
    if not holds:
        raise FailedError(problem)


def check(steps: Iterable[Callable[[], str]]) -> int:
    """Run the steps; the first that fails ends it."""
    for step in steps:
        started = time.monotonic()
        name = step.__name__.replace("_", " ")
        try:
            said = step()
        except FailedError as error:
            print(f"FAILED  {name}: {error}", flush=True)
            return 1
        print(f"{time.monotonic() - started:6.1f} s  {name}: {said}", flush=True)
    return 0


def main(names: Sequence[str]) -> int:
    """Every step, or the given ones (some need others before them)."""
    with tempfile.TemporaryDirectory(prefix="holdfast-release-") as folder:
        release = Release(Path(folder))
        steps = (
            release.make_tools,
            release.check_workflows,
            release.build,
            release.examine_metadata,
            release.examine_contents,
            release.check_addresses,
            release.install_wheels,
            release.import_everything,
            release.check_types,
            release.resolve_extras,
            release.run_demo,
            release.test_sdist,
        )
        code = check(step for step in steps if not names or step.__name__ in names)
        if code == 0 and not names:
            shutil.copytree(release.dist, ROOT / "dist", dirs_exist_ok=True)
            print("holdfast: the distributions are in dist/")
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
