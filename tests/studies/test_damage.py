"""Folders that hold another run, and damaged files: named, never accepted, and the rest of the study runs."""

import json
import shutil
from dataclasses import replace

import pytest

from spatialgrad.cli.study import describe_status
from spatialgrad.report.load import load_results
from spatialgrad.studies.archive import open_study
from spatialgrad.studies.console import StudyReporter
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import BEST, FORMAT, STUDY, read_study
from spatialgrad.studies.runner import PlanJobs
from spatialgrad.studies.study import Arm
from spatialgrad.train.errors import ConfigError, OtherConfigError
from spatialgrad.train.recipes import segmentation_pocket
from support.studies import Pretending, console, run_here, tiny_config, tiny_study

ORIGIN, SGS, TUNED = (f"runs/fashion-mnist-{name}" for name in ("origin", "sgs-ours", "tuned"))
STUDY_OF_ALL = tiny_study(tuned=True)


def swap(folder, first, second):
    """Replace the second run by a copy of the first one."""
    shutil.rmtree(folder / second)
    shutil.copytree(folder / first, folder / second)


def status_of(folder):
    out = console()
    out.print(describe_status(open_study(folder)))
    return out.file.getvalue()


def again(folder, **options):
    """The same command again, which trains nothing really."""
    return run_here(STUDY_OF_ALL, folder, num_seeds=2, executor=Pretending(), **options)


class TestAnotherRun:
    """A finished run counts only if its config is the planned one."""

    @pytest.mark.parametrize(
        ("there", "differs"),
        [
            (f"{SGS}/seed0", "--method: 'sgs' there, 'baseline' planned"),
            (f"{ORIGIN}/seed1", "--seed: 1 there, 0 planned"),
        ],
    )
    def test_it_is_neither_accepted_nor_reported(self, finished, there, differs):
        swap(finished, there, f"{ORIGIN}/seed0")
        heard = console()
        jobs, executor = again(finished, console=heard)
        assert list(jobs.failed) == [finished / ORIGIN / "seed0"]
        assert (len(jobs.finished), executor.order) == (7, [])
        assert differs in heard.file.getvalue()
        (arm,) = [arm for arm in load_results(finished).arms if arm.label == "Origin"]
        assert [run.state for run in arm.runs] == ["damaged", "finished"]
        assert list(arm.values) == [1]
        assert differs in arm.runs[0].message
        assert differs in status_of(finished)
        assert "1 damaged, 1 finished" in status_of(finished)

    def test_a_result_of_another_run(self, finished):
        shutil.copy(finished / SGS / "seed0/result.json", finished / ORIGIN / "seed0/result.json")
        (message,) = again(finished)[0].failed.values()
        assert "result.json is that of another run (method 'sgs', but 'baseline' in config.json)" in message
        assert load_results(finished).states == {"finished": 7, "damaged": 1}

    def test_the_machine_and_the_place_do_not_matter(self, finished, tmp_path):
        moved = finished.rename(tmp_path / "moved")
        jobs, executor = again(moved, changes={"machine.threads": 3})
        assert (len(jobs.finished), executor.order) == (8, [])

    def test_an_arm_that_a_search_tuned(self, finished):
        tuned = finished / TUNED / "seed0"
        config = json.loads((tuned / "config.json").read_text())
        config["scaling"]["alpha"] = 0.123
        (tuned / "config.json").write_text(json.dumps(config))
        jobs, _ = again(finished)
        assert list(jobs.failed) == [tuned]
        assert "--scaling.alpha: 0.123 there" in jobs.failed[tuned]
        # Before the search has chosen, it is not known what is planned.
        (finished / "searches/alpha" / BEST).unlink()
        assert {run.state for run in load_results(finished).runs} == {"finished"}
        assert "1 damaged" not in status_of(finished)

    def test_a_point_of_a_search(self, finished):
        swap(finished, "searches/alpha/point-0/seed0", "searches/alpha/point-1/seed0")
        (finished / "searches/alpha" / BEST).unlink()
        shutil.rmtree(finished / TUNED)
        jobs, _ = again(finished)
        assert next(iter(jobs.failed)) == finished / "searches/alpha/point-1/seed0"
        assert json.loads((finished / "searches/alpha" / BEST).read_text())["values"]["scaling.alpha"] == 0.8

    def test_a_run_with_another_backbone(self, tmp_path):
        def arms(scale):
            group = {"Model": "VGG"}
            tuned = segmentation_pocket("sgs")
            return (
                Arm(group=group, label="back one", config=tiny_config(), shown=False),
                Arm(group=group, label="back two", config=tiny_config("sgs"), shown=False),
                Arm(group=group, label="one", config=tuned, backbone="vgg-back-one"),
                Arm(group=group, label="two", config=tuned, backbone="vgg-back-two"),
            )

        study = replace(tiny_study(), arms=arms)
        assert len(make_plan(study, "pocket", tmp_path).jobs) == 4  # different backbones make different runs
        run_here(study, tmp_path, executor=Pretending())
        assert load_results(tmp_path).states == {"finished": 4}
        swap(tmp_path, "runs/vgg-one/seed0", "runs/vgg-two/seed0")
        assert load_results(tmp_path).states == {"finished": 3, "damaged": 1}
        jobs, _ = run_here(study, tmp_path, executor=Pretending())
        assert "--model.backbone" in jobs.failed[tmp_path / "runs/vgg-two/seed0"]


