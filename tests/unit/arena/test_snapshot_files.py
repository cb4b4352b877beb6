"""Snapshots on disk: written from memory, read again, chosen, removed."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.arena import snapshot_files
from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure import file_names
from holdfast.arena.pure.file_choice import ChosenFile, choose_file, to_remove, to_write, whole
from holdfast.arena.pure.file_names import Mark, NamedSnapshot, life_name, parsed, why_unused
from holdfast.arena.pure.snapshots import Held, OnDisk, SnapshotId
from holdfast.arena.snapshot_files import NotWrittenError, SlotOfRank
from holdfast.arena.sums import checksum
from holdfast.base.pure.rank_sets import ranks_of, text_of

LIFE = life_name("host-1-a", 0, 3)
NAME = NamedSnapshot(7, 2, LIFE)
BYTES = {0: bytes(range(256)) * 40, 1: b"x" * 10_001}


def on_disk(step: int, ranks: str = "0,1", *, of: int = 2, life: str = LIFE) -> OnDisk:
    return OnDisk(str(NamedSnapshot(step, of, life)), step, of, ranks)


# ---------------------------------------------------------------- names
@given(st.integers(0, 10**18 - 1), st.integers(0, 10**9 - 1))
def test_a_name_is_read_as_it_was_written(step: int, world_size: int) -> None:
    name = NamedSnapshot(step, world_size, LIFE)
    assert parsed(str(name)) == name


@pytest.mark.parametrize(
    "name", ["", "lost+found", "step-7-of-2", f"step-7-of-2-{LIFE}/..", f"step--7-of-2-{LIFE}"]
)
def test_a_folder_of_another_name_is_none_of_ours(name: str) -> None:
    assert parsed(name) is None


def test_a_cycle_has_one_name_on_all_nodes_and_no_other_has_it() -> None:
    cycles = [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("b", 0, 0), ("a 0", 1, 0)]
    assert len({life_name(*it) for it in cycles}) == len(cycles)
    assert life_name("a", 0, 0) == life_name("a", 0, 0)


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        ([], ""),
        (["rank-0.safetensors", "tried-1"], ""),
        (["tried-1", "tried-2"], "2 jobs have begun from it and got no further"),
        (["given-up", "tried-1"], "it was given up"),
        (["begun"], "a job has begun from it, and still runs or was killed"),
    ],
)
def test_a_snapshot_that_led_nowhere_or_may_be_outdated_is_not_used(
    marks: list[str], why: str
) -> None:
    assert why_unused(marks).startswith(why)
    assert bool(why_unused(marks)) == bool(why)


# ---------------------------------------------------------------- chosen
@st.composite
def folders(draw: st.DrawFn) -> tuple[dict[str, list[OnDisk]], dict[str, range], set[str]]:
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    places, first = {}, 0
    for number, size in enumerate(sizes):
        places[f"n{number}"] = range(first, first + size)
        first += size
    names = [(step, of, life) for step in range(3) for of in (first, first + 1) for life in "ab"]
    found: dict[str, list[OnDisk]] = {node: [] for node in (*places, "spare")}
    for step, of, life in draw(st.sets(st.sampled_from(names))):
        is_shared = draw(st.booleans())
        for disks in found.values():
            ranks = draw(st.sets(st.integers(0, of - 1)))
            if is_shared or draw(st.booleans()):
                ranks = {*range(of)}
            disks.append(on_disk(step, text_of(ranks), of=of, life=life * 12))
    given_up = {on_disk(step, of=first, life="a" * 12).name for step in draw(st.sets(st.just(2)))}
    return found, places, given_up


@given(folders())
def test_the_newest_that_is_whole_where_its_ranks_will_be_is_chosen(
    case: tuple[dict[str, list[OnDisk]], dict[str, range], set[str]],
) -> None:
    """As a model says that tries every name; one of another size only where there is no other."""
    found, places, given_up = case
    world = sum(map(len, places.values()))
    expected = None
    for step in range(3):
        for life in ("b" * 12, "a" * 12):
            name = on_disk(step, of=world + 1, life=life).name
            is_everywhere = all(
                any(
                    it.name == name and {*ranks_of(it.ranks)} >= {*range(world + 1)}
                    for it in found[node]
                )
                for node in places
            )
            if is_everywhere and name not in given_up:
                expected = name
    for step in range(3):
        for life in ("b" * 12, "a" * 12):
            name = on_disk(step, of=world, life=life).name
            is_whole = all(
                any(it.name == name and rank in ranks_of(it.ranks) for it in found[node])
                for node, ranks in places.items()
                for rank in ranks
            )
            if is_whole and name not in given_up:
                expected = name
    chosen = choose_file(found, places, given_up)
    assert (chosen.file.name if chosen.file else None) == expected


def test_why_the_newest_is_not_used_has_the_numbers() -> None:
    places = {"a": range(1), "b": range(1, 2)}
    older = on_disk(5)
    assert choose_file({"a": [on_disk(9, of=4), older], "b": [older]}, places) == ChosenFile(
        older, "step 9 on disk is of 4 ranks, and there are 2"
    )
    other = on_disk(9, "0-3", of=4)
    assert choose_file({"a": [other], "b": [other]}, places) == ChosenFile(other, "")
    assert choose_file({"a": [other, older], "b": [other, older]}, places).file == older
    assert choose_file({"a": [other], "b": []}, places) == ChosenFile(
        None,
        "step 9 on disk is of 4 ranks, and there are 2, and not each node has all of its files",
    )
    assert choose_file({"a": [other], "b": [other]}, places, {other.name}).file is None
    assert choose_file({"a": [on_disk(9)], "b": [on_disk(9, "0")]}, places) == ChosenFile(
        None, "step 9 on disk is not there for rank 1"
    )
    assert choose_file({"a": []}, places) == ChosenFile(None, "")


def test_one_node_writes_the_newest_step_and_one_of_several_all_that_its_ranks_have() -> None:
    def held(rank: int, step: int) -> Held:
        return Held(rank, 2, 1, 0, step)

    two = [held(0, 8), held(0, 9), held(1, 8)]
    assert to_write(two, range(2), 2) == [SnapshotId(1, 0, 8)]
    assert to_write([*two, held(1, 9)], range(2), 2) == [SnapshotId(1, 0, 9)]
    assert to_write([*two, held(1, 9)], range(2), 2, [SnapshotId(1, 0, 9)]) == [SnapshotId(1, 0, 8)]
    assert to_write(two, range(1), 2) == [SnapshotId(1, 0, 9), SnapshotId(1, 0, 8)]
    assert to_write(two, range(2), 4) == []


@given(
    st.sets(st.integers(0, 4)), st.sets(st.integers(5, 7)), st.sets(st.integers(5, 7)), st.data()
)
def test_what_is_removed_is_never_the_newest_whole_one_nor_of_another_job(
    known: set[int], written: set[int], complete: set[int], data: st.DataObject
) -> None:
    foreign = on_disk(9)
    useless = data.draw(st.sets(st.sampled_from(sorted(known)))) if known else set()
    found = [
        *(on_disk(step) for step in known),
        *(on_disk(step, "0,1" if step in complete else "0") for step in written),
        foreign,
    ]
    names = {step: on_disk(step).name for step in range(8)}
    removed = to_remove(
        found, [names[it] for it in written], [names[it] for it in known],
        [names[it] for it in useless],
    )  # fmt: skip
    assert foreign.name not in removed
    if full := written & complete:
        assert removed == {names[it] for it in known | written} - {names[max(full)]}
    else:
        assert removed == {names[it] for it in useless}
    assert whole(found)[0] == foreign


# ---------------------------------------------------------------- written and read
class Memory:
    """An arena per rank, each with one snapshot."""

    def __init__(self) -> None:
        self.arenas = {rank: ArenaMemory(create("test")) for rank in BYTES}
        for rank, arena in self.arenas.items():
            arena.reserve(0, 1 << 14)
            with arena.map_slot(0) as mapped:
                mapped[: len(BYTES[rank])] = BYTES[rank]
            arena.commit(0, Held(rank, 2, 3, 0, 7), len(BYTES[rank]))
        self.arenas[0].store_sum(0, 8, checksum(memoryview(BYTES[0])))

    def sources(self) -> list[SlotOfRank]:
        return [SlotOfRank(it, held) for it in self.arenas.values() for held in it.all_held()]


@pytest.fixture
def memory() -> Iterator[Memory]:
    one = Memory()
    yield one
    for arena in one.arenas.values():
        os.close(arena.fd)


def write(folder: Path, memory: Memory) -> Path:
    n_bytes = snapshot_files.write(str(folder), NAME, memory.sources(), lambda: True)
    assert n_bytes == sum(map(len, BYTES.values()))
    return folder / str(NAME)


def test_files_are_those_of_the_memory_and_only_their_user_may_read_them(
    tmp_path: Path, memory: Memory
) -> None:
    snapshot = write(tmp_path, memory)
    for rank, content in BYTES.items():
        assert (snapshot / f"rank-{rank}.safetensors").read_bytes() == content
    assert {it.stat().st_mode & 0o777 for it in snapshot.iterdir()} == {0o600}
    assert snapshot.stat().st_mode & 0o777 == 0o700
    [filed] = snapshot_files.read(str(tmp_path))
    assert (filed.on_disk, filed.unused, filed.problems) == (on_disk(7), "", ())
    assert filed.files[0].total == checksum(memoryview(BYTES[0]))
    assert filed.files[0].crc32 is None
    assert filed.files[1].total is None, "rank 1 had not added its bytes up"
    assert filed.files[1].crc32 is not None


def test_several_nodes_write_their_parts_into_one_folder(tmp_path: Path, memory: Memory) -> None:
    for source in memory.sources():
        snapshot_files.write(str(tmp_path), NAME, [source], lambda: True)
    [filed] = snapshot_files.read(str(tmp_path))
    assert whole([filed.on_disk]) == [filed.on_disk]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda it: os.truncate(it / "rank-1.safetensors", 100), "has 100 bytes, its list says"),
        (lambda it: (it / "rank-1.safetensors").unlink(), "cannot be read: No such file"),
        (lambda it: _replaced(it / "rank-1.safetensors"), "is a link, a folder or a device"),
    ],
)
def test_a_file_that_is_not_as_its_list_says_does_not_count(
    tmp_path: Path, memory: Memory, damage: object, problem: str
) -> None:
    damage(write(tmp_path, memory))  # type: ignore[operator]
    [filed] = snapshot_files.read(str(tmp_path))
    assert filed.on_disk.ranks == "0"
    [text] = filed.problems
    assert text.startswith("the file of rank 1")
    assert problem in text


def _replaced(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[" * 100_000, json.dumps({"op": "filelist", "step": 7}).encode()]
)
def test_a_list_of_garbage_names_no_file(tmp_path: Path, memory: Memory, body: bytes) -> None:
    (write(tmp_path, memory) / file_names.list_file(0)).write_bytes(body)
    [filed] = snapshot_files.read(str(tmp_path))
    assert filed.on_disk.ranks == ""
    assert "ranks-0.json cannot be read" in filed.problems[0]


def test_a_list_of_another_step_names_no_file(tmp_path: Path, memory: Memory) -> None:
    write(tmp_path, memory).rename(tmp_path / str(NAME._replace(step=8)))
    [filed] = snapshot_files.read(str(tmp_path))
    assert filed.on_disk.ranks == ""
    assert "it is of step 7 of 2 ranks" in filed.problems[0]


def test_memory_that_changes_meanwhile_is_no_snapshot(tmp_path: Path, memory: Memory) -> None:
    sources = memory.sources()
    memory.arenas[1].begin(0)
    with pytest.raises(NotWrittenError, match="rank 1 has taken another snapshot meanwhile"):
        snapshot_files.write(str(tmp_path), NAME, sources, lambda: True)
    [filed] = snapshot_files.read(str(tmp_path))
    assert filed.on_disk.ranks == ""


def test_one_that_takes_too_long_leaves_no_half_a_file(tmp_path: Path, memory: Memory) -> None:
    with pytest.raises(NotWrittenError, match="it took too long"):
        snapshot_files.write(str(tmp_path), NAME, memory.sources(), lambda: False)
    assert list((tmp_path / str(NAME)).iterdir()) == []


def test_a_disk_that_is_too_small_is_found_out_before_a_byte_is_written(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = os.statvfs_result((4096, 4096, 9, 2, 2, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    with pytest.raises(NotWrittenError, match="it needs 20241 bytes, and 8192 are free"):
        snapshot_files.write(str(tmp_path), NAME, memory.sources(), lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gets_full_leaves_no_half_a_file(tmp_path: Path, memory: Memory) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            snapshot_files.write(str(tmp_path), NAME, memory.sources(), lambda: True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / str(NAME)).iterdir()) == []


def test_a_snapshot_is_marked_for_later_jobs_and_released(tmp_path: Path, memory: Memory) -> None:
    write(tmp_path, memory)

    def unused() -> str:
        [filed] = snapshot_files.read(str(tmp_path))
        return filed.unused

    for job in ("one", "two"):
        snapshot_files.mark(str(tmp_path), str(NAME), Mark.BEGUN)
        assert "a job has begun from it" in unused()
        snapshot_files.unmark(str(tmp_path), str(NAME))
        assert unused() == ""
        snapshot_files.mark(str(tmp_path), str(NAME), Mark.BEGUN)
        snapshot_files.unmark(str(tmp_path), str(NAME), tried=job)
    assert "got no further" in unused()
    snapshot_files.mark(str(tmp_path), str(NAME), Mark.GIVEN_UP, "rank 1 could not use it")
    assert unused() == "it was given up"
    snapshot_files.remove(str(tmp_path), str(NAME))
    assert list(tmp_path.iterdir()) == []


def test_no_folder_of_another_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    snapshot_files.remove(str(tmp_path), "mine")
    assert (tmp_path / "mine").is_dir()


def test_they_are_written_without_torch() -> None:
    code = "import sys, holdfast.node.snapshot_dir; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_folder_whose_name_speaks_of_a_million_ranks_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        assert whole([OnDisk("step-9-of-1000000-0123456789ab", 9, 1_000_000, "")]) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
