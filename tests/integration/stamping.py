"""A process that stamps, and does what it is told: ``python stamping.py FILE``."""

import ctypes
import mmap
import sys
import threading
import time
from pathlib import Path

from holdfast.page.stamps import Stamps


def main() -> None:
    with Path(sys.argv[1]).open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("d")
    stamps = Stamps(words, main=0, thread=1)
    stamps.begin()

    def watch() -> None:
        while True:
            stamps.beat()
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    holding = ctypes.PyDLL(None)  # calls of it keep the interpreter
    for line in sys.stdin:
        print(line, end="", flush=True)
        if line == "loop\n":
            give_up_at = time.monotonic() + 30
            while time.monotonic() < give_up_at:
                pass
        elif line == "sleep\n":
            time.sleep(30)
        elif line == "hold\n":
            holding.sleep(30)


if __name__ == "__main__":
    main()
