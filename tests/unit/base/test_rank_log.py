"""Where a rank's log lines go, whatever the program has configured."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.base.rank_log import rank_logger
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.inplace import session
from holdfast.inprocess import _call


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Of a rank; what a test configures is taken back."""
    monkeypatch.setenv("RANK", "3")
    logger = rank_logger("holdfast_of_this_test.module")
    parents = logging.getLogger("holdfast_of_this_test"), logger
    yield logger
    for each in parents:
        each.handlers.clear()
        each.setLevel(logging.NOTSET)


@contextmanager
def nothing_configured() -> Iterator[None]:
    """As in a program of one's own; pytest adds handlers before each test begins."""
    theirs, logging.root.handlers = logging.root.handlers, []
    try:
        yield
    finally:
        logging.root.handlers = theirs


def say_all(logger: logging.Logger) -> None:
    logger.debug("a detail")
    logger.info("%s is monitored", "it")
    logger.warning("it limps")


def test_under_a_launcher_that_writes_json_the_lines_of_a_rank_are_objects(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its rank and cycle; a traceback is part of the text."""
    monkeypatch.setenv("HOLDFAST_LOG_FORMAT", "json")
    monkeypatch.setenv("NVRX_CYCLE", "2")
    with nothing_configured():
        logger.info("it is monitored")
        try:
            int("boom")
        except ValueError:
            logger.exception("it failed")

    said, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert (said["rank"], said["cycle"], said["level"]) == (3, 2, "INFO")
    assert said["text"] == "it is monitored"
    assert failed["text"].splitlines()[0] == "it failed"
    assert failed["text"].endswith("with base 10: 'boom'")


def test_info_lines_reach_the_console_of_a_program_without_logging(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with time, level, host and rank; and no handler is left anywhere."""
    package = logging.getLogger("holdfast_of_this_test")
    with nothing_configured():
        say_all(logger)
        assert [each.handlers for each in (logging.root, package, logger)] == [[], [], []]

    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line.split("holdfast: ")[1] for line in lines] == ["it is monitored", "it limps"]
    assert "[INFO]" in lines[0]
    assert "] [rank 3] holdfast: " in lines[0]
    assert out == ""


@pytest.mark.parametrize("name", ["", "holdfast_of_this_test", "holdfast_of_this_test.module"])
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.DEBUG, ["a detail", "it is monitored", "it limps"]),
        (logging.INFO, ["it is monitored", "it limps"]),
        (logging.WARNING, ["it limps"]),
    ],
)
def test_a_program_that_configures_logging_gets_each_line_once_where_it_says(
    logger: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    level: int,
    expected: list[str],
) -> None:
    """Its handler, its level, on any logger above; the console has nothing."""
    stream = io.StringIO()
    owner, before = logging.getLogger(name), logging.getLogger(name).level
    with nothing_configured():
        monkeypatch.setattr(owner, "handlers", [logging.StreamHandler(stream)])
        owner.setLevel(level)
        say_all(logger)
        owner.setLevel(before)

    assert stream.getvalue().splitlines() == expected
    assert capsys.readouterr() == ("", "")


def test_a_handler_without_a_level_leaves_what_python_shows_by_default(
    logger: logging.Logger,
) -> None:
    """logging.basicConfig(): warnings."""
    stream = io.StringIO()
    with nothing_configured():
        logging.root.addHandler(logging.StreamHandler(stream))
        say_all(logger)

    assert stream.getvalue().splitlines() == ["it limps"]


def test_a_level_without_a_handler_holds_on_the_console(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Set on the package, or for all."""
    logging.getLogger("holdfast_of_this_test").setLevel(logging.ERROR)
    with nothing_configured():
        say_all(logger)
        logger.error("it fell")
    assert [line.split(": ")[-1] for line in capsys.readouterr().err.splitlines()] == ["it fell"]

    logging.disable(logging.CRITICAL)
    try:
        with nothing_configured():
            logger.error("it fell")
    finally:
        logging.disable(logging.NOTSET)
    assert capsys.readouterr().err == ""


def test_variables_choose_stream_and_level_of_the_console(
    logger: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVRX_LOG_DEBUG and NVRX_LOG_TO_STDOUT, as in the launcher."""
    monkeypatch.setenv("NVRX_LOG_DEBUG", "1")
    monkeypatch.setenv("NVRX_LOG_TO_STDOUT", "1")
    with nothing_configured():
        say_all(logger)

    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err == ""


def test_client_and_wrapper_speak_through_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Their info lines need no handler of the program's."""
    with nothing_configured():
        client = RankMonitorClient()
        for log in (client.logger, _call.log, session.log):
            log.info("from %s", log.name)

    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("from ")[2] for line in lines[-3:]] == [
        "holdfast.fault_tolerance.rank_monitor_client",
        "holdfast.inprocess.wrap",
        "holdfast.inplace.session",
    ]
    assert isinstance(client.logger, logging.Logger)


@pytest.fixture(
    params=["nvrx", "nvidia_resiliency_ext", "nvidia_resiliency_ext.inprocess", "...inprocess.wrap"]
)
def theirs(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """A logger of the other implementation that a program configures."""
    theirs = logging.getLogger(request.param.replace("...", "nvidia_resiliency_ext."))
    yield theirs
    theirs.handlers.clear()
    theirs.setLevel(logging.NOTSET)
    theirs.propagate = True


def test_a_level_for_the_other_names_counts(
    theirs: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up and down, where nothing is set for our own."""
    ours = logging.getLogger("holdfast")
    with nothing_configured():
        theirs.setLevel(logging.DEBUG)
        say_all(_call.log)
        theirs.setLevel(logging.ERROR)
        say_all(_call.log)
        ours.setLevel(logging.WARNING)
        try:
            say_all(_call.log)
        finally:
            ours.setLevel(logging.NOTSET)

    said = [line.split("holdfast: ")[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["a detail", "it is monitored", "it limps", "it limps"]


def test_a_handler_of_the_other_names_gets_our_records(
    theirs: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its level; the console does not, and the root does unless it is told otherwise."""
    stream, root = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    with nothing_configured():
        theirs.addHandler(handler)
        theirs.setLevel(logging.INFO)
        say_all(_call.log)
        logging.root.handlers = [logging.StreamHandler(root)]
        say_all(_call.log)
        theirs.propagate = False
        say_all(_call.log)

    assert stream.getvalue() == "it limps\n" * 3
    assert root.getvalue() == "it is monitored\nit limps\n"
    assert capsys.readouterr() == ("", "")
