"""Layout of an arena: the memory of one rank's snapshots. Its launcher makes it, the rank writes.

A memory file. Its first page holds aligned 8-byte integers in native byte order, through
``memoryview(...).cast("q")``: one fact is one word with one writer, as in the page of a monitor
(``page/pure/page.py``). Each slot holds one snapshot, which is a valid safetensors file, and has
room to grow: the memory file is sparse. ::

    word   0 .. 31            facts of the arena, names below
    word  32 + 16*i ..        slot i: one fact each, offsets below
    byte  SLOT_STRIDE*(i+1)   the bytes of slot i, of which CAPACITY are reserved

The commit of a snapshot, in this order, so that a rank may be killed at any instant::

    COMMIT := 0; the bytes; every other word of the slot; COMMIT := STEP + 1

A reader takes a slot only where ``COMMIT == STEP + 1``, and reads ``COMMIT`` again afterwards:
another value means that the bytes it has read may be a mixture. The sum follows the commit, later,
from another thread: ``SUM`` counts where ``SUMMED == COMMIT``.

Another process *pins* a step, so that its slot is not written again. Each side stores its word
first, and then reads that of the other, so that one of them sees the other at least::

    the rank     WRITES := the slot; reads the pins: is the slot's step among them, it takes another
    the other    pin := step; reads WRITES: is it the slot that holds the step, it came too late

So does the process that writes copies of other nodes' snapshots, with its launcher's ``LISTED`` in
the place of a pin: from then on it overwrites no snapshot.
"""

from __future__ import annotations

HEAD_BYTES = 4096
"""Of the first page."""
SLOT_STRIDE = 1 << 40
"""From one slot to the next; nothing of it takes memory before it is reserved."""
MAX_SLOTS = 8
LAYOUT_VERSION = 2

VERSION = 0  # LAYOUT_VERSION, stored last by the launcher
N_SLOTS = 1  # slots that the rank may use; the launcher's
EVERY = 2  # snapshots are taken of steps that this divides; 0: not agreed yet. The launcher's
EVERY_FROM = 3  # from this step on. The launcher stores it before EVERY
LAST_STEP = 4  # the last step that the rank has ended, with or without a snapshot; -1: none
TAKEN_AT = 5  # nanoseconds of CLOCK_MONOTONIC at the last commit; 0: none
TAKE_NS = 6  # the time that a snapshot costs the training, median of the last ones; 0: not known
STEP_NS = 7  # from one step to the next, likewise
TAKEN = 8  # snapshots taken since the rank started
SKIPPED = 9  # and those for which there was no free slot, or no memory
SPENT_NS = 10  # the time that they have cost the training since then, all together
KEEP = 11  # the step that is to be kept at a peer node; 0: none. The launcher's, as the next
KEPT = 12  # the step that is kept there; 0: none
RESCUE = 13  # the step that is being written to disk (holdfast rescue); 0: none. That command's
WRITES = 14  # the copy that its writer makes or begins: 1 + slot + MAX_SLOTS * step; 0: none
LISTED = 15  # the leader has a list of these snapshots, so they stay; 0: no. The launcher's
VOID_UNTIL = 16  # the last life that the rank has given up: 1 + iteration + LIFE * cycle; 0: none
PINS = (KEEP, KEPT, RESCUE)
"""Words that name a step: the slot that holds it is not written."""

LIFE = 1 << 32
SLOTS = 32  # first word of the slots
SLOT_WORDS = 16
COMMIT, STEP, CYCLE, ITERATION, RANK, WORLD_SIZE, BYTES, CAPACITY, SUM, SUMMED = range(10)
"""Offsets within a slot. ``CYCLE``, ``ITERATION``: the life that it was taken in. ``RANK``,
``WORLD_SIZE``: of the rank that took it. ``BYTES``: of the file. ``CAPACITY``: reserved. ``SUM``:
of the file's bytes, as :func:`holdfast.arena.sums.checksum` adds them."""


def slot(index: int) -> int:
    """First word of slot ``index``."""
    return SLOTS + SLOT_WORDS * index


def slot_offset(index: int) -> int:
    """First byte of slot ``index`` in the memory file."""
    return SLOT_STRIDE * (index + 1)


def file_bytes(n_slots: int) -> int:
    """Size of the memory file."""
    return SLOT_STRIDE * (n_slots + 1)
