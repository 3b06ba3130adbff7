"""Wheels for nodes without a network: packed here, chosen by what the node is."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.errors import InputMissing
from fairlead.provision import wheel_tags, wheels
from fairlead.provision.run_bundle import release_name

GLIBC = ("glibc", "2.36")


@pytest.mark.parametrize(
    ("name", "python", "fits"),
    [
        ("x-1-py3-none-any.whl", "3.13", True),
        ("x-1-py2.py3-none-any.whl", "3.11", True),
        ("x-1-py2-none-any.whl", "3.11", False),
        ("x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "3.11", True),
        ("x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "3.13", False),
        ("x-1-cp311-cp311-manylinux_2_39_x86_64.whl", "3.11", False),
        ("x-1-cp311-cp311-manylinux2014_aarch64.whl", "3.11", False),
        ("x-1-cp311-cp311-musllinux_1_2_x86_64.whl", "3.11", False),
        ("x-1-cp38-abi3-manylinux_2_28_x86_64.whl", "3.11", True),
        ("x-1-cp312-abi3-manylinux_2_28_x86_64.whl", "3.11", False),
        ("x-1-1build-cp311-cp311-linux_x86_64.whl", "3.11", True),
        ("x.whl", "3.11", False),
    ],
)
def test_fits(name: str, python: str, fits: bool) -> None:
    assert wheel_tags.fits(name, python, "x86_64", GLIBC) is fits


def test_fits_musl() -> None:
    assert wheel_tags.fits("x-1-cp311-cp311-musllinux_1_2_x86_64.whl", "3.11", "x86_64", ("", ""))


def test_choose_says_what_is_missing() -> None:
    names = ["msgspec-1-cp311-cp311-manylinux2014_x86_64.whl", "prometheus_client-1-py3-none-any.whl"]
    assert wheel_tags.choose(names, "3.11", "x86_64", GLIBC) == (names, ["nvidia-ml-py"])
    assert wheel_tags.choose(names, "3.13", "x86_64", GLIBC)[1] == ["msgspec", "nvidia-ml-py"]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("msgspec-0.9.1-cp311-cp311-manylinux2014_x86_64.whl", "msgspec-0.10.0-cp311-cp311-manylinux2014_x86_64.whl"),
        ("msgspec-1.0-py3-none-any.whl", "msgspec-1.0-cp311-cp311-manylinux2014_x86_64.whl"),
        ("msgspec-1.0-cp311-abi3-manylinux_2_28_x86_64.whl", "msgspec-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"),
        ("msgspec-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "msgspec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("msgspec-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "msgspec-0.1-cp311-cp311-manylinux_2_17_x86_64.whl"),  # one fits
    ],
)
def test_of_several_wheels_a_node_gets_the_newest_that_fits(older: str, newer: str) -> None:
    for names in ([older, newer], [newer, older]):
        assert wheel_tags.choose(names, "3.11", "x86_64", GLIBC)[0] == [newer]


def test_own_wheel_is_the_same_every_time_and_runs_from_where_it_is_unpacked(tmp_path: Path) -> None:
    wheel = wheels.own_wheel()
    assert wheel.sha256 == wheels.own_wheel().sha256
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        archive.extractall(tmp_path)
        modes = {i.filename: i.external_attr >> 16 & 0o777 for i in archive.infolist()}
    assert modes["fairlead/_data/slurm/prolog"] == 0o755 and modes["fairlead/__init__.py"] == 0o644
    assert not [n for n in modes if n.endswith(".pyc")]
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fairlead, fairlead.assets as a; print(a.directory('slurm'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == str(tmp_path / "fairlead/_data/slurm")


def test_a_wheelhouse_that_is_not_there_is_said() -> None:
    with pytest.raises(InputMissing, match="no such wheelhouse"):
        wheels.wheelhouse("/nonexistent")


def test_a_release_is_named_by_what_is_in_it_not_by_how_it_was_compressed() -> None:
    """Two admin hosts whose zlib differs would install over each other otherwise."""
    own = wheels.own_wheel()
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(own.content)) as packed, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as stored:
        for member in packed.infolist():
            stored.writestr(member.filename, packed.read(member))
    other = wheels.Wheel(own.name, out.getvalue())
    assert other.content != own.content and release_name(other) == release_name(own)


@pytest.mark.parametrize(("name", "content"), [("fairlead-1-py3-none-any.whl", b"<html>"), ("other-1-py3-none-any.whl", None)])
def test_what_is_no_wheel_of_ours_reaches_no_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        'schema = 1\n[classes.a]\nnodes = "gpu1"\n[ansible]\nssh_args = "-o Port=9"\n[ansible.hosts]\ngpu1 = "127.0.0.1"\n'
    )
    wheel = tmp_path / name
    wheel.write_bytes(wheels.own_wheel().content if content is None else content)
    assert main(["provision", "--site", str(site), "-q", "--wheel", str(wheel)]) == 65
    assert f"{name}: not a wheel of fairlead" in capsys.readouterr().err


def test_a_bundle_that_ended_early_is_gone_on_with_and_is_none_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\n')
    for _ in range(2):
        assert main(["bundle", "--site", str(site), "--output", str(tmp_path / "bundle")]) == 69
        assert "pip download for Python 3.11" in capsys.readouterr().err
    assert main(["provision", "--site", str(site), "--bundle", str(tmp_path / "bundle")]) == 66
    assert "SHA256SUMS" in capsys.readouterr().err
