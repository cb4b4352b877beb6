"""A plain start of a rank, paused where the interpreter is ready and the script has not begun.

A part of the start of its Python (``base/processes/start_hook/sitecustomize.py``), around all
others: it lets them run, imports torch and other libraries, says that it is ready, and waits for
the rank's environment and output. Then it returns, and the interpreter goes on as in a plain start.

The rule is: the same as a plain start, or a plain start. Where it is not certain, the process
``exec``s its own command, and so becomes the plain start: same pid, same descriptors. While it is
parked it reports why it is unfit instead, and leaves.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, NoReturn

    from holdfast.base.processes.start_hook.sitecustomize import PythonStart
    from holdfast.standby.parked.script_imports import Import
    from holdfast.standby.parked.watched_environ import EnvironWatch

ORDERS = "HOLDFAST_PARKED"
"""Environment variable with the orders of :func:`start`, a JSON object; see
``standby_process.py``."""
_START_ORDERS = "HOLDFAST_AUTO"
_START = "_holdfast_start"
"""The first lines of a rank (``watch/rank/first_lines.py``), which have run in this process."""
CONTROL_FD = 3
_STREAMS = (1, 2)
_HOLDFAST = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")
"""This package, which torch imports as a rendezvous backend; installed or in development."""
_PARKED_NAME = "holdfast-parked"  # 15 characters, as many as the kernel keeps
_LOSES_NOTHING_AT = 0
_PATH_HOOKS = 2
"""Of Python's own: for archives and for folders."""
_USUAL_FINDERS = ("_frozen_importlib", "_distutils_hack", "_virtualenv", "__editable__")
"""Modules of finders that virtual environments have: Python's own, and those of setuptools,
virtualenv and editable installations. ``importlib`` shows its classes by their frozen names."""
_SIGNALS_OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, which glibc takes for itself with the first thread of a library."""


class UnfitError(Exception):
    """This process might differ from a plain start.

    Args:
        reason: How.
        module: The import that makes the difference, where it is one.
    """

    def __init__(self, reason: str, module: str | None = None) -> None:
        super().__init__(reason)
        self.module = module


# ------------------------------------------------------------------ prepare
class Preloaded:
    """What importing ahead of time has come to.

    Attributes:
        read: Variables that were asked for by name, those of the cycle left out.
        assumed: Variables of the cycle that were, and the values that they got.
        written: Variables that were set.
        finders: Of ``sys.meta_path``, with those that libraries have put there.
        missed: Names of modules that were looked for and are not installed.
        kept: Files that libraries keep open, by descriptor.
    """

    def __init__(
        self, watch: EnvironWatch, written: dict[str, str], finders: list[Any], missed: set[str]
    ) -> None:
        self.read = watch.read
        self.assumed = watch.assumed
        self.written = written
        self.finders = finders
        self.missed = missed
        self.kept = dict(_open_files(of_libraries=True))
        for number in self.kept:
            os.set_inheritable(int(number), False)  # a plain start in this place has its own


class _Missed:
    """The last finder of ``sys.meta_path``: notes what no other one has found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: object = None
    ) -> ModuleSpec | None:
        """Nothing."""
        if path is None:
            self.names.add(name)
        return None


def _preload(
    imports: Sequence[Import],
    late: Sequence[str],
    variables: set[str],
    watch: EnvironWatch,
    file_of_main: str | None,
) -> Preloaded:
    """Import, and check that nothing else happens; ``variables``: those that the script may set."""
    main = vars(sys.modules["__main__"])
    if file_of_main is not None:
        main["__file__"] = file_of_main
    finders = list(sys.meta_path)
    missed: Any = _Missed()
    sys.meta_path.append(missed)
    lister = ""
    watch.begin()
    try:
        for name, parts in imports:
            _import_and_look(name, parts, watch)
            if watch.is_listed and not lister:
                lister = name
        for name in late:
            if name.partition(".")[0] in sys.modules:
                earlier, watch.read = watch.read, set()
                _import_and_look(name, (), watch)
                if set_later := sorted(watch.read & variables):
                    reason = f"the script may set {set_later[0]} before {name} reads it"
                    raise UnfitError(reason, name)
                watch.read |= earlier
    finally:
        changed = watch.end()
        main.pop("__file__", None)
    if lister and watch.is_kept():
        raise UnfitError(f"{lister} keeps variables of the environment", lister)
    written = {key: value for key, value in changed.items() if value is not None}
    if len(written) < len(changed):
        raise UnfitError(
            "an import removes variables from the environment, or sets those of a rank"
        )
    now, sys.meta_path[:] = list(sys.meta_path), finders
    if [finder for finder in now if finder in (*finders, missed)] != [*finders, missed]:
        raise UnfitError("an import removes something from sys.meta_path")
    now.remove(missed)
    return Preloaded(watch, written, now, missed.names)


