"""Taken and restored by one rank, over the real socket, in real memory."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from holdfast.arena.pure import layout  # noqa: E402
from holdfast.arena.pure.lineage import ANY  # noqa: E402
from holdfast.arena.pure.messages import (  # noqa: E402
    Arena,
    OpenArena,
    SnapshotCost,
    SnapshotUnusable,
)
from holdfast.arena.pure.snapshots import Held, SnapshotId  # noqa: E402
from holdfast.arena.pure.tensors_head import parse  # noqa: E402
from holdfast.base.pure.codec import encode  # noqa: E402
from holdfast.net.pure.frames import encode as frame  # noqa: E402
from holdfast.snapshot import SnapshotError, Snapshots, _launcher_link  # noqa: E402
from holdfast.snapshot._waiting import waiting_snapshot  # noqa: E402
from tests.snapshot_launcher import SnapshotLauncher  # noqa: E402
from tests.unit.snapshot.conftest import Make  # noqa: E402
from tests.unit.snapshot.one_rank import OPTIMIZERS, Training, again, same, take  # noqa: E402
from tests.waiting import until  # noqa: E402

BESIDE = pytest.mark.parametrize("beside", [False, True], ids=["in step", "beside"])


@BESIDE
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_bit_by_bit_as_if_nothing_had_happened(
    make: Make, launcher: SnapshotLauncher, optimizer: str, beside: bool
) -> None:
    """Weights, moments, buffers, schedule, dropout and lists: after any number of restarts."""
    undisturbed = Training(optimizer)
    states = {0: undisturbed.state()}
    for step in range(1, 10):
        undisturbed.step()
        states[step] = undisturbed.state()
    at = 0
    for end in (4, 7, 9):
        training = Training(optimizer)
        snapshots = make(beside=beside, **training.parts)
        assert snapshots.restore() == at
        assert same(training.state(), states[at])
        for step in range(at + 1, end + 1):
            training.step()
            assert same(training.state(), states[step])
            take(snapshots, step)
        assert again(launcher, snapshots).step == end
        at = end


def test_what_is_restored_is_a_copy_and_goes_into_the_live_tensors(
    make: Make, launcher: SnapshotLauncher
) -> None:
    """A view of the slot would be trained in the snapshot."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    again(launcher, snapshots)
    training = Training()
    addresses = [p.data_ptr() for p in training.model.parameters()]
    snapshots = make(**training.parts)
    snapshots.restore()
    assert [p.data_ptr() for p in training.model.parameters()] == addresses
    before = launcher.arena(0).map_slot(0)[:]
    training.step()
    assert launcher.arena(0).map_slot(0)[:] == before


def test_a_live_optimizer_keeps_its_tensors(make: Make, launcher: SnapshotLauncher) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    state = training.state()
    take(snapshots, 1)
    again(launcher, snapshots)
    training.step()
    moments = [x["exp_avg"] for x in training.optimizer.state.values()]
    snapshots = make(**training.parts)
    assert snapshots.restore() == 1
    assert all(
        x["exp_avg"] is y for x, y in zip(training.optimizer.state.values(), moments, strict=True)
    )
    assert same(training.optimizer.state_dict(), state[1])


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
def test_state_made_anew_is_as_the_optimizers_own_load_makes_it(
    make: Make, launcher: SnapshotLauncher, kind: str
) -> None:
    training = Training(kind)
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    again(launcher, snapshots)
    other = Training(kind)
    other.optimizer.load_state_dict(training.optimizer.state_dict())
    restored = Training(kind)
    make(**restored.parts).restore()
    assert same(restored.optimizer.state_dict(), other.optimizer.state_dict())
    for a, b in zip(restored.optimizer.state.values(), other.optimizer.state.values(), strict=True):
        assert {key: x.stride() for key, x in a.items()} == {
            key: x.stride() for key, x in b.items()
        }


def test_the_file_in_a_slot_is_safetensors_with_tied_weights_once(
    make: Make, launcher: SnapshotLauncher
) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    [found] = launcher.arena(0).all_held()
    file = memoryview(launcher.arena(0).map_slot(found.slot))[: found.n_bytes]
    head = parse(file)
    assert "model.3.weight" in head.placed
    assert "model.5.weight" not in head.placed
    assert "optimizer.state.model.0.weight.exp_avg" in head.placed
    assert head.metadata["step"] == "1"
    place = head.placed["model.0.weight"]
    data = file[head.data_at + place.begin : head.data_at + place.end]
    assert data.tobytes() == bytes(
        training.model[0].weight.detach().reshape(-1).view(torch.uint8).tolist()
    )


