"""The head of a snapshot, which is a safetensors file: names, types and places of its tensors.

Pure, without torch. ::

    8 bytes      length of the JSON, little-endian
    JSON         {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}
    spaces       up to ``data_at``, a multiple of 64: the JSON may grow in this room
    data         each tensor where the one before ends

Tensors with larger elements come first, so each lies at a multiple of its element's size. A head
that is read may have been written by any program: all sizes are checked before one is used.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ELEMENT_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""By the names that safetensors gives them. A tensor of another type is stored as its bytes, U8."""
METADATA = "__metadata__"
ALIGNMENT = 64
MAX_HEAD_BYTES = 100_000_000
"""The safetensors library reads no longer one."""
_LENGTH_BYTES = 8
_MOST = 1 << 62


class HeadError(ValueError):
    """Bytes that are no head of a snapshot; the text says why."""


class Tensor(NamedTuple):
    """A tensor to be placed."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Of its elements, without gaps."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


class Placed(NamedTuple):
    """Where a tensor is: ``[begin, end)``, in bytes of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Head:
    """The head of files with these tensors; only its metadata changes from one to the next.

    Attributes:
        placed: By name.
        data_at: First byte of the data.
        n_bytes: Of the whole file.
    """

    __slots__ = ("_tensors", "data_at", "n_bytes", "placed")

    def __init__(self, tensors: Sequence[Tensor], metadata_bytes: int) -> None:
        """Place the tensors, with room for metadata of so many bytes.

        Raises:
            HeadError: Two have one name, or the head is longer than the library reads.
        """
        order = sorted(tensors, key=lambda each: -ELEMENT_BYTES[each.dtype])
        self.placed: dict[str, Placed] = {}
        end = 0
        for each in order:
            begin, end = end, end + each.n_bytes
            self.placed[each.name] = Placed(each.dtype, each.shape, begin, end)
        if len(self.placed) != len(order) or METADATA in self.placed:
            raise HeadError(f"{len(order)} tensors have {len(self.placed)} names")
        table = {
            name: {
                "dtype": each.dtype,
                "shape": each.shape,
                "data_offsets": (each.begin, each.end),
            }
            for name, each in self.placed.items()
        }
        self._tensors = json.dumps(table, separators=(",", ":"))[1:].encode()
        wanted = _LENGTH_BYTES + len(self._tensors) + len(METADATA) + 8 + metadata_bytes
        self.data_at = -(-wanted // ALIGNMENT) * ALIGNMENT
        self.n_bytes = self.data_at + end
        if self.data_at > MAX_HEAD_BYTES:
            raise HeadError(
                f"the names of {len(order)} tensors and plain data need {self.data_at} bytes, at "
                f"most {MAX_HEAD_BYTES} can be read again"
            )

    def render(self, metadata: str) -> bytes | None:
        """The first ``data_at`` bytes of a file; None: the metadata do not fit.

        ``metadata``: a JSON object of text by text.
        """
        before = f'{{"{METADATA}":{metadata}'.encode()
        comma = b"," if self.placed else b""
        space = self.data_at - _LENGTH_BYTES - len(before) - len(comma) - len(self._tensors)
        if space < 0:
            return None
        length = (self.data_at - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little")
        return b"".join((length, before, comma, self._tensors, b" " * space))


class Parsed(NamedTuple):
    """A head that was read; each range of ``placed`` lies within the file.

    Attributes:
        placed: By name.
        metadata: Text by text.
        data_at: First byte of the data.
    """

    placed: dict[str, Placed]
    metadata: dict[str, str]
    data_at: int


def parse(memory: memoryview) -> Parsed:
    """Read the head of a whole file.

    Raises:
        HeadError: It is not one, or its tensors do not fill the data without gap and overlap.
    """
    if len(memory) < _LENGTH_BYTES:
        raise HeadError(f"a file of {len(memory)} bytes has no head")
    length = int.from_bytes(memory[:_LENGTH_BYTES], "little")
    data_at = _LENGTH_BYTES + length
    if data_at > min(len(memory), MAX_HEAD_BYTES + _LENGTH_BYTES):
        raise HeadError(f"a head of {length} bytes in a file of {len(memory)}")
    try:
        table = json.loads(bytes(memory[_LENGTH_BYTES:data_at]))
    except (ValueError, RecursionError) as error:
        raise HeadError(f"a head that is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise HeadError(f"a head that is a JSON {type(table).__name__}")
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise HeadError("metadata that are not text by text")
    placed = {name: _placed(name, found) for name, found in table.items()}
    _check_ranges(placed, len(memory) - data_at)
    return Parsed(placed, metadata, data_at)


def _placed(name: str, found: object) -> Placed:
    match found:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if (
            dtype in ELEMENT_BYTES
            and all(type(n) is int and 0 <= n < _MOST for n in (*shape, begin, end))
        ):
            placed = Placed(dtype, tuple(shape), begin, end)
        case _:
            raise HeadError(f"tensor {name!r:.100} has no valid type, shape or place")
    n_bytes = Tensor(name, dtype, placed.shape).n_bytes
    if end - begin != n_bytes:
        raise HeadError(f"tensor {name!r:.100} of {n_bytes} bytes has a place of {end - begin}")
    return placed


def _check_ranges(placed: Mapping[str, Placed], n_bytes: int) -> None:
    end = 0
    for name, each in sorted(placed.items(), key=lambda item: item[1][2:]):
        if each.begin != end:
            raise HeadError(
                f"tensor {name!r:.100} begins at {each.begin}, the one before ends at {end}"
            )
        end = each.end
    if end != n_bytes:
        raise HeadError(f"tensors fill {end} bytes of {n_bytes}")
