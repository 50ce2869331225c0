"""Plans: which runs, where, in which order, and what is trained once."""

from dataclasses import replace

import pytest

from spatialgrad.studies.console import StudyReporter
from spatialgrad.studies.plan import choose, make_plan
from spatialgrad.studies.record import read_study
from spatialgrad.studies.registry import get_study
from spatialgrad.studies.runner import PlanJobs
from spatialgrad.studies.study import Arm, Search
from spatialgrad.train import ConfigError, OtherConfigError
from support.studies import tiny_config, tiny_study
from support.training import SILENT


def folders(plan):
    return [str(job.folder.relative_to(plan.folder)) for job in plan.jobs]


def test_folders_and_order(tmp_path):
    plan = make_plan(tiny_study(), "pocket", tmp_path, num_seeds=2)
    assert folders(plan) == [
        "runs/fashion-mnist-origin/seed0",
        "runs/fashion-mnist-sgs-ours/seed0",
        "runs/fashion-mnist-origin/seed1",
        "runs/fashion-mnist-sgs-ours/seed1",
    ]
    assert [job.config.seed for job in plan.jobs] == [0, 0, 1, 1]
    assert plan.record.seeds == (0, 1)
    assert not list(tmp_path.iterdir())  # to plan is not to write


def test_searches_come_first(tmp_path):
    plan = make_plan(tiny_study(tuned=True), "pocket", tmp_path)
    assert folders(plan)[:2] == ["searches/alpha/point-0/seed0", "searches/alpha/point-1/seed0"]
    assert plan.jobs[0].config.scaling.alpha == 0.8
    (tuned,) = [job for job in plan.jobs if job.tuned_by]
    assert tuned.tuned_by == "alpha"
    assert dict(plan.record.searches[0].points[1].values) == {"scaling.alpha": 5.0, "optimizer.lr": 0.05}


def test_equal_configs_are_trained_once(tmp_path):
    plan = make_plan(get_study("optimizers"), "desk", tmp_path)
    places = {arm.key: arm.runs[0].folder for arm in plan.record.arms}
    assert places["vgg-11-adagrad-star-no-sgs"] == places["vgg-11-adagrad-no-sgs"]
    assert places["vgg-11-adagrad-star-sgs-ours"] == places["vgg-11-adagrad-sgs-on-the-update"]
    assert len(plan.record.arms) == 52
    assert len(plan.jobs) == len(set(places.values())) == 48


def test_points_that_are_arms_are_trained_once(tmp_path):
    study = get_study("k-search")
    config = study.arms("pocket")[1].config
    searches = (Search(name="shared", config=config, grid={"scaling.k": (2.0, 3.0)}),)
    plan = make_plan(replace(study, searches=lambda scale: searches), "pocket", tmp_path)
    assert len(plan.jobs) == 7
    (search,) = plan.record.searches
    arms = {run.folder for arm in plan.record.arms for run in arm.runs}
    assert {run.folder for point in search.points for run in point.runs} < arms


def test_a_search_that_tunes_no_arm_is_part_of_the_whole_study_only(tmp_path):
    study = get_study("k-search")
    plan = make_plan(study, "pocket", tmp_path)
    assert [search.name for search in plan.searches] == ["k-of-vgg-11"]
    assert folders(plan)[:6] == [f"searches/k-of-vgg-11/point-{number}/seed0" for number in range(6)]
    assert len(plan.jobs) == 6 + 7


def test_a_part_of_a_study_remembers_what_it_leaves_out(tmp_path):
    study = get_study("cifar")
    first = make_plan(study, "pocket", tmp_path, only=["origin"]).record
    assert first.only == ("origin",)
    assert first.omitted == tuple(f"Fashion-MNIST · {label}" for label in ("DBB", "DyRep", "SGS (ours)"))
    first.write(tmp_path)
    assert read_study(tmp_path) == first
    second = make_plan(study, "pocket", tmp_path, only=["sgs"]).record
    assert (second.only, len(second.omitted)) == (("origin", "sgs"), 2)
    # Planned by two commands at once.
    other = make_plan(study, "pocket", tmp_path / "other", only=["dbb", "dyrep"]).record
    joined = other.joined(make_plan(study, "pocket", tmp_path / "another", only=["dbb", "sgs"]).record)
    assert (joined.only, joined.omitted) == (("dbb", "sgs", "dyrep"), ("Fashion-MNIST · Origin",))
    assert [arm.label for arm in joined.arms] == ["DBB", "DyRep", "SGS (ours)"]
    # As in the study's table, whatever was planned first.
    assert [arm.label for arm in other.joined(first).arms] == ["Origin", "DBB", "DyRep"]
    whole = make_plan(study, "pocket", tmp_path).record
    assert (whole.only, whole.omitted) == ((), ())


def test_only_some_arms(tmp_path):
    study = get_study("optimizers")
    plan = make_plan(study, "desk", tmp_path, only=["vgg-11 ADAM no"])
    assert [arm.group["Optimizer"] for arm in plan.record.arms] == ["Adam"]  # a whole word, not RAdam
    plan = make_plan(study, "desk", tmp_path, only=["vgg-11 dam no"])
    assert [arm.group["Optimizer"] for arm in plan.record.arms] == ["Adam", "Adamax", "NAdam", "RAdam"]
    assert {arm.group["Model"] for arm in choose(get_study("architectures").arms("desk"), ["resnet-18"])} == {
        "ResNet-18"
    }
    assert {arm.group["Dataset"] for arm in choose(get_study("cifar").arms("desk"), ["cifar-10"])} == {"CIFAR-10"}
    assert len(choose(study.arms("desk"), ["resnet", "vgg"])) == 52
    with pytest.raises(ConfigError, match=r"no arm matches --only 'lion'; choose from\n  VGG-11 · SGD · No SGS"):
        make_plan(study, "desk", tmp_path, only=["lion"])


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("PSPNet-18 SGS", ["SGS"]),
        ("pspnet-18 · sgs", ["SGS"]),  # as reports and messages write it
        ("PSPNet SGS", ["SGS in pre-training", "SGS in fine-tuning", "SGS"]),
        ("PSPNet-18 SGS in fine-tuning", ["SGS in fine-tuning"]),
    ],
)
def test_a_whole_name_is_this_arm_alone(text, labels):
    assert [arm.label for arm in choose(get_study("segmentation").arms("desk"), [text])] == labels