def _import_and_look(name: str, parts: Sequence[str], watch: EnvironWatch) -> None:
    before = _interpreter()
    try:
        _import(name, parts)
    except Exception as error:  # noqa: BLE001 - a library may raise anything
        if not watch.unknown:
            raise UnfitError(f"{name} cannot be imported: {error}", name) from None
    if watch.unknown:
        raise UnfitError(f"{name} reads {watch.unknown[0]} while it is imported", name)
    after = _interpreter()
    for state, was in before.items():
        if after[state] != was:
            raise UnfitError(f"importing {name} changes {state}", name)


def _import(name: str, parts: Sequence[str]) -> None:
    """``import name``, or ``from name import parts``."""
    from importlib import import_module  # noqa: PLC0415 - nothing is imported without orders

    module = import_module(name)
    for part in parts:
        if not hasattr(module, part):
            try:
                import_module(f"{name}.{part}")
            except ImportError:  # a plain start reports the error
                continue


def _interpreter() -> dict[str, object]:
    """State that an import must leave as it is, so that doing it early makes no difference."""
    import builtins  # noqa: PLC0415
    import gc  # noqa: PLC0415
    import logging  # noqa: PLC0415
    import threading  # noqa: PLC0415

    status = _status()
    return {
        "sys.path": list(sys.path),
        "sys.path_hooks": list(sys.path_hooks),
        "sys.excepthook": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "sys.stdout or sys.stderr": (sys.stdout, sys.stderr, sys.displayhook),
        "how Python runs": (sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold()),
        "the root logger": (logging.root.level, list(logging.root.handlers)),
        "builtins": (len(vars(builtins)), builtins.__import__, builtins.open, builtins.print),
        "the flags for loading libraries": sys.getdlopenflags(),
        "the number of Python threads": threading.active_count(),
        "signal handlers": (
            status["SigBlk"],
            *(int(status[kind], 16) & ~_SIGNALS_OF_THE_C_LIBRARY for kind in ("SigIgn", "SigCgt")),
        ),
        "open files": list(_open_files()),
        "stdout or stderr (it writes)": [os.fstat(number).st_size for number in _STREAMS],
        "children": _children(),
        "umask": status.get("Umask"),
        "working directory": os.getcwd(),
    }


def _status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def _native_threads() -> int:
    return int(_status()["Threads"])


