"""The first generation's home of the filters of ``rank_assignment``."""

import sys

import holdfast.inprocess.rank_filter as _original
from holdfast.inprocess.rank_filter import *  # noqa: F403 - for type checkers and editors
from nvidia_resiliency_ext._former import warn_once

warn_once(
    "nvidia_resiliency_ext.inprocess.rank_filter is an old place: import these names from "
    "nvidia_resiliency_ext.inprocess.rank_assignment"
)
sys.modules[__name__] = _original
