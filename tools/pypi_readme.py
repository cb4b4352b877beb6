"""README.md as PyPI shows it, made when a distribution is built (``pyproject.toml``).

Links and pictures of the README are relative, for the repository. On PyPI nothing is beside it, so
they become absolute, below ``Source`` of ``[project.urls]``: at the tag of a release, at the newest
commit for a development version. Without ``Source``, pictures are left out, and links are words.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


def absolute(text: str, source: str | None, version: str) -> str:
    """The text with links that lead somewhere from any place.

    Args:
        text: Markdown, with links relative to the root of the repository.
        source: Address of the repository, as its host shows it; None: it has none.
        version: Of the distribution.
    """
    ref = "HEAD" if "dev" in version else f"v{version}"

    def turn(link: re.Match[str]) -> str:
        is_picture, words, target = link.groups()
        if source is None:
            return "" if is_picture else words
        kind = "raw" if is_picture else "blob"
        return f"{is_picture}[{words}]({source.rstrip('/')}/{kind}/{ref}/{target})"

    return _LINK.sub(turn, text)


def get_metadata_hook() -> type:
    """Hatchling asks for it by this name; it is installed only where something is built."""
    from hatchling.metadata.plugin import interface  # noqa: PLC0415

    class ReadmeHook(interface.MetadataHookInterface):  # type: ignore[misc]
        def update(self, metadata: dict[str, Any]) -> None:
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            source = metadata.get("urls", {}).get("Source")
            text = absolute(text, source, metadata["version"])
            metadata["readme"] = {"content-type": "text/markdown", "text": text}

    return ReadmeHook
