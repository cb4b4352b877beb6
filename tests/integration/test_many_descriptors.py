"""A launcher of hundreds of ranks has descriptors above 1023, which select(2) does not know."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from holdfast.host import child, leftovers
from holdfast.host.output import OutputPump, Stream

SELECT_MAX = 1024


@pytest.fixture
def _low_descriptors_are_taken() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SELECT_MAX + 100
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this user may have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < SELECT_MAX:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_low_descriptors_are_taken")
def test_output_is_drained() -> None:
    """Also to a console that somebody made non-blocking and that is full."""
    source, rank_end = os.pipe()
    console_end, console = os.pipe()
    assert min(source, rank_end, console_end, console) >= SELECT_MAX
    os.set_blocking(source, False)
    os.set_blocking(console, False)
    pump = OutputPump()
    stream = Stream(source, console=console)
    pump.add(stream)
    size = 200_000  # more than a pipe holds
    rank = child.spawn(["/bin/sh", "-c", f"head -c {size} /dev/zero"], os.environ, {1: rank_end})
    os.close(rank_end)
    shown = 0
    while shown < size:
        shown += len(os.read(console_end, 1 << 16))
    os.waitpid(rank, 0)

    assert pump.settle([stream], 30.0)
    pump.close(30.0)
    assert shown == size
    os.close(console_end)
    os.close(console)


@pytest.mark.usefixtures("_low_descriptors_are_taken")
def test_deaths_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By descriptors of the processes."""
    pid = child.spawn(["/bin/sleep", "1000"], {}, {})
    monkeypatch.setattr(child, "reap", lambda: iter(()))  # not the children of other tests
    monkeypatch.setattr(child, "descendants", lambda: [pid])

    assert leftovers.end_all(30.0) == []
    os.waitpid(pid, 0)
