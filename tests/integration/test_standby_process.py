"""A rank that went on from a parked process cannot be told from one that was started plainly."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import wait_for
from holdfast.base.processes import child, start_hook
from holdfast.net.pure.frames import Decoder
from holdfast.standby import idle_priority, oom_score, standbys
from holdfast.standby.standby_process import OomScoreRefusedError, StandbyProcess, begin, park
from holdfast.watch.rank.auto_start import StartHook
from tests.real.harness import kill, marked
from tests.waiting import until

BOUND_S = 60.0

WORLD = """
import ctypes, gc, inspect, io, json, locale, logging, multiprocessing, os, pickle, re, resource
import signal, sys, threading, warnings

class Mine:
    pass

def square(number):
    return number * number, __name__

def c_environ():
    block = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found, n = [], 0
    while block[n]:
        found.append(block[n].decode())
        n += 1
    return sorted(found)

def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = re.sub(r"\\d+", "N", os.readlink("/proc/self/fd/" + number))
        except OSError:
            pass
    return found

def stream(of):
    names = "name mode encoding errors line_buffering write_through closed newlines".split()
    raw = of.buffer
    return [
        [repr(getattr(of, name)) for name in names],
        [of.isatty(), of.seekable(), of.readable(), of.writable(), of.fileno()],
        [type(raw).__name__, repr(raw.name), raw.mode, raw.closefd],
        [of is sys.__stdout__, of is sys.__stderr__],
    ] if hasattr(raw, "closefd") else [repr(of)]

def status(*names):
    with open("/proc/self/status") as file:
        lines = dict(line.rstrip("\\n").split(":\\t", 1) for line in file if ":\\t" in line)
    return {name: lines[name] for name in names}

def read(path):
    with open(path) as file:
        return file.read()

def world():
    main = sys.modules["__main__"]
    standard = sys.stdlib_module_names
    facts = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": read("/proc/self/cmdline").split("\\0"),
        "comm": read("/proc/self/comm"),
        "flags": str(sys.flags),
        "xoptions": sys._xoptions,
        "warnoptions": sys.warnoptions,
        "cwd": os.getcwd(),
        "environ": list(os.environ.items()),
        "environ type": type(os.environ).__name__,
        "C environ": c_environ(),
        "path": sys.path,
        "path hooks": len(sys.path_hooks),
        "importers": sorted(path for path in sys.path_importer_cache if "parked" in path),
        "main": {key: repr(value) for key, value in vars(main).items() if key.startswith("__")},
        "main order": [key for key in vars(main) if key.startswith("__")],
        "main is main": vars(main) is globals(),
        "modules": sorted(n for n in sys.modules if n.partition(".")[0] not in standard),
        "sitecustomize": "sitecustomize" in sys.modules,
        "pickle": type(pickle.loads(pickle.dumps(Mine()))) is Mine,
        "pickled": pickle.dumps(Mine()).hex(),
        "source": inspect.getsource(square) if "-c" not in sys.orig_argv else "",
        "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "signals": status("SigBlk", "SigIgn", "SigCgt", "Umask", "Threads", "NoNewPrivs"),
        "descriptors": descriptors(),
        "streams": [stream(s) for s in (sys.stdout, sys.stderr)],
        "stdin": [repr(sys.stdin), sys.stdin.read()],
        "limits": [resource.getrlimit(n) for n in range(16)],
        "oom": read("/proc/self/oom_score_adj"),
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "parent": os.getppid(),
        "nice": os.nice(0),
        "policies": [os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")],
        "disk priority": ctypes.CDLL(None).syscall(IOPRIO_GET, 1, 0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "threads": [thread.name for thread in threading.enumerate()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  sys.gettrace(), sys.getprofile(), sys.getrecursionlimit()],
        "filters": [str(each) for each in warnings.filters],
        "locale": [locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding()],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "log time": logging.makeLogRecord({}).relativeCreated < 30e3,
        "root": [logging.root.level, logging.root.handlers],
        "frames": len(inspect.stack()),
        "names of frames": [frame.filename for frame in inspect.stack()],
        "start method": multiprocessing.get_start_method(allow_none=True),
        "trees": [],
    }
    for method in METHODS:
        with multiprocessing.get_context(method).Pool(1) as pool:
            facts["trees"].append([method, pool.map(square, [2, 3])])
    return facts
"""
"""What a script can see of itself."""

SHOW = """
METHODS = []
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}.get(os.uname().machine, -1)
if __name__ == "__main__":
    print(json.dumps(world(), default=repr))
