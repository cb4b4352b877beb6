"""Have the kernel end a process first when memory runs out, for a while.

The kernel ends the process with the highest score: its share of the memory, in thousandths, and
``oom_score_adj``, which goes from -1000 to 1000. A process with 1000 scores higher than any other
that has 0 or less, however large. Raising the value is always allowed. Lowering is, down to the
value that a process with CAP_SYS_RESOURCE has written last; a process inherits that bound.
"""

from __future__ import annotations

FIRST_VICTIM = 1000


def adjustment(pid: int | str = "self") -> int:
    """``oom_score_adj`` of a process.

    Raises:
        OSError: It has ended, or there is no such file.
    """
    with open(f"/proc/{pid}/oom_score_adj", "rb") as file:
        return int(file.read())


def make_first_victim(pid: int) -> int:
    """Raise the value of a process to 1000, once it is shown that it can be lowered again.

    Returns:
        The value that it had.

    Raises:
        OSError: The system does not allow it, or the process has ended.
    """
    usual = adjustment(pid)
    for value in (FIRST_VICTIM, usual, FIRST_VICTIM):
        set_adjustment(pid, value)
    return usual


def set_adjustment(pid: int, value: int) -> None:
    """Write the value, and read it back: some sandboxes ignore a write.

    Raises:
        OSError: It is not the value afterwards.
    """
    with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"%d" % value)
    if (found := adjustment(pid)) != value:
        raise OSError(f"oom_score_adj of process {pid} is {found} after {value} was written")
