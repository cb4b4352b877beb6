"""Prepare the virtual environment of this checkout.

``python3 tools/prepare.py .venv [package ...]``: make calls it before every target that needs the
environment, and ``try.py`` before the demo. :func:`decide` says what to do with the environment
that :func:`look` found: nothing, make it, make it again, install into it. Where that is impossible,
one line names the missing thing and the command that brings it.

This file needs no package, and starts under any Python since 3.6: one that is too old for holdfast
must still be able to say so.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 10)
RECORD, PIP_LOG = "holdfast.json", "pip.log"  # in the folder of the environment
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"  # PyPI's wheels of torch bring 3 GB of CUDA
ANSWERS_WITHIN_S = 3.0

# Steps.
MAKE = "make"  # the environment, or its missing parts
MAKE_AGAIN = "make again"  # after everything in it is deleted
INSTALL = "install"


class Environment(NamedTuple):
    """What is in the folder of the environment."""

    is_one: bool = True
    may_be_deleted: bool = True  # this program made it, or it is in the checkout
    starts: str = ""  # why its Python does not start
    moved_from: str = ""  # the interpreter that its programs start, if that is another
    interrupted: bool = False  # this program made it and did not end
    pip: bool = True
    lacks: Tuple[str, ...] = ()  # modules
    other_checkout: str = ""  # the sources that it imports, if they are not these
    up_to_date: bool = True  # installed for the present pyproject.toml and constraints.txt


class Found(NamedTuple):
    """Everything that the decision depends on."""

    folder: str = ".venv"
    platform: str = "linux"
    python: str = "python3"
    version: Tuple[int, ...] = (3, 11)
    newer: str = ""  # a Python on PATH that is new enough, where this one is not
    ensurepip: bool = True  # Debian has it in a package of its own
    pip: bool = False  # this Python's own, if it can install into another environment
    unwritable: str = ""  # why the folder cannot be written
    environment: Optional[Environment] = None


class Plan(NamedTuple):
    """Steps, and why; or no steps because of ``missing``."""

    steps: Tuple[str, ...] = ()
    why: str = ""
    missing: str = ""


def decide(found: Found) -> Plan:
    """The steps that make the environment ready."""
    there = found.environment
    if there is None:
        return _if_possible(found, (MAKE, INSTALL), f"preparing {found.folder} (once; with torch)")
    if not there.is_one:
        missing = f"{found.folder} exists and is not a virtual environment; remove it, or {_name()}"
        return Plan(missing=missing)
    broken = _broken(there)
    if broken and not there.may_be_deleted:
        return Plan(missing=f"{found.folder} {broken}; remove it, or {_name()}")
    if broken:
        steps = (MAKE_AGAIN, INSTALL)
        return _if_possible(found, steps, f"making {found.folder} again, because it {broken}")
    if not there.pip:
        return _if_possible(found, (MAKE, INSTALL), f"completing {found.folder}: it has no pip")
    stale = _stale(there)
    if not stale:
        return Plan()
    return _if_writable(found, (INSTALL,), f"installing into {found.folder}: {stale}")


def _broken(there: Environment) -> str:
    """Why only a new environment helps."""
    if there.interrupted:
        return "is half made: its preparation was interrupted"
    if there.moved_from:
        return f"was moved or copied: its programs start {there.moved_from}"
    return f"has a Python that does not start ({there.starts})" if there.starts else ""


def _stale(there: Environment) -> str:
    """Why pip has to install."""
    if there.lacks:
        return f"it lacks {', '.join(there.lacks)}"
    if there.other_checkout:
        return f"it imports the sources in {there.other_checkout}"
    return "" if there.up_to_date else "pyproject.toml or constraints.txt is newer"


def _if_possible(found: Found, steps: Tuple[str, ...], why: str) -> Plan:
    """The steps, if this machine has all that they need."""
    if found.platform != "linux":
        return Plan(missing=f"holdfast needs Linux; this is {found.platform}")
    if found.version[:2] < OLDEST:
        version = ".".join(str(number) for number in found.version)
        name = found.newer or "python3.12"
        needs = f"{found.python} is Python {version}, and holdfast needs 3.10 or later"
        cure = f"make PYTHON={name}, or {name} try.py"
        return Plan(missing=f"{needs}; {'use' if found.newer else 'install one and use'} {cure}")
    if not (found.ensurepip or found.pip):
        needs = f"{found.python} has neither ensurepip nor pip to make a virtual environment"
        return Plan(missing=f"{needs}; apt-get install python3-venv (Debian, Ubuntu)")
    return _if_writable(found, steps, why)


def _if_writable(found: Found, steps: Tuple[str, ...], why: str) -> Plan:
    if found.unwritable:
        return Plan(missing=f"cannot write {found.folder} ({found.unwritable}); {_name()}")
    return Plan(steps, why)


def _name() -> str:
    return "name another place: make VENV=/tmp/venv demo, or VENV=/tmp/venv python3 try.py"


_NO_CONNECTION = (  # pip names its own exception first, and the reason behind it
    "Temporary failure in name resolution|Name or service not known",
    "Network is unreachable|No route to host|Connection refused|[Tt]imed out",
    "CERTIFICATE_VERIFY_FAILED|ProxyError|SSLError|NameResolutionError|NewConnectionError",
)


def no_connection(output: str) -> str:
    """Why pip reached no index, from its output; empty if it did."""
    found = (re.search(pattern, output) for pattern in _NO_CONNECTION)
    return next((match.group() for match in found if match), "")


def why_pip_failed(output: str, log: str) -> str:
    """One line, with what to do."""
    errors = re.findall(r"^ *(?:ERROR|error): (?!subprocess-exited)(.+)", output, re.MULTILINE)
    if "No space left on device" in output:
        line = "the disk is full; the environment needs 2 GB"
    elif no_connection(output):
        line = (
            f"pip reaches no package index ({no_connection(output)}); connect to a network, set "
            "PIP_INDEX_URL to a mirror, or PIP_CERT to the certificates of your proxy"
        )
    else:
        line = f"pip failed: {errors[-1].strip() if errors else 'it gave no reason'}"
    return f"{line} (pip's output: {log})"


def wants_cpu_wheels(pip_configuration: str, *, has_gpu: bool) -> bool:
    """Whether torch comes from the index of its CPU wheels, if that answers.

    Args:
        pip_configuration: What ``pip config list`` prints. Indexes in it are used as they are.
        has_gpu: The tests on a GPU need the wheels for CUDA.
    """
    return not has_gpu and not re.search(r"index-url|find-links|no-index", pip_configuration)


# ---------------------------------------------------------------- what is there
_PROBE = """
import importlib.util, json
found = {n: importlib.util.find_spec(n) for n in ("pip", "torch", "pytest", "holdfast")}
lacks = [name for name, spec in found.items() if spec is None]
print(json.dumps([lacks, found["holdfast"].origin if found["holdfast"] else ""]))
"""


def look(folder: str, packages: Sequence[str]) -> Found:
    """Find out what the decision depends on; change nothing."""
    ensurepip = importlib.util.find_spec("ensurepip") is not None
    return Found(
        folder=folder,
        platform=sys.platform,
        python=os.path.basename(sys.executable),
        version=tuple(sys.version_info[:3]),
        newer="" if sys.version_info[:2] >= OLDEST else _newer_python(),
        ensurepip=ensurepip,
        pip=not ensurepip and _has_pip_for_others(),
        unwritable=_unwritable(folder),
        environment=_look_into(folder, packages),
    )


def _look_into(folder: str, packages: Sequence[str]) -> Optional[Environment]:
    try:
        entries = os.listdir(folder)
    except FileNotFoundError:
        return None
    except OSError:
        return Environment(is_one=False)
    record = _record(folder)
    if not entries:
        return None
    if "pyvenv.cfg" not in entries and not record:
        return Environment(is_one=False)
    there = Environment(
        may_be_deleted=bool(record.get("made")) or _is_in_checkout(folder),
        moved_from=_moved_from(folder),
        interrupted=bool(record.get("made") and record.get("installing")),
        up_to_date=record.get("installed") == fingerprint(packages),
    )
    try:
        lacks, source = json.loads(_output([python_of(folder), "-I", "-c", _PROBE]))
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return there._replace(starts=str(getattr(error, "strerror", None) or error))
    return there._replace(
        pip="pip" not in lacks,
        lacks=tuple(lacks),
        other_checkout="" if _is_in_checkout(source) or not source else os.path.dirname(source),
    )


def _is_in_checkout(path: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(CHECKOUT) + os.sep)


def _moved_from(folder: str) -> str:
    """The interpreter in the first lines of ``pip``, if it is not in this folder."""
    head = _read(os.path.join(folder, "bin", "pip"))[:1000]
    found = re.search(r"^(?:#!|'''exec' \"?)(/.+/bin)/python[\d.]*\b", head, re.MULTILINE)
    if found is None:
        return ""
    try:
        if os.path.samefile(found.group(1), os.path.join(folder, "bin")):
            return ""
    except OSError:  # what it names is gone
        pass
    return found.group(1) + "/python"


def fingerprint(packages: Sequence[str]) -> str:
    """Of all that says which packages to install."""
    files = [_read(os.path.join(CHECKOUT, name)) for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256("\0".join([*files, *packages]).encode()).hexdigest()


def _unwritable(folder: str) -> str:
    """Why no file can be made in the folder, or in the nearest one above that is there."""
    there = os.path.abspath(folder)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    probe = os.path.join(there, f".holdfast-{os.getpid()}")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _newer_python() -> str:
    """The newest Python on PATH; a name may be a shim that starts nothing."""
    for minor in range(20, OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _output([name, "--version"])
            return name
    return ""


def _has_pip_for_others() -> bool:
    """``pip --python`` exists since 22.3."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        found = re.match(r"pip (\d+)\.(\d+)", _output([sys.executable, "-m", "pip", "--version"]))
        return found is not None and (int(found.group(1)), int(found.group(2))) >= (22, 3)
    return False


