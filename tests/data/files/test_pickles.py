import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spatialgrad.data
from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.pickles import read_pickle
from support.data_files import python2_pickle

VALUE = {"data": np.arange(24, dtype=np.uint8).reshape(4, 6), "labels": [3, 1, 2, 0], "batch_label": "a batch"}
GOOD = python2_pickle(VALUE)


def test_reads_what_python_2_wrote():
    loaded = read_pickle(GOOD, "x")
    assert set(loaded) == {b"data", b"labels", b"batch_label"}
    np.testing.assert_array_equal(loaded[b"data"], VALUE["data"])
    assert (loaded[b"labels"], loaded[b"batch_label"]) == ([3, 1, 2, 0], b"a batch")


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i4", "<i8", "<f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_reads_every_plain_array_as_numpy_does(dtype, order):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    content = python2_pickle({"data": array})
    expected = pickle.loads(content, encoding="latin1")["data"]
    found = read_pickle(content, "x")[b"data"]
    assert found.dtype.newbyteorder("=") == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("protocol", [3, 4])
def test_reads_what_python_3_writes(protocol):
    loaded = read_pickle(pickle.dumps(VALUE, protocol=protocol), "x")
    np.testing.assert_array_equal(loaded[b"data"], VALUE["data"])


class _Runs:
    """Unpickled by an ordinary reader, creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_malicious_pickle_does_nothing(tmp_path, protocol):
    canary = tmp_path / "canary"
    evil = pickle.dumps({"data": VALUE["data"], "labels": _Runs(canary)}, protocol=protocol)
    pickle.loads(evil)
    assert canary.exists(), "the test's own weapon does not work"
    canary.rmdir()
    with pytest.raises(CorruptDataError, match=r"evil\.bin"):
        read_pickle(evil, "evil.bin")
    assert not canary.exists()


@pytest.mark.parametrize(
    "name",
    [
        "builtins eval",
        "builtins getattr",
        "builtins.__import__ x",
        "os system",
        "posix system",
        "numpy load",
        "numpy fromfile",
        "numpy.core.multiarray scalar",
        "numpy.testing._private.utils runstring",
        "spatialgrad.data.files.pickles read_pickle",
        "spatialgrad.data.files.pickles _Array",
        "functools partial",
        "copyreg _reconstructor",
    ],
)
def test_no_other_name_is_looked_up(name):
    module, attribute = name.split()
    evil = b"c%s\n%s\n(S'1'\ntR." % (module.encode(), attribute.encode())
    with pytest.raises(CorruptDataError, match="which image data does not need"):
        read_pickle(evil, "evil.bin")


@pytest.mark.parametrize("dtype", ["O", "U5", "S5", "V3", "M8[s]", "u1,u2"])
def test_arrays_of_other_things_are_refused(dtype):
    with pytest.raises(CorruptDataError, match="x cannot be read"):
        read_pickle(python2_pickle({"data": np.zeros(3, dtype=dtype)}), "x")


def test_what_a_pickle_does_to_the_stand_ins_does_not_last():
    # BUILD with a pair sets attributes: here on the function that stands in for `_reconstruct`.
    evil = b"cnumpy.core.multiarray\n_reconstruct\n(N}S'__defaults__'\n(tstb."
    with pytest.raises(CorruptDataError):
        read_pickle(evil, "evil.bin")
    np.testing.assert_array_equal(read_pickle(GOOD, "x")[b"data"], VALUE["data"])


def test_a_huge_memo_index_does_not_fill_the_memory():
    evil = b"\x80\x02}r\x00\x00\x00\x04."  # an empty dictionary, to be remembered as number 2**26
    tracemalloc.start()
    try:
        assert read_pickle(evil, "x") == {}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("instruction", ["BYTEARRAY8", "NEWOBJ", "INST", "OBJ", "BINPERSID", "EXT1", "NEXT_BUFFER"])
def test_other_instructions_are_refused(instruction):
    evil = b"\x80\x05" + getattr(pickle, instruction) + b"\0\0\0\0\1\0\0\0."
    with pytest.raises(CorruptDataError, match=r"^x cannot be read as a pickle of arrays \(KeyError"):
        read_pickle(evil, "x")


def _doubled(value: bytes, times: int = 90) -> bytes:
    """A pair of pairs of pairs …: each contains the one before twice, so that there are 2**times values."""
    return value + b"q\0" + b"h\0\x86q\0" * times  # BINPUT, BINGET, TUPLE2


ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n(tR(K\x01%s%sI00\nS''\ntb"  # its state: version, shape, dtype, order, bytes
)
KIND = b"cnumpy\ndtype\n(S'u1'\ntR"


BUSY = {
    "key": b"}" + _doubled(b"K\x01") + b"K\x01s.",  # SETITEM
    "keys": b"}(" + _doubled(b"K\x01") + b"K\x01u.",  # SETITEMS
    "dict": b"(" + _doubled(b"K\x01") + b"K\x01d.",  # DICT
    "shape": b"}S'data'\n" + ARRAY % (_doubled(b")"), KIND) + b"s.",
    "dtype": b"}S'data'\n" + ARRAY % (b"K\x00\x85", b"cnumpy\ndtype\n(" + _doubled(b")") + b"tR") + b"s.",
    "byte order": b"}S'data'\n" + ARRAY % (b"K\x00\x85", KIND + b"(K\x03" + _doubled(b")") + b"tb") + b"s.",
    "value": b"}S'batch_label'\n" + _doubled(b")") + b"s.",
    "list": b"}S'batch_label'\n](" + _doubled(b")") + b"es.",
}


def test_a_small_pickle_cannot_keep_the_reader_busy():
    assert all(len(evil) < 700 for evil in BUSY.values())
    # In another process, which can be ended: neither hashing nor printing returns to the interpreter.
    code = (
        "import sys\n"
        "from spatialgrad.data.errors import CorruptDataError\n"
        "from spatialgrad.data.files.pickles import read_pickle\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        print(read_pickle(bytes.fromhex(line), 'evil.bin'), flush=True)\n"
        "    except CorruptDataError as error:\n"
        "        print(error, flush=True)\n"
    )
    lines = "".join(f"{evil.hex()}\n" for evil in BUSY.values())
    done = subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, text=True, timeout=90)
    said = dict(zip(BUSY, done.stdout.splitlines(), strict=True))
    for name, line in said.items():
        assert line.startswith("evil.bin cannot be read as a pickle of arrays (UnpicklingError("), name
        assert len(line) < 300, name


def test_a_shape_of_many_huge_numbers_is_refused():
    huge = b"\x8a\xff" + b"\xff" * 254 + b"\x7f"  # LONG1: 255 bytes
    shape = b"(" + huge + b"q\0" + b"h\0" * 200_000 + b"t"
    with pytest.raises(CorruptDataError, match="whose shape is not made of"):
        read_pickle(b"}S'data'\n" + ARRAY % (shape, KIND) + b"s.", "x")


def test_protocol_0_is_read():
    assert read_pickle(b"(dS'labels'\n(lI3\naI4\nas.", "x") == {b"labels": [3, 4]}
    assert read_pickle(b"(S'a'\nI1\nS'b'\nI2\nd.", "x") == {b"a": 1, b"b": 2}


def test_a_shape_that_does_not_fit_its_bytes_is_refused():
    content = GOOD.replace(b"K\x04K\x06\x86", b"K\x05K\x06\x86")
    assert content != GOOD
    with pytest.raises(CorruptDataError, match=r"shape \(5, 6\) in 24 bytes"):
        read_pickle(content, "x")


def test_the_content_must_be_a_dictionary():
    with pytest.raises(CorruptDataError, match=r"x cannot be read .*it contains a list, not a dictionary"):
        read_pickle(pickle.dumps([1, 2]), "x")


def test_an_array_that_was_never_filled_is_refused():
    evil = b"}S'data'\ncnumpy.core.multiarray\n_reconstruct\n(tRs."
    with pytest.raises(CorruptDataError, match=r"^x cannot be read"):
        read_pickle(evil, "x")


def test_every_truncation_is_noticed():
    for length in range(len(GOOD)):
        with pytest.raises(CorruptDataError):
            read_pickle(GOOD[:length], "x")


@settings(deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.binary(max_size=4))
def test_damage_gives_our_error_or_harmless_values(position, byte, extra):
    damaged = GOOD[:position] + bytes([byte]) + extra + GOOD[position + 1 :]
    try:
        loaded = read_pickle(damaged, "x")
    except CorruptDataError:
        return
    assert all(type(value).__module__ in {"builtins", "numpy"} for value in loaded.values())


def test_only_this_module_unpickles():
    folder = Path(spatialgrad.data.__file__).parent
    users = [path.name for path in folder.rglob("*.py") if "import pickle" in path.read_text()]
    assert users == ["pickles.py"]
