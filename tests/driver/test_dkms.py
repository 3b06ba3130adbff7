"""The whole driver with its kernel module, built by dkms for real Debian kernels: many minutes, once in `make test-all`.

Kernel packages, headers, gcc, dkms and NVIDIA's sources are Debian's own; no kernel is booted and no module loaded.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from fairlead.config.driver_lock_file import LockedSet, load_lock
from tests.driver.apt_node import AptNode, environment
from tests.driver.conftest import available, from_debian, lock
from tests.lab import roots

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(7200)]
INSTALL = ("nvidia-kernel-dkms", "nvidia-smi", "linux-image-amd64")
BUILD_SECONDS = 3600


def declared(node: AptNode, folder: Path, version: str, *install: str) -> LockedSet:
    """Locked from Debian's archive, its files on the node, and declared there."""
    site = folder / "site.toml"
    names = ", ".join(f'"{name}"' for name in install)
    site.write_text(f"""\
schema = 1
[classes.a]
nodes = "gpu1"
[classes.a.settings.driver]
version = "{version}"
module = "proprietary"
install = [{names}]
""")
    files = Path(environment()["XDG_CACHE_HOME"]) / "fairlead/packages"
    with roots.locked("driver"):
        lock(site, *from_debian(), "--download", str(files))
    found = load_lock(str(folder / "fairlead.lock")).sets["default"]
    node.serve(found.packages, files)
    packages = [msgspec.to_builtins(p) for p in found.packages]
    node.declare(version=version, module="proprietary", install=found.install, packages=packages)
    return found


def refused(node: AptNode, *words: str) -> None:
    """Neither a reload nor a reboot is planned: the setting says why, and nothing else is done."""
    item = node.apply("--dry-run", code=78)
    assert item["state"] == "refused" and not item["steps"], item
    assert all(word in item["message"] for word in words), item


def built(node: AptNode, release: str) -> str:
    """The version of the module of a kernel, as modinfo has it."""
    script = f"modinfo -F version -k {release} nvidia-current || modinfo -F version -k {release} nvidia"
    found = [line for line in node.run("sh", "-c", script, code=None).split() if re.fullmatch(r"[0-9.]+", line)]
    return found[0] if found else "none"


def test_no_reboot_into_a_kernel_before_its_module_is_built(node: AptNode, tmp_path: Path) -> None:
    """A kernel comes with the driver and without its headers; it gets them as the hint says, and dkms builds its module: only
    then may it be booted. Then another kernel comes without headers, and the module of the first is taken away again."""
    version = available("nvidia-kernel-dkms")[0]
    declared(node, tmp_path, version, *INSTALL)
    done = node.apply(code=None, seconds=BUILD_SECONDS)
    (release,) = (name for name in node.run("ls", "/lib/modules").split() if name.endswith("-amd64"))
    assert node.versions("nvidia-kernel-dkms", "linux-image-amd64").keys() == {"nvidia-kernel-dkms", "linux-image-amd64"}
    assert f"kernel {release} boots next and has no NVIDIA module, wanted {version}" in done["message"], done
    assert "its headers are not installed" in done["message"] and "linux-headers-" in done["hint"]
    refused(node, f"kernel {release} boots next and has no NVIDIA module", "its headers are not installed")

    declared(node, tmp_path, version, *INSTALL, "linux-headers-amd64")
    done = node.apply(code=None, seconds=BUILD_SECONDS)
    # nothing can be loaded here: the kernel is this machine's own
    assert done["persisted"] == "yes" and done["effective"] == "no", done
    assert built(node, release) == version and f"{release}, x86_64: installed" in node.run("dkms", "status")
    planned = node.apply("--dry-run", code=None)
    assert "no NVIDIA module is loaded" in planned["message"] and planned["state"] != "refused", planned

    second = release.replace("-amd64", "-cloud-amd64")  # another of Debian's kernels, which GRUB puts first
    node.run(
        "sh",
        "-c",
        f"cp /boot/vmlinuz-{release} /boot/vmlinuz-{second}; mkdir -p /lib/modules/{second}; depmod {second}",
        timeout=600,
    )
    refused(node, f"kernel {second} boots next and has no NVIDIA module", "its headers are not installed")
    # another entry of GRUB's menu is chosen: that kernel is not the next one
    node.run("sh", "-c", f"echo GRUB_DEFAULT=\\'1\\>Debian GNU/Linux, with Linux {release}\\' > /etc/default/grub")
    assert node.apply("--dry-run", code=None)["state"] != "refused"

    # headers without a built module: a dkms that has failed
    name = re.search(r"^(nvidia[^/,]*)", node.run("dkms", "status"), re.MULTILINE)
    assert name is not None
    module = f"{name[1]}/{version}"
    node.run("dkms", "uninstall", module, "-k", release, timeout=1200)
    refused(node, f"kernel {release} boots next and has no NVIDIA module", "its headers are there, so dkms has failed")
    node.run("dkms", "install", module, "-k", release, timeout=1200)
    assert node.apply("--dry-run", code=None)["state"] != "refused"
