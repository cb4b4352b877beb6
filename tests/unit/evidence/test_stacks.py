"""From a dump of stacks to one line that says where a rank is."""

from __future__ import annotations

import pytest

from holdfast.evidence.pure.stacks import (
    HELPER,
    Frame,
    lock_holder,
    main_thread,
    place_of,
    threads,
    training_thread,
    without_helper,
)

TORCH = "/usr/lib/python3.11/site-packages/torch"
DUMP = f"""\
Thread 0x00007f02 (most recent call first):
  File "/repo/src/holdfast/{HELPER}", line 90 in _visit

Thread 0x00007f01 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/my code/train.py", line 12 in step
  File "/home/me/my code/train.py", line 30 in <module>
"""


def frames(*calls: str) -> list[Frame]:
    """Innermost first, each as ``file:line function``."""
    found = []
    for call in calls:
        where, _, function = call.rpartition(" ")
        file, _, line = where.rpartition(":")
        found.append(Frame(file, int(line), function))
    return found


def test_the_main_thread_is_the_oldest_one_that_is_not_our_helper() -> None:
    assert [len(each) for each in threads(DUMP)] == [1, 4]
    assert main_thread(DUMP)[0].function == "all_reduce"
    assert "look_helper" not in without_helper(DUMP)
    assert main_thread(without_helper(DUMP)) == main_thread(DUMP)


def test_the_place_is_the_innermost_line_of_the_users() -> None:
    """And the library's function that it calls, not a wrapper around that."""
    place = place_of(main_thread(DUMP))
    assert (place.line, place.call, place.is_in_collective) == (
        "step train.py:12",
        "all_reduce",
        True,
    )


@pytest.mark.parametrize("room", ["inprocess", "inplace/torch_edge", "base", "watch/rank"])
def test_our_own_frames_within_a_rank_are_not_the_users(room: str) -> None:
    """Wherever we are installed: in a checkout there is no site-packages in the path."""
    ours = f"/repo/src/holdfast/{room}/work_abort.py:93 wait_noted"
    place = place_of(
        frames(ours, f"{TORCH}/distributed/x.py:1 barrier", "/home/me/train.py:8 train")
    )
    assert (place.line, place.call) == ("train train.py:8", "barrier")


def test_a_thread_without_a_line_of_the_users_shows_its_innermost_frame() -> None:
    place = place_of(frames(f"{TORCH}/utils/data/dataloader.py:5 _get", f"{TORCH}/run.py:1 main"))
    assert (place.line, place.call, place.is_in_loader) == ("_get dataloader.py:5", "", True)


def test_equal_stacks_have_equal_codes_wherever_they_are_installed() -> None:
    """Of two nodes with different folders; another line is another stack."""
    here = place_of(frames("/home/me/train.py:8 train"))
    there = place_of(frames("/mnt/job/train.py:8 train"))
    other = place_of(frames("/home/me/train.py:9 train"))
    assert here.code == there.code != other.code


def test_no_stack_is_no_place() -> None:
    assert place_of([]).line == place_of([]).code == ""
    assert main_thread('garbage\n  File "x", line y in z\n') == []


MAIN = Frame("/home/me/train.py", 30, "main")
SEARCH = Frame("/home/me/search.py", 12, "search")
SCORE = Frame("/home/me/search.py", 40, "score")
DOT = Frame("/usr/lib/python3/site-packages/numpy/core.py", 7, "dot")
REDUCE = Frame("/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")


def at(line: int, frame: Frame) -> Frame:
    return Frame(frame.file, line, frame.function)


@pytest.mark.parametrize(
    ("earlier", "line", "call"),
    [
        ([], "score search.py:40", "dot"),
        ([DOT, SCORE, SEARCH, MAIN], "score search.py:40", "dot"),
        ([at(8, DOT), SCORE, SEARCH, MAIN], "score search.py:40", "dot"),
        ([at(41, SCORE), SEARCH, MAIN], "score search.py:40", "dot"),
        ([at(13, SEARCH), MAIN], "search search.py:12", "score"),
        ([Frame("/home/me/search.py", 50, "rank"), SEARCH, MAIN], "search search.py:12", "score"),
        ([at(31, MAIN)], "main train.py:30", "search"),
        ([Frame("/home/me/other.py", 1, "run")], "score search.py:40", "dot"),
    ],
)
def test_where_frames_have_changed_it_is_the_loop_in_which_they_did(
    earlier: list[Frame], line: str, call: str
) -> None:
    """What a busy rank calls at this moment is not what does not end."""
    place = place_of([DOT, SCORE, SEARCH, MAIN], [str(frame) for frame in earlier])

    assert (place.line, place.call) == (line, call)


