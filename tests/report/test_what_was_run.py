"""A page says what was run: the networks and images, which arms were left out, and how to repeat exactly that."""

import shlex
from xml.etree import ElementTree

import pytest

from spatialgrad.report.figures import build_figures
from spatialgrad.report.load import load_results
from spatialgrad.report.page import write_report
from spatialgrad.report.provenance import command, facts, progress, trained
from spatialgrad.studies.plan import choose, make_plan
from spatialgrad.studies.registry import get_study
from support.report import table_rows, write_run


@pytest.fixture
def part(tmp_path):
    """Two arms of Table 1 at pocket scale, finished."""
    study = get_study("cifar")
    record = make_plan(study, "pocket", tmp_path, only=["origin", "sgs"], num_seeds=3).record
    record.write(tmp_path)
    for number, each in enumerate(record.arms):
        for run in each.runs:
            value = 0.5 + 0.01 * number + 0.002 * run.seed
            write_run(tmp_path / run.folder, value, seed=run.seed, config=each.config)
    return tmp_path


def test_the_command_repeats_the_same_part(part):
    said = command(load_results(part))
    assert said == "spatialgrad study run cifar --scale pocket --seeds 3 --only origin sgs"
    only = shlex.split(said)[shlex.split(said).index("--only") + 1 :]
    chosen = {arm.key for arm in choose(get_study("cifar").arms("pocket"), only)}
    assert chosen == {arm.record.key for arm in load_results(part).arms}


def test_the_command_of_a_whole_study_has_no_selection(tmp_path):
    make_plan(get_study("cifar"), "pocket", tmp_path).record.write(tmp_path)
    study = load_results(tmp_path)
    assert command(study) == "spatialgrad study run cifar --scale pocket --seeds 2"
    assert "left out" not in progress(study)
    assert "Left out" not in dict(facts(study))


def test_texts_of_a_selection_are_quoted(tmp_path):
    make_plan(get_study("optimizers"), "pocket", tmp_path, only=["vgg-11 adam"]).record.write(tmp_path)
    assert command(load_results(tmp_path)).endswith("--only 'vgg-11 adam'")


def test_arms_with_more_seeds_have_a_command_of_their_own(tmp_path):
    study = get_study("cifar")
    for only, seeds in ((["origin", "sgs"], 3), (["dbb"], 2)):
        make_plan(study, "pocket", tmp_path, only=only, num_seeds=seeds).record.write(tmp_path)
    planned = {(arm.record.key, run.seed) for arm in load_results(tmp_path).arms for run in arm.runs}
    commands = [shlex.split(each) for each in command(load_results(tmp_path)).split(" && ")]
    assert len(commands) == 2
    repeated = set()
    for words in commands:
        chosen = choose(study.arms("pocket"), words[words.index("--only") + 1 :])
        seeds = int(words[words.index("--seeds") + 1])
        repeated |= {(arm.key, seed) for arm in chosen for seed in range(seeds)}
    assert repeated == planned


def test_arms_that_were_left_out_are_told(part):
    study = load_results(part)
    assert progress(study) == "6 of 6 runs finished; 2 of 4 arms left out"
    assert dict(facts(study))["Left out"] == "Fashion-MNIST · DBB; Fashion-MNIST · DyRep"
    write_report([part])
    for name in ("index.html", "report.md"):
        assert "6 of 6 runs finished; 2 of 4 arms left out" in (part / "report" / name).read_text()


def test_a_title_names_what_was_trained(part):
    write_report([part])
    page, markdown = ((part / "report" / name).read_text() for name in ("index.html", "report.md"))
    assert "<h1>VGG-11 on Fashion-MNIST (part)</h1>" in page
    assert markdown.startswith("# VGG-11 on Fashion-MNIST (part)\n")
    assert "Trained here: vgg11 (width 0.125) on fashion-mnist-mini." in markdown
    assert "vgg11 (width 0.125) on fashion-mnist-mini." in page


def test_many_networks_are_counted(tmp_path):
    make_plan(get_study("architectures"), "desk", tmp_path).record.write(tmp_path)
    said = trained(load_results(tmp_path))
    assert said.startswith("vgg11-linear (width 0.25), resnet18 (width 0.125), resnet34 (width 0.125), ")
    assert said.endswith(" and 8 more on cifar100")


def test_published_values_carry_what_the_paper_measured(part):
    for row in table_rows(part):
        assert row["Dataset"] == "Fashion-MNIST"
        assert row["Published for"] == "VGG-16 on CIFAR-100"


def test_so_do_those_of_arms_side_by_side(tmp_path):
    make_plan(get_study("sensitivity"), "desk", tmp_path).record.write(tmp_path)
    first = table_rows(tmp_path)[0]
    assert (first["Epochs"], first["Published for"]) == ("10", "VGG-11 on CIFAR-100, 100 epochs")


def test_at_the_scale_of_the_paper_nothing_has_to_be_said(tmp_path):
    make_plan(get_study("cifar"), "paper", tmp_path).record.write(tmp_path)
    assert "Published for" not in table_rows(tmp_path)[0]


def test_published_costs_are_titled_with_their_own_network(part):
    (figure,) = [each for each in build_figures(load_results(part), "f") if each.name == "cost"]
    svg = "{http://www.w3.org/2000/svg}text"
    texts = [element.text for element in ElementTree.fromstring(figure.svg).iter(svg)]
    assert "Fashion-MNIST (ours)" in texts
    assert "VGG-16 on CIFAR-100 (published)" in texts
