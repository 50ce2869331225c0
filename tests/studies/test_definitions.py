"""Every study at every scale is something that can be run."""

import re
from dataclasses import replace

import pytest
import torch

from spatialgrad.models import create_model, model_info
from spatialgrad.studies.paper.table5_optimizers import ROWS, with_row
from spatialgrad.studies.plan import count_runs
from spatialgrad.studies.registry import STUDIES, get_study, list_studies
from spatialgrad.studies.scales import OWN
from spatialgrad.studies.study import SCALES
from spatialgrad.train import ConfigError, recipe
from spatialgrad.train.config import from_dict, to_dict, with_values
from spatialgrad.train.optimizers import build_optimizer
from spatialgrad.train.recipes import cifar_table1

EVERY = [(name, scale) for name in STUDIES for scale in SCALES]
RUNS = {  # with the usual seeds: paper, desk, pocket
    "cifar": (2 * 4 * 5, 2 * 4 * 3, 4 * 2),
    "imagenet": (3 * 4 * 3, 3 * 4, 3 * 4),
    "search-methods": (49 + 6 + 4 * 3, 49 + 6 + 4 * 3, 9 + 3 + 4 * 2),
    "k-search": (4 * 7 * 3 + 6, 7 * 3 + 6, 7 + 6),  # and the points of the search
    "architectures": (17 * 2 * 3, 14 * 2, 17 * 2),
    # 9 rows, of which Adagrad* has the baseline of Adagrad, and Adagrad's update arm is the SGS arm of Adagrad*.
    "optimizers": (2 * 8 * 12 + 2 * 24 * 3, 2 * 24, 2 * 24),
    "sensitivity": (2 * 9 * 2 * 3, 2 * 9 * 2, 2 * 9 * 2),
    "learned-scalings": (2, 2, 2),
    "kernel-magnitudes": (2, 2, 2),
    "reparam-equivalence": (3, 3, 3),
}


def test_the_ten_studies():
    assert {study.name for study in list_studies()} >= set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_numbers_of_runs(name):
    assert tuple(count_runs(get_study(name), scale) for scale in SCALES) == RUNS[name]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_arms_fit_together(name, scale):
    study = get_study(name)
    arms = study.arms(scale)
    keys = [arm.key for arm in arms]
    assert len(set(keys)) == len(keys)
    groups = {}
    for arm in arms:
        assert list(arm.group) == list(arms[0].group)
        assert all(part and not part.startswith(".") for part in arm.key.split("/"))
        groups.setdefault(tuple(arm.group.values()), []).append(arm)
        assert arm.tuned_by is None or arm.tuned_by in {search.name for search in study.searches(scale)}
        assert arm.backbone is None or arm.backbone in keys
        assert from_dict(to_dict(arm.config)) == arm.config
    for group in groups.values():
        assert len([arm for arm in group if arm.reference]) <= 1
    assert study.differences[scale]
    assert study.times[scale]
    assert study.num_seeds[scale] >= 1


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_searches_hold_images_out(name, scale):
    for search in get_study(name).searches(scale):
        assert search.config.data.validation == 0.2
        for field, values in search.grid.items():
            assert len(set(values)) == len(values) > 1
            for value in values:
                with_values(search.config, {field: value})


@pytest.mark.parametrize("scale", SCALES)
def test_networks_can_be_built(scale):
    networks = {
        (arm.config.model.name, arm.config.model.width) for study in list_studies() for arm in study.arms(scale)
    }
    with torch.device("meta"):
        for name, width in networks:
            assert sum(p.numel() for p in create_model(name, width=width, num_classes=10).parameters()) > 0


@pytest.mark.parametrize("name", STUDIES)
def test_pocket_needs_no_download(name):
    study = get_study(name)
    configs = [arm.config for arm in study.arms("pocket")] + [search.config for search in study.searches("pocket")]
    for config in configs:
        dense = {"segmentation": {"streets-mini", "shapes-mini"}, "pose": {"figures-mini", "shapes-mini"}}
        assert config.data.name in dense.get(name, {"fashion-mnist-mini"})
        assert (config.data.limit or 0) <= 5000 * (1 - config.data.validation)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "reparam-equivalence"])
