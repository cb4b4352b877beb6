"""A training of the host soak: all ranks make a step together, and rank 0 writes checkpoints.

Started by path, not imported. ``TRAINING`` is "gloo" for ranks that train a tiny model; else they
meet by plain sockets, without torch, and with "stays" a rank that loses a peer does not end by
itself. A thread notes every 0.1 s that this process runs, so that the lives of two ranks can be
compared, whatever their steps wait for.
"""

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

OUT, JOB = Path(os.environ["OUT"]), Path(os.environ["EVERYBODY"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
KIND = os.environ.get("TRAINING", "")
STEP_S = 0.1
CHECKPOINT_EVERY = 5
ALIVE_S = 0.1
WEIGHTS = 8
LOG = os.open(OUT / "lives", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(what: str, step: int) -> None:
    line = f"{time.monotonic():.3f} {what} {CYCLE} {RANK} {os.getpid()} {step}\n"
    os.write(LOG, line.encode())


class Sockets:
    """Ranks meet at rank 0; no silence ends the wait, as in a collective."""

    def __init__(self) -> None:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if RANK == 0:
            with socket.create_server(("", place[1]), backlog=WORLD) as listener:
                self._peers = [listener.accept()[0] for _ in range(WORLD - 1)]
            return
        while True:
            with suppress(OSError):
                self._peers = [socket.create_connection(place, timeout=5)]
                self._peers[0].settimeout(None)
                return
            time.sleep(0.1)

    def step(self, is_over: bool) -> bool:
        """All have come to the end of a step; whether it was the last one."""
        word = b"." if is_over else b"+"
        if RANK == 0:
            self._receive()
        for peer in self._peers:
            peer.sendall(word)
        return self._receive() == b"." if RANK else is_over

    def _receive(self) -> bytes:
        word = b""
        for peer in self._peers:
            word = peer.recv(1)
            if not word and KIND == "stays":
                threading.Event().wait()
            if not word:
                raise RuntimeError("Connection closed by peer")
        return word

    def state(self) -> list[float]:
        return []

    def restore(self, state: list[float]) -> None: ...


class Gloo:
    """A linear model, of which each rank has the same data: its weights follow from the step."""

    def __init__(self) -> None:
        sys.path.insert(0, os.environ["TOOLS"])
        import_module("light_torch")  # it imports torch in half the time
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("gloo")
        self._torch, self._dist = torch, dist
        self._model = torch.nn.Linear(WEIGHTS, 1, bias=False)
        torch.nn.init.ones_(self._model.weight)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.001)

    def step(self, is_over: bool) -> bool:
        torch, dist = self._torch, self._dist
        self._optimizer.zero_grad()
        self._model(torch.ones(1, WEIGHTS)).sum().backward()
        gradient = self._model.weight.grad
        assert gradient is not None
        dist.all_reduce(gradient)
        gradient /= WORLD
        self._optimizer.step()
        over = torch.tensor([float(is_over)])
        dist.broadcast(over, 0)
        return bool(over.item())

    def state(self) -> list[float]:
        return self._model.weight.detach().flatten().tolist()

    def restore(self, state: list[float]) -> None:
        with self._torch.no_grad():
            self._model.weight.copy_(self._torch.tensor([state]))


def main() -> None:
    step, done = 0, threading.Event()

    def live() -> None:
        while not done.wait(ALIVE_S):
            note("alive", step)

    threading.Thread(target=live, daemon=True).start()
    ranks = Gloo() if KIND == "gloo" else Sockets()
    file = JOB / "checkpoint"
    if file.exists():
        step, state = json.loads(file.read_text())
        ranks.restore(state)
    note("begins", step)
    while True:
        time.sleep(STEP_S)
        is_over = ranks.step((JOB / "end").exists())
        step += 1
        note("step", step)
        if RANK == 0 and (is_over or step % CHECKPOINT_EVERY == 0):
            new = file.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps([step, ranks.state()]))
            new.rename(file)
            note("checkpoint", step)
        if is_over:
            break
    done.set()
    note("ends", step)


if __name__ == "__main__":
    main()
