"""The whole driver with its kernel module, built by dkms for a real Debian kernel: minutes, once in `make test-all`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.config.lock import load_lock
from tests.driver.apt_node import AptNode, environment
from tests.driver.conftest import available, from_debian, lock
from tests.lab import roots

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(2400)]


def test_the_module_is_built_for_the_kernel_that_boots_next(node: AptNode, tmp_path: Path) -> None:
    """Kernel, headers, module and libraries in one transaction; and a newer kernel without headers is not booted into."""
    version = available("nvidia-kernel-dkms")[0]
    site = tmp_path / "site.toml"
    site.write_text(f"""\
schema = 1
[classes.a]
nodes = "gpu1"
[classes.a.settings.driver]
version = "{version}"
module = "proprietary"
install = ["nvidia-kernel-dkms", "nvidia-smi", "linux-image-amd64", "linux-headers-amd64"]
""")
    files = Path(environment()["XDG_CACHE_HOME"]) / "fairlead/packages"
    with roots.locked("driver"):
        lock(site, *from_debian(), "--download", str(files))
    found = load_lock(str(tmp_path / "fairlead.lock")).sets["default"]
    node.place(found.packages, files)
    packages = [msgspec.to_builtins(p) for p in found.packages]
    driver = {"version": version, "module": "proprietary", "install": found.install, "packages": packages}
    node.declare(**driver)
    done = node.apply(code=None, seconds=2000)
    # nothing can be loaded here: the kernel is this machine's own
    assert done["persisted"] == "yes" and done["effective"] == "no", done["message"] + str(done)
    release = node.run("sh", "-c", "cd /lib/modules && ls").split()[-1]
    assert version in node.run("dkms", "status") and release in node.run("dkms", "status")
    assert version in node.run(
        "sh", "-c", f"modinfo -F version -k {release} nvidia || modinfo -F version -k {release} nvidia-current"
    )
    planned = node.apply("--dry-run", code=None)
    assert "no NVIDIA module is loaded" in planned["message"], planned

    node.run("sh", "-c", "cp /boot/vmlinuz-* /boot/vmlinuz-99.0-1-amd64; mkdir -p /lib/modules/99.0-1-amd64")
    refused = node.apply("--dry-run", code=78)
    assert "kernel 99.0-1-amd64 boots next and has no NVIDIA module" in refused["message"], refused
    assert "its headers are not installed" in refused["message"]
    node.run("sh", "-c", f"echo GRUB_DEFAULT=\\'1\\>Debian GNU/Linux, with Linux {release}\\' >> /etc/default/grub")
    assert node.apply("--dry-run", code=None)["state"] != "refused"