def test_odd_tensors_come_back(make: Make, launcher: SnapshotLauncher) -> None:
    """Empty, of no dimension, not contiguous, repeated, of types unknown to safetensors."""

    def build(fill: bool) -> dict[str, torch.Tensor]:
        one = 1 if fill else 0
        return {
            "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(2.5 * one),
            "transposed": torch.arange(6.0).reshape(2, 3).t() * one,
            "complex": torch.full((3,), 1 + 2j, dtype=torch.complex128) * one,
            "bool": torch.tensor([True, False, True]) & bool(one),
            "bfloat": torch.full((3,), 1.5 * one, dtype=torch.bfloat16),
            "float8": torch.full((5,), 2.0 * one).to(torch.float8_e4m3fnuz),
            "long": torch.full((2,), 7 * one),
            "conjugate": (torch.full((3,), 1 + 2j) * one).conj(),
            "expanded": torch.full((1, 2), 4.0 * one).expand(3, 2),
            "one number": torch.full((1,), 5.0 * one).expand(3),
        }

    snapshots = make(**build(fill=True))
    snapshots.restore()
    take(snapshots, 1)
    again(launcher, snapshots)
    live = build(fill=False)
    assert make(**live).restore() == 1
    for name, expected in build(fill=True).items():
        assert live[name].dtype == expected.dtype
        assert live[name].to(torch.complex128).tolist() == expected.to(torch.complex128).tolist()


def test_objects_generators_and_arrays_come_back(make: Make, launcher: SnapshotLauncher) -> None:
    numpy = pytest.importorskip("numpy")

    class Loader:
        def __init__(self) -> None:
            self.position: dict[Any, Any] = {}

        def state_dict(self) -> dict[Any, Any]:
            return self.position

        def load_state_dict(self, found: dict[Any, Any]) -> None:
            self.position = found

    loader, generator, queue = Loader(), torch.Generator(), [1, 2]
    loader.position = {0: (3, b"x"), "rng": numpy.arange(4), "at": torch.tensor([5])}
    parts = {"loader": loader, "generator": generator, "queue": queue}
    snapshots = make(**parts)
    snapshots.restore()
    take(snapshots, 1)
    drawn = torch.rand(3, generator=generator)
    again(launcher, snapshots)
    loader.position, queue[:] = {}, [7]
    torch.rand(5, generator=generator)
    assert make(**parts).restore() == 1
    assert torch.equal(torch.rand(3, generator=generator), drawn)
    assert queue == [1, 2]
    assert loader.position[0] == (3, b"x")
    assert loader.position["rng"].tolist() == [0, 1, 2, 3]
    assert loader.position["at"].tolist() == [5]


def test_random_numbers_go_on(make: Make, launcher: SnapshotLauncher) -> None:
    import random

    numpy = pytest.importorskip("numpy")
    snapshots = make()
    snapshots.restore()
    take(snapshots, 1)
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
    again(launcher, snapshots)
    random.seed(9)
    assert make().restore() == 1
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == drawn


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Random"])
def test_a_random_generator_of_the_programs_goes_on(
    make: Make, launcher: SnapshotLauncher, kind: str
) -> None:
    numpy = pytest.importorskip("numpy")

    def made(seed: int) -> Any:
        if kind == "Random":
            return random.Random(seed)
        return numpy.random.Generator(getattr(numpy.random, kind)(seed))

    generator = made(1)
    snapshots = make(generator=generator)
    snapshots.restore()
    generator.random()
    take(snapshots, 1)
    expected = [generator.random() for _ in range(3)]
    again(launcher, snapshots)
    other = made(2)
    assert make(generator=other).restore() == 1
    assert [other.random() for _ in range(3)] == expected