def python_of(folder: str) -> str:
    """The interpreter of an environment."""
    return os.path.join(os.path.abspath(folder), "bin", "python")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _output(command: Sequence[str]) -> str:
    """Of a command that succeeds."""
    found = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
    )
    return found.stdout


# ---------------------------------------------------------------- the steps
class CannotPrepareError(Exception):
    """One line: what is missing, and what to do."""


class PipFailedError(CannotPrepareError):
    """With all that pip said."""

    def __init__(self, output: str, log: str) -> None:
        super().__init__(why_pip_failed(output, log))
        self.output = output


def prepare(folder: str, packages: Sequence[str] = ()) -> None:
    """Make the environment ready; does nothing, within 0.1 s, if it is.

    Args:
        folder: Of the environment.
        packages: What to install beside holdfast and its development tools.

    Raises:
        CannotPrepareError: Something is missing.
    """
    with _one_at_a_time():
        found = look(folder, packages)
        plan = decide(found)
        if plan.missing:
            raise CannotPrepareError(plan.missing)
        if plan.steps:
            _say(plan.why)
        for step in plan.steps:
            if step == INSTALL:
                _install(folder, packages, complete=_is_complete(found))
            else:
                _make(folder, found, again=step == MAKE_AGAIN)


def _is_complete(found: Found) -> bool:
    """Whether the environment can be used as it is, with older packages than wanted."""
    there = found.environment
    return there is not None and not (_broken(there) or there.lacks or there.other_checkout)


