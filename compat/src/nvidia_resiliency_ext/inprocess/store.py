"""An alias: programs that import this module get holdfast's module of the same name."""

import sys

import holdfast.inprocess.store as _original
from holdfast.inprocess.store import *  # noqa: F403 - for type checkers and editors

sys.modules[__name__] = _original
