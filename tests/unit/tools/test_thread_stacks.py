"""Stacks for a reader: the main thread first, holdfast's threads last, the user's frames named."""

from holdfast.tools.report.thread_stacks import threads_in, users_frame


def _thread(number: int, *frames: str) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for name, file, line in map(_split, frames)]
    return "\n".join([f"Thread 0x{number:x} (most recent call first):", *lines, ""])


def _split(frame: str) -> tuple[str, str, str]:
    name, _, place = frame.partition(" ")
    file, _, line = place.rpartition(":")
    return name, file, line


OWN = _thread(
    1, "wait /usr/lib/python3.11/threading.py:331", "_watch /x/holdfast/inplace/session.py:4"
)
LOADER = _thread(2, "wait /usr/lib/python3.11/threading.py:331", "prefetch /home/me/data.py:9")
OTHER = _thread(3, "wait /usr/lib/python3.11/threading.py:331")
MAIN = _thread(
    4,
    "all_reduce /v/site-packages/torch/distributed/distributed_c10d.py:2",
    "wrapper /v/site-packages/torch/distributed/c10d_logger.py:81",
    "sync /home/me/train.py:23",
    "_call /x/holdfast/inprocess/_call.py:307",
    "<module> /home/me/train.py:36",
)


def test_the_main_thread_is_first_and_threads_of_holdfast_last() -> None:
    threads = threads_in(OWN + OTHER + LOADER + MAIN)
    assert [(one.frames[-1].function, one.is_holdfasts) for one in threads] == [
        ("<module>", False),
        ("prefetch", False),
        ("wait", False),
        ("_watch", True),
    ]
    assert threads[0].name == "main thread"


def test_a_path_has_the_users_frames_and_the_function_that_they_call() -> None:
    threads = threads_in(LOADER + MAIN)
    assert threads[0].path == "all_reduce < sync train.py:23 < <module> train.py:36"
    assert threads_in(OTHER)[0].path == "wait threading.py:331"
    deep = _thread(1, *(f"f{n} /home/me/a.py:{n}" for n in range(9)))
    assert threads_in(deep)[0].path.endswith("< f4 a.py:4 < 3 more < f8 a.py:8")


def test_the_users_line_is_the_innermost_of_the_main_thread() -> None:
    frame = users_frame(LOADER + MAIN)
    assert (frame.file, frame.line, frame.function) == ("/home/me/train.py", 23, "sync")
    assert users_frame(OTHER) is None
    assert users_frame("no stack at all") is None
    assert threads_in("no stack at all") == []
