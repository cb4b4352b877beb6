"""What a snapshot costs a rank: against memcpy, get_state_dict and DCP; ratios of one run each."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import timeit
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.snapshot_launcher import SnapshotLauncher
from tests.waiting import until
from torch import nn

from bench.figures import Bar, Report
from holdfast.arena.pure.cadence import cadence
from holdfast.snapshot import Snapshots

REPEATS = 15
_MB = 1e6


def _cpu_ms(call: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Of this thread: others may use the cores."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    return times


def _wall_ms(call: Callable[[], object]) -> list[float]:
    began = time.perf_counter()
    call()
    return [(time.perf_counter() - began) * 1e3]


def _training(width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Four parameters per layer, with moments: 16 tensors."""
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(layers))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


class _Taking:
    """Snapshots of a training, whose memory is ready, and its steps."""

    def __init__(self, launcher: SnapshotLauncher, **parts: Any) -> None:
        os.environ.update(launcher.env(0, 1))
        self.snapshots = Snapshots(beside=False, **parts)
        self.restored = self.snapshots.restore()
        self.step = self.restored
        until(self.take, "memory for snapshots")
        for _ in range(4):
            self.take()

    def take(self) -> bool:
        self.step += 1
        return self.snapshots.take(self.step)


def _copies(report: Report, folder: Path) -> None:
    with SnapshotLauncher(folder) as launcher:
        model, optimizer = _training(1670, 3)  # 100 MB with moments
        taking = _Taking(launcher, model=model, optimizer=optimizer)
        live: Any = taking.snapshots._taking  # noqa: SLF001
        captured = live._live.capture(1)  # noqa: SLF001
        of = [*captured.fenced, *captured.changing]
        n_bytes = sum(x.numel() * x.element_size() for x in of)
        heap = [torch.zeros_like(x) for x in of]

        def memcpy() -> None:
            with torch.no_grad():
                for into, each in zip(heap, of, strict=True):
                    into.copy_(each)

        memcpy()
        ratios, takes, copies = [], [], []
        for _ in range(REPEATS):  # in turn, so that the rest of the machine disturbs both
            [copy], [take] = _cpu_ms(memcpy, 1), _cpu_ms(taking.take, 1)
            [walk] = _cpu_ms(lambda: live._live.capture(1), 1)  # noqa: SLF001
            ratios.append(copy / max(take - walk, 1e-6))
            takes.append(take)
            copies.append(copy)
        report.add(f"memcpy of {n_bytes / _MB:.0f} MB, heap to heap", "ms", copies)
        report.add("take of the same", "ms", takes)
        report.add("copy into a slot: speed against memcpy", "", ratios, Bar(0.9, at_least=True))
        taking.snapshots.close()
        _restores(report, launcher, memcpy)
    _against_dcp(report, folder, model, optimizer, takes)


def _restores(report: Report, launcher: SnapshotLauncher, memcpy: Callable[[], object]) -> None:
    """By the clock, as a restore may use all cores; memcpy in turn."""
    times, ratios = [], []
    for _ in range(REPEATS):
        launcher.next_cycle(1)
        model, optimizer = _training(1670, 3)
        snapshots = Snapshots(beside=False, model=model, optimizer=optimizer)
        [copy], [restore] = _wall_ms(memcpy), _wall_ms(snapshots.restore)
        snapshots.close()
        times.append(restore)
        ratios.append(copy / restore)
    report.add("restore of the same, into live tensors", "ms", times)
    report.add("restore: speed against memcpy", "", ratios, Bar(0.5, at_least=True))


def _at_cadence(report: Report, folder: Path) -> None:
    """Blocks of steps with and without, in turn."""
    with SnapshotLauncher(folder) as launcher:
        model, optimizer = _training(1670, 3)
        taking = _Taking(launcher, model=model, optimizer=optimizer)
        data = torch.randn(64, 1670)

        def steps(n: int, every: int) -> float:
            began = time.thread_time()
            for number in range(n):
                model(data).pow(2).mean().backward()
                optimizer.step()
                if every and number % every == every - 1:
                    taking.take()
            return (time.thread_time() - began) / n

        take_s = statistics.median(_cpu_ms(taking.take)) / 1e3
        every = cadence(take_s, statistics.median(steps(1, 0) for _ in range(10)))
        ratios = [steps(2 * every, every) / steps(2 * every, 0) for _ in range(9)]
        report.add("a step of so many is taken", "", every)
        report.add("steps with snapshots at that cadence, against without", "", ratios, Bar(1.01))
        taking.snapshots.close()


def _against_dcp(
    report: Report,
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    takes: list[float],
) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    dcp: Any = checkpoint
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)

        def save() -> None:
            weights, moments = get_state_dict(model, optimizer)
            writer = dcp.FileSystemWriter(shm, sync_files=False, overwrite=True)
            state = {"model": weights, "optimizer": moments}
            dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)

        save()
        times = []
        for _ in range(5):
            began = time.process_time()  # it has threads of its own
            save()
            times.append((time.process_time() - began) * 1e3)
    report.add("alternative: DCP save to tmpfs, plans cached", "ms", times)
    ratio = [each / statistics.median(times) for each in takes]
    report.add("take against DCP save", "", ratio, Bar(1 / 7))
    del folder


def _walks(report: Report, folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    with SnapshotLauncher(folder) as launcher:
        model, optimizer = _training(8, 25)
        taking = _Taking(launcher, model=model, optimizer=optimizer)
        live: Any = taking.snapshots._taking  # noqa: SLF001
        walk = _cpu_ms(lambda: live._live.capture(1), 50)  # noqa: SLF001
        alternative = _cpu_ms(lambda: get_state_dict(model, optimizer))
        report.add("take of 400 tensors without the copy", "ms", walk, Bar(1.0))
        report.add("alternative: get_state_dict", "ms", alternative)
        ratio = [each / statistics.median(alternative) for each in walk]
        report.add("walk against get_state_dict", "", ratio, Bar(0.25))
        taking.snapshots.close()


def _off(report: Report) -> None:
    os.environ.pop("FT_LAUNCHER_IPC_SOCKET", None)
    snapshots = Snapshots()
    snapshots.restore()
    n = 200_000
    times = timeit.repeat(lambda: snapshots.take(7), number=n, repeat=7)
    empty = min(timeit.repeat(lambda: None, number=n, repeat=7))
    report.add("take without a launcher", "µs", [(t - empty) / n * 1e6 for t in times], Bar(0.2))


def measure() -> Report:
    """One rank, which has a core to itself if the machine is quiet; times are of its thread."""
    report = Report("One rank, one thread, memory reserved; ms of CPU")
    torch.set_num_threads(1)
    for part in (_copies, _walks, _at_cadence):
        with tempfile.TemporaryDirectory() as folder:
            part(report, Path(folder))
    _off(report)
    return report
