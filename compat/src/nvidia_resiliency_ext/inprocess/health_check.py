"""An alias: programs that import this module get holdfast's module of the same name."""

import sys

import holdfast.inprocess.health_check as _original
from holdfast.inprocess.health_check import *  # noqa: F403 - for type checkers and editors

sys.modules[__name__] = _original
