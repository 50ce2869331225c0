"""Segmentation as a task: loss and metrics against hand-made cases and others' formulations, configs that fit."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, jaccard_score
from torch.nn import functional as F

from spatialgrad.cli.main import main
from spatialgrad.data import MemorySplit
from spatialgrad.train import ConfigError, DataConfig, ModelConfig, OptimizerConfig, SegmentationConfig, TrainConfig
from spatialgrad.train.config import from_dict, to_dict
from spatialgrad.train.optimizers import build_optimizer, set_learning_rate_
from spatialgrad.train.tasks.base import add_
from spatialgrad.train.tasks.segmentation import (
    Segmentation,
    coloured,
    confusion_matrix,
    cross_entropy,
    load_masks,
    scores,
)
from support.dense_files import write_camvid
from support.dense_training import tiny_segmentation

IGNORE = 255


@pytest.fixture
def root(tmp_path):
    write_camvid(tmp_path / "CamVid")
    return tmp_path


@pytest.fixture
def task(root):
    return Segmentation(tiny_segmentation(root / "run", root), torch.device("cpu"))


def test_a_case_by_hand():
    """Three classes, eight pixels, one of them without a class."""
    truth = torch.tensor([[[0, 0, 0, 0], [1, 1, 2, IGNORE]]])
    predicted = torch.tensor([[[0, 0, 0, 1], [1, 0, 2, 2]]])
    matrix = confusion_matrix(predicted, truth, 3)
    assert matrix.tolist() == [[3, 1, 0], [1, 1, 0], [0, 0, 1]]
    found = scores(matrix)
    assert found["miou"] == pytest.approx((3 / 5 + 1 / 3 + 1 / 1) / 3)
    assert found["macc"] == pytest.approx((3 / 4 + 1 / 2 + 1 / 1) / 3)
    assert found["allacc"] == pytest.approx(5 / 7)


def test_classes_that_are_not_there():
    """Neither there nor predicted: left out of everything. Predicted only: an intersection of 0, but no accuracy."""
    found = scores(torch.tensor([[2, 2, 0, 0], [0, 0, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]))
    assert scores(torch.zeros(3, 3, dtype=torch.int64)) == {"miou": 0.0, "macc": 0.0, "allacc": 0.0}
    assert found == {"miou": pytest.approx((0.5 + 0 + 1) / 3), "macc": pytest.approx((0.5 + 1) / 2), "allacc": 0.75}


masks = st.integers(2, 6).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(st.sampled_from([*range(classes), IGNORE]), min_size=12, max_size=12),
        st.lists(st.integers(0, classes - 1), min_size=12, max_size=12),
    )
)


@given(masks)
@settings(max_examples=50, deadline=None)
def test_metrics_are_those_of_scikit_learn(case):
    classes, truth, predicted = case
    matrix = confusion_matrix(torch.tensor(predicted).view(2, 2, 3), torch.tensor(truth).view(2, 2, 3), classes)
    found = scores(matrix)
    pairs = [(t, p) for t, p in zip(truth, predicted, strict=True) if t != IGNORE]
    assert int(matrix.sum()) == len(pairs)
    if not pairs:
        return
    true, guess = zip(*pairs, strict=True)
    seen = sorted({*true, *guess})
    assert found["miou"] == pytest.approx(jaccard_score(true, guess, labels=seen, average="macro", zero_division=0))
    assert found["allacc"] == pytest.approx(accuracy_score(true, guess))
    if len(set(true)) > 1 and set(guess) <= set(true):  # else scikit-learn warns
        assert found["macc"] == pytest.approx(balanced_accuracy_score(true, guess))


def test_totals_add_up_over_batches(task):
    model = task.build_model().eval()
    batches = list(task.eval_batches())
    assert len(batches) > 1
    parts = {}
    with torch.no_grad():
        for batch in batches:
            add_(parts, task.evaluate(model, batch))
        whole = task.evaluate(model, tuple(torch.cat(tensors) for tensors in zip(*batches, strict=True)))
    assert torch.equal(parts["confusion"], whole["confusion"])
    assert task.metrics(parts) == pytest.approx(task.metrics(whole), rel=1e-6)
    assert set(task.metrics(parts)) == {"loss", "miou", "macc", "allacc"}


def test_cross_entropy_is_the_mean_over_pixels_with_a_class():
    logits = torch.randn(2, 4, 3, 5)
    truth = torch.randint(0, 4, (2, 3, 5))
    truth[0, :2] = IGNORE
    expected = [
        -torch.log_softmax(logits[n, :, y, x], 0)[truth[n, y, x]]
        for n in range(2)
        for y in range(3)
        for x in range(5)
        if truth[n, y, x] != IGNORE
    ]
    torch.testing.assert_close(cross_entropy(logits, truth), torch.stack(expected).mean())
    torch.testing.assert_close(cross_entropy(logits, truth), F.cross_entropy(logits, truth, ignore_index=IGNORE))


def test_a_batch_without_any_class_costs_nothing_and_changes_nothing(task):
    model = task.build_model()
    images, truth = next(iter(task.train_batches(0)))
    loss, sums = task.loss(model, (images, torch.full_like(truth, IGNORE)))
    loss.backward()
    assert loss == 0
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())
    assert all(math.isfinite(value) for value in task.metrics(sums).values())


def test_the_auxiliary_loss_has_its_weight(task):
    torch.manual_seed(0)
    model, batch = task.build_model(), next(iter(task.train_batches(0)))
    torch.manual_seed(1)
    loss, sums = task.loss(model, batch)
    torch.manual_seed(1)
    logits, auxiliary = model(batch[0])
    expected = F.cross_entropy(logits, batch[1], ignore_index=IGNORE)
    other = F.cross_entropy(auxiliary, batch[1], ignore_index=IGNORE)
    torch.testing.assert_close(loss, expected + 0.4 * other)
    found = task.metrics(sums)
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found["auxiliary_loss"] == pytest.approx(other.item(), rel=1e-5)


def test_scaling_sees_the_auxiliary_head_too(task):
    model, called = task.build_model().eval(), []
    model.auxiliary.register_forward_hook(lambda *args: called.append(True))
    task.forward(model, next(iter(task.train_batches(0))))
    assert called


def test_whole_images_are_tested_in_batches_of_no_more_pixels_than_in_training(task):
    sizes = [images.shape for images, _ in task.eval_batches()]
    assert all(shape[2:] == (40, 56) for shape in sizes)
    assert max(shape[0] for shape in sizes) == 4 * 32 * 48 // (40 * 56)


@pytest.mark.parametrize("world_size", [1, 2])
def test_batch_normalization_needs_two_images_per_process(root, world_size):
    config = tiny_segmentation(root / "run", root, data={"batch_size": 2 * world_size - 1})
    with pytest.raises(ConfigError, match="pspnet18 needs at least 2 images per process"):
        Segmentation(config, torch.device("cpu")).steps_per_epoch(world_size)


def test_parts_of_the_data(root):
    data = DataConfig(name="camvid", root=root, limit=5, test_limit=2)
    found = load_masks(data)
    assert (len(found.train), len(found.test)) == (5, 2)
    assert found.description == "CamVid 56×40, 10/6 subset, 5 train images, 2 test images"
    again, other = load_masks(data), load_masks(replace(data, split_seed=1))
    first, second, third = (each.train.files.relative_names() for each in (found, again, other))
    assert first == second != third
    held_out = load_masks(DataConfig(name="camvid", root=root, validation=0.2))
    assert (len(held_out.train), len(held_out.test)) == (8, 2)
    parts = [split.files.relative_names() for split in (held_out.train, held_out.test)]
    whole = load_masks(DataConfig(name="camvid", root=root)).train
    assert sorted(parts[0] + parts[1]) == whole.files.relative_names()
    assert "20% of the training images held out" in held_out.description
    with pytest.raises(ConfigError, match=r"--data.limit 11: camvid has only 10 train images"):
        load_masks(replace(data, limit=11))
    for share, number in ((0.01, 0), (0.99, 10)):
        with pytest.raises(
            ConfigError, match=rf"--data.validation {share} holds out {number} of the 10 training images of camvid"
        ):
            load_masks(DataConfig(name="camvid", root=root, validation=share))


def test_examples_are_pictures_of_test_images(task):
    model = task.build_model().eval()
    with torch.no_grad():
        shown = task.examples(model, 3)
    assert len(shown.examples) == 3
    assert shown.legend["road"] == (128, 64, 128)
    assert coloured(torch.tensor([[255, 3]]), task.dataset)[:, 0].T.tolist() == [[0, 0, 0], [128, 64, 128]]
    for example, index in zip(shown.examples, (0, 2, 5), strict=True):
        image, mask = task.dataset.test.read(index)
        assert torch.equal(example.images["image"], image)
        assert torch.equal(example.images["truth"], coloured(mask.long(), task.dataset))
        assert example.images["prediction"].shape == image.shape
        assert example.caption.startswith(f"frame_{index:03d}.png: ")
        colours = {tuple(colour) for colour in example.images["truth"].flatten(1).T.tolist()}
        assert colours <= {*shown.legend.values(), (0, 0, 0)}


def test_pictures_of_large_images_are_small_enough_for_a_report(task):
    """A street scene of 2048×1024 is a PNG file of some megabytes, which reports refuse."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1, 3, 40, 1100), generator=generator, dtype=torch.uint8)
    truth = torch.tensor([0, 3, 8, IGNORE], dtype=torch.uint8)[torch.randint(0, 4, (1, 40, 1100), generator=generator)]
    task.dataset = replace(task.dataset, test=MemorySplit(images, truth), image_size=(40, 1100))
    with torch.no_grad():
        (example,) = task.examples(task.build_model().eval(), 6).examples
    assert {picture.shape for picture in example.images.values()} == {(3, 14, 367)}
    assert torch.equal(example.images["truth"], coloured(truth[0, ::3, ::3].long(), task.dataset))
    expected = images[0, :, 3:6, 6:9].double().mean((1, 2))
    assert (example.images["image"][:, 1, 2] - expected).abs().max() <= 0.5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TrainConfig(task="segmentation"), r"model 'vgg11' is for classification, .*pspnet18, pspnet34"),
        (
            lambda: TrainConfig(task="segmentation", model=ModelConfig(name="pspnet18")),
            r"'cifar100' is for classification, but the task is 'segmentation'; .*streets-mini, camvid, cityscapes",
        ),
        (
            lambda: TrainConfig(model=ModelConfig(name="pspnet18"), data=DataConfig(name="camvid")),
            r"model 'pspnet18' is for segmentation, but the task is 'classification'; use --task segmentation",
        ),
        (lambda: TrainConfig(data=DataConfig(name="camvid")), r"dataset 'camvid' is for segmentation, .*--task seg"),
        (
            lambda: TrainConfig(model=ModelConfig(name="timm:resnet18", backbone="x", pretrained=True)),
            r"--model.backbone: --model.pretrained names other initial weights",
        ),
        (
            lambda: TrainConfig(optimizer=OptimizerConfig(head_factor=10)),
            r"head-factor must be 1 for vgg11",
        ),
        (
            lambda: TrainConfig(data=DataConfig(image_size=(32, 40))),
            r"--data.image-size must be one number",
        ),
        (lambda: DataConfig(image_size=(0, 40)), r"--data.image-size must be .* got \(0, 40\)"),
        (lambda: DataConfig(image_size=(1, 2, 3)), r"--data.image-size must be .* got \(1, 2, 3\)"),
        (lambda: OptimizerConfig(head_factor=0), r"--optimizer.head-factor"),
        (lambda: SegmentationConfig(auxiliary=-1), r"--segmentation.auxiliary"),
        (lambda: SegmentationConfig(scale=(2.0, 1.0)), r"--segmentation.scale"),
        (lambda: SegmentationConfig(rotation=-1), r"--segmentation.rotation"),
    ],
)
def test_what_does_not_fit_is_named_with_the_way_out(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_image_sizes_and_old_configs_come_back_from_json(root):
    config = tiny_segmentation("run", root)
    assert config.data.image_size == (32, 48)
    assert from_dict(to_dict(config)) == config
    assert DataConfig(image_size=(32, 32)).image_size == 32
    values = to_dict(TrainConfig())
    del values["segmentation"], values["model"]["backbone"], values["optimizer"]["head_factor"]
    assert from_dict(values) == TrainConfig()


@pytest.mark.parametrize(("flags", "size"), [(["48"], 48), (["32", "48"], (32, 48))])
def test_image_sizes_on_the_command_line(flags, size, monkeypatch):
    seen = []
    monkeypatch.setattr("spatialgrad.cli.train.run_training", seen.append)
    dense = ["--task", "segmentation", "--model", "pspnet18", "--dataset", "camvid"]
    assert main(["train", *dense, "--data.image-size", *flags]) == 0
    assert seen[0].data.image_size == size


def test_the_head_learns_at_a_rate_of_its_own(task):
    model = task.build_model()
    optimizer = build_optimizer(OptimizerConfig(lr=0.02, head_factor=10), model)
    set_learning_rate_(optimizer, 0.01)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == pytest.approx(0.01 if name.startswith("backbone.") else 0.1), name
    assert len(build_optimizer(OptimizerConfig(), model).param_groups) == 1
