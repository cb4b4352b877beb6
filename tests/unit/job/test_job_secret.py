"""The secret of a job's launchers: where it is taken from, and where it must not be seen."""

from __future__ import annotations

import pytest

from holdfast.job.pure.job_secret import SECRET, drop_secret, without_secret
from holdfast.node.processes.worker_env import RankPlace, rank_env
from holdfast.options.arguments import UsageError, parse_args
from holdfast.options.help import describe_config
from holdfast.options.plan import LaunchPlan, make_plan

WORD = "correct-horse-battery"
NODES = ("--nnodes=2", "--rdzv-endpoint=h:1")


def plan(*words: str, **environ: str) -> LaunchPlan:
    return make_plan(parse_args([*NODES, *words, "--no-python", "true"], environ=environ), environ)


def test_the_secret_is_taken_from_the_environment_or_the_command_line() -> None:
    """The command line comes first; nothing, and the empty text, are none."""

    def secret(*words: str, **environ: str) -> str | None:
        meeting = plan(*words, **environ).meeting
        assert meeting is not None
        assert not meeting.warnings
        return meeting.place.secret

    assert secret() is None
    assert secret(**{SECRET: ""}) is None
    assert secret(**{SECRET: WORD}) == WORD
    assert secret(f"--rdzv-conf=is_host=1,secret={WORD}", **{SECRET: "other" * 5}) == WORD
    assert secret(PET_RDZV_CONF=f"secret={WORD}") == WORD


def test_a_secret_that_can_be_guessed_is_warned_of_without_saying_it() -> None:
    meeting = plan(**{SECRET: "tiger"}).meeting
    assert meeting is not None
    (warning,) = meeting.warnings
    assert "has 5 characters" in warning
    assert "tiger" not in warning


def test_the_secret_is_not_shown_by_anything_that_shows_a_job() -> None:
    """``--print-config``, a plan in a traceback, what other backends of torch are told."""
    words = (*NODES, f"--rdzv-conf=is_host=1,secret={WORD},timeout=9", "--no-python", "true")
    config = describe_config(parse_args(words, environ={}))
    assert "is_host=1,secret=***,timeout=9" in config
    other = plan(f"--rdzv-conf=a=b,secret={WORD}", "--rdzv-backend=etcd")
    assert other.meeting is not None
    assert other.meeting.place.other is not None
    assert other.meeting.place.other.conf == {"a": "b"}
    for shown in (config, repr(other), repr(plan(**{SECRET: WORD}))):
        assert WORD not in shown


@pytest.mark.parametrize(
    "conf",
    [
        f"secret={WORD},timeout=x",
        f"timeout=x,secret={WORD}",
        f"secret={WORD},is_host",
        f"a,secret=1,{WORD}",
        f"secret=a,{WORD},b=c",
        f" secret = {WORD} ,timeout=x",
    ],
)
def test_an_error_on_the_command_line_does_not_show_the_secret(conf: str) -> None:
    """Not even the part of it behind a comma, which is no secret of ours any more."""
    with pytest.raises(UsageError) as error:
        plan(f"--rdzv-conf={conf}")
    assert WORD not in str(error.value)


@pytest.mark.parametrize(
    ("conf", "shown"),
    [
        ("secret=x", "secret=***"),
        ("is_host=1,secret=x,y,timeout=3", "is_host=1,secret=***,timeout=3"),
        ("my_secret=x", "my_secret=x"),
        ("is_host=1", "is_host=1"),
    ],
)
def test_what_people_see_of_rdzv_conf(conf: str, shown: str) -> None:
    assert without_secret(conf) == shown


def test_ranks_do_not_inherit_the_secret() -> None:
    """They have no use for it, and their environment is copied into many places."""
    base = {SECRET: WORD, "PET_RDZV_CONF": f"is_host=1,secret={WORD}", "HOME": "/"}
    place = RankPlace(0, 0, 0, 1, 1, 1, 0, "h", 1)
    env = rank_env(plan(), place, base, "s", None)
    assert not any(WORD in value for value in env.values())
    assert (env["PET_RDZV_CONF"], env["HOME"]) == ("is_host=1", "/")
    assert base[SECRET] == WORD

    drop_secret(base)
    assert base == {"PET_RDZV_CONF": "is_host=1", "HOME": "/"}
