"""A user's own comparison as a study: its arms, its reference, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from spatialgrad.studies.compare import COMPARABLE, compare_study, default_folder, measured_on, methods_in
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import read_study
from spatialgrad.train import METHODS, ConfigError, OtherConfigError, RepOptGroup, TrainConfig, recipe
from support.studies import tiny_config


def arms(methods, config=None):
    return {arm.label: arm for arm in compare_study(config or tiny_config(), methods).arms("own")}


def test_every_method_trains_the_same_but_for_its_name():
    found = arms(["sgs", "baseline", "dbb"])
    assert list(found) == ["sgs", "baseline", "dbb"]
    for name, arm in found.items():
        assert arm.key == name
        assert arm.config == replace(tiny_config(name), out=None)


@pytest.mark.parametrize(
    ("methods", "reference"),
    [(["sgs", "baseline", "dbb"], "baseline"), (["sgs", "dbb"], "sgs"), (["dbb", "sgs"], "dbb")],
)
def test_the_reference_is_plain_training_or_the_first(methods, reference):
    assert [name for name, arm in arms(methods).items() if arm.reference] == [reference]


def test_repopt_comes_after_a_search_whose_time_counts():
    found = arms(["baseline", "repopt"], tiny_config(epochs=9))
    search, repopt = found["repopt-search"], found["repopt"]
    assert (search.shown, search.config.budget.epochs, search.config.method.name) == (False, 3, "repopt-search")
    assert (repopt.backbone, repopt.pays_for_backbone) == (search.key, True)
    assert "search of 3 epochs" in repopt.note


def test_scales_that_were_found_earlier_are_for_repopt_alone(tmp_path):
    config = replace(tiny_config("sgs"), repopt=RepOptGroup(scales=tmp_path))
    found = arms(["baseline", "sgs", "repopt"], config)
    assert list(found) == ["baseline", "sgs", "repopt"]
    assert [arm.config.repopt.scales for arm in found.values()] == [None, None, tmp_path]
    assert found["repopt"].backbone is None


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (["baseline", "dbbb"], "unknown --methods 'dbbb'; did you mean 'dbb'?"),
        (["baseline"], "--methods must name at least 2 methods, got baseline"),
        (["sgs", "sgs"], "at least 2 methods, got sgs"),
        (["baseline", "lemma"], "--methods: lemma has no accuracy to compare"),
        (["baseline", "repopt-search"], "repopt-search is trained before repopt"),
    ],
)
def test_refused(methods, words):
    with pytest.raises(ConfigError) as error:
        compare_study(tiny_config(), methods)
    assert words in str(error.value)


def test_refused_for_this_training(tmp_path):
    with pytest.raises(ConfigError, match="repopt can be compared for classification only"):
        compare_study(recipe("segmentation_pocket"), ["baseline", "repopt"])
    with pytest.raises(ConfigError, match=r"--repopt\.scales can be used only if repopt is one of --methods"):
        compare_study(replace(tiny_config(), repopt=RepOptGroup(scales=tmp_path)), ["baseline", "sgs"])


def test_every_method_with_a_metric_can_be_compared():
    assert {*COMPARABLE, "repopt-search", "lemma", "lemma-unscaled"} == set(METHODS)


@pytest.mark.parametrize(
    ("name", "metric"),
    [("desk", "accuracy"), ("segmentation_pocket", "miou"), ("pose_pocket", "pck"), ("pose_mpii", "pckh")],
)
def test_the_metric_is_that_of_the_data_set(name, metric):
    assert compare_study(recipe(name), ["baseline", "sgs"]).metric_at("own") == metric
    with pytest.raises(ConfigError, match=f"lemma has no {metric} to compare"):
        compare_study(recipe(name), ["baseline", "lemma"])


def test_the_folder_is_named_after_data_set_and_network(tmp_path):
    config = TrainConfig()
    assert default_folder("compare", config) == Path("studies/compare-cifar100-vgg11")
    narrow = replace(config, model=replace(config.model, width=0.25))
    assert default_folder("tune", narrow) == Path("studies/tune-cifar100-vgg11-w0.25")
    for name in (f"{tmp_path}/My Flowers", f"{tmp_path}/My Flowers/", f"{tmp_path}/My Flowers.tar.gz"):
        own = replace(config, data=replace(config.data, name=f"folder:{name}"))
        assert default_folder("compare", own) == Path("studies/compare-my-flowers-vgg11")


def test_a_short_trial_run_does_not_occupy_the_folder_of_the_real_one():
    """Nor does any other setting that changes results, while one that does not stays in the same folder."""
    config = TrainConfig()
    folder = default_folder("compare", config)
    short = [
        replace(config, budget=replace(config.budget, epochs=1)),
        replace(config, data=replace(config.data, limit=100)),
        replace(config, scaling=replace(config.scaling, k=7.0)),
        replace(config, method=replace(config.method, name="sgs-autocorrelation")),
    ]
    folders = [default_folder("compare", each) for each in short]
    assert len({folder, *folders}) == 5
    assert all(each.name.startswith(f"{folder.name}-") for each in folders)
    elsewhere = replace(config, seed=1, machine=replace(config.machine, threads=1), out=Path("elsewhere"))
    assert default_folder("compare", elsewhere) == folder


def test_it_is_said_which_images_were_looked_at():
    config = tiny_config()
    assert "on the test images" in measured_on(config)
    held_out = measured_on(replace(config, data=replace(config.data, validation=0.2)))
    assert "20 % of the training images" in held_out
    assert "test images are not used" in held_out


class TestTheSameFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        self.plan(["sgs", "dbb"], tmp_path, seeds=3).record.write(tmp_path)
        return tmp_path

    def plan(self, methods, folder, config=None, seeds=2):
        return make_plan(compare_study(config or tiny_config(), methods), "own", folder, num_seeds=seeds)

    def test_more_methods_extend_it(self, folder):
        before = read_study(folder)
        record = self.plan([*methods_in(before), "baseline"], folder).record
        assert methods_in(record) == ["sgs", "dbb", "baseline"]
        assert record.seeds == (0, 1, 2)
        assert [arm.reference for arm in record.arms] == [False, False, True]

    def test_other_settings_are_refused_by_their_flags(self, folder):
        with pytest.raises(OtherConfigError, match=r"(?s)--epochs: 2 there, 3 now.*--out"):
            self.plan(["sgs", "dbb"], folder, tiny_config(epochs=3))

    def test_another_study_is_refused(self, folder):
        from spatialgrad.studies.registry import get_study

        with pytest.raises(OtherConfigError, match="holds a study of `spatialgrad compare`, not the study cifar at"):
            make_plan(get_study("cifar"), "pocket", folder)
