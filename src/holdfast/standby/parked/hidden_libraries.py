"""Libraries imported ahead of time, out of sight until the script imports one of them.

Only then is it known whether the script has prepared for it: set OMP_NUM_THREADS, moved
``sys.path``, hooked imports. If it has, the process begins anew, as a plain start.

``paused_start.py`` runs this file from its path; it does not import it by its name.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from holdfast.standby.parked.paused_start import Preloaded


class HiddenLibraries:
    """A finder for ``sys.meta_path``, which leaves it when it has done its work."""

    def __init__(
        self,
        names: Sequence[str],
        preloaded: Preloaded,
        places: Mapping[str, str | None],
        harmless: Sequence[str],
        begin_anew: Callable[[Mapping[str, str], str], None],
    ) -> None:
        """Take them out of ``sys.modules``.

        Args:
            names: Of modules.
            preloaded: What importing them has come to.
            places: The file that each of them must be found in.
            harmless: How the names of variables begin that no import depends on.
            begin_anew: Starts the process over with an environment, and leaves word why; it
                returns in a child of the script.
        """
        import importlib.machinery  # noqa: PLC0415
        import logging  # noqa: PLC0415
        import signal  # noqa: PLC0415
        import threading  # noqa: PLC0415
        import warnings  # noqa: PLC0415

        self._modules = {name: sys.modules.pop(name) for name in names}
        self._tops = {name for name in names if "." not in name}
        self._places = places
        self._read = preloaded.read
        self._written = preloaded.written
        self._finders = preloaded.finders
        self._kept = preloaded.kept
        self._harmless = tuple(harmless)
        self._begin_anew = begin_anew
        self._find = importlib.machinery.PathFinder.find_spec
        self._loggers = {
            name: logger.disabled
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger)
        }
        self._logging = logging
        self._signal = signal
        self._lock = threading.Lock()  # two threads may import at once
        self._warnings = warnings
        self._environ: dict[str, str] = {}
        self._surroundings: tuple[object, ...] = ()
        self._started_with: tuple[object, ...] = ()

    def serve(self, filters: Sequence[Any], *, has_threads: bool) -> None:
        """Serve imports from now on.

        Args:
            filters: Of warnings, before imports.
            has_threads: Libraries have started threads, which no child would have.
        """
        self._filters = [each for each in self._warnings.filters if each not in filters]
        self._warnings.filters[:] = filters  # type: ignore[index]
        self._environ = dict(os.environ)
        sys.meta_path.insert(0, self)
        if has_threads:
            os.register_at_fork(before=self._before_fork)
        self._surroundings = self._look_around()
        self._started_with = self._folder_and_arguments()

    def _before_fork(self) -> None:
        """Libraries have started threads, and a plain start would not have them yet."""
        if self in sys.meta_path:
            why = "forks before it imports libraries that start threads"
            self._begin_anew(self._environ, why)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: object = None
    ) -> ModuleSpec | None:
        """The spec of a plain import, with a loader that takes the module from here."""
        if path is not None or name not in self._tops or name in sys.modules:
            return None
        spec = self._find(name)
        if spec is not None:
            spec.loader = _Kept(spec.loader, self)  # type: ignore[assignment]
        return spec

    def give(self, name: str) -> ModuleType:
        """One of them is imported: all are put back, if the script has not prepared for it."""
        with self._lock:
            self._put_back(name)
        return self._modules[name]

    def _put_back(self, name: str) -> None:
        if self in sys.meta_path:
            if why := self._doubt():
                self._begin_anew(self._environ, why)
            sys.meta_path[:] = self._finders
            sys.modules.update({key: kept for key, kept in self._modules.items() if key != name})
            self._warnings.filters[:0] = self._filters  # type: ignore[index]
            for logger, was_disabled in self._loggers.items():
                found = self._logging.root.manager.loggerDict[logger]
                found.disabled = was_disabled  # type: ignore[union-attr]
            os.environ.update(self._written)

    def _look_around(self) -> tuple[object, ...]:
        import builtins  # noqa: PLC0415

        return (
            list(sys.meta_path),
            list(sys.path_hooks),
            sys.getdlopenflags(),
            # Threads take these from the thread that starts them, when it does.
            os.sched_getaffinity(0),
            os.sched_getscheduler(0),
            os.nice(0),
            self._signal.pthread_sigmask(self._signal.SIG_BLOCK, []),
            builtins.__import__,
            builtins.open,
            self._logging.getLoggerClass(),
            self._logging.root.manager,
        )

    def _folder_and_arguments(self) -> tuple[object, ...]:
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            folder = ""
        return folder, sys.argv[1:]  # with -m, the first one is still to be replaced

    def _doubt(self) -> str | None:
        """A change by the script before its first import of a library that may depend on it.

        Changes after that import make no difference, as in a plain start.
        """
        now = dict(os.environ)
        for key in sorted({*now, *self._environ}):
            is_harmless = key.startswith(self._harmless) and key not in self._read
            if now.get(key) != self._environ.get(key) and not is_harmless:
                return f"changes {key} before it imports"
        if self._look_around() != self._surroundings:
            return "changes how modules are imported, or where threads run, before it imports"
        if self._folder_and_arguments() != self._started_with:
            return "changes its working directory or sys.argv before it imports"
        for name, place in self._places.items():
            if place_of(name) != place:
                return f"has another {name} on its path"
        for number, target in self._kept.items():
            if not _is_open(number, target):
                return f"closes a file of {target} before it imports"
        return None


class _Kept:
    """Loads a module that has been loaded; in all else the loader that a plain start has."""

    def __init__(self, loader: object, hidden: HiddenLibraries) -> None:
        self._loader = loader
        self._hidden = hidden
        self._spec: ModuleSpec | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        module = self._hidden.give(spec.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; only its spec was replaced by the import."""
        module.__spec__ = self._spec


def _is_open(number: str, target: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{number}") == target
    except OSError:
        return False


def place_of(name: str) -> str | None:
    """The file that ``import name`` finds on the path; None for a module that is made elsewhere."""
    from importlib.machinery import PathFinder  # noqa: PLC0415

    spec = PathFinder.find_spec(name)
    return None if spec is None else spec.origin
