"""Environment variables that switch something on. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Whether the variable is neither empty nor 0, false, no, off."""
    return environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")
