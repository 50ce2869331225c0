"""Small files in the formats of the published data sets, made by the tests that read them."""

import gzip
import http.server
import io
import pickle
import struct
import tarfile
import threading
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
from PIL import Image


def silent(line):
    """In place of `print`, for progress that no test reads."""


class _Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 wrote `str`, which is how CIFAR was published."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_str(self, obj):
        data = obj.encode("latin-1") if isinstance(obj, str) else obj
        if len(data) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(obj)

    dispatch[str] = dispatch[bytes] = save_str


def python2_pickle(value):
    file = io.BytesIO()
    _Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_images(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def cifar_batch(images, labels, label_key="labels"):
    return python2_pickle({label_key: list(labels), "data": images.reshape(-1, 3072)})


def write_cifar10(folder, count=20):
    """Five training batches and a test batch of `count` images; returns train images and labels."""
    folder.mkdir(parents=True)
    all_images, all_labels = [], []
    for number in range(1, 6):
        images, labels = cifar_images(count, number), [(number + i) % 10 for i in range(count)]
        (folder / f"data_batch_{number}").write_bytes(cifar_batch(images, labels))
        all_images.append(images)
        all_labels += labels
    test = cifar_batch(cifar_images(count, 6), [i % 10 for i in range(count)])
    (folder / "test_batch").write_bytes(test)
    names = "airplane automobile bird cat deer dog frog horse ship truck".split()
    (folder / "batches.meta").write_bytes(python2_pickle({"label_names": names, "num_vis": 3072}))
    return np.concatenate(all_images), all_labels


def write_cifar100(folder, count=200):
    folder.mkdir(parents=True)
    labels = [i % 100 for i in range(count)]
    for seed, name in enumerate(("train", "test"), start=1):
        (folder / name).write_bytes(cifar_batch(cifar_images(count, seed), labels, "fine_labels"))
    names = [f"class_{number}" for number in range(100)]
    (folder / "meta").write_bytes(python2_pickle({"fine_label_names": names, "coarse_label_names": []}))


def idx_bytes(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = idx_bytes(np.asarray(array, dtype=np.uint8))
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def image_bytes(width=40, height=30, seed=0, format="JPEG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 5, width // 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(file, format)
    return file.getvalue()


def write_tree(root, classes=("cat", "dog", "owl"), train=6, val=3, format="JPEG"):
    """Class folders of images, each of another size."""
    for split, count in (("train", train), ("val", val)):
        for label, class_name in enumerate(classes):
            folder = root / split / class_name
            folder.mkdir(parents=True)
            for number in range(count):
                content = image_bytes(40 + 5 * number, 60 - 5 * label, seed=100 * label + number, format=format)
                (folder / f"{class_name}_{number}.{format}").write_bytes(content)
    return root


def tar_bytes(members, mode="w", **options):
    """An archive of (TarInfo or name, content) pairs."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **options) as tar:
        for info, content in members:
            member = tarfile.TarInfo(info) if isinstance(info, str) else info
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def tar_folder(folder, archive, mode):
    with tarfile.open(archive, mode) as tar:
        tar.add(folder, arcname=folder.name)
    return archive


def channel_statistics(images):
    """Mean and standard deviation of each channel, in [0, 1], exactly, from the counts of the 256 values."""
    means, stds = [], []
    levels = np.arange(256) / 255
    for channel in range(images.shape[1]):
        counts = np.bincount(images[:, channel].numpy().ravel(), minlength=256)
        mean = np.average(levels, weights=counts)
        means.append(mean)
        stds.append(np.sqrt(np.average((levels - mean) ** 2, weights=counts)))
    return means, stds


class FileServer(http.server.ThreadingHTTPServer):
    """Serves files from a dictionary, and interrupts transfers when told to."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {}
        self.requests = []
        self.cut_after = []
        """For each coming answer: how many bytes of the body are sent before the connection is closed."""

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(self.path.lstrip("/"))
        self.server.requests.append(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut_after.pop(0)] if self.server.cut_after else content)
        self.close_connection = True

    def log_message(self, *args):
        pass


@contextmanager
def file_server():
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
