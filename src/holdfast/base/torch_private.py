"""Every private name of torch that holdfast uses; no other file uses one.

:data:`NAMES` lists each with the versions of torch that have it and the effect where it is missing:
importing this module works there, and so does every function of it. docs/compatibility.md lists
the tests of each version; ``make test-torch TORCH=2.9.1`` runs them again.

Importing this module imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:  # torch.distributed has them as well, which torch's type stubs do not say
    from torch._C._distributed_c10d import (
        FileStore,
        HashStore,
        Logger,
        PrefixStore,
        Reducer,
        Store,
        TCPStore,
        Work,
    )
else:
    from torch.distributed import (
        FileStore,
        HashStore,
        Logger,
        PrefixStore,
        Reducer,
        Store,
        TCPStore,
        Work,
    )

__all__ = [
    "FileStore",
    "HashStore",
    "Logger",
    "PrefixStore",
    "Reducer",
    "Store",
    "TCPStore",
    "Work",
]  # of torch, for others

TRIED = ("2.9", "2.11", "2.13", "2.14", "2.15")
"""The minor versions of torch that the whole of :data:`NAMES` was compared with."""


_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class PrivateName:
    """A name that torch may change without notice.

    Attributes:
        path: From the module on: ``module:attribute.attribute``.
        without: The effect on holdfast where it is missing.
        first: The first of :data:`TRIED` that has it.
        needs: Needed in the build of torch (``"cuda"``), or to be installed; empty:
            nothing.
    """

    path: str
    without: str
    first: str = TRIED[0]
    needs: str = ""


_C10D = "torch.distributed.distributed_c10d"
_NATIVE = "torch._C._distributed_c10d"
_ELASTIC = "torch.distributed.elastic"
_CHECKPOINT_PROCESS = "torch.distributed.checkpoint._async_process_executor:_CHECKPOINT_PROCESS"
_CHECKPOINT_GOES_ON = "the process for asynchronous saves is not ended"
_SKIPPED = "there is nothing to reset"
_UNKNOWN_COLLECTIVE = "an incident does not say in which collective a rank is"
_RESET = (
    "pg_group_ranks",
    "pg_backend_config",
    "pg_to_tag",
    "tags_to_pg",
    "pg_coalesce_state",
    "comms",
)


def _alike(without: str, *paths: str) -> tuple[PrivateName, ...]:
    return tuple(PrivateName(path, without) for path in paths)


NAMES = (
    *_alike(
        "groups are destroyed by destroy_process_group(), which waits for them",
        f"{_C10D}:_world.pg_names",
        f"{_C10D}:_world.pg_map",
        f"{_C10D}:_world.default_pg",
        f"{_C10D}:_world.group_count",
        f"{_C10D}:_update_default_pg",
        f"{_NATIVE}:_unregister_all_process_groups",
    ),
    *_alike(_SKIPPED, *(f"{_C10D}:_world.{name}" for name in _RESET[:-1])),
    PrivateName(f"{_C10D}:_world.comms", _SKIPPED, first="2.11"),
    PrivateName(
        "torch.distributed.rendezvous:_rendezvous_handlers",
        "env:// in a restartable function is torch's own: rank 0 hosts a store at MASTER_PORT",
    ),
    PrivateName(f"{_NATIVE}:_dump_nccl_trace", "the flight recorder is not written", needs="cuda"),
    PrivateName(
        f"{_NATIVE}:_dump_fr_trace", "the flight recorder is not written, unless it is NCCL's"
    ),
    PrivateName(f"{_NATIVE}:_dump_nccl_trace_json", _UNKNOWN_COLLECTIVE, needs="cuda"),
    PrivateName(f"{_NATIVE}:_dump_fr_trace_json", _UNKNOWN_COLLECTIVE),
    PrivateName(
        f"{_ELASTIC}.rendezvous:rendezvous_handler_registry._registry",
        "the error for a backend that is not registered does not list those that are",
    ),
    PrivateName(_CHECKPOINT_PROCESS, _CHECKPOINT_GOES_ON),
    *_alike(
        "--numa-binding is refused",
        "torch.numa.binding:_get_logical_cpus_to_bind_to",
        "torch.numa.binding:_get_ranges_str_from_ints",
    ),
    PrivateName(
        f"{_NATIVE}:Work._get_op_type",
        "a half-done send or receive of gloo is not ended; hard_timeout kills its rank",
    ),
    *_alike(
        "no snapshots are taken",
        "torch:_foreach_copy_",
        "torch:Tensor._version",
    ),
    PrivateName("torch.cuda:_sleep", "the fault GPU_SLEEP is refused"),
    PrivateName(
        "torch:_dynamo",
        "a parked interpreter imports no more than the script names (standby/pure/libraries.py, as "
        "the launcher does not import torch)",
    ),
)
"""Attributes of modules and classes, which a test looks up in the torch that is installed."""

OF_OBJECTS = (
    *_alike(
        "no snapshots are taken",
        "torch.nn:Module._parameters",
        "torch.nn:Module._buffers",
        "torch.nn:Module._modules",
        "torch.nn:Module._non_persistent_buffers_set",
    ),
    PrivateName(
        "torch.distributed.tensor:DTensor._local_tensor", "DTensors cannot be part of a snapshot"
    ),
    PrivateName("torch._dynamo:OptimizedModule._orig_mod", "its names have a prefix in snapshots"),
    *_alike(
        "such a logs_specs is refused",
        f"{_ELASTIC}.multiprocessing:DefaultLogsSpecs._redirects",
        f"{_ELASTIC}.multiprocessing:DefaultLogsSpecs._tee",
        f"{_ELASTIC}.multiprocessing:DefaultLogsSpecs._local_ranks_filter",
    ),
    PrivateName(
        f"{_ELASTIC}.rendezvous.dynamic_rendezvous:DynamicRendezvousHandler._store",
        "the store of its first round is used, and late launchers are not in the job",
    ),
    *_alike(
        "some keys become folders in etcd, and launchers do not meet there",
        f"{_ELASTIC}.rendezvous.etcd_store:EtcdStore._encode",
        f"{_ELASTIC}.rendezvous.etcd_store:EtcdStore._decode",
    ),
    PrivateName(f"{_CHECKPOINT_PROCESS}._save_process", _CHECKPOINT_GOES_ON),
    PrivateName(
        f"{_C10D}:_exception_logger_hook.old_hook",
        "torch's sys.excepthook stays, and puts one more [rank0]: before each line per restart",
    ),
    *_alike(
        "as Work._get_op_type",
        "libtorch_cpu.so:_ZN4c10d16ProcessGroupGloo8RecvWork5abortEv",
        "libtorch_cpu.so:_ZN4c10d16ProcessGroupGloo8SendWork5abortEv",
    ),
    PrivateName(
        f"{_NATIVE}:TCPStore.__repr__",
        "a launcher cannot end a wait at the store early, and cuts it into slices of a second",
    ),
)
"""Attributes of objects that only some calls make, and facts that are read out of texts."""

_SEND_OR_RECEIVE = frozenset({12, 13, 14})
"""Numbers of c10d's SEND, RECV and RECVANYSOURCE."""
_WORD = ctypes.sizeof(ctypes.c_void_p)
_VALUE = 2 * _WORD
"""Where an instance of a class bound by pybind11 has its C++ object: after an object's head."""


