"""``holdfast report`` and ``holdfast trace``: read folders, change nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.options.option import UsageError
from holdfast.tools.command_words import (
    named_runs,
    run_command,
    take_flag,
    take_option,
    without_options,
)
from holdfast.tools.run_list import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools.report.report import Story
    from holdfast.tools.run.run_files import Run

_REPORT = """\
usage: holdfast report [RUN ...] [--html FILE | --json]
       holdfast report A B [--html FILE | --json]

Explains a run: what failed, where, why, what to do; where its time went; how it
continued. Works while the job runs, and when its launcher was killed. Of two
runs of different jobs: where they differ.

  RUN, A, B    folder of a run, a log folder (its newest run), or a run id;
               several folders are the nodes of one job. Without: the newest run
  --html FILE  one page with all of it, which needs no network
  --json       for programs; docs/report.md has the fields

Exit code: 0; 1 if something cannot be read or written; 2 if there is no such
run or option.
"""
_TRACE = """\
usage: holdfast trace [RUN ...] [-o FILE]

Writes the timeline of a run as a Chrome trace, for https://ui.perfetto.dev or
chrome://tracing: a track for each rank, node and launcher. RUN is as for holdfast
report. Without -o FILE it goes to trace.json.gz in the present folder; "-o -" is
stdout, a name that ends with .gz is compressed.
"""
_GZIP_LEVEL = 6
"""9 takes twice as long, for a tenth less."""


def main(command: str, words: Sequence[str]) -> int:
    """One of the commands; returns the exit code."""
    usage, make_text = _COMMANDS[command]

    def act(words: list[str]) -> int:
        sys.stdout.write(make_text(words))
        return 0

    return run_command(command, words, usage, act)


def _report(words: list[str]) -> str:
    to_json, html = take_flag(words, "--json"), take_option(words, "--html")
    without_options(words)
    if to_json and html is not None:
        raise UsageError("--json and --html exclude each other")
    from holdfast.tools.report.report import as_json, story_of  # noqa: PLC0415 - where used
    from holdfast.tools.run.run_files import read_run  # noqa: PLC0415

    folders = named_runs("report", words)
    if (two := _two_jobs(words)) is not None:
        return _compared(*map(story_of, two), to_json=to_json, html=html)
    story = story_of(read_run(folders))
    if to_json:
        import json  # noqa: PLC0415

        return json.dumps(as_json(story), indent=1) + "\n"
    if html is not None:
        from holdfast.tools.report.report_html import as_html  # noqa: PLC0415

        _write(html, [as_html(story)])
        return "" if html == "-" else f"{html}\n"
    from holdfast.tools.report.report_text import as_text  # noqa: PLC0415

    return as_text(story)


def _two_jobs(words: list[str]) -> tuple[Run, Run] | None:
    """The runs that two words name; None: they are nodes of one job, or not two words."""
    if len(words) != 2:
        return None
    from holdfast.tools.report.compare import are_two_jobs  # noqa: PLC0415 - where used
    from holdfast.tools.run.run_files import read_run  # noqa: PLC0415

    one, other = (read_run(resolve([word])) for word in words)
    return (one, other) if are_two_jobs(one, other) else None


def _compared(one: Story, other: Story, *, to_json: bool, html: str | None) -> str:
    from holdfast.tools.report import compare  # noqa: PLC0415 - where used

    if to_json:
        import json  # noqa: PLC0415

        return json.dumps(compare.compared_as_json(one, other), indent=1) + "\n"
    if html is not None:
        _write(html, [compare.compared_as_html(one, other)])
        return "" if html == "-" else f"{html}\n"
    return compare.compared_as_text(one, other)


def _write(path: str, parts: Iterable[str]) -> None:
    """Whole or not at all: a full disk leaves the file of before."""
    if path == "-":
        sys.stdout.writelines(parts)
        return
    target = Path(os.path.realpath(path))
    made = target.parent / f".{target.name}.{os.getpid()}"
    try:
        if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
            _write_to(target, path, parts)  # a device, a pipe, a file in another user's folder
            return
        _write_to(made, path, parts)
        made.replace(target)
    except OSError as error:
        error.filename, error.filename2 = path, None
        raise
    finally:
        with contextlib.suppress(OSError):
            made.unlink()


def _write_to(target: Path, name: str, parts: Iterable[str]) -> None:
    """Compressed, if the name that was given says so."""
    data = (part.encode(errors="backslashreplace") for part in parts)
    with target.open("wb") as file:
        if not name.endswith(".gz"):
            file.writelines(data)
            return
        import gzip  # noqa: PLC0415 - where it is used

        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file) as packed:
            packed.writelines(data)


def _trace(words: list[str]) -> str:
    out = take_option(words, "-o", "--output") or "trace.json.gz"
    without_options(words)
    from holdfast.tools.report.trace import trace_lines  # noqa: PLC0415
    from holdfast.tools.run.run_files import read_run  # noqa: PLC0415 - where used

    _write(out, trace_lines(read_run(named_runs("trace", words))))
    return "" if out == "-" else f"{out}\n"


_COMMANDS = {"report": (_REPORT, _report), "trace": (_TRACE, _trace)}
