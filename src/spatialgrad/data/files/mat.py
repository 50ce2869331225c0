"""MATLAB's files (version 5), checked before scipy reads them.

scipy allocates what a header announces, and calls itself for each level of nesting until the stack overflows: a file of
a few kB can take gigabytes. It also looks up the type of an element beyond the end of its table: one wrong byte can end
the process. So the structure is first followed here, element by element in the same order as scipy does, without
reading any data: an array cannot have more elements than bytes, types are known, and nesting is limited.

Format: https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import Any

from spatialgrad.data.errors import CorruptDataError

MAX_BYTES = 1 << 26
"""Default for the largest content, decompressed: several times that of ImageNet's or LSPe's."""
MAX_DEPTH = 16
_MAX_DIMS = 8
_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _OBJECT, _CHAR, _SPARSE = 1, 2, 3, 4, 5
_NUMERIC = range(6, 16)
_NUMBER_TYPES = frozenset((1, 2, 3, 4, 5, 6, 7, 9, 12, 13))
_TEXT_TYPES = _NUMBER_TYPES | {16, 17, 18}


def read_mat(content: bytes, variable: str, name: str, *, max_bytes: int = MAX_BYTES, **options: Any) -> Any:
    """Read a variable.

    Args:
        content: The file.
        variable: The variable's name.
        name: The name of the file, for errors.
        max_bytes: Largest size of the content, decompressed.
        **options: For `scipy.io.loadmat`.

    Raises:
        CorruptDataError: If the file is damaged, too large or has no such variable.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError(f"{name} needs scipy: pip install 'spatialgrad[train]'") from error
    try:
        _check(content, max_bytes)
        return loadmat(io.BytesIO(content), variable_names=[variable], **options)[variable]
    except Exception as error:  # scipy raises nearly anything for a damaged file
        raise CorruptDataError(f"{name} cannot be read ({error!r})") from error


def _check(content: bytes, max_bytes: int) -> None:
    """Raises ValueError or struct.error if reading the content would take more than a multiple of `max_bytes`."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER_BYTES])
    if order is None or struct.unpack_from(f"{order}H", content, 124) != (0x0100,):
        raise ValueError("it is not a MATLAB file of version 5")
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    at, left = _HEADER_BYTES, max_bytes
    while at < len(content):
        kind, size = struct.unpack_from(f"{order}2I", content, at)
        if kind == _COMPRESSED:
            plain = zlib.decompressobj().decompress(content[at + 8 : at + 8 + size], left + 1)
            left -= len(plain)
            if left < 0:
                raise ValueError(f"it has more than {max_bytes:,} bytes, decompressed")
            _Walk(plain, order).matrix(0)
        else:
            _Walk(content, order).matrix(at)
        at += 8 + size


class _Walk:
    """Follows the structure of a matrix; every method is given a position."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data = data
        self.order = order
        self.pair = struct.Struct(f"{order}2I")

    def matrix(self, at: int, depth: int = 0) -> int:
        """Check a matrix and all that it contains, and return the position behind it."""
        kind, size = self.pair.unpack_from(self.data, at)
        if kind != _MATRIX:
            raise ValueError(f"it has an element of type {kind} in place of a matrix")
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if size == 0:
            return at + 8
        # A tag, which always has this size, and the flags.
        flags, _ = self.pair.unpack_from(self.data, at + 16)
        class_number, is_complex = flags & 0xFF, flags >> 11 & 1
        dims, at = self.integers(at + 24)
        _, _, at = self.element(at)  # the name
        count = math.prod(dims)
        if not 2 <= len(dims) <= _MAX_DIMS or min(dims) < 0 or count > min(size, len(self.data)):
            raise ValueError(f"it has an array of shape {dims[:_MAX_DIMS]} in {size:,} bytes")
        if class_number == _CHAR or class_number in _NUMERIC:
            for _ in range(1 + (is_complex and class_number != _CHAR)):
                kind = self.pair.unpack_from(self.data, at)[0] & 0xFFFF
                if kind not in (_TEXT_TYPES if class_number == _CHAR else _NUMBER_TYPES):
                    raise ValueError(f"it has data of the unknown type {kind}")
                _, _, at = self.element(at)
            return at
        if class_number in (_STRUCT, _OBJECT):
            num_fields, at = self.fields(at, class_number)
            if count > 1 and not num_fields:
                raise ValueError(f"it has {count:,} structs without a field")
            count *= num_fields
        elif class_number != _CELL:
            raise ValueError(f"it has an array of the unsupported class {class_number}")
        for _ in range(count):
            at = self.matrix(at, depth + 1)
        return at

    def element(self, at: int) -> tuple[int, int, int]:
        """First byte and size of an element's data, and the position behind the element."""
        kind, size = self.pair.unpack_from(self.data, at)
        if small := kind >> 16:
            start, size, after = at + 4, small, at + 8
        else:
            start, after = at + 8, at + 8 + size + -size % 8
        if start + size > min(after, len(self.data)):
            raise ValueError(f"it has an element of {size:,} bytes that is cut off")
        return start, size, after

    def integers(self, at: int) -> tuple[tuple[int, ...], int]:
        """An element of a few integers, and the position behind it."""
        start, size, after = self.element(at)
        return struct.unpack_from(f"{self.order}{min(size // 4, _MAX_DIMS + 1)}i", self.data, start), after

    def fields(self, at: int, class_number: int) -> tuple[int, int]:
        """The number of a struct's fields, and the position behind their names."""
        if class_number == _OBJECT:
            _, _, at = self.element(at)  # the name of its class
        lengths, at = self.integers(at)
        _, size, at = self.element(at)
        if len(lengths) != 1 or lengths[0] < 1:
            raise ValueError("it has a struct whose names have no length")
        return size // lengths[0], at
