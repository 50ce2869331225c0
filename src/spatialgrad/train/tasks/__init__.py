"""The tasks by name; all of them implement the interface `Task`."""

from spatialgrad.train.config import TASK_NAMES
from spatialgrad.train.tasks.base import Task
from spatialgrad.train.tasks.classification import Classification
from spatialgrad.train.tasks.pose import Pose
from spatialgrad.train.tasks.segmentation import Segmentation

TASKS: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation, "pose": Pose}
"""Every task; `TASK_NAMES` lists the same names."""


def register_task(name: str, task: type[Task]) -> None:
    """Make a task available under a name, for `TrainConfig.task` and `--task`.

    Args:
        name: Also the `task` of the networks and data sets that are made for it.
        task: The class.
    """
    TASKS[name] = task
    if name not in TASK_NAMES:
        TASK_NAMES.append(name)