def test_extra_state_comes_back(make: Make, launcher: SnapshotLauncher) -> None:
    class Scaled(nn.Linear):
        scale: Any = None

        def get_extra_state(self) -> Any:
            return {"scale": self.scale, "history": torch.ones(2)}

        def set_extra_state(self, state: Any) -> None:
            self.scale = state["scale"]

    model = nn.Sequential(Scaled(2, 2))
    model[0].scale = 1.25
    snapshots = make(model=model)
    snapshots.restore()
    take(snapshots, 1)
    again(launcher, snapshots)
    model[0].scale = None
    make(model=model).restore()
    assert model[0].scale == 1.25


# ---------------------------------------------------------------- which steps
def test_a_state_that_is_not_healthy_is_not_taken(make: Make, launcher: SnapshotLauncher) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    assert not snapshots.take(2, healthy=False)
    assert again(launcher, snapshots).step == 1
    assert launcher.arena(0).words[layout.LAST_STEP] == 2


def test_a_step_is_taken_once(make: Make) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 2)
    assert not snapshots.take(2)
    assert not snapshots.take(1)
    assert snapshots.take(3)


@pytest.mark.parametrize(("steps", "every", "taken"), [(1, 1, 1), (3, 1, 3), (3, 2, 4)])
def test_a_training_that_began_anew_takes_none_and_voids_none_before_it_has_made_progress(
    make: Make,
    launcher: SnapshotLauncher,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    every: int,
    taken: int,
) -> None:
    """The launcher may go back to the snapshots in the memory until then."""
    monkeypatch.setattr(_launcher_link.LauncherLink, "steps_to_prove", steps)
    snapshots = make(value={"a": 1}, every=every)
    snapshots.restore()
    taking = snapshots._taking
    assert taking is not None
    n_bytes = taking._granted
    until(lambda: taking._ring.is_prepared(n_bytes, taking._n_slots), "memory")
    for slot, step in enumerate((8, 9)):
        taking._arena.commit(slot, Held(0, 1, 0, 0, step), n_bytes // 2)
    for step in range(1, taken):
        assert not snapshots.take(step)
        assert sorted(it.held.step for it in taking._arena.all_held()) == [8, 9]
    assert snapshots.take(taken)
    snapshots.close()
    assert [it.held.step for it in taking._arena.all_held()] == [taken]


def test_one_step_of_so_many_is_taken_as_the_user_says(make: Make) -> None:
    training = Training()
    snapshots = make(every=3, **training.parts)
    snapshots.restore()
    take(snapshots, 3)
    assert [step for step in range(4, 14) if snapshots.take(step)] == [6, 9, 12]


def test_the_rank_says_what_it_costs_and_obeys_what_is_agreed(
    make: Make, launcher: SnapshotLauncher
) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    for step in range(1, 12):
        training.step()
        take(snapshots, step)
    costs = until(lambda: [x for x in launcher.requests if isinstance(x, SnapshotCost)], "cost")
    assert len(costs) == 1
    words = launcher.arena(0).words
    assert words[layout.TAKE_NS] > 0
    assert costs[0].every >= 1
    words[layout.EVERY_FROM], words[layout.EVERY] = 15, 4
    assert [step for step in range(12, 30) if snapshots.take(step)] == [12, 13, 14, 16, 20, 24, 28]


# ---------------------------------------------------------------- without
def test_without_a_launcher_nothing_is_taken_and_torch_is_not_imported() -> None:
    script = (
        "import sys; from holdfast.snapshot import Snapshots\n"
        "s = Snapshots(history={}); print(s.restore(lambda: 7), s.take(8), s.take(9, healthy=True),"
        " s.world_changed, 'torch' in sys.modules); s.close()"
    )
    env = {k: v for k, v in os.environ.items() if k != "FT_LAUNCHER_IPC_SOCKET"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["7", "False", "False", "False", "False"]


def test_a_launcher_that_refuses_leaves_a_line_and_a_training_without_snapshots(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    launcher.refuses = "rank 0 asks for 9.1 GB, 2 GB are left"
    training = Training()
    snapshots = make(**training.parts)
    with caplog.at_level(logging.WARNING, "holdfast.snapshot"):
        assert snapshots.restore(lambda: 5) == 5
    assert not snapshots.take(6)
    assert [r.getMessage() for r in caplog.records] == [
        "no snapshots are taken: rank 0 asks for 9.1 GB, 2 GB are left"
    ]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


CHOSEN = Arena(2, 1, SnapshotId(0, 0, 3))


def with_descriptors(message: dict[str, Any], n: int) -> Callable[[socket.socket], object]:
    def answer(caller: socket.socket) -> None:
        with tempfile.TemporaryFile() as file:
            socket.send_fds(caller, [frame(message)], [file.fileno()] * n)

    return answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: None, "has ended"),
        (lambda caller: caller.sendall(b"\0\0\0\2{}"), "answered"),
        (lambda caller: caller.sendall(frame({"op": "ok"})), "answered .*ok"),
        (lambda caller: caller.sendall(frame(encode(CHOSEN))), "0 descriptors"),
        (with_descriptors(encode(CHOSEN), 2), "2 descriptors"),
        (with_descriptors({"op": "arena", "n_slots": "x"}, 1), "another form"),
        (with_descriptors(encode(CHOSEN), 1), "0 bytes, which hold no slot"),
    ],
    ids=["cut", "no frame", "ok", "no memory", "two memories", "another form", "empty memory"],
)
def test_a_rank_that_does_not_learn_what_is_chosen_ends_before_it_loads_a_checkpoint(
    make: Make, launcher: SnapshotLauncher, answer: Callable[[socket.socket], object], why: str
) -> None:
    """Other ranks may have been told to restore: with another step they would train nonsense."""
    launcher.answers = answer
    loaded: list[int] = []
    before = open_descriptors()
    snapshots = make(**Training().parts)
    with pytest.raises(SnapshotError, match=f"rank 0 does not learn from its launcher.*{why}"):
        snapshots.restore(lambda: loaded.append(1))
    assert loaded == []
    until(lambda: open_descriptors() <= before, "those of both ends are closed")
    with pytest.raises(SnapshotError, match=why):
        waiting_snapshot()