"""
SHOW_WITH_CHILDREN = SHOW.replace("[]", '["fork", "spawn", "forkserver"]')


@dataclass
class Ended:
    """What a process did."""

    stdout: str
    stderr: str
    exit_code: int


@contextlib.contextmanager
def _pipe_of(text: bytes | None) -> Iterator[list[int]]:
    """A descriptor to read the text from; none for None."""
    if text is None:
        yield []
        return
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    yield [reader]
    os.close(reader)


class Ranks:
    """Starts processes both ways."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = f"none-{os.urandom(4).hex()}"
        self.note = folder / "note"
        self.libraries = folder / "lib" / "site-packages"
        self.libraries.mkdir(parents=True)
        self.python = sys.executable
        self._parked: list[StandbyProcess] = []
        self._pids: set[int] = set()
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("COV_", "PYTEST"))},
            # Behind it the copy of the package that `make any-order` disturbs.
            "PYTHONPATH": ":".join(
                filter(None, [str(self.libraries), os.environ.get("PYTHONPATH")])
            ),
            "OMP_NUM_THREADS": "1",
            "KEPT": "as it is",
        }
        self.cycle = {"RANK": "3", "HOLDFAST_MARKER": f"{self.job}.1.3", "MASTER_PORT": "1234"}

    def write(self, name: str, source: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    def library(self, name: str, source: str) -> str:
        self.write(f"lib/site-packages/{name}.py", source)
        return name

    def park(
        self,
        *arguments: str | Path,
        preload: tuple[str, ...] = (),
        follow: bool = False,
        late: tuple[str, ...] = (),
    ) -> StandbyProcess:
        command = [self.python, "-u", *map(str, arguments)]
        process = park(
            [],
            command,
            {**self.env, "HOLDFAST_MARKER": f"{self.job}.parked.3"},
            preload=preload,
            follow=follow,
            late=late,
            per_cycle=sorted(self.cycle),
            likely={"RANK": self.cycle["RANK"]},
            harmless=standbys._HARMLESS,
            note=str(self.note),
            is_idle=idle_priority.can_return(),
        )
        self._parked.append(process)
        self._pids.add(process.pid)
        if idle_priority.can_return():  # else it waits until the other tests leave a core to it
            idle_priority.restore(process.pid)
        return process

    def said(self, process: StandbyProcess) -> dict[str, Any]:
        """The first words of a parked process."""
        decoder = Decoder()
        while True:
            assert wait_for.readable(process.control.fileno(), BOUND_S), "it says nothing"
            data = process.control.recv(1 << 16)
            assert data, "it left without a word"
            if messages := decoder.feed(data):
                return messages[0]

    def plain(self, *arguments: str | Path, stdin: bytes | None = None, **cycle: str) -> Ended:
        with self._outputs() as (out, err), _pipe_of(stdin) as inputs:
            command = [self.python, "-u", *map(str, arguments)]
            streams = {1: out, 2: err, **dict(zip([0], inputs, strict=False))}
            pid = child.spawn(command, {**self.env, **self.cycle, **cycle}, streams)
            self._pids.add(pid)
            return self._end(pid)

    def warm(
        self,
        *arguments: str | Path,
        preload: tuple[str, ...] = (),
        follow: bool = False,
        **cycle: str,
    ) -> Ended:
        process = self.park(*arguments, preload=preload, follow=follow)
        assert self.said(process)["op"] == "parkedready"
        return self.go_on(process, **cycle)

    def go_on(self, process: StandbyProcess, stdin: bytes | None = None, **cycle: str) -> Ended:
        with self._outputs() as (out, err), _pipe_of(stdin) as inputs:
            assert process.go_on({**self.env, **self.cycle, **cycle}, [out, err, *inputs])
            process.control.close()
            return self._end(process.pid)

    def close(self) -> None:
        for process in self._parked:
            process.control.close()
        for pid in self._pids:
            child.send_signal(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _outputs(self) -> Any:
        return _Outputs(self.folder)

    def _end(self, pid: int) -> Ended:
        assert has_ended(pid), "it does not end"
        _, status = os.waitpid(pid, 0)
        self._pids.discard(pid)
        return Ended(
            (self.folder / "out").read_text(),
            (self.folder / "err").read_text(),
            os.waitstatus_to_exitcode(status),
        )


def has_ended(pid: int) -> bool:
    descriptor = child.end_descriptor(pid)
    try:
        return wait_for.readable(descriptor, BOUND_S)
    finally:
        os.close(descriptor)


class _Outputs:
    def __init__(self, folder: Path) -> None:
        self._paths = [folder / "out", folder / "err"]

    def __enter__(self) -> list[int]:
        flags = os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
        self._descriptors = [os.open(path, flags, 0o644) for path in self._paths]
        return self._descriptors

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    started = Ranks(tmp_path)
    yield started
    started.close()


LIBRARY = """
import logging, random, string, queue, urllib.parse
logger = logging.getLogger(__name__)
value = object()
"""


SETTINGS = """
import os
seen = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "KEPT")]
"""


def _facts(ended: Ended) -> Mapping[str, Any]:
    assert ended.exit_code == 0, ended.stderr
    assert ended.stderr == ""
    return json.loads(re.sub(r"0x[0-9a-f]+", "0x", ended.stdout))


def _assert_same(warm: Ended, plain: Ended) -> None:
    seen, expected = _facts(warm), _facts(plain)
    for name, value in expected.items():
        assert seen[name] == value, name


@pytest.mark.parametrize(
    "kind", ["script", "relative", "through a link", "module", "package", "code", "folder"]
)
def test_a_script_sees_the_same_world(ranks: Ranks, kind: str) -> None:
    """All that it can see of its process, its environment and its ``__main__``."""
    library = ranks.library("lib1", LIBRARY)
    source = WORLD + (SHOW_WITH_CHILDREN if kind in ("script", "module") else SHOW)
    arguments: dict[str, list[str | Path]] = {
        "script": [ranks.write("code/script.py", source), "--flag", "ä word"],
        "relative": ["./here.py", "-u"],
        "through a link": ["link.py"],
        "module": ["-m", "world_module", "--flag"],
        "package": ["-m", "world_package"],
        "code": ["-c", source, "a", "b"],
        "folder": [ranks.write("app/__main__.py", source).parent],
    }
    for name in ("work/here.py", "work/world_module.py", "work/world_package/__main__.py"):
        ranks.write(name, source)
    Path("link.py").symlink_to(ranks.folder / "code" / "script.py")

    warm = ranks.warm(*arguments[kind], preload=(library,))
    plain = ranks.plain(*arguments[kind])

    _assert_same(warm, plain)
    assert _facts(warm)["modules"], "it looks for modules"
    assert library not in _facts(warm)["modules"], "what is not imported is not seen"


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(7)",
        'sys.exit("bye")',
        'def f():\n    raise ValueError("loss is NaN")\nf()',
        "os.kill(os.getpid(), signal.SIGTERM)",
        "raise KeyboardInterrupt",
        "os._exit(5)",
        "import nothing_of_this_name",
        "def (",
    ],
)
def test_every_way_to_end_is_the_same(ranks: Ranks, ending: str) -> None:
    """Exit code, traceback to the letter, and what functions for the exit see."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.write(
        "script.py",
        "import atexit, os, signal, sys, threading\n"
        "import lib1\n"
        "def last():\n"
        '    print("last", __name__, sorted(vars(sys.modules["__main__"])))\n'
        "atexit.register(last)\n"
        "thread = threading.Thread(target=print, args=('from a thread',))\n"
        "thread.start(), thread.join()\n"
        f"{ending}\n",
    )

    assert ranks.warm(script, preload=(library,)) == ranks.plain(script)


def test_a_library_is_imported_once_and_at_its_turn(ranks: Ranks) -> None:
    """It is not seen before; then it is complete, and its spec the one that a plain start has."""
    library = ranks.library("lib1", "import os\ncount = os.environ.setdefault('LIB1', 'set')\n")
    script = ranks.write(
        "script.py",
        """
        import importlib.util, os, sys, warnings
        def facts():
            spec = importlib.util.find_spec("lib1")
            return [spec.name, spec.origin, str(spec.submodule_search_locations)]
        print("lib1" in sys.modules, os.environ.get("LIB1"), facts())
        import lib1
        print(sys.modules["lib1"] is lib1, os.environ.get("LIB1"), facts())
        print(sorted((k, str(v)[:30]) for k, v in vars(lib1).items() if k != "__builtins__"))
        print([type(finder).__name__ for finder in sys.meta_path], importlib.reload(lib1) is lib1)
        """,
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert warm.exit_code == 0, warm.stderr


@pytest.mark.parametrize(
    "before",
    [
        'os.environ["OMP_NUM_THREADS"] = "2"',
        'os.environ["KEPT"] = "no more"',
        "del os.environ['KEPT']",
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'other'))",
        "sys.meta_path.insert(0, type('Finder', (), {'find_spec': lambda *_: None}))",
        "import logging; logging.setLoggerClass(type('L', (logging.Logger,), {}))",
        "os.nice(1)",
        "os.chdir('/')",
        "sys.argv.append('--flag')",
    ],
)
def test_a_script_that_prepares_for_its_imports_starts_over(ranks: Ranks, before: str) -> None:
    """The import has happened already: the process becomes a plain start, and leaves word."""
    library = ranks.library("lib1", SETTINGS + "place = 'installed'\n")
    ranks.write("other/lib1.py", SETTINGS + "place = 'other'\n")
    script = ranks.write(
        "script.py",
        f"import os, sys\n{before}\nimport lib1\nprint(lib1.seen, lib1.place)\n",
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert warm.exit_code == 0, warm.stderr
    assert ranks.note.read_text()


@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_script_that_forks_finds_its_libraries_in_both(ranks: Ranks, first: str) -> None:
    """Whichever imports them first."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.write(
        "script.py",
        f"""
        import os, sys
        if {first == "parent"}:
            import lib1
        if (pid := os.fork()) == 0:
            import lib1
            print("child", lib1.__name__, "lib1" in sys.modules, os.environ["RANK"])
            sys.exit(3)
        print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "lib1" in sys.modules)
        import lib1
        print(lib1.__spec__.origin, lib1.__loader__.__class__, len(sys.meta_path))
        """,
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert "child lib1 True 3" in warm.stdout