# ------------------------------------------------------------ process groups


def all_groups() -> list[tuple[Any, str]]:
    """Every process group of this process, with torch's name for it."""
    try:
        return [(group, str(name)) for group, name in c10d._world.pg_names.items()]  # noqa: SLF001
    except AttributeError:
        return [(dist.group.WORLD, "default")] if dist.is_initialized() else []


def forget_groups() -> list[Any]:
    """Put torch's state back to where ``init_process_group`` works.

    The groups and their stores that this returns are destroyed with the last reference to them.
    """
    try:
        world = c10d._world  # noqa: SLF001
        update_default = c10d._update_default_pg  # noqa: SLF001
        unregister_all = _native("_unregister_all_process_groups")
        groups: list[Any] = list(world.pg_names)
        if world.default_pg is not None and world.default_pg not in groups:
            groups.append(world.default_pg)
        kept = [*groups, *(value[1] for value in world.pg_map.values())]
        named: list[Any] = [world.pg_map, world.pg_names]
    except AttributeError:
        if dist.is_initialized():
            dist.destroy_process_group()
        return []
    update_default(None)
    named += [getattr(world, name, None) for name in _RESET]
    for one in named:
        if one is not None:
            one.clear()
    # Names of groups are counted; every rank, also one that was started anew, counts from 0 again.
    world.group_count = 0
    unregister_all()
    return kept


