"""Home of ``RankShouldRestart`` for programs that know it by this name; see ``exception.py``."""

from holdfast.inprocess.exception import RankShouldRestart

__all__ = ["RankShouldRestart"]
