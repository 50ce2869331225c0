"""`spatialgrad report`."""

import shutil

import pytest

from spatialgrad.cli.main import main
from spatialgrad.report.figures import FIGURES
from spatialgrad.studies.registry import find_studies
from spatialgrad.studies.study import FigureName
from support.report import arm, record, write_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for scale in ("desk", "pocket"):
        write_run(tmp_path / f"studies/cifar-{scale}/runs/a/seed0", 0.5)
        record([arm("a", "A", {}, (0,))], scale=scale, figures=("overhead",)).write(tmp_path / f"studies/cifar-{scale}")
    return tmp_path


def test_one_study_is_reported_in_its_own_folder(folder, capsys):
    assert main(["report", "studies/cifar-desk"]) == 0
    assert capsys.readouterr().out.strip() == "studies/cifar-desk/report/index.html"
    assert sorted(path.name for path in (folder / "studies/cifar-desk/report").iterdir()) == ["index.html", "report.md"]


def test_a_name_means_all_scales_that_were_run(folder, capsys):
    assert main(["report", "cifar"]) == 0
    assert capsys.readouterr().out.strip() == "studies/report/index.html"
    text = (folder / "studies/report/index.html").read_text()
    assert "pocket scale" in text
    assert "desk scale" in text


def test_a_folder_to_write_to(folder):
    assert main(["report", "cifar-desk", "studies/cifar-pocket", "--out", "there/report"]) == 0
    assert (folder / "there/report/index.html").exists()
    assert not (folder / "studies/report").exists()


def test_it_can_be_written_again_any_time(folder):
    assert main(["report", "cifar-desk"]) == 0
    before = (folder / "studies/cifar-desk/report/index.html").read_text()
    shutil.rmtree(folder / "studies/cifar-desk/runs")
    assert main(["report", "cifar-desk"]) == 0
    after = (folder / "studies/cifar-desk/report/index.html").read_text()
    assert "1 of 1 runs finished" in before
    assert "0 of 1 runs finished" in after


def test_what_cannot_be_written_leaves_the_old_report(folder, monkeypatch, capsys):
    assert main(["report", "cifar-desk"]) == 0
    report = folder / "studies/cifar-desk/report"
    before = {path.name: path.read_bytes() for path in report.iterdir()}
    (folder / "studies/cifar-desk/study.json").write_text("{")
    assert main(["report", "cifar-desk"]) == 2
    assert "study.json is damaged" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in report.iterdir()} == before
    (folder / "occupied").write_text("")
    assert main(["report", "cifar-pocket", "--out", "occupied/report"]) == 74
    assert "cannot write to" in capsys.readouterr().err


def test_figures_are_those_that_studies_may_name():
    names = set(FigureName.__args__)
    assert names <= set(FIGURES)
    assert set(FIGURES) - names == {"search"}


def test_the_folder_of_studies_is_relative(folder):
    assert find_studies("cifar-desk")[0].as_posix() == "studies/cifar-desk"
