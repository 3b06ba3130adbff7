"""The setting driver on trees and recorded facts: what is planned, what is refused, the kernel that boots next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead import settings
from fairlead.apply import apply
from fairlead.config import resolve_layers
from fairlead.errors import ConfigError, ExitCode
from fairlead.host import installed_kernels as facts
from fairlead.host import next_kernel
from fairlead.host.change import apt_transaction as by_apt
from fairlead.host.change import package_command
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model import apt_hold
from fairlead.model.change import AnyChange, Disruption, File, ModuleReload, Package, Packages, Reboot
from fairlead.model.facts import Missing, unreadable
from fairlead.model.finding import Level
from fairlead.model.setting import drift
from fairlead.settings import driver
from tests.lab.trees import MACHINES

LOADED = "570.172.08"  # in the tree hgx-h100
NEW = "580.95.05"
SETTING = settings.load()["driver"]


def package(name: str, version: str = f"{NEW}-1", **more: Any) -> Package:
    return Package(name=name, version=version, architecture="amd64", sha256="0" * 64, size=1, **more)


SET = (package("nvidia-open"), package("libnvidia-ml1"), package("dkms", "3.0.10-8", kept=False))


def want(**more: Any) -> driver.DriverWant:
    return driver.DriverWant(**{"version": NEW, "packages": SET, "install": ("nvidia-open",), **more})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the setting reads of a machine tree; the whole tree would be copied for minutes."""
    made = tmp_path / "tree"
    for path in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
        write(made, path, (MACHINES / "hgx-h100" / path).read_text())
    return made


def write(tree: Path, path: str, text: str) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(text)


def status(tree: Path, *rows: str) -> None:
    """dpkg's database: NAME VERSION [selection state flag]."""
    text = ""
    for row in rows:
        name, version, *state = row.split()
        said = " ".join(state) or "install ok installed"
        text += f"Package: {name}\nStatus: {said}\nArchitecture: amd64\nVersion: {version}\nDescription: x\n y\n\n"
    write(tree, "var/lib/dpkg/status", text)


def kernel(tree: Path, release: str, *, headers: bool = True, module: str = NEW) -> None:
    write(tree, f"boot/vmlinuz-{release}", "")
    write(tree, f"lib/modules/{release}/modules.dep", "updates/dkms/nvidia.ko: kernel/x.ko\n" if module else "kernel/x.ko:\n")
    if module:
        path = tree / f"lib/modules/{release}/updates/dkms/nvidia.ko"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x7fELF..license=NVIDIA\0version=" + module.encode() + b"\0srcversion=1\0")
    if headers:
        write(tree, f"lib/modules/{release}/build/Makefile", "")


def installed(tree: Path) -> None:
    status(tree, f"nvidia-open {NEW}-1 hold ok installed", f"libnvidia-ml1 {NEW}-1 hold ok installed", "dkms 3.0.99")
    kept = tuple(p for p in SET if p.kept)
    write(tree, apt_hold.PIN[1:], apt_hold.pin_text(kept))
    write(tree, apt_hold.UNATTENDED[1:], apt_hold.unattended_text(kept))


def plan(tree: Path, **more: Any) -> tuple[AnyChange, ...]:
    node = gather(Root(str(tree)), unreadable("not asked"), reads=SETTING.reads)
    observed = SETTING.observe(node)
    assert not isinstance(observed, Missing), observed
    return SETTING.plan(want(**more), observed)


def test_nothing_is_declared_nothing_is_done(tree: Path) -> None:
    status(tree)
    assert plan(tree, version="", packages=()) == ()


def test_a_node_without_dpkg_is_unreadable_not_right(tree: Path) -> None:
    node = gather(Root(str(tree)), unreadable("not asked"), reads=SETTING.reads)
    assert isinstance(SETTING.observe(node), Missing)
    (found,) = drift("driver", SETTING, want(), node)
    assert found.level is Level.UNKNOWN


def test_a_set_moves_at_once_and_waits_for_a_drain_where_a_module_is_loaded(tree: Path) -> None:
    status(tree, f"nvidia-open {LOADED}-1", "dkms 3.0.99")
    first, pin, unattended, last = plan(tree)
    assert isinstance(first, Packages) and [p.name for p in first.install] == ["nvidia-open", "libnvidia-ml1"]
    assert first.before == (("nvidia-open", f"{LOADED}-1"),) and set(first.hold) == {"nvidia-open", "libnvidia-ml1"}
    assert isinstance(pin, File) and isinstance(unattended, File) and isinstance(last, ModuleReload)
    assert {c.disruption for c in (first, pin, unattended, last)} == {Disruption.DRAIN}
    for path in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
        (tree / path).unlink(missing_ok=True)
    assert {c.disruption for c in plan(tree)} == {Disruption.IDLE}, "a fresh node need not be drained"


