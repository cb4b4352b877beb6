"""The hook by which parts of holdfast run in a Python that starts, before its script.

Python imports ``sitecustomize`` at the end of its own start. With this folder first on PYTHONPATH
it finds this file, which takes the folder off ``sys.path``, runs the parts that the environment
names, and imports the ``sitecustomize`` of a plain start as Python would have. A process without
parts goes on as if this file had never been on the path, and so does a Python that is older than
holdfast's oldest (``PYTHON_EXEC``): it may not even read the parts.

A part is a file with a function ``start(python_start, orders)``, which calls
:meth:`PythonStart.proceed` once and returns what that returns. So it acts before the parts that
come after it and before the user's ``sitecustomize``, around them, or after them. The hook runs
that file from its path: to import it by its name would import holdfast.
"""

# Annotations are quoted: the module __future__ would take 0.1 ms of each start, and stay imported.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_PARTS = (
    ("HOLDFAST_PARKED", "standby/parked/paused_start.py"),
    ("HOLDFAST_AUTO", "watch/rank/first_lines.py"),
)
"""Parts that a launcher asks for: the variable with the orders, and the file. The first one is
around all others. Each gives PYTHONPATH back, which the launcher has changed for it."""
_FAULTS = "testing/_faults_at_start.py"
"""The last part, for a user who has put this folder on PYTHONPATH; it stays there, for children."""
_OLDEST = 0x030A0000  # Python 3.10
_HERE = os.path.dirname(__file__)
_HOLDFAST = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


class PythonStart:
    """The start of this interpreter, for its parts.

    Attributes:
        part: The module of the part that has begun last.
        import_plain: Imports the user's ``sitecustomize`` at last, and returns it, or None; a part
            may put another function around it.
    """

    def __init__(self) -> None:
        self.part: Any = None
        self.import_plain: Callable[[], ModuleType | None] = _import_plain
        self._parts = _asked_parts()
        self._awaited: dict[str, list[Callable[[ModuleType], None]]] = {}

    def proceed(self) -> "ModuleType | None":
        """Run the next part; after the last one, import the user's ``sitecustomize``, if any."""
        found = next(self._parts, None)
        if found is None:
            return self.import_plain()
        file, orders = found
        self.part = self.load(file)
        return self.part.start(self, orders)  # type: ignore[no-any-return]

    def load(self, file: str) -> "Any":
        """Run a file of holdfast as a module that no import finds."""
        import _frozen_importlib as bootstrap  # noqa: PLC0415 - importlib.util takes 1 ms
        import _frozen_importlib_external as of_files  # noqa: PLC0415

        name = os.path.basename(file).partition(".")[0]
        spec: Any = of_files.spec_from_file_location(f"_holdfast_{name}", f"{_HOLDFAST}/{file}")
        module = bootstrap.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def restore_pythonpath(self, path: "str | None") -> None:
        """The script and its children see the PYTHONPATH of a plain start; None: it has none."""
        os.environ.pop("PYTHONPATH", None)
        if path is not None:
            os.environ["PYTHONPATH"] = path

    def after_import(self, name: str, then: "Callable[[ModuleType], None]") -> None:
        """Call ``then`` when an import has run the module ``name``, which no import has yet."""
        if not self._awaited:
            sys.meta_path.insert(0, _AfterImport(self._awaited))
        self._awaited.setdefault(name, []).append(then)


def _asked_parts() -> "Iterator[tuple[str, str]]":
    """File and orders of each part. Looks only when asked: a part changes the environment."""
    for variable, file in _PARTS:
        orders = os.environ.pop(variable, None)
        if orders is not None:
            yield file, orders
    if "HOLDFAST_CHAOS" in os.environ or "HOLDFAST_INJECT" in os.environ:
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if _HERE in [os.path.abspath(folder) for folder in folders if folder]:
            yield _FAULTS, ""


def _forget_parts() -> None:
    """Give back the environment, which a launcher has changed if it asks for parts."""
    asked = [os.environ.pop(variable, None) for variable, _ in _PARTS]
    first, _, others = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == _HERE and asked != [None] * len(_PARTS):
        del os.environ["PYTHONPATH"]
        if others:
            os.environ["PYTHONPATH"] = others


def _import_plain() -> "ModuleType | None":
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return None
    return sitecustomize  # type: ignore[no-any-return, unused-ignore]


# ------------------------------------------------------------------ after an import
class _AfterImport:
    """A finder for ``sys.meta_path``, which stays there: libraries compare it with its past."""

    def __init__(self, awaited: "dict[str, list[Callable[[ModuleType], None]]]") -> None:
        self._awaited = awaited
        self._asking: set[str] = set()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of the other finders, with a loader that calls back when it has run."""
        if name not in self._awaited or name in self._asking:
            return None
        self._asking.add(name)  # another finder of this kind asks this one in turn
        try:
            finders = [each for each in sys.meta_path if hasattr(each, "find_spec")]  # old: none
            found = (finder.find_spec(name, path, target) for finder in finders)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._asking.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallAfterLoad(spec.loader, self._awaited[name])  # type: ignore[assignment]
        return spec


class _CallAfterLoad:
    """The loader of a plain import, and calls afterwards."""

    def __init__(self, loader: "Any", calls: "Sequence[Callable[[ModuleType], None]]") -> None:
        self._loader = loader
        self._calls = calls

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """As ever."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: "ModuleType") -> None:
        """As ever; then the calls, and the module looks as ever, too."""
        self._loader.exec_module(module)
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        for then in self._calls:
            then(module)


def _main() -> None:
    if __name__ != "sitecustomize":  # a tool imports all modules
        return
    sys.path[:] = [folder for folder in sys.path if folder != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    if sys.hexversion < _OLDEST:
        _forget_parts()
        real = _import_plain()
    else:
        real = PythonStart().proceed()
    if real is None:  # nothing of this name is there, and nothing of it stays
        raise ImportError("no sitecustomize", name="sitecustomize")
    sys.modules["sitecustomize"] = real


_main()
