"""Draws what a command prints in a terminal as an animated SVG: ``make recording``.

    python -m docs.recording FILE.svg COMMAND ...

The command runs in a pseudo terminal, so it prints in colour. The picture begins with the last
lines, so that a still shows them, too. Then all lines come up at the bottom in the order and rhythm
in which they were printed, pauses shortened. No script, no font and no other file is needed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from holdfast.base import clock

COLUMNS, ROWS = 92, 28
COLUMN_PX, LINE_PX, MARGIN_PX, FONT_PX = 7.83, 18, 14, 13
PAUSE_S, FIRST_S, LAST_S = 0.25, 3.0, 12.0
"""The longest pause between two lines, and how long the last lines stay, at first and at last."""
COLOURS = {"1": "b", "31": "r", "32": "g", "33": "y", "35": "v"}
"""Classes of text by the numbers that begin them (SGR)."""
_SGR = re.compile(r"\x1b\[([\d;]*)m")
_STYLE = """\
text { font: %dpx ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
       fill: #c9d1d9; white-space: pre }
.b { font-weight: bold; fill: #fff } .r { fill: #ff7b72 } .g { fill: #7ee787; font-weight: bold }
.y { fill: #e3b341 } .v { fill: #ff9bce; font-weight: bold }
#lines { animation: up %.1fs step-end infinite }
@media (prefers-reduced-motion: reduce) { #lines { animation: none } }
@keyframes up {
%s
}"""


class Line(NamedTuple):
    """What was printed, and when its end came, in seconds from the start."""

    at: float
    text: str


def record(command: Sequence[str]) -> list[Line]:
    """Run a command in a terminal, which is shown as well; its lines.

    Raises:
        SystemExit: It failed; with its exit code.
    """
    terminal, its_end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=its_end)
    os.close(its_end)
    lines, rest, start = [], b"", clock.monotonic()
    while chunk := _read(terminal):
        os.write(sys.stdout.fileno(), chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        at = clock.monotonic() - start
        lines += [Line(at, line.decode(errors="replace").rstrip("\r")) for line in whole]
    os.close(terminal)
    if code := process.wait():
        raise SystemExit(code)
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the other end was closed
        return b""


def instants(lines: Iterable[Line]) -> Iterator[float]:
    """When each line is shown: as it was printed, pauses shortened."""
    shown = last = 0.0
    for line in lines:
        shown += min(PAUSE_S, max(0.0, line.at - last))
        last = line.at
        yield shown


def marked_up(texts: Iterable[str]) -> Iterator[str]:
    """The texts of lines with classes for their colours, which may go on from line to line."""
    colour = ""
    for text in texts:
        parts = []
        for number, part in enumerate(_SGR.split(text)):
            if number % 2:
                colour = COLOURS.get(part, "")
            elif part:
                inner = escape(part)
                parts.append(f'<tspan class="{colour}">{inner}</tspan>' if colour else inner)
        yield "".join(parts)


def svg(lines: Sequence[Line]) -> str:
    """The picture."""
    at = list(instants(lines))
    whole_s = FIRST_S + (at[-1] if at else 0.0) + LAST_S
    frames = {0.0: ROWS - len(at), round(100 * FIRST_S / whole_s, 2): ROWS}
    for number, instant in enumerate(at, 1):
        frames[round(100 * (FIRST_S + instant) / whole_s, 2)] = ROWS - number
    style = _STYLE % (
        FONT_PX,
        whole_s,
        "\n".join(
            f"{share:g}% {{ transform: translateY({rows * LINE_PX}px) }}"
            for share, rows in frames.items()
        ),
    )
    width = round(COLUMNS * COLUMN_PX + 2 * MARGIN_PX)
    height = ROWS * LINE_PX + 2 * MARGIN_PX
    texts = "\n".join(
        f'<text x="{MARGIN_PX}" y="{MARGIN_PX + number * LINE_PX - 5}" xml:space="preserve">'
        f"{text}</text>"
        for number, text in enumerate(marked_up(line.text for line in lines), 1)
        if text
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f"<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n'
        f'<svg y="{MARGIN_PX}" width="{width}" height="{ROWS * LINE_PX}">'
        f'<g id="lines" transform="translate(0 {(ROWS - len(lines)) * LINE_PX})">\n'
        f'<g transform="translate(0 -{MARGIN_PX})">\n{texts}\n</g></g></svg>\n</svg>\n'
    )


def main(words: Sequence[str]) -> None:
    """Record ``words[1:]`` into the file ``words[0]``."""
    path, *command = words
    Path(path).write_text(svg(record(command)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
