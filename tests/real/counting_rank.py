"""A training without torch, for tests of the launcher's part of snapshots.

Its state is the number of steps. It speaks the protocol of a rank and fills its memory as the
library does, in a tenth of the time that importing torch takes. ``STEPS`` and ``FAULTS`` are those
of ``test_snapshots.TRAINING``; all ranks make a step together. Where ``EVERYBODY`` has a file
``damage``, the first life ends with the kept step alone, of which the last rank's copy is damaged.
"""

import hashlib
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.slots import next_slot
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.pure.tensors_head import Head, Tensor, parse
from holdfast.arena.sums import checksum
from holdfast.snapshot._launcher_link import LauncherLink, NoArenaError

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
OUT = os.environ["OUT"]
EVERYBODY = Path(os.environ.get("EVERYBODY", OUT))
NAME = "steps"
N_WORDS = 4096
HEAD = Head([Tensor(NAME, "I64", (N_WORDS,))], metadata_bytes=64)
BOUND_S = 60.0
FAULTS = [it.split(":") for it in os.environ.get("FAULTS", "").split(",") if it]


def say(text: str) -> None:
    with Path(OUT, "said").open("a") as file:
        file.write(f"{CYCLE} {RANK} {text}\n")


class Lockstep:
    """All ranks of this host come to the end of a step together; it raises where one is gone."""

    def __init__(self) -> None:
        job = f"{EVERYBODY}/{CYCLE}"
        address = "\0" + hashlib.sha256(job.encode()).hexdigest()  # a path may be too long for one
        self._peers: list[socket.socket] = []
        if RANK == 0:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                listener.settimeout(BOUND_S)
                self._peers = [listener.accept()[0] for _ in range(WORLD - 1)]
            return
        peer = socket.socket(socket.AF_UNIX)
        until = time.monotonic() + BOUND_S
        while True:
            with suppress(ConnectionRefusedError):
                peer.connect(address)
                break
            assert time.monotonic() < until, "rank 0 does not listen"
            time.sleep(0.01)
        self._peers = [peer]

    def wait(self) -> None:
        if RANK == 0:
            self._receive()
        for peer in self._peers:
            peer.sendall(b".")
        if RANK:
            self._receive()

    def _receive(self) -> None:
        for peer in self._peers:
            peer.settimeout(BOUND_S)
            if not peer.recv(1):
                raise RuntimeError("Connection closed by peer [127.0.0.1]:1")  # as gloo has it


class Memory:
    """Two slots, and those for kept steps: written in turn, but for one whose step is pinned."""

    def __init__(self) -> None:
        self._link = LauncherLink(os.environ["FT_LAUNCHER_IPC_SOCKET"], RANK)
        self._answer, fd = self._link.open_arena(HEAD.n_bytes, 2)
        self._arena = ArenaMemory(fd)
        self._slots = range(2 + self._answer.kept)
        for slot in self._slots:
            self._arena.reserve(slot, HEAD.n_bytes)
        self._maps = [memoryview(self._arena.map_slot(slot)) for slot in self._slots]

    def restored(self) -> int:
        """The step to begin from; 0: from the start."""
        chosen, file = self._answer.restore, self._answer.file
        self._arena.words[layout.LAST_STEP] = chosen.step if chosen else 0
        if chosen is None:
            say("anew")
            return 0
        memory = memoryview(Path(file.path).read_bytes()) if file else self._maps[self._answer.slot]
        total = None if file else self._arena.sum_of(self._answer.slot)
        if total is not None and checksum(memory[: HEAD.n_bytes]) != total:
            self._link.send_unusable(chosen, "its bytes have changed", is_damaged=True)
            raise RuntimeError("a damaged snapshot")
        found = parse(memory[: HEAD.n_bytes])
        begin = found.data_at + found.placed[NAME].begin
        (step,) = memory[begin : begin + 8].cast("q")
        assert step == chosen.step
        return step

    def leave_the_kept_step(self, *, is_damaged: bool) -> None:
        for it in list(self._arena.all_held()):
            if it.held.step != self._arena.words[layout.KEPT]:
                self._arena.void(it.slot)
            elif is_damaged:
                self._maps[it.slot][it.n_bytes - 8] ^= 1

    def take(self, step: int) -> None:
        arena = self._arena
        arena.words[layout.LAST_STEP] = step
        held = {it.slot: it.held.id for it in arena.all_held()}
        slot = next_slot(self._slots, held, (), arena.pins())
        if slot is None:
            return
        arena.claim(slot, step)
        if not arena.may_write(slot):
            arena.unclaim()
            return
        arena.begin(slot)
        head = HEAD.render(f'{{"step":"{step}"}}')
        assert head is not None
        file = head + step.to_bytes(8, "little") * N_WORDS
        self._maps[slot][: len(file)] = file
        arena.commit(slot, Held(RANK, WORLD, self._answer.cycle, 0, step), len(file))
        arena.unclaim()
        arena.store_sum(slot, step + 1, checksum(memoryview(file)))


def main() -> None:
    memory = None
    with suppress(NoArenaError):
        memory = Memory()
    step = memory.restored() if memory else 0
    say(f"begins {step}")
    lockstep = Lockstep()
    while step < int(os.environ["STEPS"]):
        lockstep.wait()
        step += 1
        time.sleep(0.005)
        for what, *place in FAULTS:
            if [CYCLE, step, RANK] == [int(each) for each in place]:
                if what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("as planned")
        if memory and CYCLE == 0 and (EVERYBODY / "damage").exists():
            memory.leave_the_kept_step(is_damaged=RANK == WORLD - 1)
            (EVERYBODY / f"damaged{RANK}").touch()
            while not all((EVERYBODY / f"damaged{rank}").exists() for rank in range(WORLD)):
                lockstep.wait()
            raise RuntimeError("as planned")
        if memory:
            memory.take(step)
        if step == 10:
            say("step10")
    say(f"ends {step}")


main()
