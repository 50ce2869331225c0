import gzip
import struct

import numpy as np
import pytest

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.idx import read_idx
from support.data_files import idx_bytes, write_idx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_reads_plain_and_gzipped(tmp_path, name):
    write_idx(tmp_path / name, IMAGES)
    np.testing.assert_array_equal(read_idx(tmp_path / name, ndim=3), IMAGES)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_every_truncation_is_noticed(tmp_path, name):
    path = tmp_path / name
    write_idx(path, IMAGES)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptDataError, match=f"^{path}"):
            read_idx(path, ndim=3)


def test_every_flipped_byte_of_gzipped_data_is_noticed(tmp_path):
    path = tmp_path / "images.gz"
    write_idx(path, IMAGES)
    whole = path.read_bytes()
    for position in range(10, len(whole)):  # the first ten bytes are a header that says nothing of the data
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with pytest.raises(CorruptDataError, match=f"^{path}"):
            read_idx(path, ndim=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>not found</html>", "is not an IDX file"),
        (idx_bytes(IMAGES[0, 0]), "is not an IDX file of bytes with 3 dimension"),
        (idx_bytes(IMAGES) + b"\0", "announces 60 bytes of data but contains more than 60"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 9), "has a damaged header"),
    ],
)
def test_other_content_is_refused(tmp_path, content, message):
    for path, data in ((tmp_path / "x", content), (tmp_path / "x.gz", gzip.compress(content))):
        path.write_bytes(data)
        with pytest.raises(CorruptDataError, match=message):
            read_idx(path, ndim=3)