def _make(folder: str, found: Found, *, again: bool) -> None:
    """Without pip of this Python's own, that of the system installs one."""
    if again:
        for entry in os.listdir(folder):
            path = os.path.join(folder, entry)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
    os.makedirs(folder, exist_ok=True)
    if again or found.environment is None:
        _write_record(folder, {"made": True, "installing": True})
    _run([sys.executable, "-m", "venv", *(() if found.ensurepip else ("--without-pip",)), folder])
    if not found.ensurepip:
        pip_for = [sys.executable, "-m", "pip", "--python", python_of(folder), "install"]
        _pip(folder, [*pip_for, "pip"])


def _install(folder: str, packages: Sequence[str], *, complete: bool) -> None:
    record = {**_record(folder), "installing": True}
    _write_record(folder, record)
    python = python_of(folder)
    try:
        constraints = _constraints(folder, packages)
        sources = ["--editable", CHECKOUT + "[dev]", *packages]
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--no-compile",  # an import compiles what it needs: a sixth of the files
            "--constraint",
            constraints,
            *cpu_wheels(python),
        ]
        _pip(folder, [*install, *sources])
        _run(["env", "-u", "PYTHONDONTWRITEBYTECODE", python, "-c", "import torch, holdfast"])
    except CannotPrepareError as error:
        with contextlib.suppress(OSError):  # a full disk; this environment is made again
            _write_record(folder, {**record, "installing": False})
        if not (complete and isinstance(error, PipFailedError) and no_connection(error.output)):
            raise
        _say(f"{error}; goes on with the packages that {folder} has")
    else:
        _write_record(folder, {**record, "installing": False, "installed": fingerprint(packages)})