def test_what_the_former_set_had_goes_with_it(tree: Path) -> None:
    status(tree, f"nvidia-open {LOADED}-1 hold ok installed", f"libnvidia-old {LOADED}-1 hold ok installed", f"other {LOADED}-1")
    write(
        tree,
        apt_hold.PIN[1:],
        apt_hold.pin_text((package("libnvidia-old", f"{LOADED}-1"), package("nvidia-open", f"{LOADED}-1"))),
    )
    first = plan(tree)[0]
    assert isinstance(first, Packages) and first.remove == ("libnvidia-old",)
    assert set(first.keep) == {f"libnvidia-old_{LOADED}-1_", f"nvidia-open_{LOADED}-1_"}


def test_a_package_that_is_half_installed_is_installed_again(tree: Path) -> None:
    installed(tree)
    status(tree, f"nvidia-open {NEW}-1 hold reinstreq half-installed", f"libnvidia-ml1 {NEW}-1 hold ok unpacked", "dkms 3.0.99")
    first = plan(tree)[0]
    assert isinstance(first, Packages) and [p.name for p in first.install] == ["nvidia-open", "libnvidia-ml1"]
    assert "half installed" in first.why


def test_installed_and_not_loaded_is_a_reload_or_a_reboot(tree: Path) -> None:
    installed(tree)
    running = "6.1.0-9-amd64"
    write(tree, "proc/sys/kernel/osrelease", f"{running}\n")
    kernel(tree, running)
    (change,) = plan(tree)
    assert isinstance(change, ModuleReload)
    assert change.why == f"the loaded NVIDIA module is {LOADED} open, wanted {NEW} open"
    kernel(tree, "99.1.0-1-amd64")
    path = tree / f"lib/modules/{running}/updates/dkms/nvidia.ko"
    path.write_bytes(path.read_bytes().replace(NEW.encode(), b"570.1.1\0\0"))
    (change,) = plan(tree)
    assert isinstance(change, Reboot) and change.disruption is Disruption.REBOOT


@pytest.mark.parametrize(
    "case",
    [
        (
            "6.1.0-50-amd64",
            False,
            "",
            "",
            "kernel 6.1.0-50-amd64 boots next and has no NVIDIA module, wanted 580",
        ),
        ("6.1.0-50-amd64", True, "", "", "its headers are there, so dkms has failed"),
        ("6.1.0-50-amd64", True, "570.1.1", "", "has the NVIDIA module of 570.1.1"),
        ("6.1.0-50-amd64", False, "", "GRUB_DEFAULT=Windows\n", "kernel 6.1.0-50-amd64 may boot next"),
        ("6.1.0-50-amd64", False, "", 'GRUB_DEFAULT="Advanced options>Debian, with Linux 6.1.0-9-amd64"\n', ""),
        ("6.1.0-8-amd64", False, "", "", ""),
    ],
)
def test_the_kernel_that_boots_next_has_the_module_or_no_reboot_is_planned(
    tree: Path, case: tuple[str, bool, str, str, str]
) -> None:
    release, headers, module, grub, words = case
    installed(tree)
    kernel(tree, "6.1.0-9-amd64")
    kernel(tree, release, headers=headers, module=module)
    write(tree, "etc/default/grub", grub)
    if not words:
        assert all(not isinstance(c, Packages) for c in plan(tree))
        return
    with pytest.raises(ConfigError, match=words):
        plan(tree)
    document = resolve_layers("gpu1", [("t", {"settings": {"driver": {"version": NEW, "install": ["nvidia-open"]}}})])[0]
    assert document.settings["driver"]


def test_a_module_in_zstd_has_the_version_that_dkms_says(tree: Path) -> None:
    """As on Ubuntu 24.04; one that dkms has not built may be of any version and is not refused."""
    installed(tree)
    release = "6.8.0-60-generic"
    kernel(tree, release, module="")
    write(tree, f"lib/modules/{release}/modules.dep", "updates/dkms/nvidia.ko.zst: kernel/x.ko.zst\n")
    write(tree, f"lib/modules/{release}/updates/dkms/nvidia.ko.zst", "no zstd here")
    assert facts.kernels(Root(str(tree))) == f"{release} yes unknown yes\n"
    for version in (LOADED, NEW):
        link = tree / f"var/lib/dkms/nvidia/kernel-{release}-x86_64"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{version}/{release}/x86_64")
        module = tree / f"lib/modules/{release}/updates/dkms/nvidia.ko.zst"
        module.write_text(f"of {version}")  # dkms puts another file there
        assert facts.kernels(Root(str(tree))) == f"{release} yes {version} yes\n"
        if version == LOADED:
            with pytest.raises(ConfigError, match=f"has the NVIDIA module of {LOADED}"):
                plan(tree)


