"""The IDX format of MNIST and its successors, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from spatialgrad.data.errors import CorruptDataError

# Twenty times Fashion-MNIST: a header that announces more is damaged.
MAX_BYTES = 1 << 30


def read_idx(path: Path, *, ndim: int) -> np.ndarray:
    """Read an array of unsigned bytes.

    Args:
        path: An IDX file; gzipped if its name ends in `.gz`.
        ndim: The expected number of dimensions: 3 for images, 1 for labels.

    Raises:
        CorruptDataError: If it is truncated, damaged or not an IDX file of this kind.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            header = file.read(4 + 4 * ndim)
            if header[:4] != bytes((0, 0, 8, ndim)):
                raise CorruptDataError(f"{path} is not an IDX file of bytes with {ndim} dimension(s)")
            if len(header) < 4 + 4 * ndim:
                raise CorruptDataError(f"{path} is truncated in its header")
            shape = struct.unpack(f">{ndim}I", header[4:])
            size = math.prod(shape)
            if size > MAX_BYTES:
                raise CorruptDataError(f"{path} has a damaged header: it announces the shape {shape}")
            # Asking for one byte more also makes gzip verify its checksum.
            content = file.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptDataError(f"{path} is truncated or damaged ({error})") from error
    if len(content) != size:
        found = f"{len(content):,}" if len(content) < size else f"more than {size:,}"
        raise CorruptDataError(f"{path} announces {size:,} bytes of data but contains {found}")
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)
