"""Train a small GPT under ft_launcher, watched through *sections*. The example to copy.

    ft_launcher --nproc-per-node 2 --max-restarts 3 \
        --ft-rank-section-timeouts setup:60,step:10,checkpointing:30 \
        --ft-rank-out-of-section-timeout 10 \
        examples/train_gpt.py --run-dir runs/gpt

A section is a name around code that must end in time. Each has its own limit, and so has the
time outside all of them; a rank that exceeds one is hung, and the launcher restarts the job from
the last checkpoint. Lines marked (*) are all that fault tolerance adds to a training.
"""

import gpt
import holdfast.fault_tolerance as ft
from faults import FaultPlan


def main() -> None:
    args = gpt.arguments(__doc__)
    client = ft.client()  # (*) its calls do nothing under plain python or torchrun

    with client.section("setup"):  # (*)
        training = gpt.Training(args)
        client.load_state_dict(training.resume())  # (*) limits learned before the restart
        faults = FaultPlan(args.run_dir)  # for the demo; leave it out

    while training.step < args.steps:
        with client.section("step"):  # (*)
            faults.maybe(training.step, training.rank)
            training.train_step()

        if training.step == args.learn_limits_at:
            client.calculate_and_set_section_timeouts(["step", "checkpointing"])  # (*)

        if training.step % args.checkpoint_every == 0:
            with client.section("checkpointing"):  # (*)
                training.save(client.state_dict())

    training.finish()
    client.shutdown_workload_monitoring()  # (*)


if __name__ == "__main__":
    main()
