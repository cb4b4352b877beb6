"""Have one rank of a node log a line that concerns all of them.

Any rank may be the only one that has a reason to log it, so the first one logs it. Ranks agree by
an empty file in the launcher's folder of the cycle, on tmpfs, which it removes with the cycle.
"""

from __future__ import annotations

import os


def is_first_on_node(key: str) -> bool:
    """No rank of this node has asked with this key in this cycle; also where no launcher runs."""
    of_rank = os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if not of_rank or "NVRX_CYCLE" not in os.environ:
        return True
    from hashlib import sha256  # noqa: PLC0415 - slow to import, and seldom needed

    name = sha256(key.encode(errors="backslashreplace")).hexdigest()  # of any length and characters
    path = os.path.join(os.path.dirname(of_rank), f"logged.{name}")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError:  # better twice than never
        return True
    return True
