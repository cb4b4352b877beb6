"""Train a small GPT under ft_launcher, watched through *heartbeats*: the shorter variant.

    ft_launcher --nproc-per-node 2 --max-restarts 3 \
        --ft-initial-rank-heartbeat-timeout 60 --ft-rank-heartbeat-timeout 30 \
        examples/train_gpt_heartbeats.py --run-dir runs/gpt

One call per step says "still alive". There are two limits: one up to the first heartbeat, which
covers the start, and one between heartbeats, which must cover a step *and* a checkpoint; sections
(train_gpt.py) find a hung step sooner. Lines marked (*) are all that fault tolerance adds.
"""

import gpt
import holdfast.fault_tolerance as ft
from faults import FaultPlan


def main() -> None:
    args = gpt.arguments(__doc__)
    client = ft.client()  # (*) its calls do nothing under plain python or torchrun

    training = gpt.Training(args)
    client.load_state_dict(training.resume())  # (*) limits learned before the restart
    faults = FaultPlan(args.run_dir)  # for the demo; leave it out

    while training.step < args.steps:
        faults.maybe(training.step, training.rank)
        training.train_step()
        client.send_heartbeat()  # (*)
        if training.step == args.learn_limits_at:
            client.calculate_and_set_hb_timeouts()  # (*) limits from what was measured
        if training.step % args.checkpoint_every == 0:
            training.save(client.state_dict())

    training.finish()
    client.shutdown_workload_monitoring()  # (*)


if __name__ == "__main__":
    main()
