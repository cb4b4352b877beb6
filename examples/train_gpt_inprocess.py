"""Train a small GPT whose ranks restart in place. The example to copy.

    for r in 0 1 2; do   # or srun, torchrun, ft_launcher: whatever sets RANK and WORLD_SIZE
        RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
            python examples/train_gpt_inprocess.py --active 2 --run-dir runs/gpt &
    done

When a rank raises, hangs or dies, every other one leaves ``train`` where it is, and calls it
again: same process, same imports. Ranks beyond ``--active`` stand by, and take the place of a lost
one. All go on from the newest snapshot that every rank has, at most a step before the fault; it is
in memory that outlives the rank. The checkpoint is for the loss of a node, and for another number
of ranks. Lines marked (*) are all that this adds.

Under ft_launcher, monitors watch the sections as well, and whatever cannot be restarted in place
starts all ranks again, from the same snapshots (with spare ranks, from the checkpoint).

What makes ``train`` restartable: it makes process groups, model and optimizer itself, each time.
"""

import argparse
import datetime as dt
import os

import gpt
import holdfast.fault_tolerance as ft
from faults import FaultPlan
from holdfast.inprocess import CallWrapper, Compose, Wrapper
from holdfast.inprocess.rank_assignment import ActivateAllRanks, MaxActiveWorldSize, ShiftRanks
from holdfast.snapshot import Snapshots


def train(call: CallWrapper, args: argparse.Namespace) -> int:
    """Train to the end; the number of steps."""
    gpt.record(args.run_dir, "entered", iteration=call.iteration)
    training = gpt.Training(args)

    def load_checkpoint() -> int:
        training.resume()
        return training.step

    # every=1 takes each of these short steps; leave it out, and it costs 1 % of the time at most
    snapshots = Snapshots(model=training.model, optimizer=training.optimizer, every=1)  # (*)
    training.step = snapshots.restore(otherwise=load_checkpoint)  # (*)
    client = ft.client()  # (*) its calls do nothing where no ft_launcher is
    faults = FaultPlan(args.run_dir)  # for the demo; leave it out
    gpt.record(args.run_dir, "resumed", iteration=call.iteration, step=training.step)
    while training.step < args.steps:
        call.ping()  # (*) a step that takes longer than the soft timeout is hung
        with client.section("step"):  # (*)
            faults.maybe(training.step, training.rank)
            training.train_step()
            snapshots.take(training.step)  # (*) last
        if training.step % args.checkpoint_every == 0:
            with client.section("checkpointing"):  # (*)
                training.save({})
    training.finish()
    client.shutdown_workload_monitoring()  # (*)
    return training.step


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--active", type=int, default=None, help="ranks that train; others stand by")
    own.add_argument("--soft-timeout", type=float, default=60.0, help="seconds for a step")
    mine, rest = own.parse_known_args()
    args = gpt.arguments(__doc__, rest)
    args.run_dir.mkdir(parents=True, exist_ok=True)
    soft = dt.timedelta(seconds=mine.soft_timeout)
    wrapper = Wrapper(  # (*)
        store_kwargs={"port": int(os.environ["MASTER_PORT"]) + 1},
        rank_assignment=Compose(MaxActiveWorldSize(mine.active), ActivateAllRanks(), ShiftRanks()),
        progress_watchdog_interval=soft / 10,
        monitor_process_interval=soft / 10,
        monitor_thread_interval=soft / 10,
        soft_timeout=soft,
        hard_timeout=soft * 1.5,
    )
    wrapper(train)(args)


if __name__ == "__main__":
    main()
