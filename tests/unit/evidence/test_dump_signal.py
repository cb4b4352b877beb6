"""The signal that dumps a rank's stacks, beside handlers of its script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os, signal, sys
from holdfast.evidence.dump_signal import dump_signal, register_stack_dump
path, called = sys.argv[1], []
first = register_stack_dump(path)
signal.signal(first, lambda number, _: called.append(number))
second = register_stack_dump(path)
os.kill(os.getpid(), first)
os.kill(os.getpid(), second)
for number in range(1, signal.NSIG):
    try:
        signal.signal(number, lambda *_: None)
    except OSError:
        pass
none = register_stack_dump(path), dump_signal()
signal.signal(second, signal.SIG_DFL)
again = register_stack_dump(path)
os.kill(os.getpid(), again)
print(json.dumps([called == [first], first != second, *none, again == second]))
"""


def test_a_signal_that_the_script_handles_by_now_is_left_to_it(tmp_path: Path) -> None:
    """As with one handler for all signals, which saves and exits: a look would end the rank."""
    stacks = tmp_path / "stacks"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(stacks)], stdout=subprocess.PIPE, check=True
    )

    assert json.loads(done.stdout) == [True, True, 0, 0, True]
    assert stacks.read_text().count("most recent call first") == 2
