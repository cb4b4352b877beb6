"""The documentation site: it builds without a warning, and what its pages show works."""

from __future__ import annotations

import ast
import doctest
import importlib
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.config import resolve
from holdfast.options.arguments import parse_args
from tests.unit.test_docs import PAGES, ROOT

SCREEN_AND_A_HALF = 75
CODE = re.compile(r"^```([\w{}-]+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_INSTALLED = ("holdfast.integrations.",)
"""Modules that need a trainer, which the tests' environment may lack."""


SPHINX = """
import gc, sys
from sphinx.cmd.build import main
gc.disable()  # it takes a third of the time
sys.exit(main(sys.argv[1:]))
"""


def blocks(language: str) -> list[tuple[str, str]]:
    """Page and text of each block of code, but for decisions, which are left as written."""
    return [
        (page, text)
        for page in PAGES
        if "decisions/" not in page
        for of, text in CODE.findall((ROOT / page).read_text(encoding="utf-8"))
        if of == language
    ]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    """A broken link, a page that no table of contents names, a docstring that cannot be read.

    Records of decisions, changelog and architecture are in no search, nor at the sidebar's top.
    """
    pytest.importorskip("sphinx", reason="needs pip install 'holdfast[docs]'")
    done = subprocess.run(
        [
            *(sys.executable, "-c", SPHINX, "-q", "-W", "--keep-going", "-d", tmp_path / "trees"),
            *(ROOT / "docs", tmp_path / "site"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="(https?:[^"]*)"', index) == []
    options = (tmp_path / "site" / "options.html").read_text(encoding="utf-8")
    assert re.findall("[\u2018-\u201d\u2013]", options) == []  # text is copied as it was written
    assert "--max-restarts" in options
    assert re.findall(r'class="toctree-l1"><a[^>]*href="(?:decisions|changelog|arch)', index) == []
    search = (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")
    (names,) = re.findall(r'docnames":\[([^]]*)\]', search)
    found = set(names.replace('"', "").split(","))
    assert {"first-restart", "sections", "troubleshooting"} <= found
    assert not any(name.startswith(("decisions", "changelog", "architecture")) for name in found)


# ---------------------------------------------------------------- what pages show
@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_on_a_page_is_python_and_its_names_are_there(page: str, text: str) -> None:
    if ">>>" in text:
        return  # run by the test below
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("holdfast"):
            continue
        assert node.module is not None
        if not node.module.startswith(NOT_INSTALLED):
            module = importlib.import_module(node.module)
            names = {each.name for each in node.names} - {"*"}
            assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_code_on_a_page_fits_on_a_screen_and_a_half(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [code for _, code in CODE.findall(text) if code.count("\n") > SCREEN_AND_A_HALF] == []


def commands() -> Iterator[tuple[str, str]]:
    """Every ``ft_launcher`` command of a page, one line each."""
    for page, text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            found = re.search(r"\bft_launcher( .*)", line)
            if found is not None:
                yield page, found[1]


@pytest.mark.parametrize(("page", "words"), list(commands()))
def test_a_command_of_a_page_is_one_that_the_launcher_takes(page: str, words: str) -> None:
    """Its options are there and take their values; ``...`` stands for more of them."""
    command = itertools.takewhile(lambda word: word != "|", shlex.split(words, comments=True))
    given = [word for word in command if word != "..."]
    if not given or given[-1].startswith("-"):
        given.append("train.py")
    assert parse_args(given, {}).warnings == []


@pytest.mark.parametrize("page", PAGES)
def test_holdfast_doctor_is_given_the_words_after_ft_launcher_not_that_word(page: str) -> None:
    """It took ``ft_launcher`` for the name of the script, as three pages had it."""
    assert "holdfast doctor ft_launcher" not in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "text"), [each for each in blocks("yaml") if "fault_tolerance:" in each[1]]
)
def test_a_configuration_of_a_page_is_read_without_a_warning(
    page: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text, encoding="utf-8")
    assert resolve(parse_args(["--ft-cfg-path", str(path), "train.py"], {})).warnings == []


# ---------------------------------------------------------------- doctests
MODULES = [
    path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".")
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_give_what_they_show(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    "page", [page for page in PAGES if ">>> " in (ROOT / page).read_text(encoding="utf-8")]
)
def test_examples_of_pages_give_what_they_show(page: str) -> None:
    """Without fences, which doctest would take for expected output."""
    text = "\n\n".join(code for _, code in CODE.findall((ROOT / page).read_text(encoding="utf-8")))
    test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    assert doctest.DocTestRunner().run(test).failed == 0
