"""The tasks by name, all through the one interface `Task`."""

from spatialgrad.train.tasks.base import Sums, Task
from spatialgrad.train.tasks.classification import Classification
from spatialgrad.train.tasks.pose import Pose
from spatialgrad.train.tasks.segmentation import Segmentation

TASKS: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation, "pose": Pose}
"""Every task; to add one, write its file and name it here."""

__all__ = ["TASKS", "Sums", "Task"]
