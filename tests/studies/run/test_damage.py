"""Folders that hold another run, and damaged files: named, never accepted, and the rest of the study runs."""

import json
import shutil
from dataclasses import replace

import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from spatialgrad.cli.study_tables import describe_status
from spatialgrad.report.load import load_results
from spatialgrad.studies.files import DEEPEST
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import BEST, FORMAT, STUDY, read_study
from spatialgrad.studies.run.journal import DAMAGED, JOURNAL
from spatialgrad.studies.run.launch import Ended
from spatialgrad.studies.run.runner import Runner
from spatialgrad.studies.run.search import DAMAGED_BEST, GridSearch
from spatialgrad.studies.study import Arm
from spatialgrad.train.errors import ConfigError, OtherConfigError
from spatialgrad.train.recipes import segmentation_pocket
from support.studies import InProcess, console, run_here, tiny_config, tiny_study

ORIGIN, SGS = "runs/fashion-mnist-origin", "runs/fashion-mnist-sgs-ours"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished study of two arms and two seeds."""
    folder = tmp_path_factory.mktemp("trained") / "study"
    run_here(tiny_study(), folder, num_seeds=2)
    return folder


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(trained, tmp_path / "study")


def swap(folder, first, second):
    """Replace the second run by a copy of the first one."""
    shutil.rmtree(folder / second)
    shutil.copytree(folder / first, folder / second)


def status_of(folder):
    out = console()
    out.print(describe_status(folder, read_study(folder)))
    return out.file.getvalue()


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
        outcome, launcher = run_here(tiny_study(), finished, num_seeds=2, console=heard)
        assert list(outcome.failed) == [finished / ORIGIN / "seed0"]
        assert len(outcome.finished) == 3
        assert launcher.order == []
        assert differs in heard.file.getvalue()
        (arm,) = [arm for arm in load_results(finished).arms if arm.label == "Origin"]
        assert [run.state for run in arm.runs] == ["damaged", "finished"]
        assert list(arm.values) == [1]
        assert differs in arm.runs[0].message
        assert differs in status_of(finished)
        assert "1 damaged, 1 finished" in status_of(finished)

    def test_a_result_of_another_run(self, finished):
        shutil.copy(finished / SGS / "seed0/result.json", finished / ORIGIN / "seed0/result.json")
        outcome, _ = run_here(tiny_study(), finished, num_seeds=2)
        (message,) = outcome.failed.values()
        assert "result.json is that of another run (method 'sgs', but 'baseline' in config.json)" in message
        assert load_results(finished).states == {"finished": 3, "damaged": 1}

    def test_the_machine_and_the_place_do_not_matter(self, finished, tmp_path):
        moved = finished.rename(tmp_path / "moved")
        outcome, launcher = run_here(tiny_study(), moved, num_seeds=2, changes={"machine.threads": 3})
        assert (len(outcome.finished), launcher.order) == (4, [])

    def test_an_arm_that_a_search_tuned(self, tmp_path):
        run_here(tiny_study(tuned=True), tmp_path)
        tuned = tmp_path / "runs/fashion-mnist-tuned/seed0"
        outcome, _ = run_here(tiny_study(tuned=True), tmp_path)
        assert not outcome.failed
        config = json.loads((tuned / "config.json").read_text())
        config["scaling"]["alpha"] = 0.123
        (tuned / "config.json").write_text(json.dumps(config))
        outcome, _ = run_here(tiny_study(tuned=True), tmp_path)
        assert list(outcome.failed) == [tuned]
        assert "--scaling.alpha: 0.123 there" in outcome.failed[tuned]
        # Before the search has chosen, its fields are not compared.
        (tmp_path / "searches/alpha" / BEST).unlink()
        assert {run.state for run in load_results(tmp_path).runs} == {"finished"}
        assert "1 damaged" not in status_of(tmp_path)

    def test_a_point_of_a_search(self, tmp_path):
        study = tiny_study(tuned=True)
        run_here(study, tmp_path, only=["tuned"])
        swap(tmp_path, "searches/alpha/point-0/seed0", "searches/alpha/point-1/seed0")
        (tmp_path / "searches/alpha" / BEST).unlink()
        (tmp_path / JOURNAL).unlink()
        shutil.rmtree(tmp_path / "runs/fashion-mnist-tuned")
        outcome, _ = run_here(study, tmp_path, only=["tuned"], launcher=Pretending())
        assert next(iter(outcome.failed)) == tmp_path / "searches/alpha/point-1/seed0"
        assert json.loads((tmp_path / "searches/alpha" / BEST).read_text())["values"]["scaling.alpha"] == 0.8

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
        plan = make_plan(study, "pocket", tmp_path)
        assert len(plan.jobs) == 4  # equal configs with different backbones are different runs
        run_here(study, tmp_path, launcher=Pretending())
        assert load_results(tmp_path).states == {"finished": 4}
        swap(tmp_path, "runs/vgg-one/seed0", "runs/vgg-two/seed0")
        assert load_results(tmp_path).states == {"finished": 3, "damaged": 1}
        outcome, _ = run_here(study, tmp_path, launcher=Pretending())
        assert "--model.backbone" in outcome.failed[tmp_path / "runs/vgg-two/seed0"]


class Pretending(InProcess):
    """Writes results without training."""

    def start(self, folder, *, processes):
        config = json.loads((folder / "config.json").read_text())
        result = {"metric": "accuracy", "value": 0.5, "accuracy": 0.5, "seconds": 1.0, "seed": config["seed"]}
        (folder / "result.json").write_text(json.dumps(result))
        self.order.append(folder)
        self._ended.append(Ended(folder=folder, exit_code=0))


DAMAGE = {
    "cut": b'{"budget": {"epo',
    "no text": b"\xff\xfe\x00",
    "empty": b"",
    "another type": b"[1, 2]",
    "another content": b'{"budget": [], "metric": 1, "values": 3, "message": []}',
    "deep": b'{"metric": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "rather deep": b'{"metric": ' + b"[" * 2 * DEEPEST + b"]" * 2 * DEEPEST + b"}",
}


class TestDamagedFiles:
    """Each is named, and everything else is done."""

    @pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
    @pytest.mark.parametrize("name", ["result.json", "config.json"])
    def test_of_a_finished_run(self, finished, name, content):
        shutil.rmtree(finished / SGS / "seed1")
        (finished / ORIGIN / "seed0" / name).write_bytes(content)
        outcome, launcher = run_here(tiny_study(), finished, num_seeds=2, launcher=Pretending())
        assert launcher.order == [finished / SGS / "seed1"]
        assert len(outcome.finished) == 3
        assert name in outcome.failed[finished / ORIGIN / "seed0"]
        assert (finished / ORIGIN / "seed0" / name).read_bytes() == content
        assert name in status_of(finished)
        assert "1 damaged" in status_of(finished)

    @pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
    def test_the_config_of_an_unfinished_run(self, finished, content):
        (finished / ORIGIN / "seed0/result.json").unlink()
        (finished / ORIGIN / "seed0/config.json").write_bytes(content)
        shutil.rmtree(finished / SGS / "seed1")
        outcome, launcher = run_here(tiny_study(), finished, num_seeds=2, launcher=Pretending())
        assert launcher.order == [finished / SGS / "seed1"]
        assert "config.json" in outcome.blocked[finished / ORIGIN / "seed0"]
        assert "config.json" in status_of(finished)

    def test_a_result_can_be_made_again(self, finished):
        path = finished / ORIGIN / "seed0/result.json"
        before = json.loads(path.read_text())
        path.write_text("{")
        outcome, _ = run_here(tiny_study(), finished, num_seeds=2)
        assert "delete result.json to finish the run again" in outcome.failed[path.parent]
        path.unlink()
        outcome, launcher = run_here(tiny_study(), finished, num_seeds=2)
        assert launcher.order == [path.parent]
        assert json.loads(path.read_text())["value"] == before["value"]

    @pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
    def test_a_failure_is_tried_again(self, finished, content):
        folder = finished / ORIGIN / "seed0"
        (folder / "result.json").unlink()
        (folder / "failure.json").write_bytes(content)
        if content:
            assert "failure.json" in status_of(finished)
        outcome, launcher = run_here(tiny_study(), finished, num_seeds=2, launcher=Pretending())
        assert launcher.order == [folder]
        assert len(outcome.finished) == 4

    @pytest.mark.parametrize("content", [content for content in DAMAGE.values() if content])
    def test_a_failure_of_another_command(self, tmp_path, content):
        """It came after this command had started, which therefore does not try the run again."""
        study = tiny_study()
        first, second = (job.folder for job in make_plan(study, "pocket", tmp_path).jobs)

        class Elsewhere(Pretending):
            def start(self, folder, *, processes):
                second.mkdir(parents=True)
                (second / "failure.json").write_bytes(content)
                super().start(folder, processes=processes)

        outcome, launcher = run_here(study, tmp_path, launcher=Elsewhere())
        assert launcher.order == [first]
        assert outcome.finished == {first}
        assert "failure.json" in outcome.failed[second]

    @pytest.mark.parametrize("content", [b'{"epoch": 0}\n{{{\n{"epoch": 1}\n', b"\xff\n" * 5, b'{"epoch": [1]}\n'])
    def test_lines_of_metrics(self, finished, content):
        folder = finished / ORIGIN / "seed0"
        (folder / "metrics.jsonl").write_bytes(content)
        outcome, _ = run_here(tiny_study(), finished, num_seeds=2)
        assert len(outcome.finished) == 4
        (folder / "result.json").unlink()
        said = status_of(finished)
        assert "1 stopped, 1 finished" in said
        if content.count(b"\n") > 1:
            assert "metrics.jsonl is damaged in line" in said

    @pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
    def test_the_choice_of_a_search_is_made_again(self, tmp_path, content):
        study = tiny_study(tuned=True)
        run_here(study, tmp_path, only=["tuned"], launcher=Pretending())
        best = tmp_path / "searches/alpha" / BEST
        chosen = json.loads(best.read_text())["values"]
        best.write_bytes(content)
        assert BEST in status_of(tmp_path)
        (tmp_path / "runs/fashion-mnist-tuned/seed0/result.json").unlink()
        heard = console()
        outcome, _ = run_here(study, tmp_path, only=["tuned"], launcher=Pretending(), console=heard)
        assert not outcome.failed
        assert BEST in heard.file.getvalue()
        assert json.loads(best.read_text())["values"] == chosen
        assert best.with_name(DAMAGED_BEST).read_bytes() == content

    @pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
    def test_the_study_itself(self, finished, content):
        (finished / STUDY).write_bytes(content)
        with pytest.raises(ConfigError, match=rf"{STUDY}.*Delete {STUDY} and run the study again"):
            run_here(tiny_study(), finished, num_seeds=2)
        (finished / STUDY).unlink()
        outcome, launcher = run_here(tiny_study(), finished, num_seeds=2)
        assert (len(outcome.finished), launcher.order) == (4, [])


class TestStudyFile:
    """A folder of another format or study is never extended."""

    def test_another_format(self, finished):
        values = json.loads((finished / STUDY).read_text())
        (finished / STUDY).write_text(json.dumps({**values, "format": FORMAT + 1}))
        before = (finished / STUDY).read_bytes()
        with pytest.raises(ConfigError, match=rf"has format {FORMAT + 1}, but this version reads format {FORMAT}"):
            run_here(tiny_study(), finished)
        assert (finished / STUDY).read_bytes() == before

    def test_another_study_that_came_after_the_plan(self, tmp_path):
        plan = make_plan(tiny_study(), "pocket", tmp_path)
        other = make_plan(tiny_study(name="other"), "pocket", tmp_path).record
        other.write(tmp_path)
        with pytest.raises(
            OtherConfigError, match="holds the study other at scale pocket, not the study tiny at scale pocket"
        ):
            Runner(plan, InProcess(), None, None)
        assert read_study(tmp_path) == other

    def test_another_scale_that_came_after_the_plan(self, tmp_path):
        plan = make_plan(tiny_study(), "pocket", tmp_path)
        make_plan(tiny_study(), "desk", tmp_path).record.write(tmp_path)
        with pytest.raises(OtherConfigError, match="at scale desk"):
            Runner(plan, InProcess(), None, None)

    def test_a_part_that_came_after_the_plan_is_kept(self, tmp_path):
        plan = make_plan(tiny_study(), "pocket", tmp_path, only=["origin"])
        make_plan(tiny_study(), "pocket", tmp_path, only=["sgs"], num_seeds=2).record.write(tmp_path)
        Runner(plan, InProcess(), None, None)
        record = read_study(tmp_path)
        assert {arm.key: [run.seed for run in arm.runs] for arm in record.arms} == {
            "fashion-mnist-origin": [0],
            "fashion-mnist-sgs-ours": [0, 1],
        }


class TestJournal:
    """Optuna's journal after a process was killed while it wrote."""

    def test_an_unfinished_line_is_removed_by_the_first_command(self, tmp_path):
        record = make_plan(tiny_study(tuned=True), "pocket", tmp_path).record.searches[0]
        GridSearch(tmp_path, record)
        whole = (tmp_path / JOURNAL).read_bytes()
        (tmp_path / JOURNAL).write_bytes(whole + b'{"op_code": 4, "wor')
        said = []
        search = GridSearch(tmp_path, record, said.append)
        lines = (tmp_path / JOURNAL).read_bytes().removeprefix(whole).splitlines()
        assert [json.loads(line)["op_code"] for line in lines] == [0]  # this command's own, and nothing of the other's
        search.begin(search.runs_of(0)[0])
        GridSearch(tmp_path, record, said.append)
        assert said == []
        assert not (tmp_path / DAMAGED).exists()
        JournalStorage(JournalFileBackend(str(tmp_path / JOURNAL)))  # any reader can read it

    @pytest.mark.slow
    def test_a_lock_that_was_left_behind_is_released(self, tmp_path, monkeypatch):
        """Half a minute: what Optuna grants to a process that holds the lock."""
        monkeypatch.chdir(tmp_path)
        folder = make_plan(tiny_study(tuned=True), "pocket", tmp_path).folder.relative_to(tmp_path)
        record = make_plan(tiny_study(tuned=True), "pocket", folder).record.searches[0]
        storage = GridSearch(folder, record)._storage
        storage._backend._lock.acquire()
        GridSearch(folder, record)
