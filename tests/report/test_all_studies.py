"""Every study of the package, at every scale, has a report before anything is trained."""

import pytest

from spatialgrad.report.page import write_report
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.registry import STUDIES
from spatialgrad.studies.study import SCALES


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_has_a_report_before_it_runs(name, tmp_path):
    planned = {}
    for scale in SCALES:
        plan = make_plan(STUDIES[name], scale, tmp_path / scale)
        plan.record.write(tmp_path / scale)
        planned[scale] = plan.record
    page = write_report([tmp_path / scale for scale in SCALES], tmp_path).read_text()
    markdown = (tmp_path / "report.md").read_text()
    for record in planned.values():
        figures = [*record.figures, *(["search"] if record.searches and "search" not in record.figures else [])]
        assert page.count("No data yet.") >= len(figures)
        assert f"spatialgrad study run {record.name} --scale {record.scale}" in markdown
        for arm in record.arms:
            for published in arm.published if arm.shown else ():
                assert f"{published.mean:g}" in page, arm.key
