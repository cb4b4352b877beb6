"""``make recording``: the lines that a command prints in a terminal, as a picture."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

from docs.recording import PAUSE_S, ROWS, Line, instants, record, svg

from tests.unit.test_docs import ROOT

TEXT = "{http://www.w3.org/2000/svg}text"


def test_a_command_is_recorded_as_in_a_terminal(capfd):
    """It may print in colour, and what it prints is seen as well."""
    program = (
        "import sys; print('on a terminal:', sys.stdout.isatty()); print('\\033[1mbold\\033[0m')"
    )
    lines = record([sys.executable, "-c", program])
    assert [line.text for line in lines] == ["on a terminal: True", "\033[1mbold\033[0m"]
    assert "on a terminal: True" in capfd.readouterr().out


def test_pauses_are_shortened_and_the_order_is_kept():
    lines = [Line(0.1, "a"), Line(0.2, "b"), Line(60.0, "c")]
    assert [round(at, 2) for at in instants(lines)] == [0.1, 0.2, round(0.2 + PAUSE_S, 2)]


def test_a_colour_goes_on_in_the_next_line_until_it_is_ended():
    drawn = ET.fromstring(svg([Line(0, "\033[33mone <"), Line(1, "two\033[0m three")]))
    found = [[(span.get("class"), span.text) for span in line] for line in drawn.iter(TEXT)]
    assert found == [[("y", "one <")], [("y", "two")]]


def test_without_animation_the_last_lines_are_seen():
    drawn = svg([Line(at, f"line {at}") for at in range(ROWS + 10)])
    assert '<g id="lines" transform="translate(0 -180)">' in drawn


def test_a_still_shows_the_last_lines() -> None:
    """Of a page that is printed, or a picture that is shown before it moves."""
    drawn = svg([Line(at, f"line {at}") for at in range(ROWS + 10)])
    frames = re.findall(r"([\d.]+)% { transform: translateY\((-?\d+)px\) }", drawn)
    assert frames[0] == ("0", "-180")
    assert frames[-1][1] == frames[0][1]
    assert int(frames[1][1]) == (ROWS - 1) * 18, "then the first line comes up"


def test_the_verdict_is_in_the_last_lines_in_a_colour_of_its_own() -> None:
    drawn = ET.parse(ROOT / "docs" / "_static" / "demo.svg")
    lines = [("".join(line.itertext()), line.find("*")) for line in drawn.iter(TEXT)]
    [(text, span)] = [each for each in lines[-ROWS:] if " verdict " in each[0]]
    assert "holds the interpreter's lock" in text
    assert span is not None
    assert span.get("class") == "v"


def test_the_picture_in_the_readme_is_a_demo_that_succeeded():
    drawn = ET.parse(ROOT / "docs" / "_static" / "demo.svg")
    lines = ["".join(line.itertext()) for line in drawn.iter(TEXT)]
    assert lines[-1] == "weights equal: yes"
    assert any("in place" in line for line in lines)
