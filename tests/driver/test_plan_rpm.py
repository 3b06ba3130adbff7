"""The setting driver on nodes with rpm: what is planned and what is refused, on file trees with rpm's database."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fairlead import settings
from fairlead.errors import ConfigError
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model import apt_hold, dnf_hold
from fairlead.model.change import AnyChange, Disruption, File, ModuleReload, Package, Packages, Reboot
from fairlead.model.facts import Missing, unreadable
from fairlead.model.finding import Level
from fairlead.model.setting import drift
from fairlead.settings import driver
from tests.driver import test_plan
from tests.host import rpm_headers
from tests.host.test_installed_kernels import GRUB, kernel

OLD, NEW = "575.57.08", "580.95.05"
PLUGIN = "python3-dnf-plugin-versionlock"
CONF = "[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n"
SETTING = settings.load()["driver"]
RUNNING = "5.14.0-503.11.1.el9_5.x86_64"


def package(name: str, version: str = f"3:{NEW}-1.el9", **more: Any) -> Package:
    row = {"name": name, "version": version, "architecture": "x86_64", "sha256": "0" * 64, "size": 1, "format": "rpm"}
    return Package(**{**row, **more})


def driver_set(version: str) -> tuple[Package, ...]:
    fabric = "nvidia-fabricmanager" if version == NEW else "nvidia-fabric-manager"
    names = ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")
    kernels = package("kernel-devel", "0:5.14.0-503.11.1.el9_5", kept=False)
    return (*(package(n, f"3:{version}-1.el9") for n in names), package(fabric, f"0:{version}-1"), kernels)


SET, FORMER = driver_set(NEW), driver_set(OLD)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A node with the versionlock plugin, an empty list and no driver."""
    made = tmp_path / "tree"
    write(made, dnf_hold.CONF, CONF)
    write(made, dnf_hold.LIST, "")
    installed(made)
    return made


def write(tree: Path, path: str, text: str) -> None:
    file = tree / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def installed(tree: Path, *packages: Package) -> None:
    """rpm's database has these packages and one of the distribution."""
    shutil.rmtree(tree / "var/lib/rpm", ignore_errors=True)
    rows = [rpm_headers.header("bash", "5.1.8", "9.el9")]
    for p in packages:
        epoch, _, number = p.version.partition(":")
        rows.append(rpm_headers.header(p.name, *number.split("-"), int(epoch), p.architecture))
    rpm_headers.database(tree / "var/lib/rpm", rows)


def hold(tree: Path, packages: tuple[Package, ...], others: str = "") -> None:
    write(tree, dnf_hold.LIST, dnf_hold.with_lines(others, dnf_hold.lines_of(p for p in packages if p.kept)) or "")


def load(tree: Path, version: str) -> None:
    write(tree, "sys/module/nvidia/version", f"{version}\n")
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
    write(tree, "proc/driver/nvidia/version", text)
    write(tree, "proc/sys/kernel/osrelease", f"{RUNNING}\n")


def plan(tree: Path, **more: Any) -> tuple[AnyChange, ...]:
    node = gather(Root(str(tree)), unreadable("not asked"), reads=SETTING.reads)
    observed = SETTING.observe(node)
    assert not isinstance(observed, Missing), observed
    return SETTING.plan(
        driver.DriverWant(**{"version": NEW, "packages": SET, "install": ("nvidia-driver-cuda",), **more}), observed
    )


def moves(changes: tuple[AnyChange, ...]) -> Packages | None:
    return next((c for c in changes if isinstance(c, Packages)), None)


def lines(changes: tuple[AnyChange, ...]) -> str | None:
    (file,) = [c for c in changes if isinstance(c, File)]
    assert file.path == dnf_hold.LIST
    return file.content


def whole(tree: Path) -> None:
    """The node as it is after the set was installed and its module was loaded."""
    installed(tree, *SET)
    hold(tree, SET)
    kernel(tree, RUNNING, NEW)
    write(tree, "etc/default/grub", GRUB)
    load(tree, NEW)


def test_a_fresh_node_gets_all_in_one_transaction_and_the_lines_after_it(tree: Path) -> None:
    first, file, last = plan(tree)
    assert isinstance(first, Packages) and first.install == SET and first.allowed == SET
    assert (first.remove, first.hold, first.before, first.keep) == ((), (), (), ())
    assert isinstance(file, File) and isinstance(last, ModuleReload)
    assert dnf_hold.ours(file.content) == {p.name: p.version for p in SET if p.kept}
    assert {c.disruption for c in (first, file, last)} == {Disruption.IDLE}


def test_what_is_installed_held_and_loaded_needs_nothing(tree: Path) -> None:
    whole(tree)
    assert plan(tree) == ()
    node = gather(Root(str(tree)), unreadable("not asked"), reads=SETTING.reads)
    want = driver.DriverWant(version=NEW, packages=SET, install=("nvidia-driver-cuda",))
    assert list(drift("driver", SETTING, want, node)) == []