def _open_files(*, of_libraries: bool = False) -> Iterator[tuple[str, str]]:
    """Descriptors and their files; those of mapped libraries apart.

    libffi from 3.5 on keeps its own file open, of which it maps callbacks of ctypes.
    """
    with open("/proc/self/maps") as file:
        code = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if " r-xp " in line}
    for number in sorted(os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the one that lists
            continue
        if (target in code) == of_libraries:
            yield number, target


def _children() -> str:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read()


def _refuse_strange_places(
    modules: Mapping[str, ModuleType], began_ns: int, ended_ns: int
) -> dict[str, Any]:
    """Files of the modules, with what tells a changed one; only installed ones will do.

    Those of an image that was built on a host whose clock is ahead are from the future.
    """
    standard = os.path.dirname(os.__file__)
    specs = [getattr(module, "__spec__", None) for module in modules.values()]
    paths = [spec.origin for spec in specs if spec is not None and spec.has_location]
    with open("/proc/self/maps") as file:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if "-packages/" in line}
    found = {}
    for path in {*paths, *mapped}:
        is_installed = "/site-packages/" in path or "/dist-packages/" in path
        if not is_installed and not path.startswith(_HOLDFAST):
            if not path.startswith(standard):
                raise UnfitError(f"{path} is not an installed library")
            continue  # the standard library is loaded by the interpreter's start already
        try:
            found[path] = stamp = _stamp(path)
        except OSError as error:
            raise UnfitError(f"{path}: {error.strerror}") from None
        if began_ns <= stamp[0] <= ended_ns:
            raise UnfitError(f"{path} changed while it was imported")
    return found


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _memory_kib() -> int:
    """Memory of this process; that shared with others is counted in part."""
    try:
        with open("/proc/self/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return int(_status()["VmRSS"].split()[0])


# ------------------------------------------------------------------ go on
_way_in: dict[str, str] = {}
"""Variables with which a plain start finds the first lines of a rank."""


def _leave_word(note: str, why: str) -> None:
    """For the launcher, in the file ``note``, because it may happen again."""
    try:
        with open(note, "w") as file:
            file.write(why)
    except OSError:
        pass


def _become_plain(environ: Mapping[str, str], note: str, why: str) -> NoReturn:
    """Start over as the command that this process was started with, and leave word."""
    import signal  # noqa: PLC0415

    _leave_word(note, why)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(signum, signal.SIG_DFL)
    os.execvpe(sys.orig_argv[0], sys.orig_argv, {**environ, **_way_in})  # noqa: S606


def _begin_anew_as(pid: int, note: str) -> Callable[[Mapping[str, str], str], None]:
    """Become plain, but not in a child of the script: it would be a second rank."""

    def begin_anew(environ: Mapping[str, str], why: str) -> None:
        if os.getpid() == pid:
            _become_plain(environ, note, why)
        _leave_word(note, f"(in a child) {why}")

    return begin_anew


def _refresh_streams() -> None:
    """Have the streams that exist already ask what their new places can do.

    The stream objects stay, because log handlers hold them.
    """
    import io  # noqa: PLC0415

    streams: tuple[Any, Any] = sys.stdout, sys.stderr
    for number, stream in zip(_STREAMS, streams, strict=True):
        raw: Any = io.FileIO(number, "wb", closefd=False)
        raw.name = stream.buffer.name
        stream.__init__(
            raw,
            encoding=stream.encoding,
            errors=stream.errors,
            newline="\n",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )


def _refresh_stdin() -> None:
    """The same for the stream that was /dev/null so far, for a rank that reads the launcher's."""
    stdin: Any = sys.stdin
    buffer: Any = open(0, "rb", closefd=False)  # noqa: SIM115 - open until the exit
    buffer.raw.name = stdin.buffer.raw.name
    stdin.__init__(
        buffer,
        encoding=stdin.encoding,
        errors=stdin.errors,
        newline="\n",
        line_buffering=stdin.line_buffering,
        write_through=stdin.write_through,
    )


def _refuse_other_streams() -> None:
    import io  # noqa: PLC0415

    for stream in (sys.stdout, sys.stderr):
        if type(stream) is not io.TextIOWrapper or type(stream.buffer) is not io.FileIO:
            raise UnfitError("stdout or stderr are buffered")


def _refuse_early_words() -> None:
    if any(os.fstat(number).st_size for number in _STREAMS):
        raise UnfitError("something is written while Python starts")


def _command_name(name: str | None = None) -> str:
    path = "/proc/self/comm"
    with open(path) as file:
        before = file.read().rstrip("\n")
    if name is not None:
        with open(path, "w") as file:
            file.write(name)
    return before


# ------------------------------------------------------------------ from start to script
def _send(control: Any, message: Mapping[str, object]) -> None:
    import json  # noqa: PLC0415

    body = json.dumps(message).encode()
    control.sendall(len(body).to_bytes(4, "big") + body)  # a frame, see net/pure/frames.py


def _receive(control: Any) -> tuple[dict[str, str], list[int]]:
    """Environment, stdout, stderr and maybe stdin; leaves if the launcher has."""
    import array  # noqa: PLC0415
    import json  # noqa: PLC0415
    import socket  # noqa: PLC0415

    descriptors = array.array("i")
    room = socket.CMSG_SPACE(4 * descriptors.itemsize)
    data, attached, _, _ = control.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    for _, _, raw in attached:
        descriptors.frombytes(raw)
    if not data or len(descriptors) not in (3, 4):
        os._exit(_LOSES_NOTHING_AT)
    *streams, orders = descriptors
    with open(orders, "rb") as file:
        file.seek(0)
        environ: dict[str, str] = json.load(file)
    return environ, streams


def _refuse_start_lines(python_start: PythonStart, orders: Mapping[str, Any]) -> dict[str, str]:
    """Refuse lines of ``.pth`` files that depend on the cycle, or that leave more than modules.

    Returns:
        The variable that Python itself has set, in the locale C (PEP 538), or nothing.
    """
    with open("/proc/self/environ", "rb") as file:
        pairs = [pair.partition(b"=") for pair in file.read().split(b"\0") if b"=" in pair]
    given = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    given.pop(ORDERS, None)
    now = dict(os.environ)
    coerced = {"LC_CTYPE": now.pop("LC_CTYPE")} if "LC_CTYPE" in now.keys() - given else {}
    for name in sorted(now.keys() | given):
        if now.get(name) != given.get(name):
            raise UnfitError(f"a line of a .pth file changes {name} when Python starts")
    if _native_threads() > 1 or _children() or _faults_of_children():
        raise UnfitError("a line of a .pth file starts a thread or a process when Python starts")
    start_lines = python_start.load("standby/parked/start_lines.py")
    why = start_lines.doubt(list(sys.path), dict(sys.modules), orders["per_cycle"], _HOLDFAST)
    if why is not None:
        raise UnfitError(why)
    return coerced


def _faults_of_children() -> int:
    """Of memory pages, by children that have ended; 0: there was none."""
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(") ")[2].split()[8])