def without_torchs_hooks(hook: Any) -> Any:
    """What ``hook`` was before ``init_process_group`` has put wrappers of its own around it."""
    while True:
        code = getattr(hook, "__code__", None)
        if (
            getattr(hook, "__module__", None) != c10d.__name__
            or code is None
            or "old_hook" not in code.co_freevars
        ):
            return hook
        cells: Any = getattr(hook, "__closure__", None) or ()
        hook = cells[code.co_freevars.index("old_hook")].cell_contents


class PointToPointAbort:
    """``RecvWork::abort`` and ``SendWork::abort`` of gloo, which torch has for C++ alone.

    The two functions are looked up by name. An object is only touched if its first word, the
    address of its class's table of functions, says that it is one of the two classes.

    Raises:
        OSError, AttributeError, ValueError: This torch has not got them.
    """

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        library = ctypes.CDLL(str(folder / "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        self._abort: dict[int, Any] = {}
        for name in ("RecvWork", "SendWork"):
            table = ctypes.c_char.in_dll(library, f"_ZTVN4c10d16ProcessGroupGloo8{name}E")
            function = library[f"_ZN4c10d16ProcessGroupGloo8{name}5abortEv"]
            function.restype = None
            function.argtypes = (ctypes.c_void_p,)
            # Its first two words are for casts; objects point behind them.
            self._abort[ctypes.addressof(table) + 2 * _WORD] = function

    def abort(self, work: Work) -> bool:
        """End it, if it is a send or receive of gloo."""
        value = ctypes.c_void_p.from_address(id(work) + _VALUE).value
        if not value:
            return False
        function = self._abort.get(ctypes.c_size_t.from_address(value).value)
        if function is None:
            return False
        function(value)
        return True


def is_point_to_point(work: Any) -> bool:
    """Whether it is a send or receive; False where torch does not say."""
    op_type = getattr(work, "_get_op_type", None)
    return op_type is not None and op_type() in _SEND_OR_RECEIVE


def flight_recorder() -> Callable[[], bytes] | None:
    """What returns the flight recorder's contents; None: this torch has no recorder."""
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        try:
            found: Callable[[], bytes] = _native(name)
        except AttributeError:
            continue
        return found
    return None


def recorded_collectives() -> list[dict[str, Any]]:
    """The operations in each flight recorder, oldest first: 13 ms where there are 2,000."""
    found: list[dict[str, Any]] = []
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        with contextlib.suppress(AttributeError):
            entries = json.loads(_native(name)()).get("entries", [])
            found += sorted(entries, key=lambda entry: entry.get("record_id", 0))
    return found


def count_collectives() -> int:
    """Sum of the sequence numbers of all groups, begun and ended: 13 µs. -1: not to be had.

    Only the recorders' own numbers are asked for. The operations are not, as NCCL's recorder would
    ask the device whether they have ended, which must not be while a CUDA graph is captured.
    """
    total, is_known = 0, False
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        with contextlib.suppress(AttributeError):
            dump: Any = _native(name)
            groups = json.loads(dump(includeCollectives=False)).get("pg_status", {})
            is_known = True
            for numbers in groups.values():
                total += int(numbers["last_enqueued_collective"])
                total += int(numbers["last_completed_collective"])
    return total if is_known else -1


# ------------------------------------------------------------ stores and rendezvous


def environment_handlers() -> MutableMapping[str, Any] | None:
    """What ``init_process_group`` calls for each scheme, as ``env``; None: not to be had."""
    # By name: torch.distributed.rendezvous is also a function, which hides the module.
    module = importlib.import_module("torch.distributed.rendezvous")
    found: MutableMapping[str, Any] | None = getattr(module, "_rendezvous_handlers", None)
    return found


def registered_backends(registry: Any) -> Collection[str] | None:
    """Names in torch's ``rendezvous_handler_registry``; None: not to be had."""
    return getattr(registry, "_registry", None)


def store_of_all_rounds(handler: Any) -> Store | None:
    """A ``DynamicRendezvousHandler``'s; each round's own ends with it. None: not to be had."""
    return getattr(handler, "_store", None)


def coded_by_itself(kind: type[_Kind]) -> type[_Kind]:
    """Have a subclass of torch's ``EtcdStore`` use its ``encode`` and ``decode`` for all keys."""
    for name in ("encode", "decode"):
        setattr(kind, f"_{name}", getattr(kind, name))
    return kind


# ------------------------------------------------------------ tensors and modules


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Its shard on this rank: the tensor itself where it is not a DTensor."""
    # DTensor.to_local() is dear, and part of autograd.
    found = getattr(tensor, "_local_tensor", None)
    return found if isinstance(found, torch.Tensor) else tensor


def version(tensor: torch.Tensor) -> int:
    """Counts the changes in place of a local tensor."""
    return tensor._version  # noqa: SLF001


def copy_all(
    into: Sequence[torch.Tensor], of: Sequence[torch.Tensor], *, non_blocking: bool = False
) -> None:
    """Each into its own, in one call that leaves the interpreter's lock to others."""
    if into:
        with torch.no_grad():
            torch._foreach_copy_(list(into), list(of), non_blocking=non_blocking)


def tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Its own parameters, buffers and children, each with None for one that is not there."""
    return module._parameters, module._buffers, module._modules  # noqa: SLF001


def is_kept(module: nn.Module, buffer: str) -> bool:
    """Whether a buffer is part of the module's state_dict()."""
    return buffer not in module._non_persistent_buffers_set  # noqa: SLF001


def compiled_module(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` was given, by the module that it has returned."""
    found: Any = getattr(module, "_orig_mod", module)
    inner: nn.Module = found
    return inner


# ------------------------------------------------------------ other parts


def log_choices(specs: Any) -> tuple[Any, Any, Any]:
    """Redirects, tee and ranks shown of torch's ``DefaultLogsSpecs``.

    Raises:
        AttributeError: It is another class.
    """
    return specs._redirects, specs._tee, specs._local_ranks_filter  # noqa: SLF001


def cpus_near_device(mode: str, local_rank: int) -> str:
    """The CPUs that torch would bind a rank to, as ``0-7,16-23``.

    The device of the rank has the index ``local_rank``; ``mode`` is that of ``--numa-binding``.

    Raises:
        ImportError, AttributeError: This torch does not say.
        ValueError: There is no such mode.
        Exception: Whatever torch raises where it cannot find the CPUs.
    """
    from torch.numa import binding  # noqa: PLC0415

    choose: Any = binding._get_logical_cpus_to_bind_to  # noqa: SLF001
    index = next(iter(inspect.signature(choose).parameters))  # torch 2.14: device_index
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    cpus = choose(**{index: local_rank}, numa_options=options)
    return binding._get_ranges_str_from_ints(cpus)  # noqa: SLF001


def take_checkpoint_process() -> Any:
    """The process that ``torch.distributed.checkpoint`` keeps for asynchronous saves, if any.

    torch starts another one for the next save.
    """
    executor: Any = sys.modules.get("torch.distributed.checkpoint._async_process_executor")
    checkpointer = getattr(executor, "_CHECKPOINT_PROCESS", None)
    if checkpointer is None:
        return None
    executor._CHECKPOINT_PROCESS = None  # noqa: SLF001
    return getattr(checkpointer, "_save_process", None)


def sleep_on_device(cycles: int) -> None:
    """Keep the current CUDA device busy, in a kernel of so many clock cycles.

    Raises:
        RuntimeError: This torch has no such kernel.
    """
    sleep: Any = getattr(torch.cuda, "_sleep", None)
    if sleep is None:
        raise RuntimeError(f"torch {torch.__version__} has no torch.cuda._sleep")
    sleep(cycles)


def _native(name: str) -> Any:
    return getattr(importlib.import_module("torch._C._distributed_c10d"), name)
