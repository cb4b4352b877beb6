"""``python -m tests.cluster``: the tests of this folder, in namespaces of their own.

So their Slurm has ports, host names and processes of its own, and the kernel takes all of it down
with the last test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "munged": "munge",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
}
"""What is needed, and Debian's package of it."""
INSIDE = "HOLDFAST_CLUSTER"
"""Set where the tests may run."""
NAMESPACES = ("--fork", "--pid", "--kill-child", "--mount", "--mount-proc", "--net", "--uts")


def why_not() -> str | None:
    """What is missing here, in one line; None: nothing."""
    missing = {name: package for name, package in PROGRAMS.items() if shutil.which(name) is None}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        return f"missing here: {', '.join(missing)}; apt-get install {packages}"
    if os.geteuid() != 0:
        return "`make cluster` needs root, for slurmd and for namespaces of its own"
    done = subprocess.run(
        ["unshare", *NAMESPACES, "true"], capture_output=True, text=True, check=False
    )
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else None


def main() -> int:
    if (why := why_not()) is not None:
        print(f"holdfast: {why}", file=sys.stderr)
        return 1
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-o", "timeout=900", str(folder), *sys.argv[1:]]
    inside = ["sh", "-c", 'hostname ctl && ip link set lo up && exec "$@"', "sh", *command]
    done = subprocess.run(
        ["unshare", *NAMESPACES, *inside], env={**os.environ, INSIDE: "1"}, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
