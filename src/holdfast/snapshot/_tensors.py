"""Tensors of a training as a snapshot sees them: the local shard, its type by safetensors' name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from holdfast.arena.pure.tensors_head import Placed, Tensor
from holdfast.arena.sums import WORD_BYTES, signed, tail
from holdfast.base.torch_private import (
    compiled_module,
    copy_all,
    is_kept,
    local,
    tables,
    version,
)

__all__ = ["copy_all", "is_kept", "local", "tables", "version"]  # of torch's private names

_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_BY_NAME = {text: dtype for dtype, text in _DTYPES.items()}


class Entry(NamedTuple):
    """A tensor of the live state.

    Attributes:
        name: In the snapshot.
        tensor: As the training has it; its local shard is copied.
        is_fenced: It changes in an optimizer's step alone.
    """

    name: str
    tensor: torch.Tensor
    is_fenced: bool


def placed_as(name: str, tensor: torch.Tensor) -> Tensor:
    """Its row in the head: a type that safetensors does not know is stored as bytes."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is not None:
        return Tensor(name, dtype, tuple(tensor.shape))
    return Tensor(name, "U8", (tensor.numel() * tensor.element_size(),))


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """Facts beside the head: its device and type, and the whole that it is a shard of."""
    facts: dict[str, Any] = {}
    part = local(tensor)
    if part.device.type != "cpu":
        facts["device"] = part.device.type
    if part.dtype not in _DTYPES:
        facts["dtype"] = str(part.dtype).removeprefix("torch.")
        facts["shape"] = list(part.shape)
    if part is not tensor:
        facts["shard"] = _shard(tensor)
    return facts


def _shard(tensor: Any) -> dict[str, Any]:
    """Of a DTensor: the shape of the whole, and where this shard begins (None: not known)."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate() or ()
    offsets: list[int] | None = [0] * tensor.dim()
    sizes = list(tensor.shape)
    for n, at, placement in zip(mesh.shape, coordinate, tensor.placements, strict=False):
        if type(placement).__name__ == "Shard" and offsets is not None:
            dim = placement.dim % max(1, tensor.dim())
            chunk = -(-sizes[dim] // n)  # as torch.chunk cuts
            begin = min(at * chunk, sizes[dim])
            offsets[dim] += begin
            sizes[dim] = min(chunk, sizes[dim] - begin)
        elif not placement.is_replicate():
            offsets = None
    return {
        "shape": list(tensor.shape),
        "offsets": offsets,
        "mesh": list(mesh.shape),
        "coordinate": list(coordinate),
        "placements": [str(each) for each in tensor.placements],
    }


def dtype_named(name: str) -> torch.dtype:
    """By the name that :func:`described` gave it. Raises ValueError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"this torch has no type {name!r:.40}")  # noqa: TRY004 - of the name
    return found


def named_in_file(name: str) -> torch.dtype:
    """By its name in safetensors."""
    return _BY_NAME[name]


def new_like(
    like: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: str
) -> torch.Tensor:
    """A tensor of this shape, not filled: on the device of ``like`` if that is of this kind."""
    part = None if like is None else local(like)
    if part is not None and part.device.type == device:
        if list(part.shape) == list(shape):  # the same order of elements, for kernels over many
            return torch.empty_like(part, dtype=dtype, requires_grad=False)
        return torch.empty(list(shape), dtype=dtype, device=part.device)
    return torch.empty(list(shape), dtype=dtype, device=device)


def wrapped_as(like: Any, part: torch.Tensor) -> torch.Tensor:
    """A DTensor with this shard, placed as the DTensor ``like``."""
    made: torch.Tensor = type(like).from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return made


def views(
    whole: torch.Tensor, data_at: int, names: Iterable[str], placed: Mapping[str, Placed]
) -> list[torch.Tensor]:
    """Tensors over the bytes of a snapshot, by the places that its head says."""
    found = []
    for name in names:
        each = placed[name]
        if each.begin == each.end:
            found.append(torch.empty(each.shape, dtype=_BY_NAME[each.dtype]))
            continue
        part = whole[data_at + each.begin : data_at + each.end]
        found.append(part.view(_BY_NAME[each.dtype]).view(each.shape))
    return found


def stored_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Local tensors, or their bytes where safetensors does not know their type."""
    return [
        each if each.dtype in _DTYPES else _bytes_of(each.detach().resolve_conj())
        for each in tensors
    ]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def refusal(tensor: torch.Tensor) -> str:
    """Why its bytes cannot be copied; empty: they can."""
    if is_lazy(tensor):
        return "has no shape yet (a lazy module): call forward once before restore()"
    part = local(tensor)
    if part.layout != torch.strided:
        kind = str(part.layout).removeprefix("torch.")
        return f"is a tensor of layout {kind}; a snapshot holds dense ones: use to_dense()"
    if part.device.type == "meta":
        return "is on the meta device and has no values: materialize it before restore()"
    return ""


def copyable(into: torch.Tensor, of: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as they can be copied: without conjugation, and without elements that are one.

    ``expand`` makes several elements of one.
    """
    if into.is_conj():
        into, of = into.conj(), of.conj().resolve_conj()
    for dim in reversed(range(into.dim())):
        if into.shape[dim] > 1 and into.stride(dim) == 0:
            into, of = into.select(dim, 0), of.select(dim, 0)
    return into, of


def sum_of(memory: torch.Tensor, n_bytes: int) -> int:
    """As :func:`holdfast.arena.sums.checksum`, of the first bytes, as fast as memory is read."""
    n_words = n_bytes // WORD_BYTES
    whole = memory[: n_words * WORD_BYTES]
    rest = bytes(memory[n_words * WORD_BYTES : n_bytes].tolist())
    return signed(int(whole.view(torch.int64).sum()) + tail(memoryview(rest)))


# ---------------------------------------------------------------- modules
def has_extra_state(module: nn.Module) -> bool:
    """Whether its class keeps state besides parameters and buffers."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module in DistributedDataParallel and the results of torch.compile."""
    while True:
        kind = type(module).__name__
        if kind in ("DistributedDataParallel", "DataParallel"):
            module = module.module  # type: ignore[assignment]
        elif (inner := compiled_module(module)) is not module:
            module = inner
        else:
            return module


def reshard(modules: Iterable[nn.Module]) -> None:
    """Have modules of FSDP2 hold their shards, which they may not do between forward and step."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind: Any = getattr(fsdp, "FSDPModule", ())
    for module in modules if kind else ():
        if isinstance(module, kind):
            module.reshard()
