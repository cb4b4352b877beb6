"""``holdfast top`` and ``holdfast view``: what their words mean."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from holdfast.options.option import UsageError
from holdfast.tools.command_words import (
    WRONG,
    named_runs,
    run_command,
    take_flag,
    take_option,
    without_options,
)
from holdfast.tools.run_list import NoSuchRunError, resolve

_TOP = """\
usage: holdfast top [RUN ...] [--once | --json] [--sort WORD]

Shows the ranks of a running job, a line each: which section or optimizer step they
are in and for how long, against its timeout; steps per second, and over time; ranks
slower than their peers; the last failure. Keys: s sorts, enter shows where a rank
is, D where all are, merged. Without a name, the next run is shown when one is over.

  RUN          folder of a run, a log folder (its newest run), or a run id;
               several folders are the nodes of one job. Without: the newest run
  --once       print it once, as text
  --json       print it once, for programs
  --sort WORD  of --once: rank, used, slow (rank)

Needs holdfast[view], but for --once and --json. Ranks can be inspected on the
host they run on.
"""
_VIEW = """\
usage: holdfast view [RUN ...] [--port PORT] [--host ADDRESS] [--token TEXT]

The same as holdfast top, on a page in a browser.

  RUN             as for holdfast top
  --port PORT     where to listen (8265; 0: any that is free)
  --host ADDRESS  of this host; the default, 127.0.0.1, is for this host alone:
                  from elsewhere use ssh -L 8265:localhost:8265 NODE
  --token TEXT    lets a user that gives it ask ranks for their stacks. Without it the
                  link that is printed has one; with --host the page then only shows.
                  HOLDFAST_VIEW_TOKEN does the same, unseen by ps

Needs holdfast[view].
"""
_PORT = 8265
_TOKEN_BYTES = 16
_DUMB = ("dumb", "unknown")


def main(command: str, words: Sequence[str]) -> int:
    """One of the commands; returns the exit code."""
    usage, act = (_TOP, _top) if command == "top" else (_VIEW, _view)
    try:
        return run_command(command, words, usage, act)
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"holdfast {command}: error: needs {error.name}: pip install 'holdfast[view]'"
            f"{', or give --once' if command == 'top' else ''}\n"
        )
    except KeyboardInterrupt:
        return 0
    return WRONG


def _top(words: list[str]) -> int:
    is_json, once = take_flag(words, "--json"), take_flag(words, "--once")
    sort = take_option(words, "--sort")
    without_options(words)
    from holdfast.tools.view.live import LiveJob  # noqa: PLC0415 - once the words make sense
    from holdfast.tools.view.newest import NewestRun  # noqa: PLC0415
    from holdfast.tools.view.words import SORTS, as_text  # noqa: PLC0415

    if sort is not None and sort not in SORTS:
        raise UsageError(f"--sort: {sort!r} is none of {', '.join(SORTS)}")
    if is_json or once:
        view = LiveJob(named_runs("top", words)).look()
        sys.stdout.write(
            json.dumps(view.as_json()) + "\n" if is_json else as_text(view, sort or "rank")
        )
        return 0
    if lacks := _why_no_screen():
        resolve(words)  # an error in the words is the first to be reported
        raise UsageError(f"{lacks}: give --once, or --json")
    from holdfast.tools.view.top import Top  # noqa: PLC0415 - needs textual

    if sys.__stderr__ is not None and not sys.__stderr__.isatty():
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]  # there textual draws
    _named_or_awaited("top", words)
    Top(NewestRun(lambda: resolve(words))).run()
    return 0


def _named_or_awaited(command: str, words: list[str]) -> None:
    """Say which run these words name; without words there may be none yet."""
    try:
        named_runs(command, words)
    except NoSuchRunError:
        if words:
            raise
        sys.stderr.write(f"holdfast {command}: no run of yours here yet: waiting for one\n")


def _why_no_screen() -> str:
    """Why nothing live can be shown; empty: it can be."""
    for name, stream in (("stdout", sys.stdout), ("stdin", sys.stdin)):
        if stream is None or not stream.isatty():
            return f"{name} is not a terminal"
    term = os.environ.get("TERM")
    return f"this terminal cannot move its cursor (TERM={term})" if term in _DUMB else ""


def _view(words: list[str]) -> int:
    host = take_option(words, "--host") or "127.0.0.1"
    port = take_option(words, "--port") or str(_PORT)
    token = take_option(words, "--token") or os.environ.get("HOLDFAST_VIEW_TOKEN") or None
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--port: {port!r} is not a port")
    _named_or_awaited("view", list(without_options(words)))
    import secrets  # noqa: PLC0415 - once the words make sense
    import socket  # noqa: PLC0415 - once the words make sense

    import uvicorn  # noqa: PLC0415 - an extra

    from holdfast.tools.view.newest import NewestRun  # noqa: PLC0415
    from holdfast.tools.view.run_choice import RunChoice  # noqa: PLC0415
    from holdfast.tools.view.web import LOCAL, make_app  # noqa: PLC0415

    is_local = host in ("127.0.0.1", "::1", "localhost")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}; --port 0 takes one that is "
            "free"
        ) from None
    shown = f"[{host}]" if ":" in host else host
    link = ""
    if token is None and is_local:  # the part after # goes to no server, and to no log
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        link = f"#token={token}"
    sys.stdout.write(f"http://{shown}:{listener.getsockname()[1]}/{link}\n")
    sys.stdout.flush()
    choice = None if words else RunChoice()
    app = make_app(NewestRun(lambda: resolve(words)), token, LOCAL if is_local else None, choice)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])
    return 0
