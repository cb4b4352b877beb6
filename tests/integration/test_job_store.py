"""The job's mailbox and log over real stores of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from holdfast.host.port import ReservedPort

job_store = pytest.importorskip("holdfast.torch_edge.job_store", exc_type=ImportError)


@pytest.fixture
def port() -> Iterator[int]:
    reserved = ReservedPort()
    yield reserved.number
    reserved.release()


def test_a_wait_for_a_decision_ends_when_the_connection_is_hung_up(port: int) -> None:
    """With the error of a store that is lost; the other connections stay."""
    hosted = job_store.host_store("127.0.0.1", port, 30)
    a, b = (
        job_store.JobStore(lambda: job_store.store_client("127.0.0.1", port, 30), "job")
        for _ in range(2)
    )
    ended = []

    def follow() -> None:
        try:
            a.follow(1)
        except ConnectionError as error:
            ended.append(error)

    waits = threading.Thread(target=follow)
    waits.start()

    a.hang_up()

    waits.join(30)
    assert not waits.is_alive()
    assert [type(error) for error in ended] == [job_store.StoreLostError]
    b.publish(1, {"still": "here"})
    assert b.follow(1) == {"still": "here"}
    a.hang_up()
    b.hang_up()
    del hosted
