"""An alias: programs that import this module get holdfast's module of the same name."""

import sys

import holdfast.inprocess.completion as _original
from holdfast.inprocess.completion import *  # noqa: F403 - for type checkers and editors

sys.modules[__name__] = _original
