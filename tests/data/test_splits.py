import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.data import MemorySplit, load_dataset, stratified_indices, validation_split


def test_the_validation_split_is_a_stratified_fifth():
    data = load_dataset("fashion-mnist-mini")
    search = validation_split(data, seed=1)
    assert torch.bincount(search.train.labels).tolist() == [400] * 10
    assert torch.bincount(search.test.labels).tolist() == [100] * 10
    # The images themselves: each training image is on one side, with its label; the real test images are on neither.
    kept, held_out = stratified_indices(data.train.labels, 0.2, seed=1)
    for split, indices in ((search.train, kept), (search.test, held_out)):
        assert torch.equal(split.images, data.train.images[indices])
        assert torch.equal(split.labels, data.train.labels[indices])
    assert search.description == "Fashion-MNIST, 5k/1k subset, 20% of the training images held out (seed 1)"
    assert (search.name, search.mean, search.class_names) == (data.name, data.mean, data.class_names)


def test_it_depends_on_the_seed_only():
    labels = load_dataset("fashion-mnist-mini").train.labels
    stay, held_out = stratified_indices(labels, 0.2, seed=0)
    torch.rand(3)
    again, _ = stratified_indices(labels, 0.2, seed=0)
    other, _ = stratified_indices(labels, 0.2, seed=1)
    assert torch.equal(stay, again)
    assert not torch.equal(stay, other)
    # Of a search that was published, the split must never change.
    assert held_out[:8].tolist() == [0, 5, 7, 12, 19, 20, 41, 46]


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
)
def test_every_image_is_on_one_side_and_every_class_gives_its_share(labels, fraction, seed):
    labels = torch.tensor(labels)
    stay, held_out = stratified_indices(labels, fraction, seed=seed)
    assert torch.cat([stay, held_out]).sort().values.tolist() == list(range(len(labels)))
    assert len(held_out) == round(fraction * len(labels))
    for label in labels.unique():
        exact = fraction * (labels == label).sum().item()
        assert abs((labels[held_out] == label).sum().item() - exact) < 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 20])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        stratified_indices(torch.tensor([0, 1]), fraction, seed=0)


def test_a_validation_share_without_images_is_named_with_its_flag():
    data = load_dataset("fashion-mnist-mini")
    for fraction, count in ((0.00001, 0), (0.99999, 5000)):
        expected = f"--data.validation {fraction} holds out {count} of the 5000 training images of fashion-mnist-mini"
        with pytest.raises(ValueError, match=expected):
            validation_split(data, fraction)


def test_images_and_labels_in_memory_must_fit_each_other():
    images = torch.zeros(4, 3, 8, 6, dtype=torch.uint8)
    masks = torch.zeros(4, 8, 6, dtype=torch.uint8)
    assert len(MemorySplit(images, masks)) == len(MemorySplit(images, torch.arange(4))) == 4
    for wrong in (images.float(), images[0]):
        with pytest.raises(ValueError, match="images must be uint8 of shape"):
            MemorySplit(wrong, torch.arange(4))
    for wrong in (torch.arange(3), torch.zeros(4), masks[:, :7], masks.long()):
        with pytest.raises(ValueError, match=r"labels must be int64 of shape \(4,\), or uint8 of shape \(4, 8, 6\)"):
            MemorySplit(images, wrong)
