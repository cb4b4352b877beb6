"""Try Python code in a child process, and look now and then whether that is over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from holdfast.base.clock import monotonic

_READ_S = 1.0
"""For the last words of a process that has ended: somebody else may hold its pipe open."""


class Trial:
    """A child process that runs some code; no thread waits for it.

    Args:
        code: For ``python -c``.
        env: Its environment, whole.
        bound_s: It has failed after that.
    """

    def __init__(self, code: str, env: Mapping[str, str], bound_s: float) -> None:
        self._bound_s = bound_s
        self._until = monotonic() + bound_s
        self._failed = ""
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            self._failed = f"its test: {error}"

    def why_not(self, timeout_s: float) -> str | None:
        """``None``: the code ran to its end, else how it failed.

        Raises:
            TimeoutError: It is not over after ``timeout_s``.
        """
        process = self._process
        if process is None:
            return self._failed
        # With a timeout of 0, communicate() says that it is not over, whether it is or not.
        wait_s = timeout_s if process.poll() is None else _READ_S
        try:
            _, said = process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            if monotonic() < self._until:
                raise TimeoutError from None
            self.cancel()
            return f"its test takes longer than {self._bound_s:g} s"
        if process.returncode == 0:
            return None
        return f"its test ended with {process.returncode}, {said.strip()[-300:] or 'silently'}"

    def cancel(self) -> None:
        """End it, if it is not over."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