def test_a_launcher_that_does_not_answer_in_time_ends_the_rank(
    make: Make, launcher: SnapshotLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = threading.Event()
    launcher.answers = lambda _: given_up.wait(30.0)
    monkeypatch.setattr(_launcher_link, "ANSWER_S", 0.2)
    try:
        with pytest.raises(SnapshotError, match="did not answer 'openarena' within"):
            make(**Training().parts).restore(lambda: 5)
    finally:
        given_up.set()


def test_a_launcher_that_is_gone_ends_the_rank(make: Make, launcher: SnapshotLauncher) -> None:
    launcher.close()
    with pytest.raises(SnapshotError, match="cannot connect"):
        make(**Training().parts).restore(lambda: 5)


def test_memory_that_is_not_there_means_a_line_and_steps_without_snapshots(
    make: Make,
    launcher: SnapshotLauncher,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ENOSPC of the kernel is no end by SIGBUS."""
    launcher.arena(0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    steps = itertools.count(1)
    until(lambda: snapshots.take(next(steps)) or caplog.records, "the line")
    assert not any(snapshots.take(next(steps)) for _ in range(3))
    [record] = caplog.records
    assert "No space left" in record.getMessage()
    assert record.exc_info is None


def test_a_state_that_outgrows_its_memory_asks_for_more(
    make: Make, launcher: SnapshotLauncher
) -> None:
    """In place: what is committed stays."""
    data: dict[str, Any] = {"x": torch.zeros(10)}
    snapshots = make(data=data)
    snapshots.restore()
    take(snapshots, 1)
    data["y"] = torch.ones(200_000)
    assert not snapshots.take(2)
    assert launcher.common(1) == [SnapshotId(0, 0, 1)]
    take(snapshots, 3)
    asked = [x.slot_bytes for x in launcher.requests if isinstance(x, OpenArena)]
    assert len(asked) == 2
    assert asked[1] > 800_000
    again(launcher, snapshots)
    data.clear()
    assert make(data=data).restore() == 3
    assert data["y"].sum() == 200_000


def outgrown(make: Make, launcher: SnapshotLauncher) -> tuple[Snapshots, dict[str, Any]]:
    """A training with one snapshot, whose state has outgrown all that its launcher gives."""
    data: dict[str, Any] = {"x": torch.zeros(10)}
    snapshots = make(data=data)
    snapshots.restore()
    take(snapshots, 1)
    launcher.bytes_max = 1 << 18
    data["y"] = torch.ones(200_000)
    return snapshots, data


def test_a_state_that_outgrows_all_memory_ends_snapshots_and_not_the_training(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    """And older ones go: the next restart may be thousands of steps and many checkpoints later."""
    snapshots, _ = outgrown(make, launcher)
    before = os.fstat(launcher.arena(0).fd).st_blocks
    steps = itertools.count(2)
    until(lambda: snapshots.take(next(steps)) or caplog.records, "the line")
    assert "none from here on" in caplog.text
    assert "rank 0 has no memory for 2 snapshots of 0.9 MB" in caplog.text
    assert not snapshots.take(next(steps))
    assert os.fstat(launcher.arena(0).fd).st_blocks == before
    assert launcher.common(1) == []
    assert launcher.arena(0).void_until() == SnapshotId(0, 0, ANY), "copies elsewhere go as well"


def test_a_state_that_shrinks_back_into_its_memory_is_held_again(
    make: Make, launcher: SnapshotLauncher
) -> None:
    snapshots, data = outgrown(make, launcher)
    assert not snapshots.take(2)
    del data["y"]
    take(snapshots, 3)
    assert launcher.common(1)[0] == SnapshotId(0, 0, 3)


def test_two_slots_where_three_were_asked_for_are_copied_in_the_step(
    make: Make, launcher: SnapshotLauncher
) -> None:
    launcher.n_slots = 2
    training = Training()
    snapshots = make(beside=True, **training.parts)
    snapshots.restore()
    for step in range(1, 6):
        training.step()
        take(snapshots, step)
    assert {each.slot for each in launcher.arena(0).all_held()} == {0, 1}


@pytest.mark.parametrize("beside", [False, True])
def test_pinned_steps_stay_while_others_are_taken(
    make: Make, launcher: SnapshotLauncher, *, beside: bool
) -> None:
    launcher.kept = 2
    training = Training()
    snapshots = make(beside=beside, **training.parts)
    snapshots.restore()
    arena = launcher.arena(0)
    arena.pin(layout.KEEP, 2)
    for step in range(1, 9):
        training.step()
        take(snapshots, step)
        if step == 4:
            arena.pin(layout.KEPT, 2)
            arena.pin(layout.KEEP, 5)

    def held() -> set[int]:
        return {each.held.step for each in arena.all_held()}

    until(lambda: 8 in held(), "the last copy")
    assert held() == ({2, 5, 6, 7, 8} if beside else {2, 5, 7, 8})
    assert arena.words[layout.SKIPPED] == 0


def test_without_a_free_slot_a_snapshot_is_skipped_and_counted(
    make: Make, launcher: SnapshotLauncher
) -> None:
    """As while a snapshot is rescued to disk."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    arena = launcher.arena(0)
    arena.pin(layout.RESCUE, 1)
    take(snapshots, 2)
    assert not snapshots.take(3)
    assert arena.words[layout.SKIPPED] == 1
    arena.pin(layout.RESCUE, 0)
    assert snapshots.take(4)
    assert {each.held.step for each in arena.all_held()} == {2, 4}


def test_one_slot_is_not_enough(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest would have to be overwritten."""
    launcher.n_slots = 1
    training = Training()
    snapshots = make(**training.parts)
    assert snapshots.restore() == 0
    assert not any(snapshots.take(step) for step in range(1, 5))
    assert "the launcher gives rank 0 memory for 1, and 2 are needed" in caplog.text


def test_a_forked_child_takes_nothing(make: Make, launcher: SnapshotLauncher) -> None:
    """As a worker of a loader would, or a program that forks."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    pid = os.fork()
    if pid == 0:
        os._exit(int(snapshots.take(2)))
    assert os.waitpid(pid, 0)[1] == 0
    assert launcher.common(1) == [SnapshotId(0, 0, 1)]


# ---------------------------------------------------------------- refused
@pytest.mark.parametrize("value", [5, "text", (1, 2), None, object(), {1, 2}])
def test_a_part_that_cannot_be_put_back_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"Snapshots\(thing=\.\.\.\): a .* cannot be put back"):
        Snapshots(thing=value)


def test_state_that_is_not_plain_is_refused_by_its_path_before_the_first_step(
    make: Make,
) -> None:
    training = Training()
    training.history["lock"] = object()
    with pytest.raises(SnapshotError, match=r"history\.lock is a builtins\.object\. A snapshot"):
        make(**training.parts).restore()


def lazy() -> nn.Module:
    return nn.LazyLinear(3)


def with_buffer(buffer: torch.Tensor) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("extra", buffer)
    return module


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lazy, r"model\.weight has no shape yet \(a lazy module\): call forward"),
        (lambda: with_buffer(torch.eye(2).to_sparse()), r"model\.extra is .* use to_dense\(\)"),
        (
            lambda: with_buffer(torch.empty(2, device="meta")),
            r"model\.extra is on the meta device .*: materialize it",
        ),
    ],
)
def test_a_tensor_without_bytes_is_refused_before_the_first_step(
    make: Make, model: Any, why: str
) -> None:
    with pytest.raises(SnapshotError, match=f"^no snapshot can be taken: {why}"):
        make(model=model()).restore()


