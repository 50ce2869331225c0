"""Grid searches: the best point completes an arm; interrupted, shared, and not stopped by a point that fails."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import BEST
from spatialgrad.studies.search import decide, point_value
from spatialgrad.studies.study import Point, RunRecord
from spatialgrad.train import DamagedFileError, DivergedError, Run
from support.studies import Pretending, console, results, run_here, tiny_study, write_result


@pytest.fixture
def search(tmp_path):
    return make_plan(tiny_study(tuned=True, failing=True), "pocket", tmp_path).record.searches[0]


def values_of(search, *values):
    """Results of the points in order; None for one that has failed."""
    return dict(zip((point.runs[0].folder for point in search.points), values, strict=True)).get


def test_the_first_of_the_best_points_is_chosen_for_good(search, tmp_path):
    best = {"scaling.alpha": 0.8, "optimizer.lr": 1e30}
    assert decide(tmp_path, search, values_of(search, 0.4, 0.7, 0.7, None)) == best
    written = json.loads((tmp_path / "searches/alpha" / BEST).read_text())
    assert written == {"values": best, "value": 0.7, "points": 4, "failed": 1}
    # Arms may be trained with it by now.
    assert decide(tmp_path, search, values_of(search, 0.9, 0.7, 0.7, 0.9)) == best
    (tmp_path / "searches/alpha" / BEST).write_text("{}")
    with pytest.raises(DamagedFileError, match=r"best\.json.*remove it, and the search chooses again"):
        decide(tmp_path, search, values_of(search, 0.9, 0.7, 0.7, 0.9))


def test_every_point_fails(search, tmp_path):
    assert decide(tmp_path, search, lambda folder: None) is None
    assert not (tmp_path / "searches").exists()


def test_several_seeds_are_averaged():
    point = Point(values={}, runs=tuple(RunRecord(folder=f"point/seed{seed}", seed=seed) for seed in range(2)))
    assert point_value(point, {"point/seed0": 0.5}.get) is None
    assert point_value(point, {"point/seed0": 0.5, "point/seed1": 0.7}.get) == pytest.approx(0.6)


class Scored(Pretending):
    """The larger α, the better; a wild learning rate diverges."""

    def train(self, folder):
        config = Run.open(folder).config
        if config.optimizer.lr > 1:
            raise DivergedError("the loss became non-finite")
        write_result(folder, config.scaling.alpha / 10)


def test_the_best_point_tunes_the_arm(tmp_path):
    study, heard = tiny_study(tuned=True, failing=True), console()
    jobs, executor = run_here(study, tmp_path, executor=Scored(), console=heard)
    names = [str(folder.relative_to(tmp_path)) for folder in executor.order]
    assert names[-1] == "runs/fashion-mnist-tuned/seed0"
    assert (len(jobs.failed), len(jobs.finished)) == (3, 5)  # two points and the wild arm
    best = json.loads((tmp_path / "searches/alpha" / BEST).read_text())
    assert best["values"] == {"scaling.alpha": 5.0, "optimizer.lr": 0.05}
    config = Run.open(tmp_path / names[-1]).config
    assert (config.scaling.alpha, config.optimizer.lr, config.data.validation) == (5.0, 0.05, 0)
    assert "FAILED: the loss became non-finite" in heard.file.getvalue()

    # Again: what has failed is tried again, and nothing else.
    before = results(tmp_path)
    _, executor = run_here(study, tmp_path, executor=Scored())
    assert len(executor.order) == 3
    assert results(tmp_path) == before


def test_resumed_in_the_middle(tmp_path):
    class Stopped(Exception):
        pass

    def at_second(folder):
        if len(executor.order) == 2:
            raise Stopped

    executor = Pretending(before=at_second)
    study = tiny_study(tuned=True)
    with pytest.raises(Stopped):
        run_here(study, tmp_path, executor=executor)
    before = results(tmp_path)
    jobs, executor = run_here(study, tmp_path, executor=Pretending())
    assert not jobs.failed
    assert executor.order[0] == tmp_path / "searches/alpha/point-1/seed0"
    assert before.items() <= results(tmp_path).items()


def test_two_commands_share_a_study(tmp_path):
    """Each run is started once, by one of them, and both see the end of it."""

    def run(number):
        executor = Pretending(before=lambda folder: time.sleep(0.2))
        return run_here(tiny_study(tuned=True), tmp_path, num_seeds=2, executor=executor)

    with ThreadPoolExecutor(2) as pool:
        commands = list(pool.map(run, range(2)))
    started = [folder for _, executor in commands for folder in executor.order]
    assert len(started) == len(set(started)) == 2 + 3 * 2
    assert all(executor.order for _, executor in commands)
    assert all(set(started) == jobs.finished for jobs, _ in commands)
