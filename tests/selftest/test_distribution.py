"""How the self-test names a machine's software: only by words that no site has chosen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.host.root import Root
from fairlead.selftest.distribution import cgroup, kernel_release, os_release


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("6.1.0-13-amd64", "6.1.0-13-amd64"),
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-427.13.1.el9_4"),
        ("4.18.0-553.16.1.el8_10.x86_64", "4.18.0-553.16.1.el8_10"),
        ("6.8.0-1015-aws", "6.8.0-1015-aws"),
        ("5.14.21-150500.55.73-default", "5.14.21-150500.55.73-default"),
        ("6.9.7-unisecret-gpu07", "6.9.7"),
        ("secret", ""),
    ],
)
def test_a_kernel_without_what_its_builder_added(release: str, said: str) -> None:
    assert kernel_release(release) == said


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ('NAME="Rocky Linux"\nID="rocky"\nVERSION_ID="9.4"\n', "rocky", "9.4"),
        ("ID=debian\nVERSION_ID='12'\nVERSION_CODENAME=bookworm\n", "debian", "12"),
        ("ID=debian\nVERSION_CODENAME=forky\n", "debian", "forky"),
        ("ID=uni-secret\nVERSION_ID=secret\nVERSION_CODENAME=secret\n", "other", ""),
        ("# nothing\n", "other", ""),
    ],
)
def test_a_distribution(text: str, name: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    assert os_release(Root(os.fspath(tmp_path))) == {"ID": name, "VERSION_ID": version}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0::/user.slice\n", "2"),
        ("12:cpuset:/\n1:name=systemd:/\n0::/\n", "hybrid"),
        ("12:cpuset:/\n1:name=systemd:/\n", "1"),
        ("1:name=systemd:/\n0::/\n", "2"),
        ("", ""),
    ],
)
def test_a_cgroup_hierarchy(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(text)
    assert cgroup(Root(os.fspath(tmp_path))) == said