def test_a_class_in_place_of_an_object_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"Snapshots\(model=\.\.\.\): Linear is a class; give an obj"
    ):
        Snapshots(model=nn.Linear)


def test_a_part_that_raises_as_it_loads_gives_its_snapshot_up(
    make: Make, launcher: SnapshotLauncher
) -> None:
    """Otherwise each restart would begin from it, and fail."""

    class Loader:
        place = 3

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise KeyError(state["place"])

    snapshots = make(loader=Loader())
    snapshots.restore()
    take(snapshots, 1)
    again(launcher, snapshots)
    with pytest.raises(
        SnapshotError, match=r"step 1 cannot be restored: KeyError: 3\. At the next"
    ):
        make(loader=Loader()).restore()
    assert launcher.next_cycle(1) is None


@pytest.mark.parametrize("step", [1.0, "1", None, 1 << 70])
def test_a_step_that_is_no_integer_ends_snapshots_and_not_the_training(
    make: Make, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    snapshots = make(**Training().parts)
    snapshots.restore()
    take(snapshots, 1)
    assert not snapshots.take(step)
    assert f"no snapshot of step {step}, and none from here on" in caplog.text
    assert not snapshots.take(2)


def test_a_step_that_is_a_tensor_may_grow_in_place(make: Make) -> None:
    snapshots = make(**Training().parts)
    snapshots.restore()
    take(snapshots, 1)
    step = torch.tensor(1)
    for _ in range(3):
        step += 1
        assert snapshots.take(step)  # type: ignore[arg-type]


def test_restore_a_second_time_leaves_the_state_alone_and_says_so(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = make(**Training().parts)
    snapshots.restore()
    take(snapshots, 7)
    again(launcher, snapshots)
    snapshots = make(**Training().parts)
    assert snapshots.restore() == 7
    assert snapshots.restore() == 7
    assert "restore() is called again" in caplog.text
    assert snapshots.restore(lambda: 5) == 5


def test_state_that_is_no_longer_plain_ends_snapshots_and_not_the_training(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    """And older ones go, so that no restart goes back behind all later checkpoints."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    training.history["lock"] = object()
    assert not snapshots.take(2)
    assert "no snapshot of step 2, and none from here on" in caplog.text
    assert not snapshots.take(3)
    assert launcher.arena(0).void_until() == SnapshotId(0, 0, ANY), "copies elsewhere go as well"
    assert launcher.next_cycle(1) is None


def changed_shape(training: Training) -> None:
    training.model[0] = nn.Linear(8, 17)


def one_more(training: Training) -> None:
    training.model.append(nn.Linear(8, 8))


def one_fewer(training: Training) -> None:
    del training.model[4]


def other_type(training: Training) -> None:
    training.model.to(torch.bfloat16)


def one_more_group(training: Training) -> None:
    more = nn.Parameter(torch.ones(3))
    more.grad = torch.ones(3)
    training.optimizer.add_param_group({"params": [more]})
    training.optimizer.step()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed_shape, "model.0.weight changed"),
        (one_more, "model.6.weight was added"),
        (one_fewer, "model.4.weight was removed"),
        (one_more_group, "groups of optimizer changed"),
    ],
)
def test_modules_and_groups_made_in_mid_training_end_snapshots_as_no_restart_would_fit(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture, change: Any, why: str
) -> None:
    """Each of these would cost a restart before the checkpoint is loaded."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    change(training)
    assert not snapshots.take(2)
    assert f"from your checkpoint: {why} since restore()" in caplog.text
    assert "Traceback" not in caplog.text
    assert launcher.next_cycle(1) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed_shape, r"model\.0\.weight is torch\.float32 of shape \[16, 8\] in the snapshot"),
        (one_more, r"model\.6\.weight is in this program, and not in the snapshot"),
        (one_fewer, "model"),
        (other_type, r"torch\.float32 of shape \[16, 8\] in the snapshot, and torch\.bfloat16"),
    ],
)
def test_a_snapshot_of_another_model_is_reported_and_an_older_one_is_chosen(
    make: Make, launcher: SnapshotLauncher, change: Any, why: str
) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    training.step()
    take(snapshots, 1)
    again(launcher, snapshots)
    other = Training()
    change(other)
    with pytest.raises(SnapshotError, match=f"{why}.* or from the checkpoint$"):
        make(**other.parts).restore()
    said = launcher.requests[-1]
    assert isinstance(said, SnapshotUnusable)
    assert (said.snapshot, said.is_damaged) == (SnapshotId(0, 0, 1), False)
    assert launcher.next_cycle(1) is None