def test_a_child_that_prepares_for_its_imports_does_not_start_over(ranks: Ranks) -> None:
    """It would run the whole script, as a second rank; word is left for the next restart."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.write(
        "script.py",
        """
        import os
        print("begins")
        if (pid := os.fork()) == 0:
            os.environ["OMP_NUM_THREADS"] = "7"
            import lib1
            print("child")
            os._exit(0)
        os.waitpid(pid, 0)
        import lib1
        print("parent")
        """,
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert ranks.note.read_text() == "(in a child) changes OMP_NUM_THREADS before it imports"


def test_two_threads_may_import_at_once(ranks: Ranks) -> None:
    """One module, whoever comes first; a package with what is in it."""
    names = [ranks.library(f"lib{n}", LIBRARY) for n in range(4)]
    ranks.write("lib/site-packages/pack/__init__.py", "from pack import inner")
    ranks.write("lib/site-packages/pack/inner.py", "value = 5")
    script = ranks.write(
        "script.py",
        """
        import importlib, sys, threading
        gate, found = threading.Barrier(8), []
        def load(name):
            gate.wait()
            found.append((name, id(importlib.import_module(name))))
        names = [f"lib{n % 4}" for n in range(7)] + ["pack.inner"]
        threads = [threading.Thread(target=load, args=(name,)) for name in names]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(len(set(found)), all(id(sys.modules[name]) == number for name, number in found))
        import pack
        print(pack.inner.value, sys.modules["pack.inner"] is pack.inner)
        """,
    )

    warm = ranks.warm(script, preload=(*names, "pack"))

    assert warm == ranks.plain(script)
    assert warm.stdout == "5 True\n5 True\n", warm.stderr


def test_logging_that_was_set_up_before_an_import_does_not_silence_it(ranks: Ranks) -> None:
    """``dictConfig`` disables the loggers that it finds; a plain start has none by then."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.write(
        "script.py",
        """
        import logging.config
        logging.config.dictConfig({"version": 1, "root": {"level": "INFO"}})
        import lib1
        print(lib1.logger.disabled, lib1.logger.isEnabledFor(logging.INFO))
        """,
    )

    assert ranks.warm(script, preload=(library,)) == ranks.plain(script)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_VISIBLE_DEVICES"])
