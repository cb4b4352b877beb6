"""The names of nvidia-resiliency-ext, provided by holdfast.

A module without additions *is* holdfast's, so that an attribute that a program replaces in it
takes effect. The others take their names from holdfast's modules, and add classes and functions
that exist for these names only. Importing this package loads neither torch nor holdfast; submodules
are loaded when they are used.
"""

from nvidia_resiliency_ext._lazy import lazy
from nvidia_resiliency_ext._shadow import warn_of_the_other_distribution
from nvidia_resiliency_ext._version import __version__

TYPE_CHECKING = False

if TYPE_CHECKING:
    from nvidia_resiliency_ext import (
        fault_tolerance as fault_tolerance,
        inprocess as inprocess,
        ptl_resiliency as ptl_resiliency,
        shared_utils as shared_utils,
    )

__all__ = ["__version__"]

_SUBMODULES = frozenset({"fault_tolerance", "inprocess", "ptl_resiliency", "shared_utils"})

if not TYPE_CHECKING:  # so that a type checker finds a name that is not there
    __getattr__, __dir__ = lazy(__name__, _SUBMODULES)


warn_of_the_other_distribution()