DAMAGE = {"cut": b'{"budget": {"epo', "another type": b"[1, 2]"}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
class TestDamagedFiles:
    """Each is named, and everything else is done."""

    @pytest.mark.parametrize("name", ["result.json", "config.json"])
    def test_of_a_finished_run(self, finished, name, content):
        shutil.rmtree(finished / SGS / "seed1")
        (finished / ORIGIN / "seed0" / name).write_bytes(content)
        jobs, executor = again(finished)
        assert executor.order == [finished / SGS / "seed1"]
        assert len(jobs.finished) == 7
        assert name in jobs.failed[finished / ORIGIN / "seed0"]
        assert (finished / ORIGIN / "seed0" / name).read_bytes() == content
        assert name in status_of(finished)
        assert "1 damaged" in status_of(finished)

    def test_the_config_of_an_unfinished_run(self, finished, content):
        (finished / ORIGIN / "seed0/result.json").unlink()
        (finished / ORIGIN / "seed0/config.json").write_bytes(content)
        jobs, executor = again(finished)
        assert executor.order == []
        assert "config.json" in jobs.failed[finished / ORIGIN / "seed0"]
        assert "config.json" in status_of(finished)

    def test_a_failure_is_tried_again(self, finished, content):
        folder = finished / ORIGIN / "seed0"
        (folder / "result.json").unlink()
        (folder / "failure.json").write_bytes(content)
        assert "failure.json" in status_of(finished)
        jobs, executor = again(finished)
        assert executor.order == [folder]
        assert len(jobs.finished) == 8

    def test_the_choice_of_a_search(self, finished, content):
        best = finished / "searches/alpha" / BEST
        chosen = json.loads(best.read_text())["values"]
        best.write_bytes(content)
        assert BEST in status_of(finished)
        (finished / TUNED / "seed0/result.json").unlink()
        jobs, _ = again(finished)
        assert BEST in jobs.failed[finished / TUNED / "seed0"]
        best.unlink()
        assert not again(finished)[0].failed
        assert json.loads(best.read_text())["values"] == chosen

    def test_the_study_itself(self, finished, content):
        (finished / STUDY).write_bytes(content)
        with pytest.raises(ConfigError, match=rf"{STUDY}.*Delete {STUDY} and run the study again"):
            again(finished)
        (finished / STUDY).unlink()
        jobs, executor = again(finished)
        assert (len(jobs.finished), executor.order) == (8, [])


def test_a_result_can_be_made_again(finished):
    path = finished / ORIGIN / "seed0/result.json"
    before = json.loads(path.read_text())
    path.write_text("{")
    jobs, _ = again(finished)
    assert "delete result.json to finish the run again" in jobs.failed[path.parent]
    path.unlink()
    _, executor = run_here(STUDY_OF_ALL, finished, num_seeds=2)
    assert executor.order == [path.parent]
    assert json.loads(path.read_text())["value"] == before["value"]


class TestStudyFile:
    """A folder of another format or study is never extended."""

    def test_another_format(self, finished):
        values = json.loads((finished / STUDY).read_text())
        (finished / STUDY).write_text(json.dumps({**values, "format": FORMAT + 1}))
        before = (finished / STUDY).read_bytes()
        with pytest.raises(ConfigError, match=rf"has format {FORMAT + 1}, but this version reads format {FORMAT}"):
            again(finished)
        assert (finished / STUDY).read_bytes() == before

    def test_a_point_without_its_field(self, finished):
        values = json.loads((finished / STUDY).read_text())
        del values["searches"][0]["points"][0]["values"]["scaling.alpha"]
        (finished / STUDY).write_text(json.dumps(values))
        with pytest.raises(ConfigError, match=r"a point of the search alpha sets .*, not scaling.alpha"):
            read_study(finished)

    @pytest.mark.parametrize("place", ["../escaped", "/etc", "runs/../../escaped"])
    def test_a_run_outside_of_the_folder(self, finished, place):
        values = json.loads((finished / STUDY).read_text())
        values["arms"][0]["runs"][0]["folder"] = place
        (finished / STUDY).write_text(json.dumps(values))
        with pytest.raises(ConfigError, match=rf"{STUDY} is damaged \(the run {place} is outside the study's folder\)"):
            read_study(finished)

    @pytest.mark.parametrize(("name", "scale"), [("other", "pocket"), ("tiny", "desk")])
    def test_another_study_that_came_after_the_plan(self, tmp_path, name, scale):
        plan = make_plan(tiny_study(), "pocket", tmp_path)
        other = make_plan(tiny_study(name=name), scale, tmp_path).record
        other.write(tmp_path)
        message = f"holds the study {name} at scale {scale}, not the study tiny at scale pocket"
        with pytest.raises(OtherConfigError, match=message):
            PlanJobs(plan, StudyReporter(console()))
        assert read_study(tmp_path) == other

    def test_a_part_that_came_after_the_plan_is_kept(self, tmp_path):
        plan = make_plan(tiny_study(), "pocket", tmp_path, only=["origin"])
        make_plan(tiny_study(), "pocket", tmp_path, only=["sgs"], num_seeds=2).record.write(tmp_path)
        PlanJobs(plan, StudyReporter(console()))
        record = read_study(tmp_path)
        assert {arm.key: [run.seed for run in arm.runs] for arm in record.arms} == {
            "fashion-mnist-origin": [0],
            "fashion-mnist-sgs-ours": [0, 1],
        }