def test_damaged_bytes_are_never_trained_on(make: Make, launcher: SnapshotLauncher) -> None:
    """One bit of the newest: the rank says so, and the one before is restored."""
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    states = []
    for step in (1, 2):
        training.step()
        take(snapshots, step)
        states.append(training.state())
    again(launcher, snapshots)
    newest = max(launcher.arena(0).all_held())
    assert launcher.arena(0).sum_of(newest.slot) is not None
    mapped = launcher.arena(0).map_slot(newest.slot)
    mapped[newest.n_bytes - 1000] ^= 4
    with pytest.raises(SnapshotError, match=r"its bytes have changed.* an undamaged copy$"):
        make(**Training().parts).restore()
    said = launcher.requests[-1]
    assert isinstance(said, SnapshotUnusable)
    assert said.is_damaged, "another copy of it may be good"
    assert launcher.next_cycle(1) == SnapshotId(0, 0, 1)
    restored = Training()
    assert make(**restored.parts).restore() == 1
    assert same(restored.state(), states[0])


def test_a_forged_head_is_refused(make: Make, launcher: SnapshotLauncher) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    again(launcher, snapshots)
    [found] = launcher.arena(0).all_held()
    launcher.arena(0).map_slot(found.slot)[:8] = (1 << 40).to_bytes(8, "little")
    launcher.arena(0).words[layout.slot(found.slot) + layout.SUMMED] = 0
    with pytest.raises(SnapshotError, match="its head cannot be read"):
        make(**Training().parts).restore()