def _constraints(folder: str, packages: Sequence[str]) -> str:
    """The versions to use; the one of torch may be given with the packages."""
    path = os.path.join(CHECKOUT, "constraints.txt")
    if not any(name.startswith("torch==") for name in packages):
        return path
    lines = _read(path).splitlines(keepends=True)
    path = os.path.join(folder, "constraints.txt")
    _write(path, "".join(line for line in lines if not line.startswith("torch==")))
    return path


def cpu_wheels(python: str) -> List[str]:
    """Options of pip for the index of torch's CPU wheels."""
    configuration = _output([python, "-m", "pip", "config", "list"]) + " ".join(
        name.lower().replace("_", "-") for name in os.environ if name.startswith("PIP_")
    )
    if not wants_cpu_wheels(configuration, has_gpu=os.path.exists("/dev/nvidiactl")):
        return []
    try:
        urllib.request.urlopen(CPU_WHEELS + "/torch/", timeout=ANSWERS_WITHIN_S).close()
    except (OSError, ValueError):
        return []
    return ["--extra-index-url", CPU_WHEELS]


def _pip(folder: str, command: Sequence[str]) -> None:
    """Run pip with its output in a file; a terminal shows the last line."""
    log = os.path.join(folder, PIP_LOG)
    command = [*command, "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    output, on_terminal = "", sys.stderr.isatty()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            output += line
            if on_terminal:
                sys.stderr.write(f"\r\033[K{line.strip()[:78]}")
    if on_terminal:
        sys.stderr.write("\r\033[K")
    with contextlib.suppress(OSError):  # a full disk
        _write(log, output)
    if process.returncode:
        raise PipFailedError(output, log)


def _run(command: Sequence[str]) -> None:
    found = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if found.returncode:
        last = (found.stdout.strip().splitlines() or ["it gave no reason"])[-1]
        raise CannotPrepareError(f"{' '.join(command)} failed: {last}")


def _record(folder: str) -> "Dict[str, object]":
    try:
        found = json.loads(_read(os.path.join(folder, RECORD)))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write_record(folder: str, record: "Dict[str, object]") -> None:
    path = os.path.join(folder, RECORD)
    _write(path + ".new", json.dumps(record))
    os.replace(path + ".new", path)  # a copy of the environment may be hard links


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two terminals may run make at once."""
    descriptor = os.open(CHECKOUT, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _say(line: str) -> None:
    sys.stderr.write(f"holdfast: {line}\n")
    sys.stderr.flush()


def main(folder: str, packages: Sequence[str]) -> int:
    """Prepare; an exit code."""
    try:
        prepare(folder, packages)
    except CannotPrepareError as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(f"cannot prepare {folder}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ".venv", sys.argv[2:]))
