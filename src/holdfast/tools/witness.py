"""``holdfast witness HOST:PORT``: a process without ranks that has a vote in a job."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from holdfast.job.link.meeting_place import MeetingPlace
from holdfast.job.pure.job_secret import CONF, SECRET, drop_secret, without_secret
from holdfast.job.pure.timing import Pace
from holdfast.net.pure.address import EndpointError, parse_endpoint
from holdfast.options.forms import conf_seconds, read_rdzv_conf
from holdfast.options.option import UsageError
from holdfast.options.values import Unacceptable
from holdfast.tools.command_words import run_command, take_option, without_options

_USAGE = f"""\
usage: holdfast witness HOST:PORT [OPTIONS]

Takes part in a job without ranks, and votes when the launcher that leads it has
died: of two launchers and a witness two are a majority, so the one that is left
leads the job on. It costs some 20 MiB and no GPU: run it on a third host (a login
node, another pod). A job never waits for it, and continues without it.

  HOST:PORT               --rdzv-endpoint of the job's launchers
  --rdzv-id ID            as theirs (none)
  --rdzv-conf CONF        as theirs: keep_alive_timeout, secret ({CONF})
  --local-addr ADDR       where the launchers reach this host (looked up)
  --join-timeout SECONDS  leave if no job is there within so long (wait for ever)

The job's secret is read from {SECRET}, as launchers do it.

Exit code: 0 when the job has ended, or after SIGTERM; 1 if it was not found in
time, or was lost; 2 if the command cannot be used this way.
"""
_DEFAULT_PORT = 29500


def main(command: str, words: Sequence[str]) -> int:
    """The command; returns the exit code."""
    return run_command(command, words, _USAGE, _run)


def _run(words: list[str]) -> int:
    place, pace = meeting_of(words, os.environ)
    drop_secret(os.environ)
    from holdfast.node.witness import WitnessProcess  # noqa: PLC0415 - the words are right

    return WitnessProcess(place, pace).run()


def meeting_of(words: list[str], environ: Mapping[str, str]) -> tuple[MeetingPlace, Pace]:
    """Where the job meets, and how long silence may last there.

    Raises:
        UsageError: The words, or the environment, cannot be used.
    """
    run_id = take_option(words, "--rdzv-id", "--rdzv_id") or "none"
    text = take_option(words, "--rdzv-conf", "--rdzv_conf") or environ.get(CONF, "")
    local_addr = take_option(words, "--local-addr", "--local_addr")
    join_timeout = take_option(words, "--join-timeout")
    endpoints = without_options(words)
    if len(endpoints) != 1:
        raise UsageError(f"one HOST:PORT is needed, {len(endpoints)} are given")
    try:
        endpoint = parse_endpoint(endpoints[0])
    except EndpointError as error:
        raise UsageError(f"{endpoints[0]!r} cannot be used; {error}") from None
    try:
        conf = read_rdzv_conf(text)
        pace = Pace.of(conf_seconds(conf, "keep_alive_timeout", Pace.silence_s))
    except (Unacceptable, ValueError) as error:
        shown = without_secret(text)
        raise UsageError(f"--rdzv-conf: {shown!r} cannot be used; {error}") from None
    limit = {} if join_timeout is None else {"--join-timeout": join_timeout}
    try:
        connect_s = conf_seconds(limit, "--join-timeout", math.inf)
    except ValueError as error:
        raise UsageError(str(error)) from None
    place = MeetingPlace(
        endpoint.host,
        endpoint.port or _DEFAULT_PORT,
        is_host=False,
        connect_s=connect_s,
        run_id=run_id,
        silence_s=pace.silence_s,
        secret=conf.get("secret") or environ.get(SECRET) or None,
        local_addr=local_addr,
        is_witness=True,
    )
    return place, pace
