"""The former place of ``shared_utils.inject_fault``."""

import sys

import nvidia_resiliency_ext.shared_utils.inject_fault as _original
from nvidia_resiliency_ext._former import warn_once
from nvidia_resiliency_ext.shared_utils.inject_fault import *  # noqa: F403 - for type checkers

warn_once(
    "nvidia_resiliency_ext.inprocess.tools.inject_fault is an old place: import "
    "nvidia_resiliency_ext.shared_utils.inject_fault"
)
sys.modules[__name__] = _original
