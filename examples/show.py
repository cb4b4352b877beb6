"""What the demos share: headings, colours, the comparison of weights, a folder that is removed."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

FAILED = 1  # exit code


def differences(one: Path, other: Path) -> Iterator[str]:
    """Names of the weights that differ, and by how much."""
    import torch  # the slow import is needed only when something went wrong

    path = "checkpoint.pt"
    states = [torch.load(folder / path, weights_only=True)["model"] for folder in (one, other)]
    for name, tensor in states[0].items():
        if not torch.equal(tensor, states[1][name]):
            yield f"{name}: by up to {(tensor - states[1][name]).abs().max():.3g}"


def coloured(colour: int, text: str) -> str:
    return f"\033[{colour}m{text}\033[0m" if sys.stdout.isatty() else text


def say(heading: str) -> None:
    print("\n" + coloured(1, heading), flush=True)


def failed(why: str, *details: str) -> int:
    print(coloured(31, why), *details, sep="\n  ", flush=True)
    return FAILED


def run_in_folder(demonstrate: Callable[[Path], int], description: str | None) -> int:
    """Run a demo in a folder of its own, which is kept if it fails, or on request."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--keep", action="store_true", help="keep the folder of both runs")
    keep = parser.parse_args().keep
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    code = 128 + signal.SIGINT
    try:
        code = demonstrate(folder)
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        if keep or code == FAILED:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code