def test_an_upgrade_removes_what_only_the_former_set_had(tree: Path) -> None:
    installed(tree, *FORMER)
    hold(tree, FORMER, "kernel-0:5.14.0-503.11.1.el9_5.*\n")
    load(tree, OLD)
    changes = plan(tree)
    first = moves(changes)
    assert first is not None and {p.name for p in first.install} == {p.name for p in SET if p.kept}
    assert first.remove == ("nvidia-fabric-manager",) and first.disruption is Disruption.DRAIN
    assert dict(first.before)["nvidia-driver-cuda"] == f"3:{OLD}-1.el9"
    assert f"kmod-nvidia-open-dkms-3%3a{OLD}-1.el9." in first.keep
    assert all(p.file.startswith(tuple(first.keep)) for p in FORMER if p.kept), "the files for the way back stay"
    text = lines(changes)
    assert text is not None and text.startswith("kernel-0:5.14.0-503.11.1.el9_5.*\n") and OLD not in text


def test_the_way_back_is_the_same_in_the_other_direction(tree: Path) -> None:
    whole(tree)
    first = moves(plan(tree, version=OLD, packages=FORMER))
    assert first is not None and {p.version for p in first.install} == {f"3:{OLD}-1.el9", f"0:{OLD}-1"}
    assert first.remove == ("nvidia-fabricmanager",)


def test_the_epoch_is_part_of_the_version(tree: Path) -> None:
    whole(tree)
    installed(tree, *SET[1:], package("nvidia-driver-cuda", f"0:{NEW}-1.el9"))
    first = moves(plan(tree))
    assert first is not None and [p.name for p in first.install] == ["nvidia-driver-cuda"]
    assert dict(first.before) == {"nvidia-driver-cuda": f"0:{NEW}-1.el9"}


def test_a_package_that_is_there_twice_is_installed_again(tree: Path) -> None:
    whole(tree)
    installed(tree, *SET, FORMER[0])
    first = moves(plan(tree))
    assert first is not None and [p.name for p in first.install] == ["nvidia-driver-cuda"]
    assert "nvidia-driver-cuda is installed twice" in first.why


@pytest.mark.parametrize(
    ("versions", "moved"),
    [
        (("0:5.14.0-503.11.1.el9_5",), False),
        (("0:5.14.0-503.11.1.el9_5", "0:5.14.0-70.13.1.el9_0"), False),
        (("0:5.14.0-570.17.1.el9_6",), False),  # newer
        (("0:5.14.0-70.13.1.el9_0", "0:5.14.0-162.6.1.el9_1"), True),
        ((), True),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_several_kernels_may_be_installed(tree: Path, versions: tuple[str, ...], moved: bool, kept: bool) -> None:
    whole(tree)
    there = [package("kernel-devel", v) for v in versions]
    installed(tree, *SET[:-1], *there)
    wanted = (*SET[:-1], package("kernel-devel", SET[-1].version, kept=kept))
    hold(tree, wanted)
    first = moves(plan(tree, packages=wanted))
    newer_only = kept and versions == ("0:5.14.0-570.17.1.el9_6",)
    assert (first is not None) is (moved or newer_only)


def test_a_needed_package_of_32_bit_is_another_one(tree: Path) -> None:
    whole(tree)
    installed(tree, *SET, package("nvidia-driver-cuda", f"3:{OLD}-1.el9", architecture="i686"))
    assert plan(tree) == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"nvidia-driver-cuda-3:{OLD}-1.el9.*", "keeps it from 3:580.95.05-1.el9"),
        ("*nvidia*575*", "the line '\\*nvidia\\*575\\*' of somebody else"),
        (f"!kmod-nvidia-open-dkms-3:{NEW}-1.el9.*", "kmod-nvidia-open-dkms: the line '!kmod"),
        ("nvidia-driver-cuda", ""),
        ("*nvidia*580*", ""),
    ],
)
def test_other_people_s_lines_are_theirs(tree: Path, line: str, words: str) -> None:
    installed(tree, *FORMER)
    write(tree, dnf_hold.LIST, f"# keep\n{line}\n")
    if words:
        with pytest.raises(ConfigError, match=words):
            plan(tree)
        return
    text = lines(plan(tree))
    assert text is not None and text.startswith(f"# keep\n{line}\n{dnf_hold.BEGIN}\n")


def test_no_longer_declared_only_our_lines_go(tree: Path) -> None:
    whole(tree)
    hold(tree, SET, "kernel-0:1-1.*\n")
    assert lines(plan(tree, version="", packages=())) == "kernel-0:1-1.*\n"
    write(tree, dnf_hold.LIST, "kernel-0:1-1.*\n")
    assert plan(tree, version="", packages=()) == ()


def test_without_hold_only_our_lines_go(tree: Path) -> None:
    whole(tree)
    assert lines(plan(tree, hold=False)) == ""
    write(tree, dnf_hold.LIST, "")
    assert plan(tree, hold=False) == (), "an empty list is not ours to remove"
    (tree / dnf_hold.LIST[1:]).unlink()
    (tree / dnf_hold.CONF[1:]).unlink()
    assert plan(tree, hold=False) == (), "and needs no plugin"


