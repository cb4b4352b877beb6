"""``--print-completion``: the shell itself completes a line with the printed script."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.errors import ConfigError
from holdfast.fault_tolerance.launcher import main
from holdfast.options.completion import script_for


def completed(words: list[str]) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    ask = (
        f"\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}"
        "\n_shtab_ft_launcher\nprintf '%s\\n' \"${COMPREPLY[@]}\""
    )
    bash = ["bash", "--norc", "-c", script_for("bash") + ask]
    return subprocess.run(bash, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_names_of_options_each_in_one_spelling() -> None:
    assert completed(["ft_launcher", "--log-"]) == ["--log-dir", "--log-line-prefix-template"]
    assert completed(["ft_launcher", "--ft-auto-h"]) == [
        "--ft-auto-heartbeat",
        "--ft-auto-heartbeat-floor",
    ]


def test_bash_completes_the_words_that_an_option_takes() -> None:
    assert completed(["ft_launcher", "--ft-restart-policy", ""])
    assert completed(["ft_launcher", "--start-method", "fork"]) == ["fork", "forkserver"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish", "powershell"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    assert "ft_launcher" in capsys.readouterr().out


def test_a_shell_that_an_older_shtab_does_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shtab.SUPPORTED_SHELLS", ["bash", "zsh", "tcsh"])
    with pytest.raises(ConfigError, match=r"fish: shtab .* knows only bash, zsh, tcsh: "):
        script_for("fish")


def test_without_shtab_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(ConfigError):
        script_for("bash")
    assert main(["--print-completion=zsh"]) == 1
    assert capsys.readouterr().err == (
        "ft_launcher: error: --print-completion needs the package shtab, which is not installed "
        "here: pip install shtab\n"
    )
