"""Copied beside the next step: the fence, and a device that lags behind its host."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from holdfast.arena.pure import layout  # noqa: E402
from holdfast.arena.pure.cadence import SAMPLES  # noqa: E402
from holdfast.arena.pure.messages import SnapshotCost  # noqa: E402
from holdfast.snapshot import _taking  # noqa: E402
from holdfast.snapshot._copy import HostDevice  # noqa: E402
from tests.snapshot_launcher import SnapshotLauncher  # noqa: E402
from tests.unit.snapshot.conftest import Make  # noqa: E402
from tests.unit.snapshot.one_rank import Training, again, same, take  # noqa: E402
from tests.waiting import until  # noqa: E402


class LaggingDevice(HostDevice):
    """A stand-in for a GPU: the host runs on while work and copies are still to come.

    Attributes:
        reached: The computation has come to the last mark.
        copied: The last copy is over.
        has_waited: What the computation says that it has waited for each copy, s.
    """

    has_copy_engine = True

    def __init__(self) -> None:
        self.reached, self.copied = threading.Event(), threading.Event()
        self.reached.set()
        self.copied.set()
        self.pinned: dict[int, int] = {}
        self.held = 0
        self.has_waited = 0.0

    def pin(self, memory: torch.Tensor) -> None:
        self.pinned[memory.data_ptr()] = memory.numel()

    def unpin(self, memory: torch.Tensor) -> None:
        del self.pinned[memory.data_ptr()]

    def wait_for(self, mark: Any) -> None:
        assert self.reached.wait(20)

    def copy(self, into: list[torch.Tensor], of: list[torch.Tensor]) -> Any:
        """What is computed after this waits at ``hold``; so the bytes may be copied already."""
        for each in into:
            assert self.is_pinned(each)
        super().copy(into, of)
        return self

    def is_pinned(self, part: torch.Tensor) -> bool:
        at = part.data_ptr()
        return part.numel() == 0 or any(a <= at < a + n for a, n in self.pinned.items())

    def hold(self, copy: Any) -> None:
        assert copy is self
        self.held += 1

    def waits(self) -> list[float]:
        return [self.has_waited]

    def finish(self, copy: Any) -> None:
        assert self.copied.wait(20)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LaggingDevice:
    made = LaggingDevice()
    monkeypatch.setattr(_taking, "device_of", lambda _live: made)
    return made


def test_the_fence_waits_before_weights_change(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice
) -> None:
    """Forward and backward go on; the optimizer waits until the copy has begun on the device."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    state = training.state()
    training.step()
    device.reached.clear()
    expected = training.state()
    assert snapshots.take(2)
    steps = threading.Thread(target=training.step)
    steps.start()
    steps.join(0.2)
    assert steps.is_alive()  # at the fence
    assert [x.held.step for x in launcher.arena(0).all_held()] == [1]  # no slot is void yet
    device.reached.set()
    steps.join(20)
    assert not steps.is_alive()
    assert device.held >= 1
    assert again(launcher, snapshots).step == 2
    assert not device.pinned  # unpinned before it was unmapped
    restored = Training()
    assert make(**restored.parts).restore() == 2
    assert same(restored.state(), expected)
    assert not same(restored.state(), state)


def test_it_is_committed_only_when_the_copy_is_over(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice
) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    device.copied.clear()
    take(snapshots, 1)
    training.step()  # the computation waits on the device, and the host does not
    assert list(launcher.arena(0).all_held()) == []
    device.copied.set()
    until(lambda: [x.held.step for x in launcher.arena(0).all_held()] == [1], "the commit")


def test_the_next_snapshot_waits_for_the_one_before(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice
) -> None:
    """So that its slot is not taken for an old one."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    device.copied.clear()
    take(snapshots, 1)
    training.step()
    taking = threading.Thread(target=lambda: snapshots.take(2))
    taking.start()
    taking.join(0.1)
    assert taking.is_alive()
    device.copied.set()
    taking.join(20)
    until(lambda: sorted(x.held.step for x in launcher.arena(0).all_held()) == [1, 2], "both")


def test_buffers_and_random_numbers_are_those_of_the_step(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice
) -> None:
    """They change in the forward pass, before the fence."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    device.reached.clear()
    take(snapshots, 1)
    state = training.state()
    training.model(torch.randn(5, 8))  # batch norm counts, dropout draws
    device.reached.set()
    again(launcher, snapshots)
    restored = Training()
    make(**restored.parts).restore()
    assert same(restored.state(), state)


def test_weights_that_change_without_an_optimizer_spoil_the_copy(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not committed, a line says so, and later ones are copied in the step."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    training.step()
    device.reached.clear()
    assert snapshots.take(2)
    with torch.no_grad():
        training.model[0].weight.add_(1.0)
    device.reached.set()
    assert snapshots.take(3)
    assert sorted(x.held.step for x in launcher.arena(0).all_held()) == [1, 3]
    assert "weights changed while a snapshot was copied beside the step" in caplog.text


def test_a_failed_copy_ends_no_training(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    until(lambda: list(launcher.arena(0).all_held()), "the first commit")

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(device, "copy", fail)
    training.step()
    assert snapshots.take(2)
    training.step()
    snapshots.take(3)
    assert [x.held.step for x in launcher.arena(0).all_held()] == [1]


def test_a_rank_whose_gpu_fails_keeps_the_snapshots_that_it_has(
    make: Make,
    launcher: SnapshotLauncher,
    device: LaggingDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It makes no step that a checkpoint could be of; and a kernel may fail while it takes one."""
    snapshots = make(**Training().parts)
    snapshots.restore()
    take(snapshots, 1)
    until(lambda: list(launcher.arena(0).all_held()), "the first commit")
    lost = "CUDA error: an illegal memory access was encountered"

    def fail(*_: object) -> None:
        raise RuntimeError(f"{lost}\nand much more")

    monkeypatch.setattr(device, "mark", fail)
    monkeypatch.setattr(_taking, "context_problem", lambda: lost)
    assert not snapshots.take(2)
    assert not snapshots.take(3)
    assert [x.held.step for x in launcher.arena(0).all_held()] == [1]
    assert launcher.arena(0).void_until() is None
    [line] = [it.getMessage() for it in caplog.records if "step 2" in it.getMessage()]
    assert line == f"no snapshot of step 2, as the GPU of this rank has failed: {lost}"


def test_what_the_device_waits_for_a_copy_counts_as_its_cost(
    make: Make, launcher: SnapshotLauncher, device: LaggingDevice
) -> None:
    """The host does not wait at the fence of a GPU, so its own clock sees nothing of it."""
    training = Training()
    device.has_waited = 5.0
    snapshots = make(**training.parts)
    snapshots.restore()
    for step in range(1, SAMPLES + 2):
        training.step()
        take(snapshots, step)
    words = launcher.arena(0).words
    assert words[layout.TAKE_NS] >= 5e9
    until(lambda: any(isinstance(each, SnapshotCost) for each in launcher.requests), "the cost")
    [cost] = [each for each in launcher.requests if isinstance(each, SnapshotCost)]
    assert cost.every > 100
