"""MATLAB files: read as scipy reads them, and refused before scipy allocates or recurses without limit."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.mat import MAX_DEPTH, read_mat

HEADER = b"MATLAB 5.0".ljust(124) + b"\0\1IM"
INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
CELL, STRUCT, OBJECT, CHAR, SPARSE, DOUBLE = range(1, 7)


def _element(kind, data):
    return struct.pack("<2I", kind, len(data)) + data + bytes(-len(data) % 8)


def _matrix(class_number, dims, *parts, name=b"", flags=0):
    head = _element(UINT32, struct.pack("<2I", class_number | flags, 0))
    head += _element(INT32, struct.pack(f"<{len(dims)}i", *dims)) + _element(INT8, name)
    return _element(MATRIX, head + b"".join(parts))


def _file(*matrices):
    """A file whose variables are compressed, as MATLAB writes them."""
    packed = [zlib.compress(matrix, 9) for matrix in matrices]
    return HEADER + b"".join(struct.pack("<2I", COMPRESSED, len(data)) + data for data in packed)


def _variable(class_number, dims, *parts):
    return _file(_matrix(class_number, dims, *parts, name=b"x"))


def _fields(*names):
    return _element(INT32, struct.pack("<i", 8)) + _element(INT8, b"".join(name.ljust(8, b"\0") for name in names))


def _saved(value, **options):
    file = io.BytesIO()
    savemat(file, {"other": np.arange(3.0), "x": value}, **options)
    return file.getvalue()


CELLS = np.empty((2, 1), dtype=object)
CELLS[:, 0] = [np.arange(3.0), np.array(["text"])]
VALUES = {
    "numbers": np.arange(24.0).reshape(2, 3, 4),
    "bytes": np.arange(5, dtype=np.uint8),
    "complex": np.array([1 + 2j, 3.0]),
    "logical": np.array([True, False]),
    "empty": np.zeros((0, 3)),
    "text": "some text",
    "cells": CELLS,
    "struct": {"a": np.arange(2.0), "b": {"c": "d", "e": CELLS}},
    "structs": np.array([(1.0, "u"), (2.0, "v")], dtype=[("a", object), ("b", object)]),
}


@pytest.mark.parametrize("do_compression", [False, True])
@pytest.mark.parametrize("kind", VALUES)
def test_reads_what_scipy_reads(kind, do_compression):
    content = _saved(VALUES[kind], do_compression=do_compression)
    # Arrays of arrays cannot be compared, but everything in them is printed.
    assert repr(read_mat(content, "x", "a.mat")) == repr(loadmat(io.BytesIO(content))["x"])


def test_a_file_of_the_other_byte_order_is_read():
    swapped = HEADER[:124] + b"\1\0MI"
    head = struct.pack(">2I2I", UINT32, 8, DOUBLE, 0) + struct.pack(">2I2i", INT32, 8, 1, 2)
    name, numbers = struct.pack(">I", 1 << 16 | INT8) + b"x\0\0\0", struct.pack(">2I2d", 9, 16, 5, 6)
    content = swapped + struct.pack(">2I", MATRIX, len(head + name + numbers)) + head + name + numbers
    assert read_mat(content, "x", "a.mat").tolist() == [[5, 6]]


def _nested(depth):
    matrix = _matrix(DOUBLE, (1, 1), _element(9, struct.pack("<d", 1)))
    for level in range(depth):
        matrix = _matrix(CELL, (1, 1), matrix, name=b"x" if level == depth - 1 else b"")
    return _file(matrix)


EVIL = {
    "text without bytes": (_variable(CHAR, (1, 1 << 30), _element(16, b"")), r"shape \(1, 1073741824\)"),
    "cells": (_variable(CELL, (1 << 15, 1 << 15)), r"shape \(32768, 32768\)"),
    "structs without fields": (_variable(STRUCT, (1, 60), _fields()), "60 structs without a field"),
    "objects without fields": (_variable(OBJECT, (1, 60), _element(INT8, b"c"), _fields()), "60 structs without"),
    "structs": (_variable(STRUCT, (1 << 30, 1), _fields(b"a")), r"shape \(1073741824, 1\)"),
    "a product": (_variable(CHAR, (1 << 16,) * 4, _element(16, b"")), r"shape \(65536, 65536, 65536, 65536\)"),
    "many dimensions": (_variable(CHAR, (1,) * 100, _element(16, b"")), r"shape \(1, 1, 1, 1, 1, 1, 1, 1\)"),
    "negative": (_variable(CHAR, (-1, -5), _element(16, b"")), r"shape \(-1, -5\)"),
    "hidden in a cell": (
        _variable(CELL, (1, 1), _matrix(CHAR, (1, 1 << 30), _element(16, b""))),
        r"shape \(1, 1073741824\)",
    ),
    "hidden in a struct": (
        _variable(STRUCT, (1, 1), _fields(b"a"), _matrix(STRUCT, (1, 9), _fields())),
        "9 structs without a field",
    ),
    "hidden behind a number": (
        _variable(
            CELL, (1, 2), _matrix(DOUBLE, (0, 0), _element(9, b"")), _matrix(CHAR, (1, 1 << 30), _element(16, b""))
        ),
        r"shape \(1, 1073741824\)",
    ),
    "names without a length": (
        _variable(STRUCT, (1, 1), _element(INT32, struct.pack("<i", 0)), _element(INT8, b"a")),
        "whose names have no length",
    ),
    "numbers of an unknown type": (_variable(DOUBLE, (1, 1), _element(186, bytes(8))), "unknown type 186"),
    "text of an unknown type": (_variable(CHAR, (1, 1), _element(60, bytes(8))), "unknown type 60"),
    "deep": (_nested(MAX_DEPTH + 2), "nested more than 16 deep"),
    "very deep": (_nested(3000), "nested more than 16 deep"),
    "sparse": (_variable(SPARSE, (1, 1), bytes(8)), "unsupported class 5"),
    "opaque": (_variable(17, (1, 1), bytes(8)), "unsupported class 17"),
    "large": (_variable(DOUBLE, (1, 1), _element(9, bytes(1 << 24))), "more than 1,048,576 bytes, decompressed"),
    "another version": (HEADER[:124] + b"\0\2IM", "not a MATLAB file of version 5"),
    "version 4": (struct.pack("<5i", 0, 1 << 15, 1 << 15, 0, 2) + b"x\0", "not a MATLAB file of version 5"),
    "empty": (b"", "not a MATLAB file of version 5"),
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_small_file_cannot_fill_the_memory(kind):
    content, message = EVIL[kind]
    assert len(content) < 20_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match=rf"^a\.mat cannot be read \(ValueError.*{message}"):
            read_mat(content, "x", "a.mat", max_bytes=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


def test_nesting_of_the_allowed_depth_is_read():
    value = read_mat(_nested(MAX_DEPTH), "x", "a.mat")
    for _ in range(MAX_DEPTH):
        value = value[0, 0]
    assert value.tolist() == [[1]]


def test_a_variable_that_is_missing_and_a_limit():
    content = _saved(np.arange(100.0))
    with pytest.raises(CorruptDataError, match=r"a\.mat cannot be read \(KeyError\('y'\)\)"):
        read_mat(content, "y", "a.mat")
    with pytest.raises(CorruptDataError, match="more than 500 bytes"):
        read_mat(content, "x", "a.mat", max_bytes=500)


DAMAGED = _saved(VALUES["struct"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)
@given(st.integers(0, len(DAMAGED) - 1), st.integers(0, 255))
def test_a_damaged_file_is_our_error_or_read(position, byte):
    content = bytearray(DAMAGED)
    content[position] = byte
    try:
        read_mat(bytes(content), "x", "a.mat")
    except CorruptDataError:
        pass
