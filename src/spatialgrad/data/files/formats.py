"""Readers of the formats that data sets are published in: pickles of arrays, MATLAB files and IDX files."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.utils.extras import install_command


def read_pickle(content: bytes, name: str) -> dict[bytes, Any]:
    """Read a pickled dictionary of numbers, byte strings, lists and arrays; nothing in it is executed.

    Args:
        content: The pickle, as Python 2 wrote it or later.
        name: The name of the file, for errors.

    Raises:
        CorruptDataError: If it is damaged or refers to anything but arrays.
    """
    try:
        loaded = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        return {key.encode() if isinstance(key, str) else key: value for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle can raise anything
        raise CorruptDataError(f"{name} cannot be read as a pickle of arrays ({error!r})") from error


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the three names that an array needs: https://docs.python.org/3/library/pickle.html#restricting-globals."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which image data does not need")


def read_mat(content: bytes, variable: str, name: str, **options: Any) -> Any:
    """Read a variable of a MATLAB file.

    Args:
        content: The file.
        variable: The variable's name.
        name: The name of the file, for errors.
        **options: For `scipy.io.loadmat`.

    Raises:
        CorruptDataError: If the file is damaged or has no such variable.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError(f"{name} needs scipy: {install_command('train')}") from error
    try:
        return loadmat(io.BytesIO(content), variable_names=[variable], **options)[variable]
    except Exception as error:  # scipy raises nearly anything for a damaged file
        raise CorruptDataError(f"{name} cannot be read ({error!r})") from error


def read_idx(path: Path, *, ndim: int) -> np.ndarray:
    """Read an array of unsigned bytes in the format of MNIST.

    Args:
        path: An IDX file; gzipped if its name ends in `.gz`.
        ndim: The expected number of dimensions: 3 for images, 1 for labels.

    Raises:
        CorruptDataError: If it is truncated, damaged or not an IDX file of this kind.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptDataError(f"{path} is truncated or damaged ({error})") from error
    start = 4 + 4 * ndim
    if len(content) < start or content[:4] != bytes((0, 0, 8, ndim)):
        raise CorruptDataError(f"{path} is not an IDX file of bytes with {ndim} dimension(s)")
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    if len(content) != start + math.prod(shape):
        raise CorruptDataError(f"{path} has {len(content) - start:,} bytes of data, not those of the shape {shape}")
    return np.frombuffer(bytearray(content), dtype=np.uint8, offset=start).reshape(shape)
