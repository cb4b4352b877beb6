"""What the training examples share: a small character-level GPT, its text, its checkpoints.

Nothing in this file knows about fault tolerance except one rule that every restartable job
needs: *the state of the training is a function of the seed and the number of steps done*. A
batch is drawn from (seed, step, rank) and a checkpoint holds weights, optimizer and step, so a
run that was killed and resumed ends with the same weights, to the bit, as one that was not.
(To the bit on two ranks. On more, DDP lays out its gradient buckets anew after its first step, so
that the order of summation, and with it the rounding, depends on where a run was resumed.)
"""

import argparse
import functools
import hashlib
import json
import os
import pydoc_data.topics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

HEADS, CONTEXT, BATCH = 4, 64, 16  # attention heads, characters seen at once, sequences per rank


def arguments(
    description: str | None, command_line: Sequence[str] | None = None
) -> argparse.Namespace:
    """The command line of all examples."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/gpt"), help="checkpoints")
    parser.add_argument("--steps", type=int, default=400, help="steps of the whole training")
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps")
    parser.add_argument("--report-every", type=int, default=25, help="steps")
    parser.add_argument("--learn-limits-at", type=int, help="step; default: never, keep ours")
    parser.add_argument("--width", type=int, default=64, help="size of an embedding")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args(command_line)


class Block(nn.Module):
    """One transformer layer: attention to earlier characters, then a two-layer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, time, width)`` to the same shape."""
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Predicts the next character of a text."""

    def __init__(self, characters: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, characters: Tensor, following: Tensor) -> Tensor:
        """Mean loss of predicting ``following`` from ``characters``, both ``(batch, time)``."""
        x = self.embed(characters) + self.place(torch.arange(characters.shape[1]))
        logits = self.head(self.blocks(x))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


@functools.cache  # a function that restarts in place calls it again
def load_text() -> tuple[Tensor, int]:
    """Python's own help texts as character numbers, and how many different characters there are."""
    text = "\n".join(pydoc_data.topics.topics.values())
    number = {character: n for n, character in enumerate(sorted(set(text)))}
    return torch.tensor([number[character] for character in text]), len(number)


class Training:
    """Model, optimizer, data and the number of steps done, on one rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(mode=True)
        torch.manual_seed(args.seed)
        self.args = args
        self.step = 0
        self.text, characters = load_text()
        self.model = GPT(characters, args.width, args.layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        args.run_dir.mkdir(parents=True, exist_ok=True)
        self.checkpoint = args.run_dir / "checkpoint.pt"
        dist.init_process_group("gloo")  # numbers and addresses come from the environment
        self.rank = dist.get_rank()
        self.ddp: DistributedDataParallel | None = None  # the first step makes it

    def train_step(self) -> None:
        """One step of the optimizer; the batch depends on nothing but (seed, step, rank)."""
        if self.ddp is None:
            self.ddp = DistributedDataParallel(self.model)
        draw = torch.Generator()
        draw.manual_seed((self.args.seed << 40) + (self.step << 16) + self.rank)
        start = torch.randint(len(self.text) - CONTEXT, (BATCH, 1), generator=draw)
        batch = self.text[start + torch.arange(CONTEXT + 1)]
        loss = self.ddp(batch[:, :-1], batch[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        if self.rank == 0 and self.step % self.args.report_every == 0:
            print(f"step {self.step:4d}  loss {loss.item():.3f}", flush=True)

    def save(self, monitor: Mapping[str, Any]) -> None:
        """Replace the checkpoint; whoever dies at whichever line, a whole one is there."""
        if self.rank != 0:
            return
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "monitor": monitor,
        }
        new = self.checkpoint.with_suffix(".new")
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.checkpoint)

    def resume(self) -> Mapping[str, Any]:
        """Go on from the checkpoint, if there is one; what ``save`` was given, or nothing."""
        if not self.checkpoint.exists():
            return {}
        state = torch.load(self.checkpoint, weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        monitor: Mapping[str, Any] = state["monitor"]
        if self.rank == 0:
            print(f"resumed at step {self.step}", flush=True)
            record(self.args.run_dir, "resumed", step=self.step)
        return monitor

    def finish(self) -> None:
        """Leave the process group; rank 0 writes the fingerprint of the weights.

        The DDP goes first: with torch 2.13, a gloo group that it outlives may hang when it goes.
        """
        self.ddp = None
        dist.destroy_process_group()
        if self.rank == 0:
            digest = hashlib.sha256()
            for name, tensor in sorted(self.model.state_dict().items()):
                digest.update(name.encode() + tensor.numpy().tobytes())
            (self.args.run_dir / "weights.sha256").write_text(digest.hexdigest() + "\n")
            print(f"done after step {self.step}, weights {digest.hexdigest()[:16]}", flush=True)


def record(run_dir: Path, kind: str, **fields: object) -> None:
    """Append one line to ``progress.jsonl``; whole lines, whoever else writes or dies."""
    cycle = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    rank = int(os.environ.get("RANK", "0"))
    event = {"t": time.monotonic(), "wall": time.time(), "kind": kind, "cycle": cycle, "rank": rank}
    line = json.dumps({**event, "pid": os.getpid(), **fields}) + "\n"
    file = os.open(run_dir / "progress.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
