"""An unpickler that cannot execute anything, for the pickles that CIFAR is published as.

A pickle is a program. This reader knows the instructions that build numbers, strings, lists, tuples and dictionaries,
and the three names that a numeric array needs. Each name is replaced by a stand-in, so that no function of numpy or of
anything else is ever called with arguments from a file. No library in use offers this: torch's `weights_only` reader,
for example, expects torch's own files.

A pickle of 300 bytes can nest the same tuple in itself a hundred times over; to hash or print it would take forever.
So only text is a key of a dictionary, lists contain plain values only, and errors never print what they refuse.
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
_PLAIN = (bytes, str, int, float, bool, type(None))
_MAX_DIMS = 8
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
        return {key.encode() if isinstance(key, str) else key: _plain(value) for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise CorruptDataError(f"{name} cannot be read as a pickle of arrays ({error!r})") from error


def _plain(value: Any) -> Any:
    """A value of the dictionary, if it is an array, a plain value or a list of plain values."""
    if isinstance(value, _Array):
        return value.array
    if not all(type(item) in _PLAIN for item in (value if type(value) is list else [value])):
        raise pickle.UnpicklingError("it contains more than numbers, text, arrays and lists of numbers and text")
    return value


class _Dictionary(dict[Any, Any]):
    """Accepts text as keys only: the hash of a tuple can take forever."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) not in (bytes, str):
            raise pickle.UnpicklingError(f"it has a dictionary with a {type(key).__name__} as key")
        super().__setitem__(key, value)


class _ArrayUnpickler(pickle._Unpickler):
    # The Python implementation: its instructions can be restricted, and unlike the C implementation it cannot be made
    # to allocate a huge table by a file of ten bytes whose memo indices start at two billion.
    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPCODES)
    }

    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def load_empty_dictionary(self) -> None:
        self.append(_Dictionary())

    def load_dict(self) -> None:
        items = self.pop_mark()
        dictionary = _Dictionary()
        for key, value in zip(items[::2], items[1::2], strict=True):
            dictionary[key] = value
        self.append(dictionary)

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_dictionary
    dispatch[pickle.DICT[0]] = load_dict

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

    def __init__(self, code: Any) -> None:
        self.code = _text(code)
        self.order = "|"
        if self.code not in _KINDS:
            raise pickle.UnpicklingError(f"it has an array of {self.code[:20]!r}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])
        if self.order not in {"|", "<", ">", "="}:
            raise pickle.UnpicklingError(f"it has an array of byte order {self.order[:20]!r}")


def _text(value: Any) -> str:
    if type(value) not in (bytes, str):
        raise pickle.UnpicklingError(f"it has an array whose number format is a {type(value).__name__}")
    return value.decode() if isinstance(value, bytes) else str(value)


class _Array:
    """Stand-in for `numpy.ndarray`, which it builds from bytes."""

    __slots__ = ("array",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Kind) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it has an array that is not made of bytes")
        dtype = np.dtype(kind.order + kind.code)
        # The product of many huge integers would take forever as well.
        if type(shape) is not tuple or len(shape) > _MAX_DIMS or not all(_is_size(size) for size in shape):
            raise pickle.UnpicklingError(f"it has an array whose shape is not made of up to {_MAX_DIMS} sizes")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"it has an array of shape {shape} in {len(content):,} bytes")
        flat = np.frombuffer(content, dtype=dtype)
        self.array = flat.reshape(shape, order="F" if is_fortran else "C")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 40
