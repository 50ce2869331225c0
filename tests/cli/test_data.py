"""`spatialgrad data`."""


def test_list(command, tmp_path):
    code, said = command("data", "list", "--data.root", tmp_path)
    assert code == 0
    assert "✓ fashion-mnist-mini" in said
    assert "· cifar100" in said
    assert str(tmp_path) in said


def test_get(command, tmp_path):
    code, said = command("data", "get", "fashion-mnist-mini", "--data.root", tmp_path)
    assert code == 0
    assert "fashion-mnist-mini" in said
    code, said = command("data", "get", "cifar1000", "--data.root", tmp_path)
    assert code == 1
    assert "did you mean 'cifar100'" in said
