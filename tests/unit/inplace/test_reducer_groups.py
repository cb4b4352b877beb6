"""The group that DDP's reducer refers to is destroyed without the interpreter's lock."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from holdfast.inplace.torch_edge import abort_distributed, reducer_groups  # noqa: E402

ROUNDS = 50


@pytest.fixture(autouse=True)
def watching() -> Iterator[None]:
    with abort_distributed.watching():
        yield
        abort_distributed.discard_process_groups()
    abort_distributed.group_reaper.join(30.0)


def make_module() -> DistributedDataParallel:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return DistributedDataParallel(torch.nn.Linear(1, 1))


@contextlib.contextmanager
def another_thread() -> Iterator[Callable[[], int]]:
    """It releases the interpreter's lock each time; yields what says how often it has had it."""
    turns = 0
    is_over = False

    def run() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: turns
    finally:
        is_over = True
        thread.join()


def test_other_threads_run_while_the_group_of_a_destroyed_job_dies_with_its_module() -> None:
    """A thread of gloo may wait for the interpreter's lock, and the destructor for that thread."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # this thread keeps the lock until it releases it
    try:
        with another_thread() as turns:
            for _ in range(ROUNDS):
                module = make_module()
                dist.destroy_process_group()
                # Without the parameters: a tensor that dies releases the lock as well.
                refer_to_group = [module.logger, module.reducer]
                parameters = module.module
                del module
                before = turns()
                refer_to_group.clear()
                if turns() > before:
                    return
                del parameters
    finally:
        sys.setswitchinterval(before_s)
    pytest.fail(f"the lock was held through {ROUNDS} destructors")


def test_a_group_is_kept_as_long_as_its_reducer_and_no_longer() -> None:
    """Or the logger, which refers to the reducer. Its threads and descriptors are the user's."""
    module = make_module()
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert group() is not None
    logger = module.logger
    del module
    assert group() is not None
    del logger
    assert group() is None
    assert not reducer_groups._groups


def test_a_group_that_is_in_use_stays_when_its_module_goes() -> None:
    """Such as that of a module that is wrapped anew."""
    module = make_module()
    del module
    assert not reducer_groups._groups
    dist.barrier()
