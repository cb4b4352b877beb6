from __future__ import annotations

import pytest

from holdfast.net.half_close import Watched


@pytest.mark.parametrize(
    ("data", "by_number"),
    [
        (17, True),
        (0xDEAD_BEEF_0000_0011, True),  # the upper half is not written
        (0x560E_26B3_5150, False),
        (0x0148_6150, False),  # a pointer of an interpreter that is linked to a fixed address
    ],
)
def test_pointers_are_told_from_numbers_whatever_their_size(data: int, by_number: bool) -> None:
    assert Watched(17, 1, data).is_by_number is by_number
