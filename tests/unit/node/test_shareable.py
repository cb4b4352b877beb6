"""A command line and an environment in a report: useful, without secrets."""

import pytest

from holdfast.node.pure import shareable


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("train.py", "train.py"),
        ("--lr=3e-4", "--lr=3e-4"),
        ("--api-key=abc", "--api-key=***"),
        ("wandb.api_key=abc", "wandb.api_key=***"),
        ("--max-tokens=2048", "--max-tokens=2048"),
        ("timeout=3,secret=abc,join=5", "timeout=3,secret=***,join=5"),
        ("step:60,checkpointing:300", "step:60,checkpointing:300"),
        ("node0:29500", "node0:29500"),
        ("postgres://me:pw@host/db", "postgres://***@host/db"),
        ("https://hooks.example.com/T/B/x", "https://hooks.example.com/..."),
        ("curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: *** ***' x"),
        ("curl -H 'X-Auth: Basic abc' x", "curl -H 'X-Auth: *** ***' x"),
        ("https://host/x?token=abc", "https://host/..."),
    ],
)
def test_a_word_is_shown_without_its_secrets(word: str, shown: str) -> None:
    assert shareable.text(word) == shown


def test_the_word_behind_an_option_is_hidden_where_its_name_says_that_it_is_secret() -> None:
    words = ["ft_launcher", "--hf-token", "abc", "--max-tokens", "2048", "--auth", "--lr", "1"]
    hidden = ["ft_launcher", "--hf-token", "***", "--max-tokens", "2048", "--auth", "--lr", "1"]
    assert shareable.command(words) == tuple(hidden)


def test_a_long_command_line_is_cut() -> None:
    words = shareable.command(["x" * 5000] * 500)
    assert len(words) == 201
    assert words[-1] == "..."
    assert len(words[0]) < 1100


def test_of_an_environment_are_shown_the_variables_that_change_the_job() -> None:
    environ = {
        "HOME": "/root",
        "NCCL_DEBUG": "INFO",
        "HOLDFAST_JOB_SECRET": "abc",
        "TORCH_AUTH_TOKEN": "abc",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_USER": "me",
    }
    assert shareable.environment(environ) == {
        "HOLDFAST_JOB_SECRET": "***",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "17",
        "TORCH_AUTH_TOKEN": "***",
    }
