"""Close a ``match`` over a union of events, so that mypy finds the case that was forgotten."""

from typing import NoReturn


def assert_never(value: NoReturn) -> NoReturn:
    """The type checker proves that this is never reached; ``typing``'s own needs Python 3.11."""
    raise AssertionError(f"not handled: {value!r}")