def test_variables_that_no_import_reads_may_be_set_before(ranks: Ranks, name: str) -> None:
    """A script gives each rank its own device in its first lines, for one."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.write(
        "script.py", f"import os\nos.environ['{name}'] = '1'\nimport lib1\nprint(lib1.value)"
    )

    assert ranks.warm(script, preload=(library,)).exit_code == 0
    assert not ranks.note.exists()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()", "threads"),
        ("import os\nport = os.environ.get('MASTER_PORT')", "reads MASTER_PORT"),
        ("import os\nport = os.environ.copy()['MASTER_PORT']", "keeps variables"),
        ("import os\nenviron = dict(os.environ)", "keeps variables"),
        ("import os\nvalues = [str(v) + '!' for v in os.environ.values()]", "keeps variables"),
        ("import os\nnumbers = {int(v) for v in os.environ.values() if v.isdigit()}", "keeps"),
        ("import os\nnumbers = [float(v) for v in os.environ.values() if v.isdigit()]", "keeps"),
        ("import os\nflags = {f'{v}!': 1 for v in os.environ.values()}", "keeps variables"),
        ("import os\nkept = bytearray('|'.join(os.environ.values()).encode())", "keeps variables"),
        ("import os\nport = os.environb.get(b'MASTER_PORT')", "keeps variables"),
        ("import os\nshown = repr(os.environ)", "keeps variables"),
        ("import copy, os\nenviron = copy.deepcopy(os.environ)", "keeps variables"),
        ("import os\nnccl = [k for k in os.environ if k.startswith('NCCL_')]", "keeps variables"),
        ("import os\nos.environ['RANK'] = '7'", "sets those of a rank"),
        ("import sys; sys.meta_path.pop()", "sys.meta_path"),
        ("print('hello')", "stdout or stderr"),
        ("file = open(__file__)", "open files"),
        ("import signal; signal.signal(signal.SIGUSR1, print)", "signal handlers"),
        ("import sys; sys.path.append('/')", "sys.path"),
        ("import sys; sys.excepthook = print", "sys.excepthook"),
        ("import io, sys; sys.stdout = io.StringIO()", "sys.stdout"),
        ("import sys; sys.setrecursionlimit(5000)", "how Python runs"),
        ("import gc; gc.disable()", "how Python runs"),
        ("import logging; logging.basicConfig()", "root logger"),
        ("import os; os.chdir('/')", "working directory"),
        ("import subprocess; child = subprocess.Popen(['sleep', '60'])", "children"),
        ("1 / 0", "cannot be imported"),
    ],
)
def test_a_library_that_does_more_than_define_things_is_not_imported_ahead(
    ranks: Ranks, source: str, reason: str
) -> None:
    """It says why, and leaves."""
    library = ranks.library("lib1", source)
    process = ranks.park(ranks.write("script.py", "print('never')"), preload=(library,))

    said = ranks.said(process)

    assert said["op"] == "parkedunfit"
    assert reason in said["reason"]
    assert has_ended(process.pid)
    for pid in marked(ranks.job):
        kill(pid)


def test_a_library_may_go_through_the_environment(ranks: Ranks) -> None:
    """As tqdm does, and all of Hugging Face imports it: it looks for names and keeps nothing."""
    library = ranks.library(
        "lib1",
        """
        import os
        found = {key[5:].lower(): value for key, value in os.environ.items() if key[:5] == "LIB1_"}
        seen = len({**os.environ}) > 0
        """,
    )
    ranks.env["LIB1_COLOUR"] = "green"
    script = ranks.write("script.py", "import lib1\nprint(lib1.found, lib1.seen)\n")

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert "green" in warm.stdout
    assert not ranks.note.exists(), "it was warm"


def test_a_library_may_read_what_a_cycle_seldom_changes(ranks: Ranks) -> None:
    """Lightning keeps RANK from its import on; who hands the process over must know."""
    library = ranks.library("lib1", "import os\nrank = int(os.environ['RANK'])\n")
    script = ranks.write("script.py", "import lib1\nprint(lib1.rank)\n")
    process = ranks.park(script, preload=(library,))

    said = ranks.said(process)

    assert (said["op"], said["assumed"]) == ("parkedready", {"RANK": "3"})
    assert ranks.go_on(process) == ranks.plain(script)


def test_it_reads_what_a_plain_start_would(ranks: Ranks) -> None:
    """Parked, it has /dev/null; with a stdin to go on with, that is all it ever sees."""
    script = ranks.write(
        "script.py",
        "import os, sys\n"
        "print(sys.stdin, sys.stdin.buffer.raw.name, sys.stdin.seekable(), sys.stdin.newlines)\n"
        "print(input(), sys.stdin.readline(), os.read(0, 9), sys.stdin.write_through)\n",
    )
    process = ranks.park(script)
    assert ranks.said(process)["op"] == "parkedready"
    assert str(Path(f"/proc/{process.pid}/fd/0").readlink()) == os.devnull

    warm = ranks.go_on(process, stdin=b"one\r\ntwo\n")

    assert warm == ranks.plain(script, stdin=b"one\r\ntwo\n")
    assert "one" in warm.stdout
    assert not ranks.note.exists(), "it was warm"


def test_a_library_may_find_modules_of_its_own(ranks: Ranks) -> None:
    """As six and transformers do in sys.meta_path: not before the script imports them."""
    library = ranks.library(
        "lib1",
        """
        import sys
        class Finder:
            def find_spec(name, path=None, target=None):
                return None
        sys.meta_path.append(Finder)
        """,
    )
    script = ranks.write(
        "script.py",
        """
        import sys
        before = sum(each.__module__ == "lib1" for each in sys.meta_path)
        import lib1
        print(before, [getattr(each, "__name__", "") for each in sys.meta_path])
        """,
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert warm.stdout.startswith("0 [")
    assert "'Finder'" in warm.stdout
    assert not ranks.note.exists(), "it was warm"


NATIVE_THREAD = """
import ctypes
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
"""


def test_a_library_may_start_threads_of_its_own(ranks: Ranks) -> None:
    """Not Python's: of pyarrow's allocator, say, or of OpenBLAS."""
    library = ranks.library("lib1", NATIVE_THREAD)
    script = ranks.write(
        "script.py",
        "import os, lib1\nprint(len(os.listdir('/proc/self/task')))\nos._exit(0)\n",
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert warm.stdout == "2\n"
    assert not ranks.note.exists(), "it was warm"


@pytest.mark.parametrize(
    "before",
    ["os.fork() or os._exit(0)", "os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])"],
)
def test_threads_of_libraries_are_not_there_too_early(ranks: Ranks, before: str) -> None:
    """A script that forks, or moves, before its imports has threads only after them."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: there is nowhere to move")
    library = ranks.library("lib1", NATIVE_THREAD)
    script = ranks.write(
        "script.py",
        f"""
        import os
        {before}
        import lib1
        print([sorted(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")])
        os._exit(0)
        """,
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert ranks.note.read_text()


KEEPS_ITS_FILE = """
import ctypes, os
ctypes.CDLL(None)
with open("/proc/self/maps") as file:
    [path] = {line.split()[-1] for line in file if "/libc.so" in line or "/libc-" in line}
kept = os.open(path, os.O_RDONLY)
"""


@pytest.mark.parametrize(("before", "is_warm"), [("", True), ("os.closerange(3, 99)", False)])
def test_a_library_may_keep_its_own_file_open_which_the_script_does_not_close_too_early(
    ranks: Ranks, before: str, is_warm: bool
) -> None:
    """As libffi does from 3.5 on: without it no callback of ctypes could be made later."""
    library = ranks.library("lib1", KEEPS_ITS_FILE)
    script = ranks.write(
        "script.py", f"import os\n{before}\nimport lib1\nprint(os.fstat(lib1.kept).st_size > 0)\n"
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert warm.stdout == "True\n"
    assert ranks.note.exists() is not is_warm


def test_libraries_that_the_script_names_are_imported_ahead(ranks: Ranks) -> None:
    """Pure Python too, and parts that only load when they are asked for."""
    ranks.library("lib1", LIBRARY)
    ranks.library("lib2", "import sys\ndef __getattr__(name):\n    import lib1\n    return lib1\n")
    ranks.write("mine.py", "import lib2\n")
    script = ranks.write("script.py", "import mine\nfrom lib2 import part\nprint(part.__name__)\n")
    process = ranks.park(script, follow=True)

    assert ranks.said(process)["modules"] >= 2
    warm = ranks.go_on(process)

    assert warm == ranks.plain(script)
    assert not ranks.note.exists(), "it was warm"


LATE_SCRIPT = """
import os, sys, lib1
os.environ.setdefault({name!r}, "0")
print("lib1.late" in sys.modules)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NOT_READ_BY_IT", "parkedready"),
        ("SPEED", "the script may set SPEED before lib1.late reads it"),
    ],
)
def test_a_module_that_a_library_imports_by_itself_later(
    ranks: Ranks, name: str, said: str
) -> None:
    """The script may set until then what such a module reads; then it is left out."""
    ranks.library("lib1/__init__", "import os\nos.environ.get('SPEED')")
    ranks.library("lib1/late", "import os\nspeed = os.environ.get('SPEED')")
    ranks.library("lib2/late", "")
    script = ranks.write("script.py", LATE_SCRIPT.format(name=name))

    process = ranks.park(script, follow=True, late=("lib1.late", "lib2.late"))

    answer = ranks.said(process)
    assert answer.get("reason", answer["op"]) == said
    if said == "parkedready":
        assert ranks.go_on(process).stdout == "True\n"
    else:
        assert answer["module"] == "lib1.late"


def test_the_users_own_modules_are_not_imported_ahead(ranks: Ranks) -> None:
    """They change from run to run."""
    ranks.write("own/own.py", "")
    ranks.env["PYTHONPATH"] = str(ranks.folder / "own")
    process = ranks.park(ranks.write("script.py", ""), preload=("own",))

    assert "own.py is not an installed library" in ranks.said(process)["reason"]


def test_a_library_that_changed_meanwhile_is_imported_anew(ranks: Ranks) -> None:
    library = ranks.library("lib1", "version = 1")
    script = ranks.write("script.py", "import lib1\nprint(lib1.version)\n")
    process = ranks.park(script, preload=(library,))
    assert ranks.said(process)["op"] == "parkedready"

    ranks.library("lib1", "version = 22")

    assert ranks.go_on(process).stdout == "22\n"


def test_libraries_from_the_future_are_imported_ahead(ranks: Ranks) -> None:
    """Clocks of hosts differ: this one's is behind that of the one which has installed them."""
    library = ranks.library("lib1", "version = 1")
    future = time.time() + 3600
    for path in ranks.folder.rglob("*lib1*"):
        os.utime(path, (future, future))

    process = ranks.park(ranks.write("script.py", ""), preload=(library,))

    assert ranks.said(process)["op"] == "parkedready"


def test_a_module_that_hides_one_of_the_standard_library_is_found(ranks: Ranks) -> None:
    """In a plain start the script's folder comes first."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.write("code/script.py", "import queue\nprint(queue.__file__)\n")
    ranks.write("code/queue.py", "")

    assert ranks.warm(script, preload=(library,)) == ranks.plain(script)


@pytest.mark.parametrize("beside", ["extra.py", "extra/__init__.py", "extra/data.txt"])
@pytest.mark.parametrize("looks", ["import extra", "importlib.util.find_spec('extra').name"])
def test_what_a_library_has_looked_for_in_vain_is_found_beside_the_script(
    ranks: Ranks, beside: str, looks: str
) -> None:
    """A folder is enough: many libraries ask whether an optional one could be imported."""
    source = f"import importlib.util\ntry:\n    {looks}\n    has = True\nexcept Exception:\n"
    library = ranks.library("lib1", source + "    has = False\n")
    script = ranks.write("code/script.py", "import lib1\nprint(lib1.has)\n")
    ranks.write(f"code/{beside}", "")

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert warm.stdout == "True\n"


@pytest.mark.parametrize("beside", ["extra.txt", "extra", "queue/data.txt", "queue.yaml"])
def test_what_is_no_module_does_not_matter(ranks: Ranks, beside: str) -> None:
    """A file of another kind; and a folder without a file hides nothing that is installed."""
    library = ranks.library(
        "lib1", "import queue\ntry:\n    import extra\nexcept ImportError: pass"
    )
    script = ranks.write("code/script.py", "import lib1, queue\nprint(queue.__file__)\n")
    ranks.write(f"code/{beside}", "")

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert not ranks.note.exists(), "it was warm"


@pytest.mark.parametrize("other", ["queue.py", "other.py"])
def test_a_script_may_be_an_archive(ranks: Ranks, other: str) -> None:
    """Its modules, too, come before those of the standard library."""
    library = ranks.library("lib1", LIBRARY)
    script = ranks.folder / "app.zip"
    with zipfile.ZipFile(script, "w") as archive:
        archive.writestr("__main__.py", "import lib1, queue\nprint(queue.__file__)\n")
        archive.writestr(other, "Queue = SimpleQueue = None\n")

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert ranks.note.exists() == (other == "queue.py")


@pytest.mark.parametrize("kind", ["script", "relative", "module", "package", "folder", "code"])
def test_a_library_sees_what_kind_of_program_it_is_in(ranks: Ranks, kind: str) -> None:
    """A ``__main__`` without a file is taken for a notebook."""
    library = ranks.library("lib1", "import __main__\nfile = getattr(__main__, '__file__', None)\n")
    source = "import lib1\nprint(lib1.file)\n"
    arguments: dict[str, list[str | Path]] = {
        "script": [ranks.write("code/script.py", source)],
        "relative": ["./here.py"],
        "module": ["-m", "here"],
        "package": ["-m", "pack"],
        "folder": ["pack"],
        "code": ["-c", source],
    }
    for name in ("work/here.py", "work/pack/__main__.py", "work/pack/__init__.py"):
        ranks.write(name, source if "init" not in name else "")

    warm = ranks.warm(*arguments[kind], preload=(library,))

    assert warm == ranks.plain(*arguments[kind])
    assert not ranks.note.exists(), "it was warm"


def test_a_name_that_is_none_is_not_imported(ranks: Ranks) -> None:
    """``from pack import part`` takes the name that is there, also beside a file of that name."""
    ranks.write("lib/site-packages/pack/__init__.py", "part = None")
    ranks.write("lib/site-packages/pack/part.py", "")
    script = ranks.write("script.py", "from pack import part\nprint(part)\n")

    warm = ranks.warm(script, follow=True)

    assert warm == ranks.plain(script)
    assert warm.stdout == "None\n"


def test_a_module_of_a_package_that_was_not_imported(ranks: Ranks) -> None:
    """A library has put it into sys.modules; the script then imports the package itself."""
    ranks.write("lib/site-packages/pack/__init__.py", "value = 7")
    library = ranks.library(
        "lib1", "import sys, types\nsys.modules['pack.bar'] = types.ModuleType('pack.bar')\n"
    )
    script = ranks.write("script.py", "import pack, lib1\nprint(pack.value)\n")

    assert ranks.warm(script, preload=(library,)) == ranks.plain(script)


def test_the_launchers_end_is_the_end_of_a_parked_process(ranks: Ranks) -> None:
    process = ranks.park(ranks.write("script.py", ""))
    ranks.said(process)

    process.control.close()

    assert has_ended(process.pid)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_process_does_not_go_on(ranks: Ranks, signum: int) -> None:
    process = ranks.park(ranks.write("script.py", ""))
    ranks.said(process)

    os.kill(process.pid, signum)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)

    assert not process.go_on({}, [1, 2])


def test_a_held_process_begins_its_script_when_it_is_let(ranks: Ranks, tmp_path: Path) -> None:
    """All ranks of a node do at once what comes before; rank 0's script begins first."""
    begun = tmp_path / "begun"
    process = ranks.park(ranks.write("script.py", f"open({str(begun)!r}, 'w')"))
    ranks.said(process)
    with ranks._outputs() as (out, err):
        assert process.go_on({**ranks.env, **ranks.cycle}, [out, err], is_held=True)
        comm = Path(f"/proc/{process.pid}/comm")
        until(lambda: comm.read_text() != "holdfast-parked\n", "it goes on")
        assert not begun.exists()

        begin(process.control)

        assert ranks._end(process.pid).exit_code == 0
    assert begun.exists()


def test_a_held_process_never_begins_where_its_launcher_ends(ranks: Ranks, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    process = ranks.park(ranks.write("script.py", f"open({str(begun)!r}, 'w')"))
    ranks.said(process)
    with ranks._outputs() as (out, err):
        assert process.go_on({**ranks.env, **ranks.cycle}, [out, err], is_held=True)

        process.control.close()

        ranks._end(process.pid)
    assert not begun.exists()


def test_a_sitecustomize_of_the_users_is_run_as_ever(ranks: Ranks) -> None:
    """Ours stands in front of it only for a moment."""
    ranks.library("sitecustomize", "import builtins\nbuiltins.hello = 'from sitecustomize'\n")
    script = ranks.write("script.py", "import sitecustomize\nprint(hello, sitecustomize.__file__)")

    warm = ranks.warm(script)

    assert warm == ranks.plain(script)
    assert "from sitecustomize" in warm.stdout


def test_first_lines_faults_and_the_users_sitecustomize_run_in_one_start(ranks: Ranks) -> None:
    """One hook runs them all, in a parked process as in a plain start."""
    library = ranks.library("lib1", LIBRARY)
    ranks.library("sitecustomize", "import os\npath = os.environ['PYTHONPATH']\n")
    script = ranks.write(
        "script.py",
        """
        import lib1, os, sitecustomize, sys
        print(sitecustomize.path, os.environ["PYTHONPATH"], "HOLDFAST_AUTO" in os.environ, sys.path)
        print("_holdfast_start" in sys.modules, [type(each).__name__ for each in sys.meta_path])
        """,
    )
    env = {**ranks.env, "HOLDFAST_CHAOS": str(ranks.folder), "HOLDFAST_INJECT": "sleep@0:7"}
    env["PYTHONPATH"] = f"{start_hook.FOLDER}:{ranks.env['PYTHONPATH']}"
    of_start = StartHook(counts_steps=True, exception_grace_s=2.0).added_to(env)

    ranks.env = of_start
    process = ranks.park(script, preload=(library,))
    said = ranks.said(process)
    assert said["op"] == "parkedready", said
    ranks.env = env
    warm = ranks.go_on(process)
    ranks.env = of_start

    assert warm == ranks.plain(script)
    assert warm.stdout.startswith(f"{env['PYTHONPATH']} {env['PYTHONPATH']} False")
    assert "True ['_PlanFinder', '_AfterImport', " in warm.stdout
    assert not ranks.note.exists(), "it was warm"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_never_lets_the_script_run(ranks: Ranks, signum: int) -> None:
    """It is nobody's rank yet."""
    script = ranks.write("script.py", f"open({str(ranks.folder / 'ran')!r}, 'w')")
    process = ranks.park(script)
    ranks.said(process)

    os.kill(process.pid, signum)

    assert has_ended(process.pid)
    assert not (ranks.folder / "ran").exists()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\nfolder = '/scratch/rank' + os.environ.get('RANK', '0')", "reads RANK"),
        ("import os\nhas_port = 'MASTER_PORT' in os.environ", "reads MASTER_PORT"),
        ("import os\nport = os.environb.get(b'MASTER_PORT')", "reads MASTER_PORT"),
        ("import os\nenviron = dict(os.environ)", "goes through all variables"),
        ("import os\nos.environ['TMPDIR'] = '/scratch/0'", "sets TMPDIR"),
        ("import os\ndel os.environ['KEPT']", "sets KEPT"),
        ("import os\nos.environ['EMPTY'] = ''", "sets EMPTY"),
        ("import subprocess\nsubprocess.run(['true'])", "processes"),
        ("import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()", "threads"),
        ("file = open(__file__)", "opens files"),
    ],
)
def test_a_sitecustomize_that_depends_on_its_rank_is_left_to_plain_starts(
    ranks: Ranks, source: str, reason: str
) -> None:
    """At once: with the values of the running cycle, it would use what is another life's.

    And what it sets would be lost.
    """
    path = ranks.folder / "went_on"
    ranks.library("sitecustomize", f"{source}\nopen({str(path)!r}, 'w')\n")
    process = ranks.park(ranks.write("script.py", ""))

    said = ranks.said(process)

    assert said["op"] == "parkedunfit"
    assert reason in said["reason"]
    if reason.startswith("reads"):
        assert not path.exists()


def test_what_a_sitecustomize_changes_in_the_interpreter_is_kept(ranks: Ranks) -> None:
    """Debian's sets an exception hook; it runs before the script in a plain start, too."""
    library = ranks.library("lib1", LIBRARY)
    ranks.library(
        "sitecustomize",
        """
        import os, sys, warnings
        colour = os.environ.get("COLOUR", "none")
        sys.path.append("/nowhere")
        warnings.simplefilter("ignore", ResourceWarning)
        sys.excepthook = lambda kind, error, _: print("hook", error)
        """,
    )
    script = ranks.write(
        "script.py",
        """
        import sys, warnings, lib1
        print(sys.path, sys.modules["sitecustomize"].colour, [str(f) for f in warnings.filters])
        raise ValueError("at last")
        """,
    )

    warm = ranks.warm(script, preload=(library,))

    assert warm == ranks.plain(script)
    assert "hook at last" in warm.stdout
    assert not ranks.note.exists(), "it was warm"


def test_a_finder_of_a_sitecustomize_is_not_asked_for_the_rank(ranks: Ranks) -> None:
    """What it does for a library may depend on the rank; nothing that the launcher compares."""
    library = ranks.library("lib1", LIBRARY)
    ranks.library(
        "sitecustomize",
        """
        import os, sys
        class Finder:
            def find_spec(name, path=None, target=None):
                if name == "lib1":
                    print(os.environ["RANK"])
        sys.meta_path.insert(0, Finder)
        """,
    )
    process = ranks.park(ranks.write("script.py", ""), preload=(library,))

    assert "reads RANK" in ranks.said(process)["reason"]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("import os; os.environ.get('NO_SUCH') and print('never')", "parkedready"),
        ("import os; folder = os.environ.get('RANK', '0')", "reads RANK"),
        ("import os; os.environ['TMPDIR'] = '/scratch/0'", "changes TMPDIR"),
        ("import of_a_cluster", "reads MASTER_PORT"),
    ],
)
def test_a_line_of_a_pth_file_has_run_before_anything_can_watch(
    ranks: Ranks, line: str, answer: str
) -> None:
    """Of a virtual environment of its own."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = ranks.folder / "venv" / "lib" / version / "site-packages"
    ranks.write("venv/bin/python", "").unlink()
    (ranks.folder / "venv/bin/python").symlink_to(Path(sys.executable).resolve())
    ranks.write("venv/pyvenv.cfg", f"home = {Path(sys.executable).resolve().parent}\n")
    path = packages.relative_to(ranks.folder)
    ranks.write(f"{path}/lines.pth", line)
    ranks.write(f"{path}/of_a_cluster.py", "import os\nport = os.environ.get('MASTER_PORT')\n")
    ranks.python = str(ranks.folder / "venv/bin/python")

    said = ranks.said(ranks.park(ranks.write("script.py", "")))

    assert answer in said.get("reason", said["op"])


def test_a_process_is_the_first_victim_until_it_is_the_rank(ranks: Ranks) -> None:
    """From its start on, before it imports."""
    script = ranks.write("script.py", "print(open('/proc/self/oom_score_adj').read())")
    usual = oom_score.adjustment()
    process = ranks.park(script)
    assert oom_score.adjustment(process.pid) == oom_score.FIRST_VICTIM
    assert ranks.said(process)["op"] == "parkedready"

    assert oom_score.adjustment(process.pid) == oom_score.FIRST_VICTIM
    assert ranks.go_on(process).stdout == f"{usual}\n\n"


def test_a_process_that_could_not_get_its_score_back_is_not_parked(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank would be the first victim for good."""
    lower = oom_score.set_adjustment

    def refuse(pid: int, value: int) -> None:
        if value < oom_score.FIRST_VICTIM:
            raise PermissionError(13, "Permission denied")
        lower(pid, value)

    monkeypatch.setattr(oom_score, "set_adjustment", refuse)

    with pytest.raises(OomScoreRefusedError, match="Permission denied") as caught:
        ranks.park(ranks.write("script.py", ""))

    os.kill(caught.value.pid, signal.SIGKILL)
    os.waitpid(caught.value.pid, 0)


