"""A command line and an environment as a report may show them: secrets are hidden. Pure.

A value is hidden where its name says that it is one (`--api-key`, `secret=`, `HF_TOKEN`). A URL is
shown up to its host, as paths of web hooks are secrets, and without a user and password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
_WORDS_MAX = 200
_CHARS_MAX = 1000
_NAMES_MAX = 100
_SECRETS = {
    *("secret", "secrets", "token", "tokens", "password", "passwd", "passphrase", "pass", "pwd"),
    *("key", "keys", "apikey", "auth", "authorization", "bearer", "cookie", "credential"),
    "credentials",
}
"""Parts of a name whose value is a secret, unless it is a number or a switch."""
_NAMED = re.compile(r"([\w.+-]+)(=|: ?)([^\s,;&'\"=]+)")
_SCHEME = re.compile(r"\b(bearer|basic) +[^\s'\"]+", re.IGNORECASE)
_USER = re.compile(r"(\w+://)[^/\s@]+@")
_PATH = re.compile(r"(https?://[^/\s'\"]+/)[^\s'\"]+")
_HARMLESS = re.compile(r"[\d.,:_+-]*|true|false|yes|no|none|null", re.IGNORECASE)
_PREFIXES = (
    *("HOLDFAST_", "NVRX_", "PET_", "TORCH", "PYTORCH_", "NCCL_", "GLOO_", "CUDA_", "CUBLAS_"),
    *("CUDNN_", "OMP_", "UCX_", "FI_", "LD_", "PYTHON"),
)
_NAMES = ("SLURM_JOB_ID",)
"""Beside those with a prefix of these: variables that change how holdfast, torch or NCCL work."""


def command(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line."""
    found: list[str] = []
    is_secret = False
    for word in words:
        if len(found) == _WORDS_MAX:
            return (*found, "...")
        is_value = is_secret and not word.startswith("-") and not _HARMLESS.fullmatch(word)
        found.append(HIDDEN if is_value else text(word))
        is_secret = word.startswith("-") and "=" not in word and _is_secret(word)
    return tuple(found)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how holdfast, torch or NCCL work."""
    names = sorted(name for name in environ if name.startswith(_PREFIXES) or name in _NAMES)
    return {
        name: HIDDEN
        if _is_secret(name) and not _HARMLESS.fullmatch(environ[name])
        else text(environ[name])
        for name in names[:_NAMES_MAX]
    }


def text(word: str) -> str:
    """One word, or several in one, as of a command for a shell."""
    word = word[:_CHARS_MAX] + (" ..." if len(word) > _CHARS_MAX else "")
    shown = _NAMED.sub(_value, _SCHEME.sub(rf"\1 {HIDDEN}", word))
    return _PATH.sub(r"\1...", _USER.sub(rf"\1{HIDDEN}@", shown))


def _value(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    is_shown = not _is_secret(name) or _HARMLESS.fullmatch(value)
    return found[0] if is_shown else f"{name}{between}{HIDDEN}"


def _is_secret(name: str) -> bool:
    return not _SECRETS.isdisjoint(re.split(r"[-_.+]", name.lower()))
