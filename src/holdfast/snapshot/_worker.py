"""A thread of the rank that does one thing after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """Starts with its first task. It is no reason for the process to live on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, task: Callable[[], object]) -> None:
        """Have it done, after those before it. A task raises nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def close(self, timeout_s: float) -> bool:
        """Wait until all is done; False: it is not, after so long."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._tasks.put(None)
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # or its objects would live until the next one
