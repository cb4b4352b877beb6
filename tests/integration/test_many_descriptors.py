"""A launcher of hundreds of ranks has descriptors above 1023, which select(2) does not know."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.base.processes import child, proc, reaper
from holdfast.node.processes.output import OutputPump, Stream

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
def test_deaths_are_awaited() -> None:
    """By descriptors of the processes."""
    pid = child.spawn(["/bin/sleep", "1000"], {}, {})
    found = {pid: proc.identity(pid)}

    assert reaper.end_all(30.0, lambda: found, lambda: None) == []
    os.waitpid(pid, 0)


def test_a_launcher_has_all_descriptors_it_may_have_and_its_ranks_the_usual_limit() -> None:
    """Programs that use select(2), and libraries that close "all", rely on the soft limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 512:
        pytest.skip(f"this user may have {hard} descriptors")
    source = """
import os, resource, sys
from holdfast.base.processes import child
from holdfast.base.processes.process_defaults import raise_descriptor_limit

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
raise_descriptor_limit()
read_end, write_end = os.pipe()
command = ["/bin/sh", "-c", "read go; ulimit -n; ulimit -Hn"]
pid = child.spawn_rank(child.death_tie(), command, os.environ, {0: read_end, 1: 1})
os.write(write_end, b"go\\n")
os.waitpid(pid, 0)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=60
    )
    of_rank, most_of_rank, own, most = done.stdout.split()
    assert of_rank == "200"
    assert int(own) == (1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20))
    assert (int(most), most_of_rank) in ((hard, str(hard)), (hard, "unlimited"))
