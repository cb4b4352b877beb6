"""``holdfast report``, ``holdfast runs`` and ``holdfast trace``: read folders, change nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.observe.run_list import NoSuchRunError, find_runs, resolve

_REPORT = """\
usage: holdfast report [RUN ...] [--html FILE | --json]

Tells the story of a run: where its time went, what failed, and how it went on.
Works while the job runs, and when its launcher was killed.

  RUN          folder of a run, a log folder (its newest run), or a run id;
               several folders are the nodes of one job. Without: the newest run
  --html FILE  one page with all of it, which needs no network
  --json       for programs; docs/report.md has the fields

Exit code: 0; 2 if there is no such run.
"""
_RUNS = """\
usage: holdfast runs [LOG FOLDER ...]

Lists runs, the newest last: of the temp folder, of launchers that run now, and
of these log folders (--log-dir of ft_launcher). A job that ended well without
--log-dir has left nothing.
"""
_TRACE = """\
usage: holdfast trace [RUN ...] [-o FILE]

Writes the timeline of a run as a Chrome trace, for https://ui.perfetto.dev or
chrome://tracing: a track for each rank, node and launcher. RUN is as for holdfast
report. Without -o FILE it goes to trace.json.gz in the present folder; "-o -" is
stdout, a name that ends with .gz is compressed.
"""
_HELP = {"report": _REPORT, "runs": _RUNS, "trace": _TRACE}
_WRONG = 2


class _UsageError(Exception):
    """The command line makes no sense; the text says why."""


def main(command: str, words: Sequence[str]) -> int:
    """One of the commands; returns the exit code."""
    if any(word in ("-h", "--help") for word in words):
        sys.stdout.write(_HELP[command])
        return 0
    try:
        text = {"report": _report, "runs": _runs, "trace": _trace}[command](list(words))
    except (_UsageError, NoSuchRunError, FileNotFoundError) as error:
        sys.stderr.write(f"holdfast {command}: error: {error}\n")
        return _WRONG
    except OSError as error:
        sys.stderr.write(f"holdfast {command}: error: {error.filename or ''}: {error.strerror}\n")
        return 1
    return _show(text)


def _show(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # "| head" has seen enough
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - nor at the end
    return 0


def _option(words: list[str], *names: str) -> str | None:
    """Take an option with its value out of the words."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if equals:
            del words[index]
            return value
        if index + 1 == len(words):
            raise _UsageError(f"{word} needs a file")
        value = words[index + 1]
        del words[index : index + 2]
        return value
    return None


def _no_options(words: Sequence[str]) -> None:
    unknown = [word for word in words if word.startswith("-")]
    if unknown:
        raise _UsageError(f"unknown option {unknown[0]!r}")


def _report(words: list[str]) -> str:
    to_json = "--json" in words
    words = [word for word in words if word != "--json"]
    html = _option(words, "--html")
    _no_options(words)
    if to_json and html is not None:
        raise _UsageError("--json and --html exclude each other")
    from holdfast.observe.report import as_json, tell  # noqa: PLC0415 - what is used
    from holdfast.observe.run_files import read_run  # noqa: PLC0415

    story = tell(read_run(resolve(words)))
    if to_json:
        import json  # noqa: PLC0415

        return json.dumps(as_json(story), indent=1) + "\n"
    if html is not None:
        from holdfast.observe.report_html import as_html  # noqa: PLC0415

        _write(html, as_html(story))
        return "" if html == "-" else f"{html}\n"
    from holdfast.observe.report_text import as_text  # noqa: PLC0415

    return as_text(story)


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


def _runs(words: list[str]) -> str:
    _no_options(words)
    missing = [word for word in words if not Path(word).is_dir()]
    if missing:
        raise _UsageError(f"{missing[0]} is not a folder")
    from holdfast.observe.report_text import runs_table  # noqa: PLC0415 - what is used
    from holdfast.observe.run_files import read_run  # noqa: PLC0415

    runs = [read_run([folder]) for folder in find_runs(Path(word) for word in words)]
    if not runs:
        return (
            "no runs here: name the log folder that --log-dir named, or see holdfast runs --help\n"
        )
    return runs_table(runs)


def _trace(words: list[str]) -> str:
    out = _option(words, "-o", "--output") or "trace.json.gz"
    _no_options(words)
    import json  # noqa: PLC0415

    from holdfast.observe.report import tell  # noqa: PLC0415 - what is used
    from holdfast.observe.run_files import read_run  # noqa: PLC0415
    from holdfast.observe.trace import trace_of  # noqa: PLC0415

    text = json.dumps(trace_of(tell(read_run(resolve(words)))), separators=(",", ":"))
    if out.endswith(".gz"):
        import gzip  # noqa: PLC0415

        with gzip.open(out, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        _write(out, text + "\n")
    return "" if out == "-" else f"{out}\n"
