"""The tables and figures of the paper, each as one command; see `spatialgrad study list`."""

from spatialgrad.studies.plan import Plan, make_plan
from spatialgrad.studies.record import StudyRecord, read_study
from spatialgrad.studies.registry import STUDIES, get_study, list_studies
from spatialgrad.studies.study import SCALES, Arm, Published, Scale, Search, Study

__all__ = [
    "SCALES",
    "STUDIES",
    "Arm",
    "Plan",
    "Published",
    "Scale",
    "Search",
    "Study",
    "StudyRecord",
    "get_study",
    "list_studies",
    "make_plan",
    "read_study",
]
