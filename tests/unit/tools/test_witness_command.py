"""``holdfast witness``: its command line."""

from __future__ import annotations

import math

import pytest

from holdfast.cli import main
from holdfast.options.option import UsageError
from holdfast.tools.witness import meeting_of

SECRET = {"HOLDFAST_JOB_SECRET": "correct horse battery staple"}


def test_it_meets_the_job_where_its_launchers_do_and_never_serves_there() -> None:
    words = [
        "node0:29400",
        "--rdzv-id=j",
        "--rdzv-conf",
        "keep_alive_timeout=5,last_call_timeout=1",
    ]
    place, pace = meeting_of(words, SECRET)
    assert (place.host, place.port, place.run_id) == ("node0", 29400, "j")
    assert place.secret == SECRET["HOLDFAST_JOB_SECRET"]
    assert place.is_witness
    assert place.is_host is False
    assert place.silence_s == pace.silence_s == 5.0
    assert place.connect_s == math.inf


def test_its_defaults_are_those_of_launchers() -> None:
    place, pace = meeting_of(["node0", "--join-timeout", "60"], {})
    assert (place.port, place.run_id, place.secret) == (29500, "none", None)
    assert (place.connect_s, pace.silence_s) == (60.0, 15.0)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a:1", "b:2"],
        ["a:99999"],
        ["a:1", "--join-timeout", "soon"],
        ["a:1", "--rdzv-conf", "keep_alive_timeout"],
        ["a:1", "--rdzv-conf", "keep_alive_timeout=x"],
        ["a:1", "--nnodes", "2"],
    ],
)
def test_what_cannot_be_used_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        meeting_of([*words], {})
    assert main(["witness", *words]) == 2
    assert capsys.readouterr().err.startswith("holdfast witness: error: ")


def test_its_help_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["witness", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--rdzv-id", "--rdzv-conf", "--local-addr", "--join-timeout"):
        assert option in shown
