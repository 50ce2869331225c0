"""Small pose data sets in the published layouts, with a stick figure in every image."""

import io
import tarfile

import h5py
import numpy as np
from PIL import Image, ImageDraw
from scipy.io import savemat

from spatialgrad.data.sets.lspet import SKELETON as LSP
from spatialgrad.data.sets.mpii import SKELETON as MPII

# A person of height 1, standing upright, seen from the front: its right is on the left of the picture.
_BODY = {
    "ankle": (0.12, 0.95),
    "knee": (0.1, 0.72),
    "hip": (0.08, 0.5),
    "wrist": (0.26, 0.52),
    "elbow": (0.22, 0.36),
    "shoulder": (0.14, 0.2),
}
_MIDDLE = {"neck": 0.16, "head top": 0.0, "pelvis": 0.5, "thorax": 0.2, "upper neck": 0.15}


def figure(skeleton, seed, width=120, height=150):
    """An image of a stick figure somewhere in it, and its joints."""
    generator = np.random.default_rng(seed)
    tall = generator.uniform(0.6, 0.8) * height
    middle, top = generator.uniform(0.4, 0.6) * width, generator.uniform(0.05, 0.15) * height
    joints = []
    for name in skeleton.joints:
        side, _, part = name.partition(" ")
        x, y = (0.0, _MIDDLE[name]) if name in _MIDDLE else _BODY[part]
        sign = {"right": -1, "left": 1}.get(side, 0)
        joints.append((middle + sign * x * tall, top + y * tall))
    joints = np.array(joints) + generator.normal(0, 0.01 * tall, (len(joints), 2))
    image = Image.fromarray(generator.integers(0, 90, (height, width, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(image)
    for first, second in skeleton.limbs:
        colour = {"left": (80, 120, 255), "right": (255, 80, 60), "middle": (60, 230, 60)}[skeleton.side(first)]
        draw.line([tuple(joints[first]), tuple(joints[second])], fill=colour, width=4)
    return image, joints


def jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def write_lspet(folder, count=10, change=None):
    """`images/` and `joints.mat`; `change(joints)` may spoil the array of shape (14, 3, count)."""
    (folder / "images").mkdir(parents=True)
    table = np.ones((14, 3, count))
    for number in range(count):
        image, joints = figure(LSP, number)
        table[:, :2, number] = joints
        (folder / "images" / f"im{number + 1:05d}.jpg").write_bytes(jpeg(image))
    if change is not None:
        table = change(table)
    savemat(folder / "joints.mat", {"joints": table})
    return table


def write_tar(folder, archive):
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=folder.name)


def mpii_person(seed):
    """Image, joints counted from 1, centre, scale and size of the head."""
    image, joints = figure(MPII, 100 + seed)
    low, high = joints.min(0), joints.max(0)
    head = float(np.linalg.norm(joints[8] - joints[9]))
    return image, joints + 1, (low + high) / 2 + 1, float((high - low)[1]) / 200, head


def write_mpii_h5(folder, train=6, valid=4, change=None, names="bytes"):
    """`images/`, `annot/train.h5` and `annot/valid.h5`; the first two people share an image.

    Args:
        folder: Of the data set.
        train: People to train on.
        valid: People to test on.
        change: `change(split, arrays)` may spoil the arrays before they are written.
        names: `bytes`, or `codes` for the numbers of the letters.
    """
    (folder / "images").mkdir(parents=True)
    (folder / "annot").mkdir()
    for split, count, first in (("train", train, 0), ("valid", valid, train)):
        people = [mpii_person(first + number) for number in range(count)]
        images = [f"{first + max(1, number):09d}.jpg" for number in range(count)]
        for (image, *_), name in zip(people, images, strict=True):
            (folder / "images" / name).write_bytes(jpeg(image))
        arrays = {
            "part": np.array([person[1] for person in people]),
            "visible": np.ones((count, 16)),
            "center": np.array([person[2] for person in people]),
            "scale": np.array([person[3] for person in people]),
            "normalize": np.array([person[4] for person in people]),
            "imgname": np.array([name.encode() for name in images]),
        }
        if names == "codes":
            arrays["imgname"] = np.array([[*name.encode(), 0, 0] for name in images], dtype=np.float64)
        if change is not None:
            change(split, arrays)
        with h5py.File(folder / "annot" / f"{split}.h5", "w") as file:
            for key, values in arrays.items():
                file[key] = values


def struct(**fields):
    """A matlab struct of size 1 × 1."""
    return structs([fields])


def structs(rows):
    """A matlab struct array of size 1 × n; a field that a row has not is empty."""
    names = sorted({name for row in rows for name in row})
    array = np.empty((1, len(rows)), dtype=[(name, object) for name in names])
    for position, row in enumerate(rows):
        for name in names:
            array[0, position][name] = row.get(name, np.empty((0, 0)))
    return array


def write_mpii_mat(folder, videos=(1, 2, 8, 16), in_mat=lambda release: release):
    """`images/` and the published .mat: an image for every video, a test image, and a crowd that stands too close."""
    (folder / "images").mkdir(parents=True)
    images, people_of, flags, apart = [], [], [], []
    for number, _ in enumerate(videos):
        image, joints, centre, scale, head = mpii_person(number)
        name = f"{number:09d}.jpg"
        (folder / "images" / name).write_bytes(jpeg(image))
        points = [
            {"x": x, "y": y, "id": float(joint), "is_visible": float(joint % 2)}
            for joint, (x, y) in enumerate(joints)
            if joint != 6 or number  # the first person has no pelvis
        ]
        side = head / 0.6 / np.sqrt(2)
        person = {
            **{"x1": 10.0, "y1": 20.0, "x2": 10 + side, "y2": 20 + side, "scale": scale},
            "objpos": struct(x=centre[0], y=centre[1]),
            "annopoints": struct(point=structs(points[::-1])),
        }
        close = {"x1": 1.0, "y1": 1.0, "x2": 2.0, "y2": 2.0, "scale": scale, "objpos": struct(x=5.0, y=5.0)}
        images.append(name)
        people_of.append(structs([close, person]))
        flags.append(1.0)
        apart.append(np.array([[2.0]]))
    images.append("999999999.jpg")  # a test image: no pose, and no file here
    people_of.append(structs([{"scale": 1.0, "objpos": struct(x=5.0, y=5.0)}]))
    flags.append(0.0)
    apart.append(np.array([[1.0]]))
    rows = [
        {"image": struct(name=name), "annorect": people, "vididx": float(video)}
        for name, people, video in zip(images, people_of, (*videos, 3), strict=True)
    ]
    cells = np.empty((len(rows), 1), dtype=object)
    cells[:, 0] = apart
    release = {"annolist": structs(rows), "img_train": np.array([flags]), "single_person": cells}
    savemat(folder / "mpii_human_pose_v1_u12_1.mat", {"RELEASE": in_mat(release)})
