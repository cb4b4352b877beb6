"""Hosts that lack what this one has: interpreters built for an old glibc, older kernels, seccomp.

    python -m tests.older_hosts --old-glibc --no-pidfd -m pytest tests/real/test_launcher.py

runs this interpreter's twin, and every process below it, without those features.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

OLD_GLIBC = """
def _take_away():
    import posix

    missing = ["eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pidfd_open"]
    missing += [name for name in dir(posix) if name.startswith(("EFD_", "MFD_", "P_PIDFD"))]
    for name in missing:
        if hasattr(posix, name):
            delattr(posix, name)
    whole = posix.posix_spawn

    def posix_spawn(*args, setsid=False, **kwargs):
        if setsid:
            text = "posix_spawn: setsid unavailable on this platform"
            raise NotImplementedError(text)
        return whole(*args, **kwargs)

    posix.posix_spawn = posix_spawn

_take_away()
"""
"""What an interpreter lacks that was built with headers of glibc 2.17, as conda's and uv's are.

Appended to ``encodings``, the first module of the standard library that any interpreter loads, also
one started with ``-I -S``.
"""
OLD_GLIBC_SIGNAL = """
globals().pop("pidfd_send_signal", None)
"""
"""Appended to ``signal``."""

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # the same on all architectures
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_SECCOMP_MODE_FILTER = 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def old_glibc_python(folder: Path) -> Path:
    """Make the twin of this interpreter in ``folder``; the path of its program."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    real = Path(os.__file__).parent
    library = folder / "base" / "lib" / version
    library.mkdir(parents=True)
    _link(real, library, besides=("encodings", "signal.py", "site-packages"))
    (library / "encodings").mkdir()
    _link(real / "encodings", library / "encodings", besides=("__init__.py", "__pycache__"))
    for name, more in (("encodings/__init__.py", OLD_GLIBC), ("signal.py", OLD_GLIBC_SIGNAL)):
        (library / name).write_text((real / name).read_text() + more)
    (folder / "base" / "bin").mkdir()
    program = folder / "bin" / "python3"
    program.parent.mkdir()
    if sys.version_info >= (3, 11):
        program.symlink_to(Path(sys.executable).resolve())
    else:  # which looks for its library beside the file that a link leads to
        shutil.copy(sys.executable, program)
    (folder / "pyvenv.cfg").write_text(
        f"home = {folder}/base/bin\ninclude-system-site-packages = false\n"
    )
    (folder / "lib" / version).mkdir(parents=True)
    packages = Path(sys.prefix) / "lib" / version / "site-packages"
    (folder / "lib" / version / "site-packages").symlink_to(packages)
    return program


def _link(source: Path, target: Path, *, besides: Sequence[str]) -> None:
    for entry in source.iterdir():
        if entry.name not in besides:
            (target / entry.name).symlink_to(entry)


def refuse(calls: dict[int, int]) -> None:
    """Have system calls fail in this process and all below it: number -> errno."""
    steps = [(_LOAD, 0, 0, 0)]
    for number, code in calls.items():
        steps += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | code)]
    steps.append((_RETURN, 0, 0, _ALLOW))

    class Step(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_ushort),
            ("yes", ctypes.c_ubyte),
            ("no", ctypes.c_ubyte),
            ("value", ctypes.c_uint),
        )

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(Step)))

    program = Program(len(steps), (Step * len(steps))(*(Step(*step) for step in steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def why_no_filter() -> str | None:
    """Why system calls cannot be made to fail here; None: they can."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"not tried on {platform.machine()}"
    if (pid := os.fork()) == 0:
        try:
            refuse({})
        except BaseException:  # noqa: BLE001 - this process has to end here
            os._exit(1)
        os._exit(0)
    return None if os.waitpid(pid, 0)[1] == 0 else "this kernel has no seccomp filters"


def main(argv: Sequence[str]) -> None:
    """Become the program, on such a host."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--old-glibc", metavar="FOLDER", nargs="?", const="")
    parser.add_argument("--no-pidfd", action="store_true")
    parser.add_argument("--no-pidfd-signal", action="store_true")
    mine, rest = parser.parse_known_args(argv)
    program = sys.executable
    if mine.old_glibc is not None:
        folder = Path(mine.old_glibc or tempfile.mkdtemp(prefix="old_glibc_"))
        program = str(folder / "bin" / "python3")
        if not Path(program).exists():
            old_glibc_python(folder)
    if mine.no_pidfd:
        refuse({PIDFD_OPEN: errno.ENOSYS, PIDFD_SEND_SIGNAL: errno.ENOSYS})
    if mine.no_pidfd_signal:
        refuse({PIDFD_SEND_SIGNAL: errno.EPERM})
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
