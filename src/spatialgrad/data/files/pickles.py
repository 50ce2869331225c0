"""An unpickler that cannot execute anything, for the pickles that CIFAR is published as.

A pickle is a program. This reader knows the instructions that build numbers, strings, lists, tuples and dictionaries,
and the three names that a numeric array needs. Each name is replaced by a stand-in, so that no function of numpy or of
anything else is ever called with arguments from a file. No library in use offers this: torch's `weights_only` reader,
for example, expects torch's own files.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from spatialgrad.data.errors import CorruptDataError

_OPCODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8 "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS "
    "PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD"
).split()
_KINDS = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"}


def read_pickle(content: bytes, name: str) -> dict[bytes, Any]:
    """Read a pickled dictionary of numbers, byte strings, lists and numeric arrays.

    Args:
        content: The pickle, protocol 2 as Python 2 wrote it, or later.
        name: The name of the file, for errors.

    Raises:
        CorruptDataError: If it is damaged or refers to anything but arrays.
    """
    try:
        loaded = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError(f"it contains a {type(loaded).__name__}, not a dictionary")
        return {
            key.encode() if isinstance(key, str) else key: value.array if isinstance(value, _Array) else value
            for key, value in loaded.items()
        }
    except Exception as error:  # a damaged pickle can raise anything
        raise CorruptDataError(f"{name} cannot be read as a pickle of arrays ({error!r})") from error


class _ArrayUnpickler(pickle._Unpickler):
    # The Python implementation: its instructions can be restricted, and unlike the C implementation it cannot be made
    # to allocate a huge table by a file of ten bytes whose memo indices start at two billion.
    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPCODES)
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any] | None:
        # New stand-ins for each file: a pickle cannot change them for the next one.
        known: dict[tuple[str, str], Callable[..., Any] | None] = {
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
            ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): lambda kind, *_: _Kind(kind),
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which image data does not need")
        return known[module, name]


class _Kind:
    """Stand-in for `numpy.dtype`: one of the plain number formats."""

    __slots__ = ("code", "order")

    def __init__(self, code: bytes | str) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code
        self.order = "|"
        if self.code not in _KINDS:
            raise pickle.UnpicklingError(f"it has an array of {self.code!r}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode() if isinstance(order, bytes) else order
        if self.order not in {"|", "<", ">", "="}:
            raise pickle.UnpicklingError(f"it has an array of byte order {self.order!r}")


class _Array:
    """Stand-in for `numpy.ndarray`, which it builds from bytes."""

    __slots__ = ("array",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Kind) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it has an array that is not made of bytes")
        dtype = np.dtype(kind.order + kind.code)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise pickle.UnpicklingError(f"it has an array of shape {shape}")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"it has an array of shape {shape} in {len(content):,} bytes")
        flat = np.frombuffer(content, dtype=dtype)
        self.array = flat.reshape(shape, order="F" if is_fortran else "C")
