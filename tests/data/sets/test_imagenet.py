import io

import numpy as np
import pytest
from scipy.io import savemat

from spatialgrad.data import CorruptDataError, MissingDataError, UnreachableError, get_dataset_files, load_dataset
from spatialgrad.data.sets.imagenet import DEVKIT, TRAIN, VAL, extract_all
from support.data_files import image_bytes, silent, tar_bytes, write_tree

CLASSES = ("n01440764", "n01443537", "n01484850")
# The devkit counts classes in another order than that of their names.
IDS = {"n01484850": 1, "n01440764": 2, "n01443537": 3}
TRUTH = [3, 1, 2, 2, 1]


def _devkit(ids=IDS):
    synsets = np.zeros(4, dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)])
    for row, (name, number) in enumerate([*ids.items(), ("n00001740", 4)]):
        synsets[row] = (number, name, 0 if number < 4 else 3)
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets})
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    folder = "ILSVRC2012_devkit_t12/data"
    return tar_bytes(
        [(f"{folder}/meta.mat", meta.getvalue()), (f"{folder}/ILSVRC2012_validation_ground_truth.txt", truth)], "w:gz"
    )


@pytest.fixture
def root(tmp_path):
    """The three archives that image-net.org gives, with three classes and eleven images."""
    inner = [
        (f"{name}.tar", tar_bytes([(f"{name}_{i}.JPEG", image_bytes(seed=i)) for i in range(2)])) for name in CLASSES
    ]
    (tmp_path / TRAIN).write_bytes(tar_bytes(inner))
    images = [(f"ILSVRC2012_val_{i:08}.JPEG", image_bytes(seed=i)) for i in range(1, 6)]
    (tmp_path / VAL).write_bytes(tar_bytes(images))
    (tmp_path / DEVKIT).write_bytes(_devkit())
    return tmp_path


def _names(root):
    return sorted(path.name for path in root.iterdir())


def test_extracts_what_image_net_org_gives(root):
    extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    data = load_dataset("imagenet", root)
    assert data.class_names == CLASSES
    assert data.description == "ImageNet, 3 classes"
    assert (len(data.train), len(data.test)) == (6, 5)
    names = [data.test.files.name(index) for index in range(5)]
    numbers = {int(name[-13:-5]): label for name, label in zip(names, data.test.labels.tolist(), strict=True)}
    for number, truth in enumerate(TRUTH, start=1):
        assert IDS[CLASSES[numbers[number]]] == truth
    assert _names(root) == sorted([DEVKIT, TRAIN, VAL, "imagenet"])


def test_archives_of_another_data_set_are_refused_and_nothing_stays(root):
    before = _names(root)
    with pytest.raises(CorruptDataError, match=r"devkit_t12.tar.gz has the classes of 5 images, not 50,000"):
        get_dataset_files("imagenet", root, progress=silent)
    with pytest.raises(CorruptDataError, match="has 3 classes, not the 4"):
        extract_all(root, root / "imagenet", num_classes=4, num_val=5)
    (root / VAL).write_bytes(tar_bytes([("ILSVRC2012_val_00000001.JPEG", b"x")]))
    with pytest.raises(CorruptDataError, match="has 1 images, not 5"):
        extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    (root / VAL).write_bytes(tar_bytes([("ILSVRC2012_val_00000006.JPEG", b"x")]))
    with pytest.raises(CorruptDataError, match="not one of the validation images"):
        extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    assert _names(root) == before


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("name", [TRAIN, VAL, DEVKIT])
def test_a_truncated_archive_is_named_and_nothing_stays(root, name, keep):
    content = (root / name).read_bytes()
    end = len(content) if name == DEVKIT else content.rindex(b"JPEG")
    (root / name).write_bytes(content[: int(end * keep)])
    before = _names(root)
    with pytest.raises(CorruptDataError, match=name):
        extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    assert _names(root) == before


def test_a_malicious_inner_archive_does_nothing(root):
    evil = tar_bytes([("../../../canary.JPEG", image_bytes())])
    (root / TRAIN).write_bytes(tar_bytes([("n01440764.tar", evil)]))
    before = _names(root)
    with pytest.raises(CorruptDataError, match="outside its folder"):
        extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    assert _names(root) == before
    assert not list(root.parent.rglob("canary*"))


def test_a_malicious_devkit_does_nothing(root):
    (root / DEVKIT).write_bytes(_devkit({"../../canary": 1, "n01440764": 2, "n01443537": 3}))
    with pytest.raises(CorruptDataError, match=r"contains the class '../../canary', which is not a WordNet name"):
        extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    assert not list(root.parent.rglob("canary*"))


@pytest.mark.parametrize("name", ["../n01440764.tar", "n01440764.txt", "...tar"])
def test_only_archives_of_classes_are_expected(root, name):
    (root / TRAIN).write_bytes(tar_bytes([(name, tar_bytes([("canary.JPEG", image_bytes())]))]))
    with pytest.raises(CorruptDataError):
        extract_all(root, root / "imagenet", num_classes=3, num_val=5)
    assert not list(root.parent.rglob("canary*"))


def test_without_the_archives_it_says_where_to_get_them_and_where_to_put_them(tmp_path):
    with pytest.raises(
        UnreachableError, match=f"(?s)has no {TRAIN}.*register at https://image-net.org.* into {tmp_path}"
    ):
        get_dataset_files("imagenet", tmp_path, progress=silent)
    with pytest.raises(MissingDataError, match="imagenet/train/<class>/"):
        load_dataset("imagenet", tmp_path)


def test_class_folders_are_read_as_they_are(tmp_path):
    write_tree(tmp_path / "imagenet", classes=CLASSES)
    data = load_dataset("imagenet", tmp_path, image_size=64)
    assert (data.name, data.description, data.image_size) == ("imagenet", "ImageNet, 3 classes", 64)
