"""What snapshots cost on a CUDA device, as JSON: ``python tests/gpu/snapshot_probe.py``.

Needs torch with CUDA, and ``src/`` and the repository on ``PYTHONPATH``; takes less than 2 minutes.
Each part that fails says so, and the others go on.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.snapshot import Snapshots
from tests.snapshot_launcher import SnapshotLauncher

GIB = 1 << 30
FOUND: dict[str, Any] = {}
LAYERS, WIDTH = 16, 2304  # with AdamW: 16 * 2304**2 * 4 B * 3 = 1.02 GB
CUDA: Any = torch.cuda


def copying(into: torch.Tensor, of: torch.Tensor) -> Callable[[], object]:
    return lambda: into.copy_(of, non_blocking=True)


def timed(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def memory_file(n_bytes: int) -> tuple[int, mmap.mmap, torch.Tensor]:
    fd = os.memfd_create("probe")
    os.ftruncate(fd, n_bytes)
    os.posix_fallocate(fd, 0, n_bytes)
    mapped = mmap.mmap(fd, n_bytes)
    return fd, mapped, torch.frombuffer(mapped, dtype=torch.uint8)


# ---------------------------------------------------------------- registering and copying
def registering() -> None:
    n_bytes = GIB
    fd, _mapped, memory = memory_file(n_bytes)
    memory.zero_()
    began = time.perf_counter()
    code = int(CUDA.cudart().cudaHostRegister(memory.data_ptr(), n_bytes, 0))
    seconds = time.perf_counter() - began
    FOUND["register_code"] = code
    FOUND["register_s_per_gib"] = round(seconds, 4)
    FOUND["register_is_pinned"] = bool(memory.is_pinned())
    device = torch.ones(n_bytes, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    pageable = torch.zeros(n_bytes, dtype=torch.uint8)
    for name, host in (("registered", memory), ("pinned", pinned), ("pageable", pageable)):
        host.copy_(device, non_blocking=True)
        times = [timed(copying(host, device)) for _ in range(5)]
        FOUND[f"d2h_{name}_gb_s"] = round(n_bytes / statistics.median(times) / 1e9, 2)
    for name, host in (("registered", memory), ("pinned", pinned), ("pageable", pageable)):
        times = [timed(copying(device, host)) for _ in range(3)]
        FOUND[f"h2d_{name}_gb_s"] = round(n_bytes / statistics.median(times) / 1e9, 2)
    # Is the host free while it is copied?
    torch.cuda.synchronize()
    began = time.perf_counter()
    memory.copy_(device, non_blocking=True)
    FOUND["d2h_registered_call_ms"] = round((time.perf_counter() - began) * 1e3, 3)
    torch.cuda.synchronize()
    began = time.perf_counter()
    FOUND["unregister_code"] = int(CUDA.cudart().cudaHostUnregister(memory.data_ptr()))
    FOUND["unregister_s_per_gib"] = round(time.perf_counter() - began, 4)
    os.close(fd)


# ---------------------------------------------------------------- a training
def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU(), nn.Dropout(0.1)]
    layers.append(nn.BatchNorm1d(WIDTH))
    model = nn.Sequential(*layers).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = 4096) -> None:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(torch.randn(batch, WIDTH, device="cuda"))
    out.float().square().mean().backward()
    optimizer.step()


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    tensors = [*model.state_dict().values()]
    tensors += [x for p in model.parameters() for x in optimizer.state[p].values()]
    sums = []
    for tensor in tensors:
        each = tensor.detach().contiguous().reshape(-1).view(torch.uint8).long()
        weights = torch.arange(each.numel(), device=each.device) % 8191 + 1
        sums.append((each * weights).sum())
    return [*(int(each) for each in sums), int(torch.cuda.get_rng_state().long().sum())]


def launcher_env(launcher: SnapshotLauncher) -> None:
    os.environ.update(launcher.env(0, 1))


def wait_until_taken(snapshots: Snapshots, step: Callable[[], int]) -> None:
    deadline = time.monotonic() + 40
    while not snapshots.take(step()):
        if time.monotonic() > deadline:
            raise TimeoutError("no snapshot was taken in 40 s")
        time.sleep(0.05)


def step_times(folder: Path) -> None:
    with SnapshotLauncher(folder) as launcher:
        launcher_env(launcher)
        model, optimizer = build()
        snapshots = Snapshots(model=model, optimizer=optimizer)
        snapshots.restore()
        done = 0

        def step() -> int:
            nonlocal done
            train_step(model, optimizer)
            done += 1
            return done

        began = time.perf_counter()
        wait_until_taken(snapshots, step)
        FOUND["first_snapshot_after_s"] = round(time.perf_counter() - began, 2)
        n_bytes = next(launcher.arena(0).all_held(), None)
        times: dict[bool, list[float]] = {False: [], True: []}
        takes: list[float] = []
        for block in range(12):
            is_on = block % 2 == 1
            torch.cuda.synchronize()
            block_began = time.perf_counter()
            for _ in range(12):
                now = step()
                if is_on:
                    at = time.perf_counter()
                    snapshots.take(now)
                    takes.append(time.perf_counter() - at)
            torch.cuda.synchronize()
            times[is_on].append((time.perf_counter() - block_began) / 12)
        off, on = statistics.median(times[False]), statistics.median(times[True])
        n_bytes = next(launcher.arena(0).all_held(), n_bytes)
        FOUND["snapshot_bytes"] = n_bytes and n_bytes.n_bytes
        FOUND["step_ms_without"] = round(off * 1e3, 3)
        FOUND["step_ms_with_n1"] = round(on * 1e3, 3)
        FOUND["step_ratio"] = round(on / off, 4)
        FOUND["take_call_ms"] = round(statistics.median(takes) * 1e3, 3)
        words = launcher.arena(0).words
        from holdfast.arena.pure import layout

        FOUND["taken"], FOUND["skipped"] = words[layout.TAKEN], words[layout.SKIPPED]
        snapshots.close()


def bitwise(folder: Path) -> None:
    """Undisturbed steps, against those with beside-snapshots, a new start and a restore."""
    torch.backends.cudnn.deterministic = True
    undisturbed: dict[int, list[int]] = {}
    model, optimizer = build()
    for done in range(1, 31):
        train_step(model, optimizer, 512)
        undisturbed[done] = fingerprint(model, optimizer)
    del model, optimizer
    model, optimizer = build()
    again = 0
    for done in range(1, 6):
        train_step(model, optimizer, 512)
        again += fingerprint(model, optimizer) != undisturbed[done]
    FOUND["bitwise_not_repeatable_without_snapshots"] = again
    with SnapshotLauncher(folder) as launcher:
        launcher_env(launcher)
        wrong, restored, at = 0, [], 0
        for _ in range(4):
            del model, optimizer
            model, optimizer = build()
            snapshots = Snapshots(beside=True, model=model, optimizer=optimizer)
            began = time.perf_counter()
            at = snapshots.restore()
            seconds = time.perf_counter() - began
            restored.append(at)
            if at:
                FOUND["restore_s"] = round(seconds, 4)
                FOUND["restore_gb_s"] = round(FOUND["snapshot_bytes"] / seconds / 1e9, 2)
                wrong += fingerprint(model, optimizer) != undisturbed[at]
            for done in range(at + 1, min(at + 9, 30) + 1):
                train_step(model, optimizer, 512)
                wrong += fingerprint(model, optimizer) != undisturbed[done]
                if not snapshots.take(done):
                    time.sleep(0.8)
                train_step_without_sync()
            snapshots.close()
            launcher.next_cycle(1)
        FOUND["bitwise_restored_at"] = restored
        FOUND["bitwise_wrong"] = wrong


def train_step_without_sync() -> None:
    """Work on the computation's stream between take and the next step, so that copies overlap."""
    a = torch.ones(2048, 2048, device="cuda")
    for _ in range(4):
        a = a @ a * 1e-4