def _hooks_imports() -> bool:
    """A ``sitecustomize`` or a ``.pth`` file has put finders of its own in the way of imports.

    Their effect on a library may depend on the rank, and looks like the library's own.
    """
    import builtins  # noqa: PLC0415

    plain: Any = len
    if type(builtins.__import__) is not type(plain) or len(sys.path_hooks) > _PATH_HOOKS:
        return True
    for finder in sys.meta_path:
        kind: Any = finder if isinstance(finder, type) else type(finder)
        code = getattr(getattr(kind, "find_spec", None), "__code__", None)
        is_own = code is not None and code.co_filename.startswith(_HOLDFAST)
        if not is_own and not kind.__module__.startswith(_USUAL_FINDERS):
            return True
    return False


def _sitecustomize(
    python_start: PythonStart, orders: Mapping[str, Any], watched_environ: Any, control: Any
) -> ModuleType | None:
    """Let the other parts run, and import the user's sitecustomize under a watch.

    That one may change state as in a plain start, but not the environment, which the rank gets
    anew.
    """
    import_plain = python_start.import_plain

    def refuse(action: str) -> NoReturn:
        _leave(control, f"sitecustomize {action} when Python starts")

    def import_watched() -> ModuleType | None:
        watch = watched_environ.EarlyWatch(orders["per_cycle"], _HOLDFAST, refuse)
        before = _outside()
        watch.begin()
        try:
            real = import_plain()
        finally:
            changed = sorted(watch.end())
        if changed:
            raise UnfitError(
                f"sitecustomize sets {changed[0]} in the environment when Python starts"
            )
        if _outside() != before:
            raise UnfitError(
                "sitecustomize starts threads or processes, or opens files, as Python starts"
            )
        return real

    python_start.restore_pythonpath(orders["pythonpath"])
    python_start.import_plain = import_watched
    return python_start.proceed()


def _outside() -> tuple[object, ...]:
    """State outside of the interpreter that a module may change."""
    return _native_threads(), _children(), _faults_of_children(), list(_open_files())


def _leave(control: Any, reason: str, module: str | None = None) -> NoReturn:
    """Say why this process cannot equal a plain start, and end it."""
    _send(control, {"op": "parkedunfit", "reason": reason, "module": module})
    os._exit(_LOSES_NOTHING_AT)


def _refuse_user_customisation() -> None:
    import site  # noqa: PLC0415
    from importlib.machinery import PathFinder  # noqa: PLC0415

    if site.ENABLE_USER_SITE and PathFinder.find_spec("usercustomize") is not None:
        raise UnfitError(
            "there is a usercustomize module, which a plain start runs before any import"
        )


