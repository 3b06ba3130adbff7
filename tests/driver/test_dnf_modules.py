"""Kernel modules on a node like EL, by real dkms: built for the next kernel by the same run, named where that fails, and also
built after the script of the package was killed. Then an image that is not the running system.

What dkms "builds" is a text file; the kernels are stand-ins with headers. No module can be loaded here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import config
from tests.driver import el_repository
from tests.driver.apt_node import environment
from tests.driver.dnf_node import DnfNode
from tests.driver.el_repository import KERNELS, driver_set, repository
from tests.driver.test_dnf import NEWER, OLDER, declare, have, serve
from tests.driver.test_dnf_killed import cut
from tests.lab import el_roots

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


#: $1: the EL root. $2: an empty folder. $3: the repository. $4: the package files, as the cache has them. $5: a kernel. Then the
#: command that changes the image.
IMAGE = """
set -e
root="$2/root" repository="$3" cache="$4" kernel="$5"
mount -t tmpfs tmpfs "$2"
mkdir "$2/up" "$2/wk" "$root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/up,workdir=$2/wk" "$root"
mount --rbind /dev "$root/dev"
mkdir -p "$root/srv/nvidia" "$root/var/cache/fairlead/packages"
cp "$repository"/kernel*.rpm "$root/srv/nvidia"
cp "$cache"/* "$root/var/cache/fairlead/packages"
for name in kernel kernel-core kernel-devel; do chroot "$root" rpm -i --nodeps "/srv/nvidia/$name-$kernel.x86_64.rpm" >&2; done
shift 5
"$@" || :
echo DATABASE
chroot "$root" rpm -qa
tr "\\0" "\\n" < "$root/lib/modules/$kernel.x86_64/extra/nvidia.ko"
"""


@pytest.fixture(params=["bookworm", "trixie"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DnfNode]:
    with DnfNode(tmp_path / "node", request.param) as made:
        made.repository()
        yield made


def kernel(node: DnfNode, number: int, *, headers: bool = True) -> str:
    """Install a kernel, and return its release."""
    evr = f"{KERNELS[node.major][number]}.el{node.major}"
    names = [f"kernel-{evr}", *([f"kernel-devel-{evr}"] if headers else [])]
    node.run("dnf", "-y", "--repo", "nvidia", "--setopt=install_weak_deps=False", "install", *names)
    return f"{evr}.x86_64"


def built(node: DnfNode, release: str) -> str:
    """The version in the module file of a kernel."""
    text = node.run("sh", "-c", f"cat /lib/modules/{release}/extra/nvidia.ko* 2>/dev/null | tr '\\0' '\\n' || :", code=None)
    return next((line.removeprefix("version=") for line in text.splitlines() if line.startswith("version=")), "none")


def applied(node: DnfNode) -> dict[str, Any]:
    """An apply on a node whose kernel is this machine's own: the packages move, and no module can be loaded."""
    return node.apply(code=None)


@pytest.mark.release("bookworm")
def test_the_module_is_built_for_the_kernel_that_boots_next(node: DnfNode) -> None:
    """The package's script builds for the running kernel only, so fairlead has dkms build for the next one."""
    next_one = kernel(node, 1)
    for version in (OLDER, NEWER):
        found = driver_set(node.suite, version)
        serve(node, found)
        declare(node, found, module="open")
        item = applied(node)
        assert item["persisted"] == "yes" and built(node, next_one) == version, item
        assert f"module built for {next_one}" in item["steps"][0]["message"], item["steps"][0]
        have(node, found)
    # a kernel that comes without headers: refused before the reboot, by the guard
    later = kernel(node, 2, headers=False)
    item = node.apply("--dry-run", code=78)
    assert f"kernel {later} boots next and has no NVIDIA module" in item["message"], item


@pytest.mark.release("trixie")
def test_precompiled_modules_move_with_the_driver(node: DnfNode) -> None:
    """Their names have the driver's version and the kernel in them. So the former one goes by its name, and no dkms is needed."""
    release = kernel(node, 0)
    for version in (OLDER, NEWER):
        rows = [b for b in el_repository.all_built(node.major) if b.name.startswith(f"kmod-nvidia-{version}-")]
        module = el_repository.package_of(repository(node.suite), rows[0])
        found = (*(p for p in driver_set(node.suite, version) if not p.name.startswith("kmod")), module)
        serve(node, found)
        declare(node, found, module="open")
        item = applied(node)
        assert item["persisted"] == "yes", item
        have(node, found)
        text = node.run("cat", f"/lib/modules/{release}/extra/drivers/video/nvidia/nvidia.ko")
        assert f"version={version}" in text


@pytest.mark.release("bookworm")
def test_a_module_that_cannot_be_built_is_named_and_built_later(node: DnfNode) -> None:
    """The script of the package swallows the failure, and dnf ends with 0."""
    release = kernel(node, 0)
    found = driver_set(node.suite, OLDER)
    serve(node, found)
    declare(node, found, module="open")
    node.run("touch", "/etc/no-compiler")
    for _ in range(2):
        item = applied(node)
        assert item["state"] == "failed", item
        assert f"kmod-nvidia-open-dkms: dkms could not build the module for {release}: " in item["message"], item
        assert "error: no compiler is here" in item["message"] and "/make.log" in item["hint"], item
        assert built(node, release) == "none"
    node.run("rm", "/etc/no-compiler")
    item = applied(node)
    assert item["persisted"] == "yes" and built(node, release) == OLDER, item
    have(node, found)


@pytest.mark.release("bookworm")
def test_killed_in_the_script_of_the_dkms_package(node: DnfNode) -> None:
    """dnf never runs that script again: the next apply builds the module. So it does when its own build was killed."""
    release = kernel(node, 0)
    for version in (OLDER, NEWER):
        found = driver_set(node.suite, version)
        serve(node, found)
        declare(node, found, module="open")
        assert cut(node, node.apply_words(), lambda: bool(node.processes("dkms"))), "dkms was not seen"
        # no package may be missing besides the module: what a kill in the last package's script, or in our own build, leaves
        item = applied(node)
        assert item["persisted"] == "yes" and built(node, release) == version, item
        have(node, found)
        node.run("sh", "-c", f"rm -r /lib/modules/{release}/extra; depmod {release}; rm /etc/dnf/plugins/versionlock.list")
        node.run("dkms", "uninstall", "-m", "nvidia-open", "-v", version, "-k", release, code=None)
        item = applied(node)
        assert item["persisted"] == "yes" and built(node, release) == version, item


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
@pytest.mark.release("trixie")
def test_an_image_that_is_not_the_running_system(suite: str, tmp_path: Path) -> None:
    """As for apt: the packages go into the image by chroot. The image's own database and its own kernels count."""
    major = el_roots.RELEASES[suite]
    found = driver_set(suite, OLDER)
    evr = f"{KERNELS[major][0]}.el{major}"
    cache = tmp_path / "cache"
    cache.mkdir()
    for package in found:
        shutil.copyfile(repository(suite) / package.url, cache / package.file)
    listed = [msgspec.to_builtins(p) for p in found]
    wants = {"version": OLDER, "module": "open", "install": ("nvidia-driver-cuda",), "packages": listed}
    document = config.resolve_layers("gpu1", [("test", {"settings": {"driver": wants}})])[0]
    (tmp_path / "node.json").write_bytes(config.encode_document(document))
    (tmp_path / "layer").mkdir()
    inside = [str(el_roots.el_root(suite)), str(tmp_path / "layer"), str(repository(suite)), str(cache), evr]
    apply = [sys.executable, "-m", "fairlead", "apply", "--root", str(tmp_path / "layer/root"), "--json"]
    apply += ["--document", str(tmp_path / "node.json")]
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", IMAGE, "sh"]
    done = subprocess.run(
        [*words, *inside, *apply],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report, _, database = done.stdout.partition("DATABASE")
    (item,) = (i for i in msgspec.json.decode(report)["items"] if i["setting"] == "driver")
    assert item["state"] == "changed" and item["persisted"] == "yes", (item, done.stderr)
    assert f"module built for {evr}.x86_64" in item["steps"][0]["message"], item
    assert f"version={OLDER}" in database and f"libnvidia-ml-{OLDER}-1.el{major}.x86_64" in database, database
