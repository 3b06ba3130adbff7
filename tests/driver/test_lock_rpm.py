"""`fairlead lock` for EL nodes: exact packages from dnf repositories by libsolv, and one clear line for what is wrong."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.config.driver_lock_file import LockedSet, load_lock
from fairlead.errors import DataError, ProvisionError
from fairlead.host.rpm_header import parse, read_package
from fairlead.model import rpm_version
from fairlead.model.change import Package
from fairlead.provision import dnf_repository, node_rpms, offline_bundle_check
from fairlead.provision.dnf_repository import DnfRepository, parse_line
from tests.driver import rpm_writer
from tests.driver.apt_node import PROJECT
from tests.driver.rpm_writer import Rpm

pytest.importorskip("solv")

GLIBC = Rpm(name="glibc", version="2.34-100.el9", provides=("libc.so.6()(64bit)",), files=("/usr/sbin/ldconfig",))
KERNEL = "5.14.0-503.11.1.el9_5"
NODE = (
    GLIBC,
    Rpm(name="bash", version="5.1.8-9.el9", provides=("/bin/sh",), files=("/usr/bin/bash",)),
    Rpm(name="kernel-core", version=KERNEL, provides=("installonlypkg(kernel)",)),
    Rpm(name="gpg-pubkey", version="d42d0685-62589a51", architecture=""),
)
SITE = """\
schema = 1
[classes.h100]
nodes = "gpu[1-2]"
profile = "hgx-h100"
[classes.h100.settings.driver]
branch = "580"
install = ["nvidia-open", "nvidia-fabricmanager"]
"""


def of_driver(v: str) -> tuple[Rpm, ...]:
    """NVIDIA's packages for EL9 with their relations: exact ones, and ">=" in the metapackage."""
    same = f"3:{v}-1.el9"

    def rpm(name: str, *requires: str, provides: tuple[str, ...] = (), architecture: str = "x86_64") -> Rpm:
        return Rpm(name=name, version=same, requires=requires, provides=provides, architecture=architecture)

    kernel = "5.14.0-503.11.1"
    return (
        rpm("nvidia-open", f"nvidia-driver-cuda >= 3:{v}", f"kmod-nvidia-open-dkms >= 3:{v}", architecture="noarch"),
        rpm("nvidia-driver-cuda", f"libnvidia-ml = {same}", f"nvidia-kmod-common = 3:{v}", "/bin/sh"),
        rpm("libnvidia-ml", "libc.so.6()(64bit)", "/sbin/ldconfig"),
        rpm("libnvidia-ml", architecture="i686"),
        rpm("nvidia-kmod-common", f"nvidia-kmod = 3:{v}", architecture="noarch"),
        rpm("kmod-nvidia-open-dkms", f"nvidia-kmod-common = 3:{v}", provides=(f"nvidia-kmod = 3:{v}",), architecture="noarch"),
        rpm("kmod-nvidia-latest-dkms", f"nvidia-kmod-common = 3:{v}", provides=(f"nvidia-kmod = 3:{v}",), architecture="noarch"),
        rpm(f"kmod-nvidia-open-{v}-{kernel}", f"(kernel-core = {KERNEL} if kernel-core)", provides=(f"nvidia-kmod = 3:{v}",)),
        Rpm(name="nvidia-fabricmanager", version=f"{v}-1"),
    )


