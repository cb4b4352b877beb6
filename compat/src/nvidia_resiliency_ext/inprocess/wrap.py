"""An alias: programs that import this module get holdfast's module of the same name."""

import sys

import holdfast.inprocess.wrap as _original
from holdfast.inprocess.wrap import *  # noqa: F403 - for type checkers and editors
from nvidia_resiliency_ext.inprocess._store_records import add_to_stores

add_to_stores()  # of a call and its iterations, which plug-ins and the function see
sys.modules[__name__] = _original