def test_a_sitecustomize_that_fails_is_left_to_plain_starts(ranks: Ranks) -> None:
    ranks.library("sitecustomize", "1 / 0")
    process = ranks.park(ranks.write("script.py", ""))

    assert "ZeroDivisionError" in ranks.said(process)["reason"]


def test_torch_is_ready_and_every_rank_draws_numbers_of_its_own(ranks: Ranks) -> None:
    """Imported, with data loaders of both kinds, threads, and a parallel operation."""
    script = ranks.write(
        "script.py",
        """
        import sys
        was_there = "torch" in sys.modules, "numpy" in sys.modules
        import torch
        import torch.utils.data as data
        class Numbers(data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, n): return torch.tensor([n])
        if __name__ == "__main__":
            print(was_there, sorted(n for n in sys.modules if n.startswith("torch"))[:400])
            for method in ("fork", "spawn"):
                loader = data.DataLoader(Numbers(), num_workers=1, multiprocessing_context=method)
                print(method, [int(batch) for batch in loader])
            matrix = torch.ones(300, 300)
            print(float((matrix @ matrix).sum()), torch.get_num_threads())
            print(torch.initial_seed(), hash("text"), file=sys.stderr)
        """,
    )

    first = ranks.warm(script, preload=("torch",))
    second = ranks.warm(script, preload=("torch",))
    plain = ranks.plain(script)

    assert first.exit_code == 0, first.stderr
    assert first.stdout == second.stdout == plain.stdout
    seeds, hashes = zip(*(ended.stderr.split() for ended in (first, second, plain)), strict=True)
    assert len(set(seeds)) == len(set(hashes)) == 3
