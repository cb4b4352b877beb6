"""``holdfast chaos [OPTIONS] -- the words of an ft_launcher command line``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from holdfast.base.command_output import INTERRUPTED
from holdfast.base.pure.wording import count
from holdfast.errors import HoldfastError
from holdfast.net.port import ReservedPort
from holdfast.options.arguments import parse_args, torchrun_words
from holdfast.options.option import UsageError
from holdfast.options.plan import LaunchPlan, make_plan
from holdfast.testing.inject import Fault
from holdfast.tools.chaos import scorecard
from holdfast.tools.chaos.job import Setup
from holdfast.tools.chaos.run import TrialRun
from holdfast.tools.chaos.schedule import DEFAULT, SYMPTOMS, ScheduledFault, draw
from holdfast.tools.chaos.trial import Result, Trial
from holdfast.tools.command_words import WRONG

_PROGRAM = "holdfast chaos"
_USAGE = f"{_PROGRAM} [OPTIONS] -- [OPTIONS OF ft_launcher ...] SCRIPT ..."
_SPARE_RESTARTS = 20
"""For faults that cost several, and for limits that run out on a busy machine."""
_FOLDER = "{folder}"
HOLDFAST, TORCHRUN = "holdfast", "torchrun"
NO_SNAPSHOTS, NO_KEPT_STEPS = "no-snapshots", "no-kept-steps"
_SNAPSHOT_MEMORY, _SNAPSHOT_KEEP = "--ft-snapshot-memory", "--ft-snapshot-keep"


class _ChaosParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(words: Sequence[str]) -> int:
    """The command; returns the exit code.

    0: the job has recovered from every fault; 1: it has not; 2: the command cannot be used so;
    130: it was interrupted.
    """
    with contextlib.ExitStack() as stack:
        return _run(words, stack)


def _run(words: Sequence[str], stack: contextlib.ExitStack) -> int:
    try:
        options, command = _parse(words)
        own: list[str] = []
        if options.launchers > 1:
            port = ReservedPort()
            stack.callback(port.release)
            own = _place(options.seed, port.number)
        command = [*own, *command]
        parsed = parse_args(command, os.environ)
        place = f"--rdzv-endpoint={parsed.rdzv_endpoint}", f"--rdzv-id={parsed.rdzv_id}"
        if own and not {*place} <= {*own}:
            raise UsageError(
                "--rdzv-endpoint and --rdzv-id of the command name a job that may be running: "
                "leave them out, chaos starts a job of its own on this host"
            )
        plan = make_plan(parsed, os.environ)
        faults = _draw(options, plan)
        _check_comparisons(options, plan)
        folder = _folder(options)
    except HoldfastError as error:
        sys.stderr.write(f"{_PROGRAM}: error: {error}\n")
        return WRONG
    head = {"seed": options.seed, "command": [*command], "ranks": _world(plan)}
    on = f" of {count(options.launchers, 'launcher')}" if options.launchers > 1 else ""
    _print(
        f"{_PROGRAM}: {count(len(faults), 'fault')} from seed {options.seed} in "
        f"{count(_world(plan), 'rank')}{on}; consoles and scorecard in {folder}"
    )
    runs: dict[str, Any] = {}
    texts: list[str] = []
    side_by_side: list[str] = []
    is_good, was_interrupted = True, False
    for launcher in [HOLDFAST, *dict.fromkeys(options.compare)]:
        trial = Trial(faults, options.start_timeout, options.recovery_timeout)
        try:
            run = TrialRun(_setup(launcher, command, folder, plan, options), trial, _print)
            run.go()
        except OSError as error:
            sys.stderr.write(f"{_PROGRAM}: error: cannot run the job: {error}\n")
            return WRONG
        notes = _notes(trial)
        title = f"{launcher}, seed {options.seed}: {' '.join(command)}"
        texts.append(scorecard.as_text(title, run.scores, notes))
        runs[launcher] = {**scorecard.as_json(run.scores), "notes": notes}
        side_by_side = scorecard.compared({name: each["rows"] for name, each in runs.items()})
        _write(
            folder,
            {"schema_version": scorecard.SCHEMA_VERSION, **head, "runs": runs},
            [*texts, *side_by_side],
        )
        _print(f"\n{texts[-1]}")
        was_interrupted |= run.was_interrupted
        if launcher == HOLDFAST:
            results = [outcome.result for outcome in trial.outcomes]
            is_good = not trial.trouble and Result.NOT_RECOVERED not in results
        if was_interrupted:
            break
    for text in side_by_side:
        _print(text)
    return INTERRUPTED if was_interrupted else int(not is_good)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---------------------------------------------------------------- options
def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    words = list(words)
    own = words[: words.index("--")] if "--" in words else words
    options = chaos_parser().parse_args(own)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    command = words[len(own) + 1 :]
    if not command:
        raise UsageError(f"no command to test; usage: {_USAGE}")
    return options, command


def chaos_parser() -> argparse.ArgumentParser:
    """Reads the options; docs/chaos.md is made from their help."""
    parser = _ChaosParser(
        prog=_PROGRAM,
        usage=_USAGE,
        description="Runs a job under ft_launcher, injects faults into its ranks, one after the "
        "other, and measures how it recovers from each.",
        epilog=f"{_FOLDER} in the command becomes the folder of the run, for the files of the "
        "script. Kinds of faults: " + ", ".join(fault.value for fault in SYMPTOMS),
    )
    add = parser.add_argument
    add("--faults", type=_positive(int), default=10, metavar="N", help="how many (10)")
    add(
        "--seed",
        type=int,
        metavar="N",
        help="the same seed, kinds and ranks give the same schedule (random, printed)",
    )
    add(
        "--kinds",
        type=_kinds,
        metavar="K,...",
        help="kinds to draw from (all that need no GPU; node, too, where there is a spare)",
    )
    add("--ranks", type=_ranks, metavar="R,...", help="ranks that get faults (all)")
    add(
        "--launchers",
        type=_positive(int),
        default=1,
        metavar="N",
        help="launchers on this host, of a command with --nnodes: those beyond it are spares (1)",
    )
    add(
        "--pause",
        type=_positive(float),
        default=3.0,
        metavar="S",
        help="a fault comes at most so many seconds after the last recovery (3)",
    )
    add(
        "--recovery-timeout",
        type=_positive(float),
        default=120.0,
        metavar="S",
        help="then a fault counts as not recovered; the job is started again (120)",
    )
    add(
        "--start-timeout",
        type=_positive(float),
        default=300.0,
        metavar="S",
        help="for the first step of all ranks (300)",
    )
    add(
        "--step-pattern",
        type=_pattern,
        metavar="REGEX",
        help="a line of output that matches is a step of the training, its first group the step's "
        "number (steps of torch's optimizers)",
    )
    add(
        "--compare",
        choices=[NO_SNAPSHOTS, NO_KEPT_STEPS, TORCHRUN],
        action="append",
        default=[],
        help="run the same faults without snapshots, without kept steps, or under torchrun, "
        "afterwards, and show the steps lost side by side; may be repeated",
    )
    add("--output", type=Path, metavar="FOLDER", help="a new folder (chaos-SEED)")
    return parser


def _positive(kind: type[Any]) -> Any:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
        return value

    return read


def _kinds(text: str) -> tuple[Fault, ...]:
    known = {fault.value: fault for fault in SYMPTOMS}
    kinds = [word.strip() for word in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in known]:
        raise argparse.ArgumentTypeError(
            f"unknown kind {unknown[0]!r}; known are {', '.join(known)}"
        )
    return tuple(known[kind] for kind in dict.fromkeys(kinds))


def _ranks(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ranks, as 0,3")
    return tuple(sorted(set(map(int, text.split(",")))))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pattern: {error}") from None


def _draw(options: argparse.Namespace, plan: LaunchPlan) -> list[ScheduledFault]:
    world, nodes = _world(plan), plan.max_nodes
    if plan.min_nodes < nodes:
        raise UsageError(
            "--nnodes: faults are measured in a job of one number of nodes, not MIN:MAX"
        )
    if nodes > options.launchers:
        raise UsageError(
            f"the command is for {count(nodes, 'node')}, and chaos starts "
            f"{count(options.launchers, 'launcher')} on this host: give --launchers {nodes + 1}, "
            "with a spare"
        )
    ranks = options.ranks or tuple(range(world))
    if ranks[-1] >= world:
        raise UsageError(f"there is no rank {ranks[-1]}: the command starts {count(world, 'rank')}")
    has_spare = 1 < nodes < options.launchers
    kinds = options.kinds or (*DEFAULT, *([Fault.NODE] if has_spare else []))
    if Fault.NODE in kinds and not has_spare:
        raise UsageError(
            "--kinds node needs a job of several nodes and a spare that takes the place of one: "
            "--nnodes 2 in the command, and --launchers 3"
        )
    return draw(options.seed, options.faults, kinds, ranks, options.pause)


def _world(plan: LaunchPlan) -> int:
    return plan.nproc_per_node * plan.max_nodes


def _place(seed: int, port: int) -> list[str]:
    """Where launchers on this host meet."""
    here = "127.0.0.1"
    return [f"--rdzv-endpoint={here}:{port}", f"--local-addr={here}", f"--rdzv-id=chaos-{seed}"]


def _check_comparisons(options: argparse.Namespace, plan: LaunchPlan) -> None:
    compare = options.compare
    if NO_SNAPSHOTS in compare and plan.snapshot_memory == 0:
        raise UsageError(f"the command has no snapshots to compare with: {_SNAPSHOT_MEMORY} 0")
    if NO_KEPT_STEPS in compare and not (plan.snapshot_keep_s and plan.max_nodes > 1):
        raise UsageError(f"the command keeps no steps to compare with: {_SNAPSHOT_KEEP} SECONDS")
    if TORCHRUN in compare and options.launchers > 1:
        raise UsageError("--compare torchrun: several launchers are compared with holdfast's alone")


def _folder(options: argparse.Namespace) -> Path:
    folder: Path = (options.output or Path(f"chaos-{options.seed}")).absolute()
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{folder} exists; --output names a new folder") from None
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None
    return folder


# ---------------------------------------------------------------- the job and its files
def _setup(
    launcher: str,
    command: Sequence[str],
    folder: Path,
    plan: LaunchPlan,
    options: argparse.Namespace,
) -> Setup:
    here = folder / launcher
    here.mkdir()
    words = [word.replace(_FOLDER, str(here)) for word in command]
    log_dir = Path(parse_args(words, os.environ).log_dir or here / "logs")
    own = [f"--max-restarts={options.faults + _SPARE_RESTARTS}", f"--log-dir={log_dir}"]
    if launcher == TORCHRUN:
        module, log, rest = "torch.distributed.run", None, torchrun_words(words)
    else:
        module, log, rest = "holdfast.fault_tolerance.launcher", log_dir, words
    if launcher == NO_SNAPSHOTS:
        own.append(f"{_SNAPSHOT_MEMORY}=0")
        rest = _without(rest, _SNAPSHOT_MEMORY)
    if launcher == NO_KEPT_STEPS:
        rest = _without(rest, _SNAPSHOT_KEEP)
    return Setup(
        [sys.executable, "-m", module, *own, *rest],
        here,
        _world(plan),
        log,
        options.step_pattern,
        options.launchers,
    )


def _without(words: Sequence[str], option: str) -> list[str]:
    """The words of a command line but for this option and its value."""
    found: list[str] = []
    is_value = False
    for word in words:
        name, has_value, _ = word.replace("_", "-").partition("=")
        if not is_value and name != option:
            found.append(word)
        is_value = name == option and not has_value
    return found


def _notes(trial: Trial) -> list[str]:
    notes = []
    if trial.unplanned:
        notes.append(f"{count(trial.unplanned, 'restart')} without a fault of the schedule")
    if trial.trouble:
        done = f"{len(trial.outcomes)} of {count(len(trial.plan), 'fault')}"
        notes.append(f"ended after {done}: {trial.trouble}")
    return notes


def _write(folder: Path, record: dict[str, Any], texts: Sequence[str]) -> None:
    (folder / "scorecard.json").write_text(json.dumps(record, indent=2) + "\n")
    (folder / "scorecard.txt").write_text("\n".join(texts))
