"""``make minimal-root``: the set-up in Debian roots that have python3 and little else.

Each case is a script in a root of its own: an overlay over one that mmdebstrap made, in which /src
is a copy of the checkout. Needs to be root, mmdebstrap, and a network or a mirror of PyPI.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
READY = "make .venv/.ready"  # what every target begins with
WORKS = ".venv/bin/ft_launcher --version; .venv/bin/python -c 'import torch, holdfast'; echo works"
ADD_VENV = "(apt-get -qq update; apt-get -qq install python3-venv) > /tmp/apt 2>&1"
NEEDS_VENV = "apt-get install python3-venv"
DEMO_ENDS = "weights equal: yes"


class Case(NamedTuple):
    """A script in /src, and words of its output, in their order."""

    script: str
    words: tuple[str, ...]
    packages: str = "make python3-venv"
    suite: str = "bookworm"
    has_network: bool = True


CASES = {
    "python3 alone": Case("! python3 try.py; test ! -e .venv", (NEEDS_VENV,), ""),
    "no make": Case("python3 try.py", ("preparing", DEMO_ENDS), "python3-venv"),
    "no python3": Case("mv /usr/bin/python3 /; ! make demo", ("there is no python3",)),
    "python3-venv comes later": Case(
        f"! make demo; {ADD_VENV}; make demo", (NEEDS_VENV, "preparing", DEMO_ENDS), "make"
    ),
    "python3-pip instead of python3-venv": Case(
        f"{READY}; {WORKS}", ("preparing", "works"), "make python3-pip"
    ),
    "half made without python3-venv": Case(
        f"! python3 -m venv .venv; touch .venv/.ready; ! {READY}; {ADD_VENV}; {READY}; {WORKS}",
        (NEEDS_VENV, "completing .venv: it has no pip", "works"),
        "make",
    ),
    "killed on the way": Case(
        f"! timeout -s KILL 8 {READY}; {READY}; {WORKS}",
        ("preparing", "again, because it is half made: its preparation was interrupted", "works"),
    ),
    "moved": Case(
        f"{READY}; mkdir /b; cp -a /src/. /b; rm -r /src/.venv; cd /b; {READY}; {WORKS}; {READY}",
        ("preparing", "its programs start /src/.venv/bin/python", "works"),
    ),
    "its Python is gone": Case(
        f"{READY}; ln -sfn /usr/bin/python3.10 .venv/bin/python3; {READY}; {WORKS}",
        ("preparing", "does not start (No such file or directory)", "works"),
    ),
    "a package is gone": Case(
        f"{READY}; .venv/bin/pip uninstall -qy pytest 2>&1; {READY}; {WORKS}",
        ("preparing", "installing into .venv: it lacks pytest", "works"),
    ),
    "no network": Case(
        f"! {READY}; ! python3 try.py; test -d .venv",
        ("preparing", "pip reaches no package index", "lacks torch", "pip reaches no package"),
        has_network=False,
    ),
    "a network that is lost": Case(
        f"{READY}; unshare -n make .venv/.ready; echo '# new' >> constraints.txt; "
        f"unshare -n env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL {READY}; {WORKS}; {READY}",
        ("preparing", "is newer", "goes on with the packages", "works", "is newer"),
    ),
    "a checkout that cannot be written": Case(
        "mount --bind /src /mnt; mount -o remount,bind,ro /mnt; cd /mnt; ! make demo; "
        "! python3 try.py; VENV=/tmp/venv python3 try.py; "
        "make VENV=/tmp/venv /tmp/venv/.ready; echo ready",
        ("cannot write .venv (Read-only file", "VENV=", "VENV=", "preparing", DEMO_ENDS, "ready"),
    ),
    "a full disk": Case(
        f"mkdir .venv; mount -t tmpfs -o size=100m none .venv; ! {READY}", ("the disk is full",)
    ),
    "an old Python": Case(
        "! python3 try.py; ! make test", ("is Python 3.9", "holdfast needs 3.10"), suite="bullseye"
    ),
    "continuous integration": Case(
        "sed -i 's/make test/make check/' .ci/run; .ci/run", ("All checks passed", "0 broken"), ""
    ),
}


def pip_settings() -> dict[str, str]:
    """The indexes of this machine, as variables."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, check=True, text=True, capture_output=True).stdout.splitlines()
    settings = {}
    for line in lines:
        name, _, value = line.partition("=")
        name = name.rpartition(".")[2].replace("-", "_").upper()
        if name in {"INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "CERT"}:
            settings[f"PIP_{name}"] = value.strip("'")
    return settings


def build_root(work: Path, case: Case) -> Path:
    """A root with the packages of the case; made once for all cases with the same."""
    root = work / "-".join([case.suite, *case.packages.split()])
    if root.exists():
        return root
    include = ",".join(["python3", *case.packages.split()])
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", case.suite]
    subprocess.run([*command, str(root)], check=True)
    return root
    include = ",".join(["python3", *case.packages.split()])
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", case.suite]
    subprocess.run([*command, str(root)], check=True)
    (root / "src").mkdir()
    files = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(files, check=True, capture_output=True).stdout
    tar = ["tar", "-C", str(ROOT), "--null", "-T", "-", "--ignore-failed-read", "-c"]
    archive = subprocess.run(tar, input=names, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", str(root / "src"), "-x"], input=archive, check=True)
    return root


def copy_checkout(to: Path) -> None:
    """The files that git knows or would add."""
    files = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(files, check=True, capture_output=True).stdout
    tar = ["tar", "-C", str(ROOT), "--null", "-T", "-", "--ignore-failed-read", "-c"]
    archive = subprocess.run(tar, input=names, check=True, capture_output=True).stdout
    to.mkdir()
    subprocess.run(["tar", "-C", str(to), "-x"], input=archive, check=True)


def output_of(work: Path, root: Path, case: Case) -> tuple[int, str]:
    """Run the case's script in an overlay of the root."""
    settings = pip_settings()
    copies = {"/etc/resolv.conf": "/etc/resolv.conf"}
    if certificates := settings.get("PIP_CERT"):
        copies[certificates] = settings["PIP_CERT"] = "/certificates.pem"
    folders = [Path(word.removeprefix("file://")) for word in " ".join(settings.values()).split()]
    binds = {  # a local index has its files beside it
        path.parent if path.name == "simple" else path for path in folders if path.is_dir()
    }
    with tempfile.TemporaryDirectory(dir=work) as name:
        layers = {part: Path(name, part) for part in ("upper", "work", "root")}
        for layer in layers.values():
            layer.mkdir()
        copy_checkout(layers["upper"] / "src")
        inside = str(layers["root"])
        options = f"lowerdir={root},upperdir={layers['upper']},workdir={layers['work']}"
        script = [
            f"mount -t overlay -o {options} none {inside}",
            f"mount -t proc none {inside}/proc",
            f"mount --rbind /dev {inside}/dev",
            f"mount -t tmpfs none {inside}/tmp",
        ]
        if case.has_network:
            script += [f"cp {path} {inside}{to}" for path, to in copies.items()]
            script += [f"mkdir -p {inside}{path}" for path in binds]
            script += [f"mount --rbind {path} {inside}{path}" for path in binds]
        steps = f"set -ex; cd /src; {case.script}"
        script += [f"exec chroot {inside} sh -c {shlex.quote(steps)}"]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "PIP_NO_COMPILE": "1",
            **settings,
        }
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        if not case.has_network:
            namespaces.append("--net")
            environment = {key: value for key, value in environment.items() if key not in settings}
        done = subprocess.run(
            [*namespaces, "sh", "-c", " && ".join(script)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for log in Path(name, "upper").glob("*/.venv/pip.log") if done.returncode else ():
            print(log.read_text(encoding="utf-8")[-2000:])
    return done.returncode, done.stdout


def lacks(words: tuple[str, ...], output: str) -> str:
    """The first of the words that does not follow in the output."""
    for word in words:
        _, found, output = output.partition(word)
        if not found:
            return word
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only the cases with this in their name")
    parser.add_argument("--work", type=Path, help="a folder that keeps the roots")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("holdfast: make minimal-root needs to be root")
        return 2
    work = arguments.work or Path(tempfile.mkdtemp(prefix="holdfast-roots-"))
    failed = 0
    for name, case in CASES.items():
        if arguments.k not in name:
            continue
        code, output = output_of(work, build_root(work, case), case)
        lacking = lacks(case.words, output)
        failed += bool(code or lacking)
        print(f"{'FAILED' if code or lacking else 'ok'}: {name}", flush=True)
        said = [line for line in output.splitlines() if line.startswith("holdfast: ")]
        print(*(f"    {line}" for line in said), sep="\n", flush=True)
        if code or lacking:
            print(f"    exit code {code}; lacks {lacking!r}\n{output[-3000:]}", flush=True)
    if arguments.work is None:
        subprocess.run(["rm", "-rf", "--one-file-system", str(work)], check=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
