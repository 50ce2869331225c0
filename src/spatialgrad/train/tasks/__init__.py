"""The tasks by name; all of them implement the interface `Task`."""

from spatialgrad.train.flags import find_class
from spatialgrad.train.tasks.base import Task
from spatialgrad.train.tasks.classification import Classification
from spatialgrad.train.tasks.pose import Pose
from spatialgrad.train.tasks.segmentation import Segmentation

TASKS: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation, "pose": Pose}
"""Every task; `TASK_NAMES` lists the same names."""


def find_task(name: str) -> type[Task]:
    """The class of a task, by its name or as `package.module:Class`."""
    return TASKS.get(name) or find_class("task", name, Task)
