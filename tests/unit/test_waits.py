"""What a process sleeps for, from the kernel function that it sleeps in."""

from __future__ import annotations

import pytest

from holdfast.core.monitor.rank_digest import Sight, waits_for


@pytest.mark.parametrize(
    ("wchan", "expected"),
    [
        ("futex_do_wait", "a lock"),
        ("hrtimer_nanosleep", "a sleep"),
        ("wait_for_partner", "the other end of a FIFO"),
        ("anon_pipe_read", "a pipe"),
        ("do_wait", "a child process"),
        ("do_epoll_wait", "a socket or pipe"),
        ("poll_schedule_timeout.constprop.0", "a socket or pipe"),
        ("unix_stream_read_generic", "a socket"),
        ("wait_woken", "a socket"),
        ("locks_lock_inode_wait", "a lock on a file"),
        ("__do_sys_pause", "a signal"),
        ("do_sigtimedwait", "a signal"),
        ("some_driver_wait", ""),
        ("", ""),
    ],
)
def test_the_kernel_function_tells_what_is_waited_for(wchan: str, expected: str) -> None:
    """As Linux 5.10 to 6.12 name them; a file that is read says more."""
    assert waits_for(Sight("S", wchan, 0, 0)) == expected
    assert waits_for(Sight("R", wchan, 0, 0)) == ""
    assert waits_for(Sight("S", wchan, 0, 0, "/data/x")) == "/data/x"
