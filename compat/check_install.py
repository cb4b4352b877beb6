"""Does ``nvidia_resiliency_ext``, as installed here, have every public name, and does it work?

    python compat/check_install.py            with the command ft_launcher of this environment
    python compat/check_install.py --module   with python -m nvidia_resiliency_ext...launcher

For a fresh environment with the wheels of holdfast and holdfast-nvrx-compat. It compares all names
with ``public_names.py``, then runs ``check_job.py`` under the launcher. Exit code 0: all is well;
1: it is not; stdout says why.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import public_names

HERE = Path(__file__).resolve().parent
ABSENT = ("checkpointing", "attribution", "straggler")
"""Programs probe for these; the import has to fail."""
N_RANKS = 2
TIMEOUT_S = 120.0
LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"


def main() -> int:
    """Print all problems; the exit code."""
    warnings.simplefilter("ignore", DeprecationWarning)  # old places, on purpose
    has_lightning = any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning")))
    names = public_names.checked(with_lightning=has_lightning)
    problems = [
        *(
            f"{module}.{name}: {text}"
            for module, name, kind in names
            if (text := public_names.problem(module, name, kind)) is not None
        ),
        *(f"{name} can be imported" for name in ABSENT if _is_there(name)),
        *_problems_of_job(),
    ]
    import nvidia_resiliency_ext as package

    print(f"nvidia_resiliency_ext {package.__version__} from {Path(package.__file__).parent}:")
    print("\n".join(problems) or f"{len(names)} names and a job of {N_RANKS} ranks: all is well")
    return 1 if problems else 0


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(f"nvidia_resiliency_ext.{name}") is not None


def _problems_of_job() -> list[str]:
    command = str(Path(sys.executable).with_name("ft_launcher"))
    launcher = [sys.executable, "-m", LAUNCHER] if "--module" in sys.argv else [command]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *launcher,
                *("--nproc_per_node", str(N_RANKS), "--max-restarts=1"),
                *("--ft-param-rank_section_timeouts=step:100", "--ft-warm-standby", "false"),
                str(HERE / "check_job.py"),
            ],
            cwd=folder,
            env={**os.environ, "CHECK_FOLDER": folder},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        problems = []
        if done.returncode != 0:
            problems.append(f"the job ended with {done.returncode}:\n{done.stderr}")
        if (n_warned := done.stderr.count("--ft-param-rank_section_timeouts is an old")) != 1:
            problems.append(f"the old spelling of an option was warned of {n_warned} times, not 1")
        for rank in range(N_RANKS):
            problems += _problems_of_rank(rank, Path(folder, f"rank{rank}"))
        return problems


def _problems_of_rank(rank: int, notes: Path) -> list[str]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    said = [json.loads(line) for line in lines]
    expected = [
        {"cycle": 0, "sections": {"step": 100.0}, "state": {"current_timeouts": {}}},
        {"cycle": 1, "sections": {"step": 100.0}, "state": {"current_timeouts": {}}},
        # A rank that another one's fault reaches before its first call makes only the second.
        {"cycle": 1, "iteration": 1, "world": str(N_RANKS)},
        {"cycle": 1, "returned": 1},
    ]
    said = [each for each in said if each.get("iteration") != 0]
    return [] if said == expected else [f"rank {rank} noted {said}, not {expected}"]


if __name__ == "__main__":
    sys.exit(main())