# ---------------------------------------------------------------- killed with registered memory
_VICTIM = """
import sys, os, mmap, torch
fd, n = int(sys.argv[1]), int(sys.argv[2])
m = mmap.mmap(fd, n); t = torch.frombuffer(m, dtype=torch.uint8)
code = int(torch.cuda.cudart().cudaHostRegister(t.data_ptr(), n, 0))
d = torch.full((n,), 7, dtype=torch.uint8, device="cuda")
t.copy_(d); torch.cuda.synchronize()
print("ready", code, flush=True)
while True:
    t.copy_(d, non_blocking=True); torch.cuda.synchronize()
"""


def killed() -> None:
    n_bytes = 2 * GIB
    fd, _mapped, memory = memory_file(n_bytes)
    os.set_inheritable(fd, True)
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(fd), str(n_bytes)],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        text=True,
    ) as victim:
        assert victim.stdout is not None
        FOUND["kill_victim_said"] = victim.stdout.readline().strip()
        time.sleep(0.5)
        began = time.perf_counter()
        victim.send_signal(signal.SIGKILL)
        total = int(memory[:4096].long().sum())
        FOUND["kill_readable_after_s"] = round(time.perf_counter() - began, 4)
        code = int(CUDA.cudart().cudaHostRegister(memory.data_ptr(), n_bytes, 0))
        FOUND["kill_registered_again_after_s"] = round(time.perf_counter() - began, 4)
        FOUND["kill_register_again_code"] = code
        victim.wait()
        FOUND["kill_reaped_after_s"] = round(time.perf_counter() - began, 4)
        FOUND["kill_bytes_intact"] = total == 7 * 4096 and bool((memory == 7).all())
        if code == 0:
            CUDA.cudart().cudaHostUnregister(memory.data_ptr())
    os.close(fd)


def main() -> None:
    CUDA.init()
    FOUND["device"], FOUND["torch"] = torch.cuda.get_device_name(), torch.__version__
    FOUND["python"] = sys.version.split()[0]
    parts: list[tuple[str, Callable[..., None]]] = [
        ("registering", registering),
        ("step_times", lambda: step_times(Path(tempfile.mkdtemp()))),
        ("bitwise", lambda: bitwise(Path(tempfile.mkdtemp()))),
        ("killed", killed),
    ]
    for name, part in parts:
        began = time.perf_counter()
        try:
            part()
        except Exception:  # noqa: BLE001 - the other parts are worth their time, too
            FOUND[f"{name}_failed"] = traceback.format_exc()[-1500:]
        FOUND[f"{name}_took_s"] = round(time.perf_counter() - began, 1)
        print(json.dumps(FOUND), flush=True)


if __name__ == "__main__":
    main()
