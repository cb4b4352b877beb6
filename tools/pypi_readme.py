"""README and addresses as PyPI shows them, made when holdfast is built (``pyproject.toml``).

``[project.urls]`` follows from one address, that of the repository as its host shows it: the
variable HOLDFAST_SOURCE, else what a sdist was built with, else git's remote ``origin``. So a build
from any clone leads to where it was cloned from. A clone of a folder has no address.

Links and pictures of the README are relative, for the repository. On PyPI nothing is beside it, so
they become absolute, below that address: at the tag of a release, at the newest commit for a
development version. Without an address, pictures are left out, and links are words.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "HOLDFAST_SOURCE"
PLACEHOLDER = "ADDRESS"
"""In the command of the README that clones the repository."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")
_REMOTE = re.compile(
    r"(?:https://|ssh://|git://)?(?:[^@/]+@)?([\w.-]+\.[a-z]+)[:/](?!/)(.+?)(\.git)?/?"
)


def address_of(remote: str) -> str | None:
    """The page of a remote of git: ``https://host/owner/name``; None: it is not on a host.

    >>> address_of("git@host.org:owner/name.git")
    'https://host.org/owner/name'
    >>> address_of("/home/me/name")
    """
    found = _REMOTE.fullmatch(remote.strip())
    return f"https://{found[1]}/{found[2]}" if found else None


def source_of(root: Path, environ: Mapping[str, str]) -> str | None:
    """Address of the repository; None: it has none."""
    if given := environ.get(VARIABLE):
        return given.rstrip("/")
    about = root / "PKG-INFO"
    if about.exists():
        found = re.search(r"^Project-URL: Source, (\S+)$", about.read_text("utf-8"), re.MULTILINE)
        return found[1] if found else None
    git = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return address_of(done.stdout) if done.returncode == 0 else None


def urls(source: str | None, version: str) -> dict[str, str]:
    """``[project.urls]``, with well-known labels; empty without an address."""
    if source is None:
        return {}
    pages = f"{source}/blob/{_ref(version)}"
    return {
        "Source": source,
        "Documentation": f"{pages}/docs/index.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{source}/issues",
    }


def _ref(version: str) -> str:
    return "HEAD" if "dev" in version else f"v{version}"


def absolute(text: str, source: str | None, version: str) -> str:
    """The text with links that lead somewhere from any place.

    Args:
        text: Markdown, with links relative to the root of the repository.
        source: Address of the repository, as its host shows it; None: it has none.
        version: Of the distribution.
    """

    def turn(link: re.Match[str]) -> str:
        is_picture, words, target = link.groups()
        if source is None:
            return "" if is_picture else words
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}[{words}]({source.rstrip('/')}/{kind}/{_ref(version)}/{target})"

    if source is not None:
        text = re.sub(
            rf"(git clone ){PLACEHOLDER}( .*?) +# the address of this page", rf"\1{source}\2", text
        )
    return _LINK.sub(turn, text)


def get_metadata_hook() -> type:
    """Hatchling asks for it by this name; it is installed only where something is built."""
    from hatchling.metadata.plugin import interface  # noqa: PLC0415

    class ReadmeHook(interface.MetadataHookInterface):  # type: ignore[misc]
        def update(self, metadata: dict[str, Any]) -> None:
            root, version = Path(self.root), metadata["version"]
            source = source_of(root, os.environ)
            text = absolute((root / "README.md").read_text(encoding="utf-8"), source, version)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
            metadata["urls"] = urls(source, version)

    return ReadmeHook
