"""Imports that a script will surely make: installed libraries that its first lines name.

Only statements at the top of a file that run whatever happens: not in functions, not under ``if``
or ``try``. The user's own modules are read, never run, and followed. ``from transformers import
Trainer`` is two things: the module, and a name in it, which may load more.

``paused_start.py`` runs this file from its path; it does not import it by its name.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

Import = tuple[str, tuple[str, ...]]
"""A module, and the names that are taken from it."""
_FILES_MAX = 200
_FILE_BYTES_MAX = 1 << 20


def script_imports(argv: Sequence[str], path: Sequence[str]) -> tuple[list[Import], set[str]]:
    """Imports of the script that the interpreter was started for, and variables that it sets.

    Args:
        argv: ``sys.orig_argv``: interpreter, options, and then a script, ``-m`` or ``-c``.
        path: ``sys.path`` without the script's own folder.

    Returns:
        Modules in its order that were found in site-packages or dist-packages, and the names of
        variables that some line of it may change in ``os.environ``. Empty where the script cannot
        be read.
    """
    found = _Found()
    main = _main_file(argv, path)
    if main is None:
        return [], set()
    file, package, first = main
    found.read(file, package, [first, *path], is_main=True)
    return found.imports, found.variables


def file_of_main() -> str | None:
    """What ``__main__.__file__`` will be: without it, libraries believe to be in a notebook."""
    first = sys.argv[0] if sys.argv else ""
    if first in ("", "-", "-c"):
        return None
    if first == "-m":
        return _module(sys.orig_argv, sys.path)[1]
    path = os.path.join(os.getcwd(), first)
    is_container = os.path.isdir(path) or _archived(path)
    return os.path.join(path, "__main__.py") if is_container else path


def shadowed(standard: set[str], missed: set[str]) -> str | None:
    """A module that the script's imports would find in folders that were not searched here.

    Args:
        standard: Modules of the standard library that were imported.
        missed: Modules that were looked for, and not found.

    Returns:
        A name.
    """
    first = sys.argv[0]
    if first in ("-m", "-c"):
        folders = [os.getcwd()]
    else:
        folders = [os.path.dirname(os.path.realpath(first)), os.path.realpath(first)]
    library = os.path.dirname(os.__file__)
    for folder in sys.path:
        if folder == library:
            break
        folders.append(folder)
    for folder in folders:
        for name, is_package_or_file in _modules_in(folder, standard | missed):
            if name in missed or is_package_or_file:
                return name
    return None


def _modules_in(folder: str, names: set[str]) -> Iterator[tuple[str, bool]]:
    """Which of these modules a folder or an archive holds; False: as a folder without a file."""
    from importlib.machinery import all_suffixes  # noqa: PLC0415

    suffixes = all_suffixes()
    try:
        entries = os.listdir(folder)
    except NotADirectoryError:
        entries = _archived(folder)
    except OSError:
        return
    for entry in entries:
        name, _, rest = entry.partition(".")
        path = os.path.join(folder, entry)
        if name not in names:
            continue
        if rest:
            if f".{rest}" in suffixes:
                yield name, True
        elif not os.path.isfile(path):
            yield name, any(os.path.exists(f"{path}/__init__{each}") for each in suffixes)


def _archived(path: str) -> list[str]:
    """Names of modules at the top of an archive (a zipapp); none where it is another file."""
    import zipimport  # noqa: PLC0415

    try:
        archive = zipimport.zipimporter(path).archive
    except zipimport.ZipImportError:
        return []
    files: Any = zipimport._zip_directory_cache[archive]  # type: ignore[attr-defined] # noqa: SLF001
    return [f"{top.partition('.')[0]}.py" for top in {each.split(os.sep)[0] for each in files}]


def _module(argv: Sequence[str], path: Sequence[str]) -> tuple[str, str | None]:
    words = list(argv)
    name = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    where = _find(name, [os.getcwd(), *path])
    if where is not None and os.path.basename(where) == "__init__.py":
        name = f"{name}.__main__"
        where = _find(name, [os.getcwd(), *path])
    return name, where


def _main_file(argv: Sequence[str], path: Sequence[str]) -> tuple[str, str, str] | None:
    """File, package, and the folder that its imports search first."""
    here = os.getcwd()
    script = sys.argv[0] if sys.argv else ""
    if script == "-m":
        name, where = _module(argv, path)
        return None if where is None else (where, name.rpartition(".")[0], here)
    if script in ("", "-c", "-"):
        return None
    script = os.path.realpath(script)
    if os.path.isdir(script):
        return os.path.join(script, "__main__.py"), "", script
    return script, "", os.path.dirname(script)


def _find(name: str, path: Sequence[str] | None) -> str | None:
    """The file of a module; ``None`` where there is none. Runs nothing."""
    where: Sequence[str] | None = path
    origin: str | None = None
    parts = name.split(".")
    for number in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: number + 1]), where)
        if spec is None:
            return None
        origin = spec.origin if spec.has_location else None
        where = spec.submodule_search_locations
        if where is None and number + 1 < len(parts):
            return None
    return origin


def is_installed(file: str) -> bool:
    """It belongs to an installed library, and not to the user's own code."""
    return "/site-packages/" in file or "/dist-packages/" in file