def test_every_scale_measures_scalings(name):
    """A training that ends before the first update would compare the baseline with itself."""
    for scale in SCALES:
        for arm in get_study(name).arms(scale):
            if arm.config.method.name in ("sgs", "sgs-autocorrelation"):
                assert arm.config.budget.epochs > arm.config.scaling.warmup


def test_the_paper_scale_is_the_recipes():
    def config(name, *words):
        (arm,) = [a for a in get_study(name).arms("paper") if (*a.group.values(), a.label) == words]
        return arm.config

    assert config("cifar", "CIFAR-10", "SGS (ours)") == recipe("cifar_table1")
    assert config("imagenet", "ResNet-18", "SGS (ours)") == recipe("imagenet")
    assert config("search-methods", "CIFAR-100", "SGS (ours)") == recipe("ablation_search")
    assert config("architectures", "VGG-11", "SGS (ours)") == recipe("cifar_appendix")
    assert config("sensitivity", "VGG-11", "200", "128", "SGS (ours)") == recipe("cifar_appendix")


@pytest.mark.parametrize("name", ["architectures", "imagenet"])
def test_arms_name_the_networks_that_they_train(name):
    for scale in SCALES:
        for arm in get_study(name).arms(scale):
            shown = arm.group["Model"].lower().replace("-", "").replace(" (α=", "110-a").rstrip(")")
            assert re.sub("-(imagenet|slim|linear)$", "", arm.config.model.name) == shown
            assert model_info(arm.config.model.name)


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_optimizers_train_with_what_they_name(row):
    """Everything that the paper does not say and that is not searched is PyTorch's default."""
    config, layer = with_row(recipe("cifar_appendix"), row), torch.nn.Linear(1, 1)
    optimizer = build_optimizer(config.optimizer, layer)
    assert type(optimizer).__name__ == row.split()[0].strip("*")
    assert config.scaling.apply == ("update" if row.endswith("*") else "gradient")
    default = type(optimizer)(layer.parameters()).defaults
    if row.startswith("SGD"):
        default |= {"lr": 0.1, "momentum": 0.9 if "Momentum" in row else 0.0}
    assert {**optimizer.defaults, "weight_decay": 0} == {**default, "weight_decay": 0}


def test_optimizers_cover_the_rows_and_go_beyond():
    names = ["SGD", "SGD + Momentum", "Adadelta", "Adagrad", "Adagrad*", "Adam", "Adamax", "NAdam", "RAdam"]
    assert list(ROWS) == names
    arms = get_study("optimizers").arms("desk")
    assert {arm.group["Optimizer"] for arm in arms} == set(ROWS)
    beyond = [arm for arm in arms if arm.label == "SGS on the update"]
    assert len(beyond) == 2 * 8
    assert all(arm.config.scaling.apply == "update" and not arm.published for arm in beyond)
    assert all("Beyond the paper" in arm.note for arm in beyond)


def test_fragile_networks_say_what_they_need():
    for scale in SCALES:
        arms = [arm for arm in get_study("architectures").arms(scale) if "PreAct" in arm.group["Model"]]
        assert len(arms) == 4
        assert all(arm.config.optimizer.clip_norm == 1 and "clipped to norm 1" in arm.note for arm in arms)


@pytest.mark.parametrize("scale", SCALES)
def test_the_curve_over_k_is_of_test_accuracies_and_the_search_holds_images_out(scale):
    study = get_study("k-search")
    assert all(arm.config.data.validation == 0 for arm in study.arms(scale))
    (search,) = study.searches(scale)
    assert search.config.data.validation == 0.2
    assert {arm.config.scaling.k for arm in study.arms(scale) if not arm.reference} == {2, 3, 4, 5, 6, 7}
    if scale == "paper":
        assert replace(search.config, data=replace(search.config.data, validation=0)) == cifar_table1("cifar100")


