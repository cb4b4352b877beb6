"""The secret of a job's launchers: where it is found, and how it is kept from ranks and logs.

Pure. Launchers prove to each other that they have it: :mod:`holdfast.job.pure.link`.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

SECRET = "HOLDFAST_JOB_SECRET"  # noqa: S105 - the name of the variable
"""Environment variable with the secret; ``--rdzv-conf secret=`` comes before it."""
SHORT = 16
"""Characters that a secret should have at least."""
CONF = "PET_RDZV_CONF"
_IN_CONF = re.compile(r"(?<![A-Za-z0-9_])(\s*secret\s*=)(.*?)(?=,[^,=]*=|$)", re.DOTALL)


def without_secret(text: str) -> str:
    """Text of ``--rdzv-conf`` as it may be shown to people."""
    return _IN_CONF.sub(r"\1***", text) if "secret" in text else text


def drop_secret(environ: MutableMapping[str, str]) -> None:
    """Take the secret out of an environment that ranks and their children inherit."""
    environ.pop(SECRET, None)
    conf = environ.get(CONF, "")
    if "secret" in conf:
        kept = [part for part in conf.split(",") if not part.strip().startswith("secret")]
        environ[CONF] = ",".join(kept)