class _Found:
    """Collects imports, each once, and variables."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.variables: set[str] = set()
        self._seen: set[str] = set()

    def read(self, file: str, package: str, path: Sequence[str], *, is_main: bool = False) -> None:
        """Add the imports of a file."""
        if file in self._seen or len(self._seen) >= _FILES_MAX or not file.endswith(".py"):
            return
        self._seen.add(file)
        try:
            if os.stat(file).st_size > _FILE_BYTES_MAX:
                return
            with open(file, "rb") as source:
                tree = ast.parse(source.read())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return  # a plain start reports the error
        self.variables.update(_variables(tree))
        for module, names in _statements(tree.body, package, is_main=is_main):
            self._add(module, names, path)

    def _add(self, module: str, names: Sequence[str], path: Sequence[str]) -> None:
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names:
            return
        file = _find(top, path)
        if file is not None and is_installed(file):
            if (module, tuple(names)) not in self.imports:
                self.imports.append((module, tuple(names)))
            return
        # The user's own: a package runs the __init__ of each of its levels first.
        parts = module.split(".")
        levels = [".".join(parts[: number + 1]) for number in range(len(parts))]
        for name in [*levels, *(f"{module}.{each}" for each in names)]:
            where = _find(name, path)
            if where is not None and not is_installed(where):
                is_package = os.path.basename(where) == "__init__.py"
                self.read(where, name if is_package else name.rpartition(".")[0], path)


def _statements(
    body: Iterable[ast.stmt], package: str, *, is_main: bool
) -> Iterator[tuple[str, list[str]]]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                for name in names:
                    yield name.name, []
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _absolute(module or "", package, level)
                if base and base != "__future__":
                    yield base, [name.name for name in names if name.name != "*"]
            case ast.If(test=test, body=inner) if is_main and _is_main_guard(test):
                yield from _statements(inner, package, is_main=True)


def _variables(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                value=ast.Attribute(attr="environ") | ast.Name(id="environ"),
                slice=ast.Constant(value=str(name)),
                ctx=ast.Store() | ast.Del(),
            ):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="setdefault" | "pop" | "putenv" | "unsetenv"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Call(func=ast.Attribute(attr="update"), args=arguments, keywords=named):
                yield from (each.arg for each in named if each.arg)
                for each in arguments:
                    if isinstance(each, ast.Dict):
                        keys = (k.value for k in each.keys if isinstance(k, ast.Constant))
                        yield from (key for key in keys if isinstance(key, str))


def _absolute(module: str, package: str, level: int) -> str:
    if level == 0:
        return module
    parts = package.split(".") if package else []
    if level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _is_main_guard(test: ast.expr) -> bool:
    match test:
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]
        ):
            return True
    return False