def test_lines_that_somebody_changed_are_put_back(tree: Path) -> None:
    whole(tree)
    text = (tree / dnf_hold.LIST[1:]).read_text()
    write(tree, dnf_hold.LIST, text.replace(NEW, OLD))
    assert lines(plan(tree)) == text
    (tree / dnf_hold.LIST[1:]).unlink()
    assert lines(plan(tree)) == text


@pytest.mark.parametrize(
    ("conf", "text", "words"),
    [
        (None, "", f"{PLUGIN} is not installed, so dnf would move the packages"),
        (CONF.replace("1", "0"), "", "versionlock.conf: the versionlock plugin is switched off"),
        (CONF.replace("/etc/dnf/plugins", "/srv"), "", "the versionlock plugin reads /srv/versionlock.list"),
        (CONF, "\udcff\n", "has bytes that are not UTF-8 text"),
    ],
)
def test_a_list_that_does_not_hold_is_refused(tree: Path, conf: str | None, text: str, words: str) -> None:
    (tree / dnf_hold.LIST[1:]).write_bytes(text.encode("utf-8", "surrogateescape"))
    if conf is None:
        (tree / dnf_hold.CONF[1:]).unlink()
    else:
        write(tree, dnf_hold.CONF, conf)
    with pytest.raises(ConfigError, match=words):
        plan(tree)
    if conf is None:
        plugin = package(PLUGIN, "0:4.3.0-13.el9", architecture="noarch", kept=False)
        first = moves(plan(tree, packages=(*SET, plugin)))
        assert first is not None and plugin in first.install, "it comes with the set"


def test_a_dnf_without_plugins_does_not_hold_and_is_refused(tree: Path) -> None:
    write(tree, dnf_hold.DNF_CONF, "[main]\nplugins=0\n")
    with pytest.raises(ConfigError, match=r"/etc/dnf/dnf\.conf: dnf loads no plugins"):
        plan(tree)
    assert moves(plan(tree, hold=False)) is not None


def test_a_set_of_the_other_kind_is_refused(tree: Path) -> None:
    with pytest.raises(ConfigError, match="the set has deb packages, and this node has rpm packages"):
        plan(tree, packages=test_plan.SET)
    with pytest.raises(ConfigError, match="this node has rpm packages"):
        plan(tree, packages=(*SET, *test_plan.SET))
    shutil.rmtree(tree / "var/lib/rpm")
    test_plan.status(tree, "bash 5.2")
    with pytest.raises(ConfigError, match="the set has rpm packages, and this node has deb packages"):
        plan(tree)


def test_files_of_apt_are_not_written_on_a_node_with_rpm(tree: Path) -> None:
    assert {c.path for c in plan(tree) if isinstance(c, File)} == {dnf_hold.LIST}
    assert not any(apt_hold.PIN in str(c) for c in plan(tree))


@pytest.mark.parametrize(
    ("headers", "module", "dkms", "said"),
    [
        (True, "", True, ("its headers are there, so dkms has failed", f"dkms install -m nvidia-open -v {NEW} -k ")),
        (True, OLD, True, (f"has the NVIDIA module of {OLD}", "dkms install")),
        (False, "", True, ("its headers are not installed", "add kernel-devel-5.14.0-570")),
        (True, "", False, ("no package with a module for it is installed", "add the kmod package for 5.14.0-570")),
    ],
)
def test_the_next_kernel_has_the_module_or_no_reboot_is_planned(
    tree: Path, headers: bool, module: str, dkms: bool, said: tuple[str, str]
) -> None:
    whole(tree)
    packages = SET if dkms else tuple(p for p in SET if "dkms" not in p.name)
    hold(tree, packages)
    kernel(tree, "5.14.0-570.17.1.el9_6.x86_64", module, headers=headers)
    words, hint = said
    with pytest.raises(ConfigError, match=words) as refused:
        plan(tree, packages=packages)
    assert "kernel 5.14.0-570.17.1.el9_6.x86_64 boots next" in str(refused.value) and hint in refused.value.hint


def test_a_newer_loaded_module_is_a_reboot_or_a_reload(tree: Path) -> None:
    whole(tree)
    load(tree, OLD)
    (change,) = plan(tree)
    assert isinstance(change, ModuleReload)
    write(tree, "proc/sys/kernel/osrelease", "5.14.0-1.el9.x86_64\n")
    (change,) = plan(tree)
    assert isinstance(change, Reboot)


def test_a_database_that_cannot_be_read_is_unknown_and_nothing_is_done(tree: Path) -> None:
    (tree / "var/lib/rpm/rpmdb.sqlite").write_text("torn\n" * 2000)
    node = gather(Root(str(tree)), unreadable("not asked"), reads=SETTING.reads)
    want = driver.DriverWant(version=NEW, packages=SET)
    (found,) = drift("driver", SETTING, want, node)
    assert found.level is Level.UNKNOWN and "/var/lib/rpm/rpmdb.sqlite" in found.summary and "rpmdb --verifydb" in found.summary
