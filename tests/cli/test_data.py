"""`spatialgrad data`."""


def test_list(command, tmp_path):
    code, said = command("data", "list", "--data.root", tmp_path)
    assert code == 0
    for shipped in ("fashion-mnist-mini", "shapes-mini", "streets-mini", "figures-mini"):
        assert f"✓ {shipped}" in said
    assert "· cifar100" in said
    assert str(tmp_path) in said


def test_get(command, tmp_path):
    code, said = command("data", "get", "fashion-mnist-mini", "--data.root", tmp_path)
    assert code == 0
    assert "fashion-mnist-mini" in said
    code, said = command("data", "get", "cifar1000", "--data.root", tmp_path)
    assert code == 2
    assert "did you mean 'cifar100'" in said


def test_what_is_missing_comes_with_the_way_to_get_it(command, tmp_path):
    code, said = command("data", "list", "--data.root", tmp_path)
    assert code == 0
    assert "spatialgrad data get cifar100" in said
    assert "Manual download:" in said
    present, missing = said.count("\n✓") + said.startswith("✓"), said.count("\n·")
    assert said.splitlines()[-1] == f"✓ present: {present - 1}   · missing: {missing}"
    assert "spatialgrad data get fashion-mnist-mini" not in said
