"""A rank whose job hangs again and again, and is restarted in place where that is possible.

    python why_in_place_rank.py <folder>

``WHY_CASES`` has a case for each hang. The culprit of a hang notes it in the folder first, so that
every later call of the function, of whichever processes, knows how many there were.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from pathlib import Path

from bench.why_rank import culprit_of, train
from holdfast.inprocess import CallWrapper, Wrapper

FOLDER = Path(sys.argv[1])
SOFT_S = 2.0
HARD_S = 9.0
"""A data loader that is left takes 5 s to end a worker that hangs."""
_OFTEN = dt.timedelta(seconds=0.2)
_RARELY = dt.timedelta(seconds=0.5)


@Wrapper(
    soft_timeout=dt.timedelta(seconds=SOFT_S),
    hard_timeout=dt.timedelta(seconds=HARD_S),
    progress_watchdog_interval=_OFTEN,
    monitor_process_interval=_RARELY,
    monitor_thread_interval=_RARELY,
    termination_grace_time=_RARELY,
)
def train_in_place(call: CallWrapper) -> None:
    """One call of many."""
    cases = os.environ["WHY_CASES"].split(",")
    number = len([*FOLDER.glob("hang*")])
    world = int(os.environ["WORLD_SIZE"])
    # Without the rank that was ended, the others are about to be: their launcher knows of it.
    is_whole = world == call.state.initial_world_size
    case = cases[number] if is_whole and number < len(cases) else ""
    is_culprit = int(os.environ["RANK"]) == culprit_of(number, world)

    def note_hang() -> None:
        if is_culprit and case:
            cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            noted = {"cycle": cycle, "call": call.iteration, "culprit": call.state.initial_rank}
            (FOLDER / f"hang{number}").write_text(json.dumps(noted))

    # Every other hang is one of a function that marks its progress.
    marks_progress = call.ping if number % 2 else lambda: None
    train(
        case,
        is_culprit=is_culprit,
        begins=marks_progress,
        ends=lambda: None,
        is_there=note_hang,
    )


if __name__ == "__main__":
    train_in_place()
    sys.stdout.flush()
    os._exit(0)
