"""Which libraries a Python process has imported, as far as its memory map tells. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

TORCH = "torch"
LATE = ("torch._dynamo",)
"""Modules that libraries import by themselves, long after their own import: torch takes this one
with the first optimizer, wrapper (DDP, FSDP) or compiled function, for half a second or more."""
_EXTENSION = re.compile(
    r".*/(?:site|dist)-packages/(?P<folders>.+)/[^/]+\.(?:cpython-[^/]*|abi3)\.so"
)
"""An extension module inside a package; plain ``.so`` files may be libraries of any kind."""


def imported_libraries(mapped_files: Iterable[str]) -> list[str]:
    """Installed packages of which the process has loaded an extension module, torch first.

    An extension module is mapped only once it has been imported, and its packages before it: they
    have surely been imported, too. Packages without extension modules are not seen; most are quick
    to import.

    >>> imported_libraries(["/v/site-packages/numpy/linalg/_umath_linalg.cpython-311-x86_64.so"])
    ['numpy', 'numpy.linalg']
    """
    found: set[str] = set()
    for path in mapped_files:
        if match := _EXTENSION.fullmatch(path):
            folders = match["folders"].split("/")
            if all(folder.isidentifier() for folder in folders):
                found.update(".".join(folders[: n + 1]) for n in range(len(folders)))
    return sorted(found, key=lambda name: (name.partition(".")[0] != TORCH, name))