def _live(python_start: PythonStart, orders: Mapping[str, Any]) -> ModuleType | None:
    """Park, go on, and return what ``import sitecustomize`` is to give."""
    import socket  # noqa: PLC0415
    import time  # noqa: PLC0415
    import warnings  # noqa: PLC0415

    began_ns = time.time_ns()
    note: str = orders["note"]
    if _START_ORDERS in os.environ:
        _way_in.update({_START_ORDERS: os.environ[_START_ORDERS]}, PYTHONPATH=orders["pythonpath"])
    plain_name = _command_name(_PARKED_NAME)
    control = socket.socket(fileno=CONTROL_FD)
    os.set_inheritable(CONTROL_FD, False)
    try:
        _refuse_other_streams()
        coerced = _refuse_start_lines(python_start, orders)
        watched_environ = python_start.load("standby/parked/watched_environ.py")
        real = _sitecustomize(python_start, orders, watched_environ, control)
        _refuse_user_customisation()
        _refuse_early_words()
        before = set(sys.modules)
        filters = list(warnings.filters)
        watch = watched_environ.EnvironWatch(
            orders["per_cycle"],
            {} if _hooks_imports() else orders["likely"],
            [each for each in orders["harmless"] if each.endswith("_")],
        )
        imports, variables = [(name, ()) for name in orders["preload"]], set[str]()
        script_imports = python_start.load("standby/parked/script_imports.py")
        if orders["follow"]:
            named, variables = script_imports.script_imports(sys.orig_argv, sys.path)
            imports += named
        without = set(orders["without"])
        kept = [each for each in imports if each[0].partition(".")[0] not in without]
        late = [name for name in orders["late"] if name not in without]
        preloaded = _preload(kept, late, variables, watch, script_imports.file_of_main())
        added = {name: module for name, module in sys.modules.items() if name not in before}
        files = _refuse_strange_places(added, began_ns, time.time_ns())
        standard = {name.partition(".")[0] for name in added} & sys.stdlib_module_names
        names = [name for name in added if name.partition(".")[0] not in standard]
        hidden_libraries = python_start.load("standby/parked/hidden_libraries.py")
        tops = {name.partition(".")[0] for name in names}
        places = {top: hidden_libraries.place_of(top) for top in tops}
        ready = {"op": "parkedready", "memory_kib": _memory_kib(), "modules": len(added)}
        _send(control, {**ready, "assumed": preloaded.assumed})
    except Exception as error:  # noqa: BLE001 - of the system, or of a sitecustomize of the user's
        reason = str(error) if isinstance(error, UnfitError) else f"{type(error).__name__}: {error}"
        module = error.module if isinstance(error, UnfitError) else None
        _leave(control, reason, module)

    environ, streams = _receive(control)
    try:
        for number, descriptor in zip((*_STREAMS, 0), streams):  # noqa: B905 - maybe no stdin
            os.dup2(descriptor, number)
            os.close(descriptor)
        _command_name(plain_name)
        _refresh_streams()
        if len(streams) > len(_STREAMS):
            _refresh_stdin()
        if name := script_imports.shadowed(standard, preloaded.missed):
            why = f"has a module {name} beside it, which a library would find"
            _become_plain(environ, note, why)
        if _have_changed(files):
            _become_plain(environ, note, "")  # that was this time
        os.environ.clear()
        os.environ.update({**coerced, **environ})
        if _START in sys.modules:
            sys.modules[_START].register_dump()
        _restart_the_clock_of_log_records(time)
        hidden = hidden_libraries.HiddenLibraries(
            names, preloaded, places, orders["harmless"], _begin_anew_as(os.getpid(), note)
        )
        hidden.serve(filters, has_threads=_native_threads() > 1)
        if not control.recv(1):  # the launcher has ended before it let the script begin
            os._exit(_LOSES_NOTHING_AT)
        control.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, a plain start has it not
        _become_plain(environ, note, f"could not be started warm ({error!r})")
    return real


def _have_changed(files: Mapping[str, Any]) -> bool:
    try:
        return any(_stamp(path) != stamp for path, stamp in files.items())
    except OSError:
        return True


def _restart_the_clock_of_log_records(time: Any) -> None:
    """``%(relativeCreated)d`` counts from the import of logging."""
    import logging  # noqa: PLC0415

    start: Any = logging._startTime  # type: ignore[attr-defined] # noqa: SLF001
    now = time.time_ns() if isinstance(start, int) else time.time()
    logging._startTime = now  # type: ignore[attr-defined] # noqa: SLF001


def start(python_start: PythonStart, orders: str) -> ModuleType | None:
    """Park this process, and go on as the rank that it becomes."""
    try:
        import json  # noqa: PLC0415

        return _live(python_start, json.loads(orders))
    except BaseException as error:  # noqa: BLE001 - returning would run the script without a rank
        os.write(_STREAMS[1], f"holdfast: a parked process failed: {error!r}\n".encode())
        os._exit(1)
