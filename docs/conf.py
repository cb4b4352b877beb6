"""How Sphinx builds the site: ``make docs``. Tables that follow from the code: ``docs/tables.py``.

Links that leave this folder work on GitHub only, so they are turned here: a page of the root is on
the site under its own name, a script is copied to it, a folder becomes its name alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.builders.html import StandaloneHTMLBuilder

from holdfast import __version__

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "compat" / "src")]
from docs.tables import MARK, with_tables  # noqa: E402 - found by the line above

_OF_THE_ROOT = {
    "../README.md": "index.md",
    "../ARCHITECTURE.md": "architecture.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../compat/README.md": "compat.md",
}
"""Pages outside this folder, and the pages of the site that include them."""
_FROM_THE_ROOT = {
    "](docs/": "](",
    "](ARCHITECTURE.md": "](architecture.md",
    "](CONTRIBUTING.md": "](contributing.md",
    "](CHANGELOG.md": "](changelog.md",
}
"""Links of an included page, as they are in this folder."""
_FOR_DEVELOPERS = (
    "architecture",
    "changelog",
    "contributing",
    "decisions",
    "rooms",
    "state-machines",
)
"""Pages, by the beginning of their names, that a search by users does not find."""
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)]*)?\)")

project = "holdfast"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"holdfast {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
smartquotes = False  # quotes and dashes of commands and values are copied as they are
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # an included page begins at its own level

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_mock_imports = ["lightning", "pytorch_lightning", "transformers", "accelerate"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of torch, of Python and of our inside have no page


class Site(StandaloneHTMLBuilder):
    """The site; its search index has the pages for users."""

    def index_page(self, pagename: str, *rest: Any) -> None:
        """Sphinx calls this for each page."""
        if not pagename.startswith(_FOR_DEVELOPERS):
            super().index_page(pagename, *rest)


def turned(text: str) -> str:
    """The text of a page, its links as they are on the site."""

    def turn(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        if target in _OF_THE_ROOT:
            return f"[{words}]({_OF_THE_ROOT[target]}{anchor})"
        return link[0] if (HERE / target).is_file() else words

    return _LINK.sub(turn, text)


def _turn_page(_app: Any, _name: str, source: list[str]) -> None:
    source[0] = turned(with_tables(source[0]))


def _made_of_code(_app: Any, env: Any, *_: Any) -> list[str]:
    """Pages that are read again each time: their tables may have changed."""
    pages = ((name, Path(env.doc2path(name))) for name in env.found_docs)
    return [name for name, path in pages if MARK.search(path.read_text(encoding="utf-8"))]


def _turn_included(_app: Any, _path: Path, _parent: str, source: list[str]) -> None:
    for at_root, here in _FROM_THE_ROOT.items():
        source[0] = source[0].replace(at_root, here)
    source[0] = re.sub(r"\]\((?!https?:|[\w-]+\.md|#|decisions/)([^)]+)\)", r"](../\1)", source[0])
    source[0] = turned(source[0])


def _keep_colon(_app: Any, what: str, _name: str, _obj: Any, _opt: Any, lines: list[str]) -> None:
    """Napoleon would take what is before a colon in the first line of an attribute for a type."""
    if what in ("attribute", "property"):
        lines.insert(0, "")


def setup(app: Any) -> None:
    """Sphinx asks an extension for this, and takes this file for one."""
    app.add_builder(Site, override=True)
    app.connect("source-read", _turn_page)
    app.connect("env-get-outdated", _made_of_code)
    app.connect("include-read", _turn_included)
    app.connect("autodoc-process-docstring", _keep_colon, priority=400)  # before Napoleon's 500
