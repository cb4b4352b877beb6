"""The process group of a ``DistributedDataParallel`` is not destroyed under the interpreter's lock.

Its reducer, a C++ object, refers to the group. Where a function calls ``destroy_process_group`` and
returns, the module dies after that: the reducer's reference is the last one, and is dropped under
the interpreter's lock. The destructor of gloo's group waits for its threads, and one of them
may need that lock to drop the tensors of the last operation. That is a deadlock of torch (2.13;
measured with 2 ranks: at the end of one call in three), and ``hard_timeout`` kills the rank.

A reference from Python is dropped without the lock. So there is one, for exactly as long as there
is a reducer: weak references to one are called after its destructor.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import ProcessGroup

from holdfast.base.torch_private import Logger, Reducer
from holdfast.inplace.torch_edge.replaced import replaced

_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By reducer, and by logger: that refers to its reducer, and may be the last that does."""


@contextlib.contextmanager
def groups_outlive_reducers() -> Iterator[None]:
    """Keep the group of each reducer that is made inside until that reducer is gone."""
    with replaced(Reducer, "__init__", _with_group), replaced(Logger, "__init__", _with_group):
        yield


def _with_group(make: Callable[..., None]) -> Callable[..., None]:
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        make(this, *args, **kwargs)
        for one in (*args, *kwargs.values()):
            if isinstance(one, ProcessGroup):
                _groups[this] = one
            elif isinstance(one, Reducer) and one in _groups:
                _groups[this] = _groups[one]

    return made
