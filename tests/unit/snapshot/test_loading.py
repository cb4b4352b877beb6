"""A file's bytes into live tensors: added up and copied in one pass."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from holdfast.arena import sums  # noqa: E402
from holdfast.snapshot import _loading, _tensors  # noqa: E402
from holdfast.snapshot._loading import load  # noqa: E402

WINDOW_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loading, "WINDOW_BYTES", WINDOW_BYTES)


_SIZES = st.lists(
    st.one_of(st.integers(1, 40), st.integers(1, 3 * WINDOW_BYTES)), min_size=1, max_size=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=_SIZES,
    gaps=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    tail=st.integers(0, 20),
    n_threads=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_every_tensor_has_its_bytes_and_the_sum_is_that_of_the_file(
    sizes: list[int], gaps: list[int], tail: int, n_threads: int, order: object
) -> None:
    n_bytes = sum(sizes) + sum(gaps[: len(sizes)]) + tail
    memory = torch.randint(0, 256, (n_bytes,), dtype=torch.uint8)
    saved, at = [], 0
    for size, gap in zip(sizes, gaps, strict=False):
        at += gap
        saved.append(memory[at : at + size])
        at += size
    order.shuffle(saved)  # type: ignore[attr-defined]
    live = [torch.zeros_like(each) for each in saved]

    total = load(memory, live, saved, lambda: _tensors.copy_all, n_threads=n_threads)

    assert all(torch.equal(a, b) for a, b in zip(live, saved, strict=True))
    assert total == sums.checksum(memoryview(memory.numpy()))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_tensors_of_any_order_of_elements_and_copies_beside_the_file_are_filled(
    n_threads: int,
) -> None:
    memory = torch.randint(0, 256, (5 * WINDOW_BYTES,), dtype=torch.uint8)
    square = memory[: 4 * 10_000].view(torch.float32).view(100, 100)
    beside = memory[4 * 10_000 : 4 * 10_000 + 64].clone()
    last = memory[-8:].view(torch.int64).view(())
    live = [torch.zeros(100, 100).t(), torch.zeros_like(beside), torch.zeros((), dtype=torch.int64)]

    load(memory, live, [square, beside, last], lambda: _tensors.copy_all, n_threads=n_threads)

    assert torch.equal(live[0].view(torch.int32), square.view(torch.int32))
    assert torch.equal(live[1], beside)
    assert torch.equal(live[2], last)


def test_an_error_in_one_thread_is_raised() -> None:
    memory = torch.zeros(4 * WINDOW_BYTES, dtype=torch.uint8)

    def put(into: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        if into:
            raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        load(memory, [torch.zeros_like(memory)], [memory], lambda: put, n_threads=2)