def test_the_state_of_another_rank_is_refused(make: Make, launcher: SnapshotLauncher) -> None:
    training = Training()
    snapshots = make(**training.parts)
    snapshots.restore()
    take(snapshots, 1)
    again(launcher, snapshots)
    launcher.arena(0).words[layout.slot(0) + layout.RANK] = 3
    with pytest.raises(SnapshotError, match="it is of rank 3 of 1, and this is rank 0 of 1"):
        make(**training.parts).restore()


def test_a_second_training_in_the_process_is_not_restored_to_the_first(
    make: Make, launcher: SnapshotLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    """Their steps have the same numbers, and the memory of a rank holds one state."""
    first = make(model=nn.Linear(2, 2))
    assert first.restore() == 0
    take(first, 1)
    with caplog.at_level(logging.WARNING):
        second = make(model=nn.Linear(2, 2))
        assert second.restore(otherwise=lambda: 7) == 7
    assert "another training in this process" in caplog.text
    assert second.take(8) is False


def test_snapshots_made_outside_of_a_function_that_restarts_in_place_take_none_in_it(
    make: Make, launcher: SnapshotLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of all iterations would have the same names."""
    from holdfast.inplace import session

    snapshots = make(model=nn.Linear(2, 2))
    monkeypatch.setattr(session, "_sessions", {object()})
    assert snapshots.restore(otherwise=lambda: 3) == 3
    assert snapshots.take(4) is False
