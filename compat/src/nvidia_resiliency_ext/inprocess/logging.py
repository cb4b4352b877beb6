"""Where messages of in-process restart go.

holdfast's loggers follow a program's configuration of ``nvidia_resiliency_ext`` and ``nvrx``
(``holdfast.base.rank_log``); no handler is ever added to them. For programs that add one for the
duration of a call there is :func:`attach_handlers`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Logging", "attach_handlers", "get_logger"]

_PACKAGE = "nvidia_resiliency_ext.inprocess"


def get_logger(name: str = _PACKAGE) -> logging.Logger:
    """The logger of this name; its configuration counts for holdfast's, too."""
    return logging.getLogger(name)


@contextmanager
def attach_handlers(logger: logging.Logger | None = None) -> Iterator[logging.Logger]:
    """Give a logger the stream handlers of its nearest ancestor that has some, while inside.

    Args:
        logger: ``None``: of this package.
    """
    target = get_logger() if logger is None else logger
    ancestor = target.parent
    while ancestor is not None and not ancestor.handlers:
        ancestor = ancestor.parent
    found = ancestor.handlers if ancestor is not None else []
    added = [
        each
        for each in found
        if isinstance(each, logging.StreamHandler) and each not in target.handlers
    ]
    propagated, target.propagate = target.propagate, target.propagate and not added
    target.handlers.extend(added)
    try:
        yield target
    finally:
        target.propagate = propagated
        for handler in added:
            target.removeHandler(handler)


Logging = attach_handlers
