from dataclasses import replace
from pathlib import Path

import pytest

import spatialgrad.data
from spatialgrad.data import (
    DataError,
    MissingDataError,
    UnreachableError,
    data_root,
    get_dataset_files,
    list_datasets,
    load_dataset,
    load_for,
)
from spatialgrad.data.registry import find_source, task_of
from spatialgrad.data.sets import fashion_mnist
from support.data_files import write_cifar100

NAMES = [
    "fashion-mnist-mini",
    "shapes-mini",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "imagenet",
    "streets-mini",
    "camvid",
    "cityscapes",
    "figures-mini",
    "lspet",
    "mpii",
]


def test_the_public_names():
    assert spatialgrad.data.__all__ == sorted(spatialgrad.data.__all__)
    assert all(hasattr(spatialgrad.data, name) for name in spatialgrad.data.__all__)


def test_list_tells_what_is_there_and_where_the_rest_would_be(tmp_path):
    write_cifar100(tmp_path / "cifar-100-python")
    infos = {info.name: info for info in list_datasets(tmp_path)}
    assert list(infos) == NAMES
    assert infos["fashion-mnist-mini"].present
    assert infos["cifar100"].present
    assert infos["cifar100"].place == tmp_path / "cifar-100-python"
    assert not infos["cifar10"].present
    assert infos["cifar10"].place == tmp_path / "cifar-10-batches-py"
    assert all(info.description for info in infos.values())
    assert all(bool(info.how_to_get) != info.present for info in infos.values())


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-mini")])
def test_one_that_is_missing_says_how_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "SOURCE", replace(fashion_mnist.SOURCE, places=["fashion-mnist"]))
    source = find_source(name)
    by_hand = source.manual.replace("{root}", str(tmp_path))
    if source.fetch is None:
        with pytest.raises(UnreachableError, match=f"{name} cannot be downloaded automatically.\nManual download: "):
            get_dataset_files(name, tmp_path)
    with pytest.raises(MissingDataError) as caught:
        load_for(task_of(name), name, tmp_path)
    first, *lines = str(caught.value).split("\n")
    assert first.startswith(f"{name} not found in {tmp_path}")
    expected = ["If it is in another folder: set $SPATIALGRAD_DATA or --data.root."]
    how = [f"Download: spatialgrad data get {name} --data.root {tmp_path}"] if source.fetch else []
    how += [f"Manual download: {by_hand}"]
    assert lines == [*expected, *how]
    info = next(info for info in list_datasets(tmp_path) if info.name == name)
    assert info.how_to_get == "\n".join(how)
    # Where the command looks anyway, the flag is not needed.
    monkeypatch.setenv("SPATIALGRAD_DATA", str(tmp_path))
    info = next(info for info in list_datasets() if info.name == name)
    assert info.how_to_get == "\n".join(how).replace(f" --data.root {tmp_path}", "")


def test_each_task_has_its_data_sets(tmp_path):
    with pytest.raises(ValueError, match=r"camvid is a data set for segmentation, not for classification.*cifar10"):
        load_dataset("camvid", tmp_path)
    with pytest.raises(ValueError, match=r"cifar10 is a data set for classification, not for pose.*lspet, mpii"):
        load_for("pose", "cifar10", tmp_path)
    tasks = [info.task for info in list_datasets(tmp_path)]
    assert tasks == ["classification"] * 6 + ["segmentation"] * 3 + ["pose"] * 3
    metrics = [find_source(name).metric for name in NAMES]
    assert metrics == ["accuracy"] * 6 + ["miou"] * 3 + ["pck", "pck", "pckh"]


def test_the_root_is_the_argument_then_the_environment_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPATIALGRAD_DATA", str(tmp_path / "environment"))
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == tmp_path / "environment"
    write_cifar100(tmp_path / "environment" / "cifar-100-python")
    assert load_dataset("cifar100").num_classes == 100
    monkeypatch.delenv("SPATIALGRAD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "spatialgrad"
    assert data_root("~/sets") == tmp_path / "sets"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifar-10", "did you mean 'cifar10'"),
        ("CIFAR100", "did you mean 'cifar100'"),
        ("fashion_mnist", "did you mean 'fashion-mnist'"),
        ("xyz", "choose from fashion-mnist-mini, .* folder:PATH and package.module:function"),
        ("folder:", "unknown data set 'folder:'"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name, hint):
    for function in (load_dataset, get_dataset_files):
        with pytest.raises(ValueError, match=hint):
            function(name)


def test_get_of_the_shipped_set_has_nothing_to_do():
    lines = []
    place = get_dataset_files("fashion-mnist-mini", progress=lines.append)
    assert lines == [f"fashion-mnist-mini already exists: {place}"]


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="needs a file that is there but cannot be read")
def test_a_disk_that_cannot_be_read_is_our_error(tmp_path):
    write_cifar100(tmp_path / "cifar-100-python")
    (tmp_path / "cifar-100-python" / "test").unlink()
    (tmp_path / "cifar-100-python" / "test").symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"cifar100 cannot be read .*Input/output error"):
        load_dataset("cifar100", tmp_path)