def test_versions_of_kernels_are_compared_as_numbers() -> None:
    releases = ["6.1.0-9-amd64", "6.1.0-50-amd64", "5.10.0-30-amd64", "6.12.0-1-amd64"]
    assert sorted(releases, key=next_kernel.version_key) == [
        "5.10.0-30-amd64",
        "6.1.0-9-amd64",
        "6.1.0-50-amd64",
        "6.12.0-1-amd64",
    ]


def test_what_somebody_else_holds_is_theirs(tree: Path) -> None:
    status(tree, f"nvidia-open {LOADED}-1 hold ok installed")
    with pytest.raises(ConfigError, match="somebody holds it at"):
        plan(tree)


def test_a_library_from_elsewhere_is_named(tree: Path) -> None:
    installed(tree)
    folder = tree / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.1.2")
    (folder / "libnvidia-ml.so.550.1.2").touch()
    with pytest.raises(ConfigError, match=r"leads to 550\.1\.2 though the packages are of 580"):
        plan(tree)


def test_no_longer_declared_pins_and_blacklist_go(tree: Path) -> None:
    installed(tree)
    changes = plan(tree, version="", packages=())
    assert [(c.path, c.content) for c in changes if isinstance(c, File)] == [(apt_hold.PIN, None), (apt_hold.UNATTENDED, None)]


def test_the_lock_of_another_apt_is_waited_for_then_said_with_75(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    status(tree)
    write(tree, "usr/bin/apt-get", "")
    write(tree, "dev/null", "")
    for path in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
        (tree / path).unlink(missing_ok=True)
    monkeypatch.setattr(package_command, "LOCK_SECONDS", 0.3)
    driver_table = {"version": NEW, "packages": [{"name": "x", "version": "1", "architecture": "all", "sha256": "0", "size": 1}]}
    document = resolve_layers("gpu1", [("t", {"settings": {"driver": {**driver_table, "module": "none"}}})])[0]
    lock = tree / "var/lib/dpkg/lock-frontend"
    program = f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        report = apply(document, Root(str(tree)))
        other.kill()
    assert fcntl and report.exit_code is ExitCode.TRY_AGAIN
    assert report.items[0].state == "deferred" and "another program has held dpkg's lock" in report.items[0].message
    assert not (tree / apt_hold.PIN[1:]).exists(), "nothing is pinned that did not move"


def test_what_apt_would_do_besides_is_refused_with_its_names() -> None:
    change = Packages(setting="driver", why="", install=SET, allowed=SET, remove=("old",))
    said = (
        f"Inst nvidia-open [570-1] ({NEW}-1 local-deb [amd64])\nInst libnvidia-ml1:amd64 ({NEW}-1 local-deb [amd64]) []\n"
        f"Remv old [1.0]\nConf nvidia-open ({NEW}-1 local-deb [amd64])\n"
    )
    by_apt.refuse_more(change, said)
    for more, words in (
        ("Remv slurmd [22.05.8]\n", "remove slurmd 22.05.8"),
        ("Inst gcc (4:12.2.0-3 Debian:12 [amd64])\n", "install gcc 4:12.2.0-3"),
        ("Inst dkms (9-9 local-deb [all])\n", "install dkms 9-9"),
        ("Purg libfoo:amd64 [2]\n", "remove libfoo 2"),
    ):
        with pytest.raises(Exception, match=words):
            by_apt.refuse_more(change, said + more)


ORDER = ("1.0~rc1", "1.0", "1.0-1", "1.0-1+b1", "1.0a", "1.0+dfsg", "1.9", "1.10", "12.2.0-3", "12.2.0-14+deb12u1", "1:0.1")


def test_debian_versions_are_compared_as_dpkg_does() -> None:
    from itertools import pairwise

    from fairlead.model.debian_version import key

    for older, newer in pairwise(ORDER):
        assert subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False).returncode == 0, (older, newer)
        assert key(older) < key(newer), (older, newer)
    assert key("1.0") == key("1.00") and key("535.261.03-1") > key("535.216.03-2~bpo12+1")


def test_what_is_only_needed_may_be_newer_but_not_older(tree: Path) -> None:
    installed(tree)
    for version, moves in (("3.0.10-9", False), ("3.0.10-8", False), ("3.0.9-1", True)):
        rows = [f"{p.name} {p.version} hold ok installed" for p in SET if p.kept]
        status(tree, *rows, f"dkms {version}")
        found = [c for c in plan(tree) if isinstance(c, Packages)]
        assert bool(found) is moves, version
        assert all("dkms" not in c.hold for c in found)
