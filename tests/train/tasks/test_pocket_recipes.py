"""On a fresh machine, the pocket recipes of segmentation and pose run and learn something."""

import pytest

from spatialgrad.train import recipe
from support.training import quietly, with_groups


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epochs", "chance", "wanted"),
    [
        # All pixels are sky: at most a seventh.
        ("segmentation_pocket", 4, 1 / 7, 0.3),
        # The mean pose for everybody: `tests/data/sets/test_generated.py`.
        ("pose_pocket", 8, 0.36, 0.38),
    ],
)
def test_they_learn_without_any_download(name, epochs, chance, wanted, tmp_path):
    config = with_groups(
        recipe(name),
        {
            "out": tmp_path / "run",
            "data": {"root": tmp_path / "no-data"},
            "budget": {"epochs": epochs, "evaluate_every": epochs},
            "machine": {"accelerator": "cpu", "threads": 1},
        },
    )
    result, _ = quietly(config)
    assert result.value > wanted > chance
    assert (tmp_path / "run/scalings.jsonl").exists()
    assert list((tmp_path / "run/examples").glob("*.png"))
