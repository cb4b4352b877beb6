"""The bytes of a snapshot on their way back: added up and copied in one pass over the file.

A window of the file is read from memory once: added up, then copied from the processor's cache.
So bytes lie in live tensors before their sum is known; where it is wrong, the caller raises, and no
step is computed with them (T-4).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import torch

from holdfast.arena.sums import WORD_BYTES, signed, tail

WINDOW_BYTES = 2 << 20
"""Added up, then copied; it fits into a core's cache. Divisible by 8."""
_BYTES_PER_THREAD = 32 << 20
_MAX_THREADS = 4

Put = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Copies host memory into live tensors, which may be on a device."""


class _Piece(NamedTuple):
    """One tensor: its bytes in the file, and the same bytes of the live one."""

    begin: int
    end: int
    into: torch.Tensor
    of: torch.Tensor


def load(
    memory: torch.Tensor,
    into: Sequence[torch.Tensor],
    of: Sequence[torch.Tensor],
    new_put: Callable[[], Put],
    *,
    n_threads: int | None = None,
) -> int:
    """Copy each of ``of`` into its own of ``into``; returns the sum of all bytes of ``memory``.

    Args:
        memory: The file, a tensor of bytes.
        into: Live tensors.
        of: Most of them views of it.
        new_put: Makes what copies, one for each thread.
        n_threads: None: as many as the node's cores allow for each of its ranks, 4 at most.
    """
    pieces, others = _pieces(memory, into, of)
    n_windows = -(-memory.numel() // WINDOW_BYTES)
    if n_threads is None:
        n_threads = min(_cores_of_a_rank(), 1 + memory.numel() // _BYTES_PER_THREAD)
    n_threads = min(n_threads, n_windows)
    bounds = [n_windows * i // n_threads * WINDOW_BYTES for i in range(n_threads)]
    bounds.append(memory.numel())
    new_put()([to for to, _ in others], [found for _, found in others])
    last = tail(memoryview(bytes(memory[memory.numel() // WORD_BYTES * WORD_BYTES :].tolist())))
    if n_threads == 1:
        return signed(last + _load_stretch(memory, pieces, 0, memory.numel(), new_put()))
    with ThreadPoolExecutor(n_threads, "holdfast-restore") as pool:
        parts = [
            pool.submit(_load_stretch, memory, pieces, begin, end, new_put())
            for begin, end in pairwise(bounds)
        ]
        return signed(last + sum(part.result() for part in parts))


def _load_stretch(
    memory: torch.Tensor, pieces: Sequence[_Piece], begin: int, end: int, put: Put
) -> int:
    words = memory[: memory.numel() // WORD_BYTES * WORD_BYTES].view(torch.int64)
    sums: list[torch.Tensor] = []
    index = bisect_right(pieces, begin, key=lambda piece: piece.end)
    for at in range(begin, end, WINDOW_BYTES):
        until = min(at + WINDOW_BYTES, end)
        sums.append(words[at // WORD_BYTES : until // WORD_BYTES].sum())
        to: list[torch.Tensor] = []
        found: list[torch.Tensor] = []
        while index < len(pieces) and pieces[index].begin < until:
            piece = pieces[index]
            if at <= piece.begin and piece.end <= until:
                to.append(piece.into)
                found.append(piece.of)
            else:
                part = slice(max(at - piece.begin, 0), until - piece.begin)
                to.append(piece.into[part])
                found.append(piece.of[part])
            if piece.end > until:
                break
            index += 1
        put(to, found)
    return int(torch.stack(sums).sum())


def _pieces(
    memory: torch.Tensor, into: Sequence[torch.Tensor], of: Sequence[torch.Tensor]
) -> tuple[list[_Piece], list[tuple[torch.Tensor, torch.Tensor]]]:
    """In the order of the file; and those that are not dense on both sides."""
    pieces, others, base = [], [], memory.data_ptr()
    for to, found in zip(into, of, strict=True):
        begin = found.data_ptr() - base
        end = begin + found.numel() * found.element_size()
        if begin >= 0 and end <= memory.numel() and to.is_contiguous() and found.is_contiguous():
            pieces.append(_Piece(begin, end, _bytes(to), _bytes(found)))
        else:
            others.append((to, found))
    return sorted(pieces, key=lambda piece: piece.begin), others


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def _cores_of_a_rank() -> int:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // max(1, ranks)))
