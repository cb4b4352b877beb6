"""Which installed libraries a script will surely import, from reading it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.standby.parked.script_imports import script_imports


class Script:
    """A script, modules beside it, and installed libraries."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.installed = folder / "site-packages"
        self._monkeypatch = monkeypatch
        for name in ("lib1", "lib2", "lib3"):
            self.write(f"site-packages/{name}/__init__.py", "")

    def write(self, name: str, source: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    def imports(self, *words: str) -> list[tuple[str, tuple[str, ...]]]:
        """Of the command ``python -u WORDS``."""
        self._monkeypatch.chdir(self.folder)
        self._monkeypatch.setattr(sys, "argv", ["-m" if words[0] == "-m" else words[0]])
        return self.read(*words)[0]

    def read(self, *words: str) -> tuple[list[tuple[str, tuple[str, ...]]], set[str]]:
        return script_imports(["python", "-u", *words], [str(self.installed), *sys.path])


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(tmp_path, monkeypatch)


def test_its_imports_are_found_in_order(script: Script) -> None:
    """The standard library's, what is not installed, and what it has not are left out."""
    script.write(
        "train.py",
        "import os, lib2.nn as nn\nfrom lib1 import Trainer, Config\nfrom lib3 import *\n"
        "import not_there\nfrom __future__ import annotations\n",
    )

    expected = [("lib2.nn", ()), ("lib1", ("Trainer", "Config")), ("lib3", ())]
    assert script.imports("train.py") == expected


@pytest.mark.parametrize(
    "source",
    [
        "def main():\n    import lib1\n",
        "if something:\n    import lib1\n",
        "try:\n    import lib1\nexcept ImportError:\n    pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib1\n",
        "this is no Python",
        "import lib1\0",
        "",
    ],
)
def test_what_may_not_happen_is_not_taken_for_sure(script: Script, source: str) -> None:
    script.write("train.py", source)

    assert script.imports("train.py") == []


def test_what_only_the_main_script_runs_counts_there_alone(script: Script) -> None:
    guarded = "if __name__ == '__main__':\n    import lib1\n"
    script.write("train.py", guarded + "import mine\n")
    script.write("mine.py", guarded.replace("lib1", "lib2"))

    assert script.imports("train.py") == [("lib1", ())]


def test_the_users_own_modules_are_followed(script: Script) -> None:
    """Packages run their ``__init__`` first; modules import each other, also in circles."""
    script.write("train.py", "from code1.sub.model import Model\nimport code1.data\n")
    script.write("code1/__init__.py", "import lib1\n")
    script.write("code1/sub/__init__.py", "from . import helper\n")
    script.write("code1/sub/helper.py", "from lib2 import nn\n")
    script.write("code1/sub/model.py", "from ..data import load\nfrom .helper import x\n")
    script.write("code1/data.py", "import lib3, code1.sub.model\n")

    assert script.imports("train.py") == [("lib1", ()), ("lib2", ("nn",)), ("lib3", ())]


@pytest.mark.parametrize("words", [("-m", "app"), ("app",), ("-m", "app.__main__")])
def test_modules_and_folders_are_scripts_too(script: Script, words: tuple[str, ...]) -> None:
    script.write("app/__init__.py", "")
    script.write("app/__main__.py", "import lib1\n")

    assert script.imports(*words) == [("lib1", ())]


@pytest.mark.parametrize("words", [("-c", "import lib1"), ("gone.py",), ("-m", "gone"), ("-m",)])
def test_what_cannot_be_read_says_nothing(script: Script, words: tuple[str, ...]) -> None:
    assert script.imports(*words) == []


def test_variables_that_it_may_set_are_found_wherever_they_stand(script: Script) -> None:
    """In functions and in the user's own modules, too: what it only reads does not count."""
    script.write(
        "train.py",
        "import os, mine\nfrom os import environ\nos.environ['A'] = '1'\n"
        "def main():\n    environ.setdefault('B', '1')\n    os.environ.update(C='1', **{})\n"
        "if False:\n    os.environ.update({'D': '1'})\n"
        "os.environ.get('E'), os.environ['F'], os.getenv('G')\n",
    )
    script.write("mine.py", "import os\ndel os.environ['H']\nos.putenv('I', '1')\n")
    script.imports("train.py")

    assert script.read("train.py")[1] == {"A", "B", "C", "D", "H", "I"}