def test_only_keeps_what_arms_need(tmp_path):
    study = get_study("search-methods")
    assert len(make_plan(study, "paper", tmp_path, only=["grid"], num_seeds=1).jobs) == 49 + 1
    assert len(make_plan(study, "paper", tmp_path, only=["origin"], num_seeds=1).jobs) == 1
    plan = make_plan(get_study("k-search"), "pocket", tmp_path, only=["k = 3"])
    assert len(plan.jobs) == 1
    assert not plan.searches


def test_folders_do_not_depend_on_what_was_asked_for(tmp_path):
    study = get_study("optimizers")
    some, every = (make_plan(study, "desk", tmp_path, only=only) for only in (["adagrad*"], []))
    assert set(folders(some)) < set(folders(every))


def test_more_seeds_and_arms_extend_a_study(tmp_path):
    study = tiny_study()
    make_plan(study, "pocket", tmp_path, only=["origin"], note="first").record.write(tmp_path)
    plan = make_plan(study, "pocket", tmp_path, num_seeds=3, only=["sgs"])
    plan.record.write(tmp_path)
    record = read_study(tmp_path)
    seeds = {arm.label: [run.seed for run in arm.runs] for arm in record.arms}
    assert seeds == {"Origin": [0], "SGS (ours)": [0, 1, 2]}
    assert record.note == "first"
    assert len(plan.jobs) == 3
    assert record == plan.record
    fewer = make_plan(study, "pocket", tmp_path, only=["sgs"], num_seeds=1)  # what was planned once stays
    assert (len(fewer.jobs), fewer.record.arms) == (1, record.arms)


def test_what_is_planned_is_what_is_read(tmp_path):
    for name, scale in (("search-methods", "paper"), ("learned-scalings", "pocket"), ("reparam-equivalence", "desk")):
        plan = make_plan(get_study(name), scale, tmp_path / name)
        plan.record.write(tmp_path / name)
        assert read_study(tmp_path / name) == plan.record


def test_another_study_is_refused(tmp_path):
    make_plan(tiny_study(), "pocket", tmp_path).record.write(tmp_path)
    with pytest.raises(OtherConfigError, match=r"study tiny at scale pocket, not the study tiny at scale desk.*--out"):
        make_plan(tiny_study(), "desk", tmp_path)
    with pytest.raises(OtherConfigError, match="not the study k-search"):
        make_plan(get_study("k-search"), "pocket", tmp_path)
    with pytest.raises(OtherConfigError, match=r"(?s)origin:.*budget\.epochs: 2 there, 3 now.*--out"):
        make_plan(tiny_study(epochs=3), "pocket", tmp_path)


def test_machines_may_change(tmp_path):
    make_plan(tiny_study(), "pocket", tmp_path).record.write(tmp_path)
    plan = make_plan(tiny_study(), "pocket", tmp_path, changes={"machine.threads": 7})
    assert {job.config.machine.threads for job in plan.jobs} == {7}


def test_backbones_come_first(tmp_path):
    def arms(scale):
        group, config = {"Model": "VGG"}, tiny_config()
        return (
            Arm(group=group, label="fine-tuned", config=tiny_config("sgs"), backbone="vgg-backbone"),
            Arm(group=group, label="backbone", config=config, shown=False),
        )

    study = replace(tiny_study(), arms=arms)
    plan = make_plan(study, "pocket", tmp_path, num_seeds=2, only=["fine"])
    backbones = [job.backbone for job in plan.jobs]
    places = [tmp_path / f"runs/vgg-backbone/seed{seed}" for seed in range(2)]
    assert backbones == [None, places[0], None, places[1]]
    assert [job.folder for job in plan.jobs][::2] == places
    with pytest.raises(ConfigError, match="no arm trains the backbone nothing"):
        make_plan(replace(study, arms=lambda scale: (replace(arms(scale)[0], backbone="nothing"),)), "pocket", tmp_path)


def test_no_seeds(tmp_path):
    with pytest.raises(ConfigError, match="--seeds must be at least 1, got 0"):
        make_plan(tiny_study(), "pocket", tmp_path, num_seeds=0)


def test_two_commands_that_plan_at_once_lose_nothing(tmp_path):
    """Both were planned before either was written."""
    study = tiny_study(tuned=True)
    plans = [make_plan(study, "pocket", tmp_path, only=[text], num_seeds=n) for text, n in (("sgs", 1), ("tuned", 2))]
    plans.append(make_plan(study, "pocket", tmp_path, only=["sgs"], num_seeds=3, note="mine"))
    for plan in plans:
        PlanJobs(plan, StudyReporter(SILENT))
    found = read_study(tmp_path)
    assert {arm.label: [run.seed for run in arm.runs] for arm in found.arms} == {
        "SGS (ours)": [0, 1, 2],
        "tuned": [0, 1],
    }
    assert [search.name for search in found.searches] == ["alpha"]
    assert (found.seeds, found.note) == ((0, 1, 2), "mine")
