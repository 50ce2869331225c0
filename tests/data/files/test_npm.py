import hashlib
import os

import pytest

from spatialgrad.data.errors import CorruptDataError, UnreachableError
from spatialgrad.data.files.npm import NpmPackage, npm_pack
from support.data_files import silent, tar_bytes

ARCHIVE = tar_bytes([("package/a", b"content")], "w:gz")
PACKAGE = NpmPackage(name="a-set", version="1.0.0", checksum=f"sha512:{hashlib.sha512(ARCHIVE).hexdigest()}")


def _install_npm(tmp_path, monkeypatch, script):
    """Put a program that is called npm first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "archive").write_bytes(ARCHIVE)
    (folder / "npm").write_text(f"#!/bin/sh\nset -e\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_packs_one_version_and_runs_nothing_of_it(tmp_path, monkeypatch):
    _install_npm(
        tmp_path, monkeypatch, 'echo "$@" > "$(dirname "$0")/calls"; cp "$(dirname "$0")/archive" a-set-1.0.0.tgz'
    )
    path = npm_pack(PACKAGE, tmp_path / "root", progress=silent)
    assert path.read_bytes() == ARCHIVE
    assert [entry.name for entry in path.parent.iterdir()] == ["a-set-1.0.0.tgz"]
    assert (tmp_path / "bin" / "calls").read_text().startswith("pack a-set@1.0.0 --ignore-scripts")


def test_another_content_is_refused_and_nothing_stays(tmp_path, monkeypatch):
    _install_npm(tmp_path, monkeypatch, "echo other > a-set-1.0.0.tgz")
    with pytest.raises(CorruptDataError, match=r"npm sent a-set@1\.0\.0 with a checksum other than"):
        npm_pack(PACKAGE, tmp_path / "root", progress=silent)
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize("script", ["echo no such host >&2; exit 1", "echo no such host >&2"])
def test_a_failure_says_what_npm_said(tmp_path, monkeypatch, script):
    _install_npm(tmp_path, monkeypatch, script)
    with pytest.raises(UnreachableError, match=r"npm pack a-set@1\.0\.0 failed: no such host"):
        npm_pack(PACKAGE, tmp_path / "root", progress=silent)
    assert list((tmp_path / "root").iterdir()) == []


def test_without_npm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match="npm is not on the PATH"):
        npm_pack(PACKAGE, tmp_path, progress=silent)
