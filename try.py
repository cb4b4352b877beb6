"""holdfast without make: `python3 try.py` runs the demo.

It prepares .venv first, as make does. `python3 try.py pytest tests/unit` and the like run another
program of the environment. VENV names another folder for it.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "tools"))

import prepare  # noqa: E402  (in tools/, which make uses too)


def main() -> int:
    """Prepare the environment and become the program; an exit code if either is impossible."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        sys.stdout.write(__doc__)
        return 0
    folder = os.environ.get("VENV") or os.path.join(HERE, ".venv")
    code = prepare.main(folder, ())
    if code:
        return code
    program = sys.argv[1:] or ["python", os.path.join(HERE, "examples", "demo.py")]
    path = os.path.join(os.path.abspath(folder), "bin", program[0])
    if not os.path.exists(path):
        sys.stderr.write(f"holdfast: {folder} has no program {program[0]}\n")
        return 2
    return os.execv(path, [path] + program[1:])


if __name__ == "__main__":
    sys.exit(main())