def test_no_classifier_with_dropout_at_desk_scale():
    """With it, VGGs are still far from fitting after 30 epochs."""
    configs = [arm.config for study in list_studies() for arm in study.arms("desk")]
    configs += [search.config for study in list_studies() for search in study.searches("desk")]
    for name, width in {(config.model.name, config.model.width) for config in configs}:
        with torch.device("meta"):
            model = create_model(name, width=width)
        assert name == "xception" or not any(isinstance(module, torch.nn.Dropout) for module in model.modules()), name


NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
    "fashion-mnist-mini": "Fashion-MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "folder:tiny-imagenet-20.tar": "Tiny-ImageNet, 20 classes",
    "folder:imagenette-160-mini.tar": "Imagenette-160, 8 classes",
    "cityscapes": "Cityscapes",
    "camvid": "CamVid",
    "streets-mini": "drawn streets",
    "figures-mini": "drawn figures",
    "mpii": "MPII",
    "lspet": "LSPe",
}


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_titles_and_groups_name_what_is_trained(name, scale):
    study = get_study(name)
    arms = [arm for arm in study.arms(scale) if arm.shown]
    trained = {NAMES[arm.config.data.name] for arm in arms}
    title = re.sub("other images than .*", "", study.title_at(scale))
    named = {each for each in NAMES.values() if re.search(rf"{each}(?!\d)", title)}
    assert named in (set(), trained)
    networks = {arm.config.model.name.split("-")[0] for arm in arms}
    for network in re.findall(r"VGG-\d+", study.title_at(scale)):
        assert networks == {network.lower().replace("-", "")}
    for arm in arms:
        assert arm.group.get("Dataset", NAMES[arm.config.data.name]) == NAMES[arm.config.data.name]
        assert bool(arm.published_for) == (scale != "paper" and bool(arm.published))
        model = arm.group.get("Model", "")
        if model.startswith(("VGG", "ResNet")):
            assert re.sub("-(imagenet|slim|linear)$", "", arm.config.model.name) == model.lower().replace("-", "")


@pytest.mark.parametrize("name", STUDIES)
def test_settings_that_the_paper_does_not_print_are_named(name):
    """Reports and `study show` tell what comes from the authors' configuration."""
    study = get_study(name)
    text = study.differences["paper"]
    assert "ublished settings" not in text
    if name == "reparam-equivalence" or study.shows == OWN:  # the paper reports no experiment
        return
    for config in (arm.config for arm in study.arms("paper")):
        if config.task != "classification" or name in ("segmentation", "pose"):
            continue
        power = f"{config.schedule.min_lr:.0e}".replace("e-0", "e-")
        assert f"a learning rate that ends at {power}" in text
        assert config.data.drop_last
        assert "no incomplete last batch" in text
        assert ("Nesterov momentum" if config.optimizer.nesterov else "momentum without Nesterov") in text
        if config.optimizer.decay_norms_and_biases:
            assert "weight decay on all parameters" in text
        else:
            assert "no weight decay on biases and BatchNorm" in text
        if config.data.name == "imagenet":
            assert "colour jitter (0.06)" in text
        else:
            assert config.data.cutout == 16
            assert "16 pixels" in text


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'optimizers'"):
        get_study("optimisers")


def test_values_by_dotted_name():
    config = with_values(recipe("pocket"), {"scaling.alpha": 5.0, "optimizer.lr": 0.2})
    assert (config.scaling.alpha, config.optimizer.lr) == (5.0, 0.2)
    for wrong in ("scaling.alfa", "scalings.alpha", "alpha"):
        with pytest.raises(ConfigError, match="unknown"):
            with_values(config, {wrong: 1.0})
    with pytest.raises(ConfigError, match=r"scaling\.alpha"):
        with_values(config, {"scaling.alpha": -1.0})
