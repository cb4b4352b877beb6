"""Layout of the page: facts that a rank shows in shared memory, without sending a message.

One page per rank and cycle for its monitor (a file on tmpfs), and one per call of a function that
is restarted in place (anonymous memory) for its node guard. It is an array of aligned 8-byte words,
each a float in native byte order. **One fact is one word with one writer**, written and read
through ``memoryview(...).cast("d")``, which the hardware makes indivisible (``struct.pack_into`` is
not a store: readers see zeros). Times are seconds of CLOCK_MONOTONIC; 0.0 means "not running".

There is no sequence lock. Facts that change together are stored in an order whose in-between view
is harmless, and a reader acts only when a second read agrees:

    open a section    store its OPENED_AT, then clear OUTSIDE_SINCE
    close a section   store OUTSIDE_SINCE (if nothing else is open), then clear its OPENED_AT
    arm               store everything else first, ARMED_AT last; disarm: clear ARMED_AT first
    leave             store LEFT_AT, then disarm
    timeouts          make LIMITS_VERSION odd, store the timeouts, make it even (cold path)

    word  0 .. 39              one fact each, names below
    word 40 + 8*i .. 47 + 8*i  section slot i: opened at, longest seen, limit, learned (0/1), and,
                               of ended times: seconds, number, first opening, last closing
    byte NAMES_OFFSET ..       JSON list of the section names, slot order, NAMES_BYTES long
"""

from __future__ import annotations

PAGE_BYTES = 40960
"""Size of the file."""
NAMES_OFFSET = 16448
"""Byte offset of the table of section names."""
N_WORDS = NAMES_OFFSET // 8
LAYOUT_VERSION = 3.0

VERSION = 0  # LAYOUT_VERSION, stored last by the creator
CYCLE = 1  # the creator's cycle number
ARMED_AT = 2  # when the rank asked to be monitored; 0: not monitored. The start of the first clocks
PID = 3  # of the writer
START_TICKS = 4  # of the writer (field 22 of /proc/PID/stat), tells a recycled pid apart
HEARTBEAT_AT = 5  # last heartbeat; 0: none since ARMED_AT, or since it waits in the Wrapper
OUTSIDE_SINCE = 6  # since when no section is open; 0: one is
ITERATION = 7  # training iteration, if the rank reports it; -1: it does not
WARM_UNTIL = 8  # no out-of-section verdict while ITERATION is below this; 0: always enforced
DUMP_SIGNAL = 9  # signal number that dumps the rank's stacks; 0: none registered, never send one
LIMITS_VERSION = 10  # even and > 0: the limit words are complete
LIMIT_INITIAL = 11  # seconds, inf: none
LIMIT_HEARTBEAT = 12
LIMIT_OUTSIDE = 13
LEARNED_HEARTBEAT = 14  # 1: both heartbeat limits were calculated from measured intervals
LEARNED_OUTSIDE = 15
GLOBAL_RANK = 16
LOCAL_RANK = 17
N_SECTIONS = 18  # valid slots
NAMES_BYTES = 19
LONGEST_INITIAL = 20  # longest intervals seen, seconds, -1: never; for live views
LONGEST_GAP = 21
LONGEST_OUTSIDE = 22
SECTION_ENDS_INITIAL = 23  # 1: LIMIT_INITIAL is a default, so the first section ends it, too
USED_SECTIONS = 24  # 1: since ARMED_AT it has opened a section, with a slot or not, or is a spare
LEFT_AT = 25  # when the rank left its monitor, and is expected to end; 0: it has not
STEPS = 26  # optimizer steps, of a rank that reports nothing else: its heartbeats; 0: it does

# Restart in place: marks for the node guard. The rank writes all but LEASE_UNTIL.
AUTOMATIC = 27  # when the main thread last ran Python code
MANUAL = 28  # when the user's function last called ``ping()``
THREAD = 29  # when the watcher thread last had the interpreter
UNLIMITED = 30  # 1: the function has switched its timeouts off for a while
WAITS = 31  # 1: when the watcher thread last checked, the main thread waited for other ranks
LEASE_UNTIL = 32  # until when the rank may run; 0: no end. The rank's until it attaches, then the
#                   guard's (``inplace/pure/lease.py``)
NUMBER = 33  # one more than torch's number of this process in its call; 0: not known

# Optimizer steps of a rank that reports by itself
STEPS_BESIDE = 34  # how many since ARMED_AT; 0: none, or they are not counted
STEPPED_AT = 35  # the last one
LONGEST_STEP = 36  # longest time between two, seconds, -1: never

SLOTS = 40  # first word of the section slots
SLOT_WORDS = 8
OPENED_AT, LONGEST, LIMIT, LEARNED, TOTAL_S, TIMES, FIRST_AT, CLOSED_AT = range(SLOT_WORDS)
"""Offsets within a slot. The last four are up to ``PUBLISH_S`` of section time behind."""
PUBLISH_S = 0.001
MAX_SECTIONS = (N_WORDS - SLOTS) // SLOT_WORDS
"""How many sections one rank can have (252)."""


def slot(index: int) -> int:
    """First word of section slot ``index``."""
    return SLOTS + SLOT_WORDS * index
