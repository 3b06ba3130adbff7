"""What the lab says where it cannot run, and what it reads of the machine's apt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import preflight, roots


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', []),
        ('ID=debian\nPRETTY_NAME="Debian GNU/Linux forky/sid"\n', []),
        (
            'ID=debian\nVERSION_ID="11"\nPRETTY_NAME="Debian GNU/Linux 11 (bullseye)"\n',
            ["needs Debian 12 or later, this is Debian GNU/Linux 11 (bullseye)"],
        ),
        ('ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"\n', ["needs Debian 12 or later, this is Fedora Linux 42"]),
        ("", ["needs Debian 12 or later, this is an unknown system"]),
    ],
)
def test_distribution(tmp_path: Path, text: str, said: list[str]) -> None:
    release = tmp_path / "os-release"
    release.write_text(text)
    assert preflight.distribution(release) == said


def test_kernel_without_overlay_and_namespaces(tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text("nodev\tsysfs\n\text4\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/mnt").touch()
    said = preflight.kernel(tmp_path)
    assert said[0] == "the kernel has no overlayfs; try: modprobe overlay"
    assert "the kernel has no net namespaces" in said
    assert not any("mnt" in line for line in said)


def test_no_room_names_folder_and_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRLEAD_LAB_DIR", str(tmp_path))
    with pytest.raises(roots.LabError, match=rf"{tmp_path}: .* GiB free, 1048576 GiB needed; .*FAIRLEAD_LAB_DIR"):
        roots.need_room(tmp_path, 1 << 50)


def test_unknown_suite() -> None:
    with pytest.raises(roots.LabError, match="no such suite: 'potato'; the lab knows bookworm, trixie, forky"):
        roots.root("potato")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sources.list",
            "# deb http://wrong/ {0} main\ndeb [arch=amd64 signed-by=/x] http://mirror.test/debian {0} main contrib\n",
        ),
        ("sources.list.d/a.list", "deb http://other.test/x stable main\ndeb http://mirror.test/debian {0} main\n"),
        ("sources.list.d/a.sources", "Types: deb\nURIs: http://mirror.test/debian\nSuites: {0} {0}-updates\nComponents: main\n"),
    ],
)
def test_mirror_is_the_one_of_this_machine(tmp_path: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLEAD_LAB_MIRROR", raising=False)
    codename = next(
        line.partition("=")[2].strip('"')
        for line in Path("/etc/os-release").read_text().splitlines()
        if line.startswith("VERSION_CODENAME")
    )
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(codename))
    assert roots.mirror(tmp_path) == "http://mirror.test/debian"


def test_no_mirror_where_apt_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLEAD_LAB_MIRROR", raising=False)
    (tmp_path / "sources.list").write_text("deb http://vendor.test/tool stable main\n")
    assert roots.mirror(tmp_path) == ""


@pytest.mark.parametrize("path", ["/tmp/a,b", "/tmp/a:b", "/tmp/a b", "/tmp/a\nb"])
def test_a_lab_dir_that_overlayfs_cannot_take(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("FAIRLEAD_LAB_DIR", path)
    with pytest.raises(roots.LabError, match=r"(?s)FAIRLEAD_LAB_DIR=.*: no comma, colon, backslash or space"):
        roots.lab_dir()
