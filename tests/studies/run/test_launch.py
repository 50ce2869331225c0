"""Why a run failed, and which GPUs it gets."""

from spatialgrad.studies.run.launch import Started, failure_message
from spatialgrad.studies.run.local import share_of_gpus


def test_why_a_run_failed(tmp_path):
    assert failure_message(tmp_path, -9) == "the process was killed by SIGKILL"
    assert "exit code 7 and no output" in failure_message(tmp_path, 7)
    (tmp_path / "output.txt").write_text("old\nepoch 1/2\nspatialgrad: the disk is full.\nRemove something.\n")
    assert failure_message(tmp_path, 74) == "the disk is full.\nRemove something."
    (tmp_path / "output.txt").write_text("old\n" + "".join(f"line {number}\n" for number in range(9)) + "KeyError: 1\n")
    assert failure_message(tmp_path, 1).splitlines() == [*(f"line {number}" for number in range(5, 9)), "KeyError: 1"]


def test_only_the_output_since_the_start_counts(tmp_path):
    first = Started.now(tmp_path)
    (tmp_path / "output.txt").write_text("spatialgrad: an old failure\n")
    again = Started.now(tmp_path)
    with open(tmp_path / "output.txt", "a") as file:
        file.write("spatialgrad: a new failure\n")
    assert first.ended(1).message.splitlines()[0] == "an old failure"
    assert (again.ended(1).message, again.ended(1).exit_code) == ("a new failure", 1)
    assert again.ended(0).message == ""


def test_concurrent_runs_divide_the_gpus():
    four = ["0", "1", "2", "3"]
    assert [share_of_gpus(four, slot, 1) for slot in range(5)] == [["0"], ["1"], ["2"], ["3"], ["0"]]
    assert [share_of_gpus(four, slot, 2) for slot in range(3)] == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert share_of_gpus(["7"], 1, 2) == ["7"]
    assert share_of_gpus([], 1, 2) == []