def test_a_collective_stays_the_place_of_a_rank_that_has_come_to_it() -> None:
    """Between two looks: it computed before."""
    place = place_of([REDUCE, SCORE, SEARCH, MAIN], [str(at(31, MAIN))])

    assert (place.line, place.call) == ("score search.py:40", "all_reduce")
    assert place.is_in_collective


PYTHON = "/usr/lib/python3.11"


@pytest.mark.parametrize(
    ("library", "is_transfer", "waits_for"),
    [
        (f"{TORCH}/distributed/distributed_c10d.py:2500 recv", True, ""),
        (f"{TORCH}/distributed/distributed_c10d.py:2700 batch_isend_irecv", True, ""),
        (f"{PYTHON}/multiprocessing/connection.py:250 recv", False, "other process"),
        (f"{PYTHON}/multiprocessing/queues.py:103 get", False, "other process"),
        (f"{PYTHON}/site-packages/requests/sessions.py:703 send", False, ""),
        ("/home/me/zmq/sugar/socket.py:9 recv", False, ""),
    ],
)
def test_a_send_or_receive_of_torchs_is_known_by_its_file(
    library: str, is_transfer: bool, waits_for: str
) -> None:
    """Other libraries have methods of the same name."""
    place = place_of(frames(library, "/home/me/train.py:8 train"))

    assert (place.is_transfer, place.is_in_loader) == (is_transfer, False)
    assert place.waits_for == waits_for


def test_a_data_loader_is_one_though_it_waits_for_its_worker_in_a_queue() -> None:
    place = place_of(
        frames(
            f"{PYTHON}/multiprocessing/connection.py:250 poll",
            f"{PYTHON}/multiprocessing/queues.py:103 get",
            f"{TORCH}/utils/data/dataloader.py:1251 _try_get_data",
            "/home/me/train.py:8 train",
        )
    )
    assert (place.is_in_loader, place.waits_for) == (True, "")


JOIN = frames(f"{PYTHON}/threading.py:1112 join", "/home/me/train.py:90 main")
QUEUE = frames(
    f"{PYTHON}/threading.py:320 wait", f"{PYTHON}/queue.py:171 get", "/home/me/train.py:91 main"
)
SLEEP = frames("/home/me/train.py:92 main")
REDUCES = frames(f"{TORCH}/distributed/distributed_c10d.py:9 all_reduce", "/home/me/train.py:8 t")
STEPS = frames(f"{TORCH}/optim/sgd.py:9 step", "/home/me/train.py:7 t")
LOADS = frames("/home/me/data.py:8 fetch", f"{PYTHON}/threading.py:975 run")
PINS = frames(f"{TORCH}/utils/data/_utils/pin_memory.py:32 do", f"{PYTHON}/threading.py:975 run")


@pytest.mark.parametrize(
    ("others", "main", "chosen"),
    [
        ([REDUCES], JOIN, 0),
        ([PINS, STEPS], QUEUE, 1),
        ([LOADS, REDUCES], JOIN, 1),
        ([LOADS], JOIN, 0),
        ([LOADS], QUEUE, 1),
        ([PINS], JOIN, 1),
        ([REDUCES, STEPS], JOIN, 2),
        ([LOADS, LOADS], JOIN, 2),
        ([REDUCES], SLEEP, 1),
        ([LOADS], REDUCES, 1),
        ([], JOIN, 0),
    ],
    ids=str,
)
def test_the_thread_that_trains_is_shown_where_the_main_one_waits_for_it(
    others: list[list[Frame]], main: list[Frame], chosen: int
) -> None:
    """In torch, with a line of the user's; or the only one that may be joined."""
    assert training_thread([*others, main]) == chosen


@pytest.mark.parametrize(
    ("others", "main", "main_waits", "chosen"),
    [
        ([LOADS], JOIN, False, 0),
        ([LOADS], SLEEP, True, 0),
        ([LOADS], SLEEP, False, 1),
        ([LOADS, JOIN], SLEEP, True, 0),
        ([QUEUE], SLEEP, False, 1),
        ([LOADS, STEPS], SLEEP, True, 2),
        ([LOADS, STEPS], JOIN, True, 1),
    ],
    ids=str,
)
def test_the_thread_that_holds_the_interpreters_lock_does_not_wait_in_python(
    others: list[list[Frame]], main: list[Frame], main_waits: bool, chosen: int
) -> None:
    """The main one is seen to ask for it every few milliseconds; of several, none is guessed."""
    assert lock_holder([*others, main], main_waits=main_waits) == chosen
