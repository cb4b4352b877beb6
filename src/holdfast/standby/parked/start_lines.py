"""What Python runs before ``sitecustomize``: lines of ``.pth`` files, and modules they import.

They have run by the time that this process can watch anything. So their text is read: each use of
``os.environ`` has to name one variable that no cycle sets. An unclear or
unreadable line is refused.

``paused_start.py`` runs this file from its path; it does not import it by its name.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import ModuleType

_VARIABLES = frozenset({"environ", "environb", "getenv", "getenvb", "expandvars"})
_CHILDREN = frozenset({"subprocess", "system", "popen", "fork", "spawn", "posix_spawn"})
_ASKS = ("get", "pop", "setdefault")


def doubt(
    folders: Sequence[str],
    modules: Mapping[str, ModuleType],
    per_cycle: Collection[str],
    own: str,
) -> str | None:
    """Why ``.pth`` files may have done other than in a plain start; None: they have not.

    Args:
        folders: ``sys.path``.
        modules: ``sys.modules`` by now.
        per_cycle: Names of variables that a cycle sets.
        own: Folder of the package whose modules are not read.
    """
    for path, line in _import_lines(folders):
        if why := _doubt_of(line, per_cycle, is_line=True):
            return f"{path} {why}"
    for path in _files(modules, own):
        if not path.endswith(".py"):
            return f"{path} is loaded when Python starts, and cannot be read"
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            return f"{path}, loaded when Python starts: {error.strerror}"
        if any(word.encode() in source for word in _VARIABLES) and (
            why := _doubt_of(source, per_cycle, is_line=False)
        ):
            return f"{path}, loaded when Python starts, {why}"
    return None


def _import_lines(folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    lines = file.read().decode("utf-8-sig", "replace").splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith(("import ", "import\t")):
                    yield path, line


def _files(modules: Mapping[str, ModuleType], own: str) -> Iterator[str]:
    """Of modules that are not the standard library's."""
    standard = os.path.join(os.path.dirname(os.__file__), "")
    for module in list(modules.values()):
        spec = getattr(module, "__spec__", None)
        if spec is None or not spec.has_location or not spec.origin:
            continue
        is_installed = "/site-packages/" in spec.origin or "/dist-packages/" in spec.origin
        is_standard = spec.origin.startswith(standard) and not is_installed
        if not is_standard and not spec.origin.startswith(own):
            yield spec.origin


def _doubt_of(source: str | bytes, per_cycle: Collection[str], *, is_line: bool) -> str | None:
    import ast  # noqa: PLC0415 - only where there is something to read

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "cannot be read"
    known = _constants(tree)
    clear = set[int]()
    for node in ast.walk(tree):
        found = _asked(node, known)
        if found is not None:
            name, place = found
            if name in per_cycle:
                return f"reads {name}"
            clear.add(id(place))
    for node in ast.walk(tree):
        word = _name_of(node)
        if word in _VARIABLES and id(node) not in clear:
            return "reads variables of the environment that its text does not name"
        if is_line and word in _CHILDREN:
            return "starts processes"
        if isinstance(node, ast.Call) and _name_of(node.func) in ("exec", "eval"):
            code = node.args[0] if node.args else None
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                if why := _doubt_of(code.value, per_cycle, is_line=is_line):
                    return why
            elif is_line:
                return "runs code that is not in its text"
    return None


def _constants(tree: ast.AST) -> dict[str, str]:
    """Names that are assigned once, and a text."""
    import ast  # noqa: PLC0415

    found: dict[str, list[object]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, []).append(None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and len(found[target.id]) == 1:
                    found[target.id] = [node.value.value]
    return {name: text for name, (text, *_) in found.items() if isinstance(text, str)}


def _asked(node: ast.AST, known: Mapping[str, str]) -> tuple[str, ast.AST] | None:
    """The variable that an expression asks for by name, and where the environment stands in it."""
    import ast  # noqa: PLC0415

    match node:
        case ast.Call(func=ast.Attribute(value=place, attr=attr), args=[key, *_]) if (
            attr in _ASKS and _name_of(place) == "environ"
        ):
            pass
        case ast.Call(func=place, args=[key, *_]) if _name_of(place) == "getenv":
            pass
        case ast.Subscript(value=place, slice=key) if _name_of(place) == "environ":
            pass
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[place]) if (
            _name_of(place) == "environ"
        ):
            pass
        case _:
            return None
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value, place
    if isinstance(key, ast.Name) and key.id in known:
        return known[key.id], place
    return None


def _name_of(node: ast.AST) -> str | None:
    import ast  # noqa: PLC0415

    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.alias) and node.asname is not None:
        return node.name.rpartition(".")[2]  # under another name, it is lost from sight
    return None
