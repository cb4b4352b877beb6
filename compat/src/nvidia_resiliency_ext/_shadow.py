"""Two distributions provide this module's name; say so where both are installed.

The folder of each on ``sys.path`` is searched for the other's metadata by name, which costs a
directory listing: ``importlib.metadata`` would cost each rank ten times that.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

_OTHER = "nvidia-resiliency-ext"
_OURS = "holdfast-nvrx-compat"
_METADATA_PREFIX = "nvidia_resiliency_ext-"
_METADATA_SUFFIXES = (".dist-info", ".egg-info")


def warn_of_the_other_distribution() -> None:
    """One ``UserWarning`` where nvidia-resiliency-ext is installed, too."""
    package = os.path.dirname(os.path.abspath(__file__))
    text = conflict(sys.path, os.path.dirname(package))
    if text is not None:
        warnings.warn(text, UserWarning, stacklevel=2)


def conflict(path: Iterable[str], own_folder: str) -> str | None:
    """A warning about the other distribution; ``None``: it is not installed.

    Args:
        path: Folders in which Python looks for modules.
        own_folder: Where this package was imported from.
    """
    folders = [folder for folder in dict.fromkeys(path) if _has_other(folder or ".")]
    if not folders:
        return None
    if any(os.path.realpath(folder or ".") == os.path.realpath(own_folder) for folder in folders):
        return (
            f"{_OURS} and {_OTHER} are installed into the same folder, {own_folder}, and have "
            f"overwritten files of each other: uninstall both, then install one of them "
            f"(pip uninstall -y {_OTHER} {_OURS})"
        )
    return (
        f"{_OTHER} is installed in {', '.join(folders)}, and {_OURS} in {own_folder} shadows it: "
        f"the module nvidia_resiliency_ext is holdfast's. To use the other: pip uninstall {_OURS}; "
        f"to end this warning: pip uninstall {_OTHER}"
    )


def _has_other(folder: str) -> bool:
    try:
        names = os.listdir(folder)
    except OSError:  # no folder: an archive, or missing
        return False
    return any(
        name.startswith(_METADATA_PREFIX) and name.endswith(_METADATA_SUFFIXES) for name in names
    )