NVIDIA = (*of_driver("575.57.08"), *of_driver("580.82.07"), *of_driver("580.95.05"), *of_driver("595.58.03"))
DEVEL = tuple(Rpm(name="kernel-devel", version=v) for v in (KERNEL, "5.14.0-570.17.1.el9_6"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return path


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    return rpm_writer.repository(tmp_path / "nvidia", NVIDIA)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return rpm_writer.database(tmp_path / "rpmdb.sqlite", NODE)


def lock(site: Path, *words: object, code: int = 0) -> str:
    """What `fairlead lock` says on standard error. A failure is one line and its next step. It runs in this process, because a
    hundred of them would take a minute to start."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as err:
        patch.setenv("XDG_CACHE_HOME", str(site.parent / "cache"))
        patch.setenv("no_proxy", "127.0.0.1")
        ended = main(["lock", "--site", str(site), *map(str, words)])
    return answered(ended, code, err.getvalue(), *words)


def answered(ended: int, code: int, said: str, *words: object) -> str:
    assert ended == code, f"{words}: {ended}\n{said}"
    if code:
        at = said.index("fairlead lock: ")
        lines = said[at:].splitlines()
        assert len(lines) == 2 and lines[1].startswith("  next: "), said
        assert not [c for c in said if c != "\n" and not c.isprintable()]
    return said


def lock_of_its_own_process(site: Path, *words: object, code: int = 0, path: str = "") -> str:
    """``path``: where Python finds modules first."""
    command = [sys.executable, "-m", "fairlead", "lock", "--site", str(site), *map(str, words)]
    env = {**os.environ, "XDG_CACHE_HOME": str(site.parent / "cache"), "no_proxy": "127.0.0.1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (path, str(PROJECT / "agent"))))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return answered(done.returncode, code, done.stderr, *words)


def result(site: Path, name: str = "default") -> LockedSet:
    return load_lock(str(site.parent / "fairlead.lock")).sets[name]


def named(site: Path) -> dict[str, Package]:
    return {p.name: p for p in result(site).packages}


def declare(site: Path, old: str, new: str) -> None:
    assert old in site.read_text()
    site.write_text(site.read_text().replace(old, new))


EXPECTED = {
    "nvidia-open", "nvidia-driver-cuda", "libnvidia-ml", "nvidia-kmod-common", "kmod-nvidia-open-dkms", "nvidia-fabricmanager",
}  # fmt: skip


def test_the_set_has_exact_versions_with_epoch_hash_size_and_room(site: Path, nvidia: Path, node: Path) -> None:
    """580.95.05 although 595 is there and a metapackage says ">=". What the node has (glibc, bash) is not in the set."""
    lock(site, "--repository", nvidia, "--status", node)
    found = result(site)
    assert (found.version, found.branch, found.module, found.architecture) == ("580.95.05", "580", "open", "x86_64")
    packages = named(site)
    assert set(packages) == EXPECTED
    assert {p.version for n, p in packages.items() if n != "nvidia-fabricmanager"} == {"3:580.95.05-1.el9"}
    fabric = packages["nvidia-fabricmanager"]
    file = nvidia / "nvidia-fabricmanager-580.95.05-1.x86_64.rpm"
    assert fabric == Package(
        name="nvidia-fabricmanager", version="0:580.95.05-1", architecture="x86_64", size=file.stat().st_size, url=str(file),
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(), installed_kib=4, kept=True, format="rpm",
    )  # fmt: skip
    assert packages["libnvidia-ml"].architecture == "x86_64", "not the one of 32 bits"
    before = (site.parent / "fairlead.lock").read_bytes()
    lock_of_its_own_process(site, "--repository", nvidia, "--status", node)
    assert (site.parent / "fairlead.lock").read_bytes() == before, "the same inputs give the same lock"
    assert "holds" in subprocess_out(site, "--check")


def subprocess_out(site: Path, *words: str) -> str:
    command = [sys.executable, "-m", "fairlead", "lock", "--site", str(site), *words]
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("pack", list(rpm_writer.PACK))
def test_each_packing_of_the_list_is_read(site: Path, tmp_path: Path, node: Path, pack: str) -> None:
    if pack == ".zst" and shutil.which("zstd") is None:
        pytest.skip("no zstd here")
    repository = rpm_writer.repository(tmp_path / "r", NVIDIA, pack=pack)
    lock(site, "--repository", repository, "--status", node)
    assert set(named(site)) == EXPECTED


def test_a_list_packed_with_zstd_where_there_is_no_zstd(site: Path, nvidia: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnf_repository.shutil, "which", lambda name: None)
    with pytest.raises(ProvisionError, match="packed with zstd, which cannot be read here") as e, open(os.devnull, "wb") as out:
        dnf_repository.unpack(Path("x-primary.xml.zst"), "x", out)
    assert "install zstd" in e.value.hint


def test_a_folder_of_package_files(site: Path, tmp_path: Path, node: Path) -> None:
    files = rpm_writer.write_packages(tmp_path / "files", NVIDIA)
    lock(site, "--rpms", files, "--status", node)
    assert set(named(site)) == EXPECTED
    package = named(site)["libnvidia-ml"]
    assert package.url == str(files / "libnvidia-ml-580.95.05-1.el9.x86_64.rpm") and package.installed_kib == 4
    (files / "torn.rpm").write_bytes(rpm_writer.package_bytes(NVIDIA[0])[:200])
    assert f"{files}/torn.rpm: torn: it ends within its header" in lock(site, "--rpms", files, "--status", node, code=65)
    (files / "torn.rpm").write_bytes(b"no package")
    assert f"{files}/torn.rpm: not an RPM package" in lock(site, "--rpms", files, "--status", node, code=65)
    (tmp_path / "empty").mkdir()
    assert "no package files (*.rpm) there" in lock(site, "--rpms", tmp_path / "empty", "--status", node, code=66)


def test_the_text_of_rpm_where_the_database_cannot_be_read(site: Path, tmp_path: Path, nvidia: Path) -> None:
    """What an installed package provides is taken from the distribution's repository, also where that has a newer one."""
    newer = Rpm(name="glibc", version="2.34-125.el9", provides=GLIBC.provides, files=GLIBC.files)
    base = rpm_writer.repository(tmp_path / "base", (newer, *NODE[1:3]))
    status = rpm_writer.listed(tmp_path / "rpms.txt", (*NODE[:3], Rpm(name="gpg-pubkey", version="1-2", architecture="(none)")))
    lock(site, "--repository", nvidia, "--repository", base, "--status", status)
    assert set(named(site)) == EXPECTED
    message = lock(site, "--repository", nvidia, "--status", status, code=78)
    assert re.search(r"cannot be satisfied: nothing provides (/bin/sh|/sbin/ldconfig|libc\.so\.6)", message)
    assert "the distribution's own, too" in message


def test_what_the_node_lacks_is_in_the_set_and_not_kept(site: Path, tmp_path: Path, nvidia: Path, node: Path) -> None:
    base = rpm_writer.repository(tmp_path / "base", (Rpm(name="pkgconf", version="1.7-1.el9"), *NODE[:3]))
    more = Rpm(name="nvidia-fabricmanager", version="580.105.08-1", requires=("pkgconf", "glibc"))
    fabric = rpm_writer.repository(tmp_path / "more", (more, *of_driver("580.105.08")))
    lock(site, "--repository", nvidia, "--repository", base, "--repository", fabric, "--status", node)
    assert result(site).version == "580.105.08", "the newest by number, not by letter"
    packages = named(site)
    assert set(packages) == {*EXPECTED, "pkgconf"} and not packages["pkgconf"].kept and packages["nvidia-open"].kept


def test_the_driver_that_the_node_has_is_in_the_set_too(site: Path, tmp_path: Path, nvidia: Path) -> None:
    status = rpm_writer.database(tmp_path / "db", (*NODE, *of_driver("580.95.05")[:3], *of_driver("575.57.08")[4:6]))
    lock(site, "--repository", nvidia, "--status", status)
    assert set(named(site)) == EXPECTED


def test_a_package_of_the_node_that_needs_the_former_driver_is_named(site: Path, tmp_path: Path, nvidia: Path) -> None:
    own = Rpm(name="site-monitor", version="575-1", requires=("libnvidia-ml = 3:575.57.08-1.el9",))
    status = rpm_writer.database(tmp_path / "db", (*NODE, *of_driver("575.57.08")[:6], own))
    message = lock(site, "--repository", nvidia, "--status", status, code=78)
    assert "site-monitor 0:575-1, which the node has, needs libnvidia-ml 3:575.57.08-1.el9, which is not in the set" in message
    any_version = Rpm(name="site-monitor", version="575-1", requires=("libnvidia-ml", "datacenter-gpu-manager"))
    dcgm = Rpm(name="datacenter-gpu-manager", version="1:4.4.1-1")
    status = rpm_writer.database(tmp_path / "db", (*NODE, *of_driver("575.57.08")[:6], any_version, dcgm))
    lock(site, "--repository", nvidia, "--status", status)


def test_a_dependency_comes_from_a_module_stream_only_if_nothing_else_has_it(site: Path, tmp_path: Path, node: Path) -> None:
    need = Rpm(name="nvidia-fabricmanager", version="580.95.05-1", requires=("perl",))
    repository = rpm_writer.repository(tmp_path / "r", (*of_driver("580.95.05")[:-1], need))
    stream = Rpm(name="perl", version="5.40-1.module+el9.7.0+1+abcdef")
    plain = Rpm(name="perl", version="5.32-1.el9")
    for name, rpms, chosen in (("one", (stream, plain), plain), ("two", (stream,), stream)):
        base = rpm_writer.repository(tmp_path / name, rpms)
        lock(site, "--repository", repository, "--repository", base, "--status", node)
        assert named(site)["perl"].version == f"0:{chosen.version}"


def test_in_the_drivers_repository_the_versions_of_all_streams_are_seen(site: Path, tmp_path: Path, node: Path) -> None:
    rpms = [Rpm(name=r.name, version=r.version.replace(".el9", ".module_el9+12"), requires=tuple(
        q.replace(".el9", ".module_el9+12") for q in r.requires if "kernel-core" not in q),
        provides=r.provides, architecture=r.architecture) for r in NVIDIA]  # fmt: skip
    lock(site, "--repository", rpm_writer.repository(tmp_path / "r", rpms), "--status", node)
    assert named(site)["nvidia-open"].version == "3:580.95.05-1.module_el9+12"


def test_weak_dependencies_are_left_out(site: Path, tmp_path: Path, node: Path) -> None:
    more = Rpm(name="nvidia-fabricmanager", version="580.95.05-2", recommends=("nvidia-settings",))
    settings = Rpm(name="nvidia-settings", version="3:580.95.05-1.el9")
    lock(site, "--repository", rpm_writer.repository(tmp_path / "r", (*NVIDIA, more, settings)), "--status", node)
    assert named(site)["nvidia-fabricmanager"].version == "0:580.95.05-2" and set(named(site)) == EXPECTED


def test_precompiled_modules_of_the_nodes_kernels_where_no_module_is_named(site: Path, nvidia: Path, tmp_path: Path) -> None:
    declare(site, '"nvidia-open", ', '"nvidia-driver-cuda", ')
    node = rpm_writer.database(tmp_path / "db", NODE)
    lock(site, "--repository", nvidia, "--status", node)
    module = "kmod-nvidia-open-580.95.05-5.14.0-503.11.1"
    assert set(named(site)) == {*EXPECTED, module} - {"nvidia-open", "kmod-nvidia-open-dkms"} and named(site)[module].kept
    newer = Rpm(name="kernel-core", version="5.14.0-570.17.1.el9_6")
    node = rpm_writer.database(tmp_path / "db", (*NODE, newer))
    message = lock(site, "--repository", nvidia, "--status", node, code=78)
    assert "there is no precompiled open one of 580.95.05 for kernel 5.14.0-570.17.1.el9_6" in message
    assert "kmod-nvidia-open-dkms" in message


def test_a_set_that_builds_its_module_brings_the_headers_of_the_newest_kernel(site: Path, tmp_path: Path, nvidia: Path) -> None:
    base = rpm_writer.repository(tmp_path / "base", DEVEL)
    words = ("--repository", nvidia, "--repository", base, "--status")
    lock(site, *words, rpm_writer.database(tmp_path / "db", NODE))
    assert named(site)["kernel-devel"].version == f"0:{KERNEL}" and not named(site)["kernel-devel"].kept
    lock(site, *words, rpm_writer.database(tmp_path / "db", (*NODE, DEVEL[0])))
    assert "kernel-devel" not in named(site)
    declare(site, '"nvidia-open", ', '"nvidia-open", "kernel-devel", ')
    lock(site, *words, rpm_writer.database(tmp_path / "db", NODE))
    assert named(site)["kernel-devel"].version == f"0:{KERNEL}", "that of the node's kernel, though there is a newer one"


def test_the_plugin_that_keeps_the_versions_comes_along(site: Path, tmp_path: Path, nvidia: Path, node: Path) -> None:
    name = "python3-dnf-plugin-versionlock"
    plugins = tuple(Rpm(name=name, version=f"4.{n}-1.el9", architecture="noarch") for n in (3, 5))
    words = ("--repository", nvidia, "--repository", rpm_writer.repository(tmp_path / "base", plugins), "--status")
    lock(site, *words, node)
    assert named(site)[name].version == "0:4.5-1.el9" and not named(site)[name].kept
    lock(site, *words, rpm_writer.database(tmp_path / "db", (*NODE, plugins[0])))
    assert set(named(site)) == EXPECTED, "the node has one"
    declare(site, 'branch = "580"', 'branch = "580"\nhold = false')
    lock(site, *words, node)
    assert set(named(site)) == EXPECTED


def test_the_nodes_own_module_is_left_to_the_node(site: Path, tmp_path: Path, nvidia: Path) -> None:
    """With module = "none" something else installs the module, and the libraries require it."""
    declare(site, '"nvidia-open", ', '"nvidia-driver-cuda", ')
    declare(site, 'branch = "580"', 'version = "580.95.05"\nmodule = "none"')
    alma = Rpm(name="nvidia-open-kmod", version="3:580.95.05-1.el9", provides=("nvidia-kmod = 3:580.95.05",))
    words = ("--repository", nvidia, "--status")
    lock(site, *words, rpm_writer.database(tmp_path / "db", (*NODE, alma)))
    assert set(named(site)) == EXPECTED - {"nvidia-open", "kmod-nvidia-open-dkms"}
    message = lock(site, *words, rpm_writer.database(tmp_path / "db", NODE), code=78)
    assert "module is none, and the set has kmod-nvidia" in message


def test_what_cannot_be_satisfied_is_said_in_libsolvs_words(site: Path, tmp_path: Path, nvidia: Path, node: Path) -> None:
    declare(site, '"580"', '"535"')
    message = lock(site, "--repository", nvidia, "--status", node, code=78)
    assert f"{site}: settings.driver.branch: no version of branch 535 in the repositories" in message and "595.58.03" in message
    declare(site, 'branch = "535"', 'version = "580.99.99"')
    assert "580.99.99 is in none of the repositories" in lock(site, "--repository", nvidia, "--status", node, code=78)
    declare(site, '"580.99.99"', '"580.95.05"')
    declare(site, '"nvidia-fabricmanager"', '"nvidia-fabricmanager", "nvlsm"')
    assert "nvlsm is in none of the repositories" in lock(site, "--repository", nvidia, "--status", node, code=78)
    broken = rpm_writer.repository(tmp_path / "b", (Rpm(name="nvlsm", version="2025.6-1", requires=("libibumad.so.3",)),))
    message = lock(site, "--repository", nvidia, "--repository", broken, "--status", node, code=78)
    assert "cannot be satisfied: nothing provides libibumad.so.3 needed by nvlsm-2025.6-1.x86_64" in message
    declare(site, ', "nvlsm"', ', "cuda-drivers"')
    more = rpm_writer.repository(tmp_path / "m", (Rpm(name="cuda-drivers", version="3:580.95.05-1.el9"),))
    message = lock(site, "--repository", nvidia, "--repository", more, "--status", node, code=78)
    assert "cuda-drivers 3:580.95.05-1.el9 is the other kind of kernel module, and module is open" in message
    assert not (site.parent / "fairlead.lock").exists(), "nothing was written"


def test_fabric_manager_of_another_version_is_refused(site: Path, tmp_path: Path, node: Path) -> None:
    """On EL no relation of the packages keeps it with the driver."""
    rpms = (*of_driver("580.95.05")[:-1], Rpm(name="nvidia-fabricmanager", version="580.82.07-1"))
    message = lock(site, "--repository", rpm_writer.repository(tmp_path / "r", rpms), "--status", node, code=78)
    assert "nvidia-fabricmanager is 0:580.82.07-1, the driver 580.95.05" in message


def test_kinds_are_not_mixed(site: Path, tmp_path: Path, nvidia: Path, node: Path) -> None:
    dpkg = tmp_path / "status"
    dpkg.write_text("Package: x\nVersion: 1\n\n")
    line = "deb http://mirror.example/debian x main"
    assert "is for apt" in lock(site, "--repository", nvidia, "--repository", line, code=64)
    assert "is for apt" in lock(site, "--repository", nvidia, "--debs", tmp_path, code=64)
    assert "is for apt" in lock(site, "--rpms", nvidia, "--debs", tmp_path, code=64)
    assert "is a database of dpkg" in lock(site, "--repository", nvidia, "--status", dpkg, code=64)
    assert "is a database of rpm" in lock(site, "--debs", tmp_path, "--status", node, code=64)
    assert "no dnf repository is named" in lock(site, "--status", node, code=64)
    assert "$releasever and $basearch" in lock(site, "--repository", "https://mirror.example/$releasever", code=64)
    assert "only http, https and folders" in lock(site, "--repository", "ftp://mirror.example/x", code=64)
    assert f"{tmp_path}/absent: No such file" in lock(site, "--repository", nvidia, "--status", tmp_path / "absent", code=66)


def test_a_nodes_database_that_is_no_whole_database(site: Path, tmp_path: Path, nvidia: Path) -> None:
    path, whole = tmp_path / "db", rpm_writer.database(tmp_path / "whole", NODE * 40).read_bytes()

    def says(data: bytes, code: int = 65) -> str:
        path.write_bytes(data)
        return lock(site, "--repository", nvidia, "--status", path, code=code)

    assert f"{path}: no whole database of rpm: " in says(whole[: len(whole) // 2])
    assert f"{path}: no whole database of rpm: no such table: Packages" in says(empty_database(tmp_path))
    says(whole.replace(b"libc.so.6()(64bit)", b"libc.so.6()\x1b[2J\x07bit"))
    message = says(b"\0" * 12 + b"\x61\x15\x06\x00" + b"\0" * 4096)
    assert f"{path}: a Berkeley DB (EL8), which only rpm can read" in message and "rpm -qa --qf" in message
    message = says(b"glibc x86_64 0:2.34-100.el9\nglibc \x1b[2J x\n")
    assert f"{path}: line 2 is not NAME ARCHITECTURE EPOCH:VERSION-RELEASE" in message
    assert f"{path}: line 1 is not NAME" in says(b"\xff\xfe\0\1 nothing")
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: not a file" in lock(site, "--repository", nvidia, "--status", path, code=65), "a pipe is not waited for"


def empty_database(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "empty")
    with connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    return (folder / "empty").read_bytes()


def test_a_database_that_another_program_has_locked(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_rpms, "BUSY_SECONDS", 0.1)
    writer = sqlite3.connect(node, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA locking_mode=EXCLUSIVE")
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("INSERT INTO Packages (blob) VALUES (x'00')")
    with pytest.raises(DataError, match="no whole database of rpm: database is locked") as e:
        node_rpms.read_rpms(str(node))
    assert "while no dnf runs" in e.value.hint
    writer.close()


def test_damaged_metadata_is_refused(site: Path, tmp_path: Path, node: Path) -> None:
    good = rpm_writer.repository(tmp_path / "good", NVIDIA)
    words = ("--status", node, "--repository")

    def broken(name: str) -> tuple[Path, Path, Path]:
        copy = Path(shutil.copytree(good, tmp_path / name))
        (list_file,) = (copy / "repodata").glob("*-primary.xml.gz")
        return copy, copy / "repodata/repomd.xml", list_file

    copy, repomd, list_file = broken("flipped")
    list_file.write_bytes(list_file.read_bytes()[:-1] + b"x")
    message = lock(site, *words, copy, code=65)
    assert f"{copy}/repodata/{list_file.name}: not what repomd.xml says (another sha256)" in message
    copy, repomd, list_file = broken("torn")
    repomd.write_text(repomd.read_text()[:150])
    assert f"{repomd}: torn or no XML" in lock(site, *words, copy, code=65)
    copy, repomd, list_file = broken("no list")
    list_file.unlink()
    assert f"{list_file}: no such file" in lock(site, *words, copy, code=66)
    copy, repomd, list_file = broken("weak")
    repomd.write_text(re.sub(r'<checksum type="sha256">[0-9a-f]*', '<checksum type="md5">' + "0" * 32, repomd.read_text()))
    assert "is md5, and sha256 or sha512 is needed" in lock(site, *words, copy, code=65)
    copy, repomd, list_file = broken("out")
    repomd.write_text(repomd.read_text().replace('href="repodata/', 'href="../../'))
    assert f"{repomd}: the path of the primary metadata leads out of the repository" in lock(site, *words, copy, code=65)
    copy, repomd, list_file = broken("entities")
    repomd.write_text(repomd.read_text().replace("<repomd", '<!DOCTYPE x [<!ENTITY a "b">]><repomd'))
    assert f"{repomd}: not a list of metadata" in lock(site, *words, copy, code=65)
    for name, xml, said in (
        ("halves", rpm_writer.primary(NVIDIA)[:3000], "not a list of packages"),
        ("doctype", b'<!DOCTYPE x [<!ENTITY a "b">]>' + rpm_writer.primary(NVIDIA), "not a list of packages"),
        ("leads out", rpm_writer.primary(NVIDIA, prefix="../../"), "leads out of the repository"),
        ("sha1", rpm_writer.primary(NVIDIA, kind="sha1"), "the repository gives no sha256"),
    ):
        copy = rpm_writer.metadata(tmp_path / name, xml)
        assert said in lock(site, *words, copy, code=65), name
    torn = rpm_writer.metadata(tmp_path / "torn gz", rpm_writer.primary(NVIDIA))
    (list_file,) = (torn / "repodata").glob("*-primary.xml.gz")
    cut = list_file.read_bytes()[:-20]
    fit(torn, list_file, cut)
    assert "torn: Compressed file ended" in lock(site, *words, torn, code=65)
    assert "no such file" in lock(site, *words, tmp_path / "absent", code=66)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/x.rpm").touch()
    assert "--rpms takes a folder of package files" in lock(site, *words, tmp_path / "files", code=66)


def fit(repository: Path, list_file: Path, data: bytes) -> None:
    """Another list of packages, and a repomd.xml whose hash fits it."""
    old, new = list_file.name.partition("-")[0], hashlib.sha256(data).hexdigest()
    list_file.unlink()
    (repository / f"repodata/{new}-primary.xml.gz").write_bytes(data)
    repomd = repository / "repodata/repomd.xml"
    repomd.write_text(repomd.read_text().replace(old, new))


def test_names_that_would_be_paths_are_in_no_lock(site: Path, tmp_path: Path, node: Path) -> None:
    evil = Rpm(name="../../evil", version="1-1", provides=("helper",))
    need = Rpm(name="nvidia-fabricmanager", version="580.95.05-1", requires=("helper",))
    rpms = (*of_driver("580.95.05")[:-1], need)
    xml = rpm_writer.primary((*rpms, evil)).replace(b'href="../../', b'href="')
    repository = rpm_writer.metadata(rpm_writer.write_packages(tmp_path / "r", rpms), xml)
    assert "the lists of packages: '../../evil' is no name" in lock(site, "--repository", repository, "--status", node, code=65)


def test_what_a_repository_sends_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rpm_writer.repository(tmp_path / "r", NVIDIA)
    here = parse_line(str(made))
    packed, _ = dnf_repository.fetch_primary(here, tmp_path / "cache")
    for name in ("REPOMD_MAX", "PACKED_MAX"):
        with monkeypatch.context() as patch, pytest.raises(DataError, match="larger than"):
            patch.setattr(dnf_repository, name, 100)
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            dnf_repository.fetch_primary(here, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.endswith(".part")]
    packed, _ = dnf_repository.fetch_primary(here, tmp_path / "cache")
    monkeypatch.setattr(dnf_repository, "UNPACKED_MAX", 1000)
    with open(tmp_path / "out", "wb") as out, pytest.raises(DataError, match="larger than"):
        dnf_repository.unpack(packed, "x", out)
    assert (tmp_path / "out").stat().st_size <= 1000


@pytest.fixture
def served(nvidia: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(nvidia))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_by_http_and_the_files_in_the_end(site: Path, served: str, nvidia: Path, node: Path, tmp_path: Path) -> None:
    message = lock(site, "--repository", f"{served}/", "--status", node, "--download", tmp_path / "files")
    assert f"{served}: http and no key" in message
    packages = named(site)
    assert packages["libnvidia-ml"].url == f"{served}/libnvidia-ml-580.95.05-1.el9.x86_64.rpm"
    files = {p.name for p in (tmp_path / "files").iterdir()}
    assert files == {p.file for p in packages.values()} and "libnvidia-ml-3%3a580.95.05-1.el9.x86_64.rpm" in files
    assert f"{served}/x/repodata/repomd.xml: HTTP 404" in lock(site, "--repository", f"{served}/x", "--status", node, code=69)
    (nvidia / "libnvidia-ml-580.95.05-1.el9.x86_64.rpm").write_bytes(b"other")
    message = lock(site, "--repository", served, "--status", node, "--download", tmp_path / "again", code=65)
    assert "libnvidia-ml-580.95.05-1.el9.x86_64.rpm: not the file that the lock names" in message
    (tmp_path / "files" / packages["libnvidia-ml"].file).unlink()
    assert "holds; 1 package files are not in" in subprocess_out(site, "--check", "--download", str(tmp_path / "files"))
    assert "Connection refused" in lock(site, "--repository", "http://127.0.0.1:9", "--status", node, code=69)


def test_a_signature_is_required_where_a_key_is_declared(site: Path, nvidia: Path, node: Path, tmp_path: Path) -> None:
    if shutil.which("gpg") is None:
        pytest.skip("no gpg here")
    repomd = nvidia / "repodata/repomd.xml"
    key, other = sign(repomd, tmp_path / "key"), tmp_path / "other"
    words = ("--status", node, "--repository")
    lock(site, *words, f"[signed-by={key}] {nvidia}")
    assert set(named(site)) == EXPECTED
    signature = (nvidia / "repodata/repomd.xml.asc").read_bytes()
    sign(repomd, other)
    (nvidia / "repodata/repomd.xml.asc").write_bytes(signature)
    message = lock(site, *words, f"[signed-by={other}] {nvidia}", code=65)
    assert f"{repomd}.asc: signed by another key" in message and f"is {other} the key of this repository?" in message
    whole = repomd.read_text()
    repomd.write_text(whole + "\n")
    assert f"{repomd}.asc: the signature does not fit" in lock(site, *words, f"[signed-by={key}] {nvidia}", code=65)
    repomd.write_text(whole)
    for text in ("", "nothing", signature.decode()[:120]):
        (nvidia / "repodata/repomd.xml.asc").write_text(text)
        assert "no signature that gpg knows" in lock(site, *words, f"[signed-by={key}] {nvidia}", code=65)
    text = key.read_text()
    key.write_text("no key")
    assert "no public key" in lock(site, *words, f"[signed-by={key}] {nvidia}", code=65)
    key.write_text(text)
    (nvidia / "repodata/repomd.xml.asc").unlink()
    message = lock(site, *words, f"[signed-by={key}] {nvidia}", code=66)
    assert f"{repomd}.asc: no such file" in message and "this repository is not signed" in message
    assert "No such file" in lock(site, *words, f"[signed-by={tmp_path}/absent] {nvidia}", code=66)


def sign(repomd: Path, key: Path) -> Path:
    """repomd.xml.asc by a key made now, whose public half goes to ``key`` as NVIDIA's .pub files have it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="g") as home:  # short: gpg-agent's socket lies in it
        gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        try:
            for words in (
                ["--quick-generate-key", "nobody <none@example.org>", "ed25519", "sign", "never"],
                ["--armor", "--output", f"{repomd}.asc", "--detach-sign", str(repomd)],
                ["--armor", "--output", str(key), "--export"],
            ):
                subprocess.run([*gpg, *words], check=True, capture_output=True, timeout=120)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True, timeout=60)
    return key


def test_without_libsolv_the_next_step_is_named(site: Path, nvidia: Path, node: Path, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide/solv.py").write_text("raise ImportError('hidden')\n")
    words = ("--repository", nvidia, "--status", node)
    message = lock_of_its_own_process(site, *words, code=69, path=str(tmp_path / "hide"))
    assert "libsolv for Python is not installed here" in message and "pip install 'fairlead[el]'" in message


def test_a_site_of_both_kinds_locks_one_set_after_the_other(site: Path, nvidia: Path, node: Path) -> None:
    more = SITE.partition("\n")[2].replace("h100]", "a100]").replace("h100.settings", "a100.settings").replace("gpu[", "old[")
    site.write_text(site.read_text() + more.replace("hgx-h100", "hgx-a100") + 'set = "other"\n')
    lock(site, "--repository", nvidia, "--status", node, "--set", "other")
    lock(site, "--repository", nvidia, "--status", node, "--set", "default")
    assert set(load_lock(str(site.parent / "fairlead.lock")).sets) == {"default", "other"}


@pytest.mark.parametrize(
    ("line", "address", "key"),
    [("https://mirror.example/x/", "https://mirror.example/x", ""), ("file:///srv/x", "/srv/x", ""),
     ("file:/srv/x", "/srv/x", ""), ("/srv/x/", "/srv/x", ""),
     (" [signed-by=/k] http://mirror.example:8080/a/b", "http://mirror.example:8080/a/b", "/k")],
)  # fmt: skip
def test_the_words_of_a_repository(line: str, address: str, key: str) -> None:
    assert parse_line(line) == DnfRepository(address, key)


def test_a_header_gives_back_what_was_written(tmp_path: Path) -> None:
    rpm = Rpm(
        name="x", version="2:1.0~rc1^git-3.el9", requires=("a >= 1:2", "(b if c)"), obsoletes=("d < 5",), files=("/usr/bin/x",)
    )
    (tmp_path / "x.rpm").write_bytes(rpm_writer.package_bytes(rpm))
    with open(tmp_path / "x.rpm", "rb") as f:
        found = read_package(f)
    assert found == parse(rpm_writer.header(rpm))
    assert (found.name, found.version, found.installed_bytes) == ("x", "2:1.0~rc1^git-3.el9", 4096)
    assert [(r.name, r.comparison, r.version) for r in found.requires] == [("a", 12, "1:2"), ("(b if c)", 0, "")]
    assert found.programs == ("/usr/bin/x",) and found.obsoletes[0].version == "5"


def test_a_header_that_is_cut_or_changed_is_never_read_as_another(tmp_path: Path) -> None:
    whole = rpm_writer.header(NVIDIA[1])
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r".") as e:
            parse(whole[:length])
        assert str(e.value).isprintable()
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        try:
            found = parse(bytes(changed))
        except ValueError:
            continue
        assert found.name.isprintable() and found.version.isprintable()


def test_versions_are_ordered_as_libsolv_orders_them() -> None:
    import solv

    pool = solv.Pool()
    pool.setdisttype(solv.Pool.DISTTYPE_RPM)
    repo = pool.add_repo("x")
    texts = ["1-1", "1.0-1", "1.0~rc1-1", "1.0^git-1", "1.0a-1", "1.0.1-1", "2:0.1-1", "580.95.05-1", "580.105.08-1", "1.10-1",
             "1.9-1", "1.0-10.el9", "1.0-9.el9", "1.0-9.el9_4", "1.0-9.el10", "01.0-1", "1a-1", "a1-1"]  # fmt: skip
    made = []
    for text in texts:
        s = repo.add_solvable()
        s.name, s.evr, s.arch = "x", text, "noarch"
        made.append(s)
    for one in made:
        for two in made:
            a, b = rpm_version.key(one.evr), rpm_version.key(two.evr)
            ours = (a > b) - (a < b)  # type: ignore[operator]
            theirs = one.evrcmp(two)
            assert ours == (theirs > 0) - (theirs < 0), f"{one.evr} and {two.evr}"


def test_the_files_of_rpm_packages_belong_to_a_bundle(tmp_path: Path) -> None:
    """A name with an epoch and a caret is in the sums, and a file that the lock does not name is refused."""
    folder = tmp_path / "b"
    (folder / "packages").mkdir(parents=True)
    package = Package(name="x", version="3:1^git~rc-1.el9", architecture="noarch", sha256="ab" * 32, size=1, format="rpm")
    (folder / "SHA256SUMS").write_text(f"{'ab' * 32}  packages/{package.file}\n")
    listed = offline_bundle_check._sums(folder)
    assert listed == {f"packages/{package.file}": "ab" * 32}
    offline_bundle_check._refuse_unknown(folder, listed)
    with pytest.raises(DataError, match="not a package file that the bundle"):
        offline_bundle_check._refuse_other_packages(folder, listed)
