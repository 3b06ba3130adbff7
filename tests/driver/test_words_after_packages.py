"""A package that changes the kernel command line itself, as NVIDIA's nvidia-kmod-common does: the declared words win.

apt, dpkg and the package's script are real. grubby is a stand-in, because Debian has none: it changes real boot entries, and for
the words of a key it does what grubby does (``update_args``: each word with the key of a new word goes).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from fairlead import config
from fairlead.model.change import Package
from tests.driver.apt_node import AptNode

pytestmark = pytest.mark.root
GRUBBY = r"""#!/usr/bin/python3
# A stand-in for grubby, for a test. It knows --update-kernel=ALL, --args and --remove-args.
import glob, sys
options = dict(w[2:].partition("=")[::2] for w in sys.argv[1:])
assert options.pop("update-kernel") == "ALL" and set(options) <= {"args", "remove-args"}, sys.argv
add, gone = options.get("args", "").split(), options.get("remove-args", "").split()
keys = [w.rpartition("=")[0] or w for w in add] + gone
for path in glob.glob("/boot/loader/entries/*.conf"):
    lines = open(path).read().splitlines()
    for at, line in enumerate(lines):
        if line.startswith("options "):
            left = [w for w in line.split()[1:] if not any(w == k or w.startswith(k + "=") for k in keys)]
            lines[at] = " ".join(["options", *left, *add])
    open(path, "w").write("\n".join(lines) + "\n")
open("/var/log/grubby", "a").write(" ".join(sys.argv[1:]) + "\n")
"""
POSTINST = """#!/bin/sh
grubby --update-kernel=ALL --args='rd.driver.blacklist=nouveau nouveau.modeset=0 nvidia-drm.modeset=1' --remove-args=nomodeset
"""
OLD, NEW = "580.82.07", "580.95.05"


def built(folder: Path, version: str) -> Package:
    """A package with the name of NVIDIA's and a script like the one that it has."""
    tree = folder / version
    (tree / "DEBIAN").mkdir(parents=True)
    control = f"Package: nvidia-kmod-common\nVersion: {version}-1\nArchitecture: all\nMaintainer: lab\nDescription: a stand-in\n"
    (tree / "DEBIAN/control").write_text(control)
    (tree / "DEBIAN/postinst").write_text(POSTINST)
    (tree / "DEBIAN/postinst").chmod(0o755)
    (tree / "usr/lib/modprobe.d").mkdir(parents=True)
    (tree / "usr/lib/modprobe.d/nvidia.conf").write_text("# a stand-in\n")
    row = Package(name="nvidia-kmod-common", version=f"{version}-1", architecture="all", sha256="0" * 64, size=1)
    file = folder / row.file
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, file], check=True, capture_output=True, timeout=60)
    data = file.read_bytes()
    return msgspec.structs.replace(row, sha256=hashlib.sha256(data).hexdigest(), size=len(data), installed_kib=4)


def write(node: AptNode, path: str, text: str, mode: str = "644") -> None:
    script = 'mkdir -p "$(dirname "$1")"; cat > "$1"; chmod "$2" "$1"'
    subprocess.run(node.words("sh", "-c", script, "sh", path, mode), input=text.encode(), check=True, timeout=60)


def declare(node: AptNode, package: Package, *words: str) -> None:
    driver = {
        "version": package.version.removesuffix("-1"),
        "module": "none",
        "install": [package.name],
        "packages": [msgspec.to_builtins(package)],
    }
    settings = {"driver": driver, "kernel_cmdline": {"words": list(words)}}
    document = config.resolve_layers("gpu1", [("test", {"settings": settings})])[0]
    write(node, "/etc/fairlead/node.json", config.encode_document(document).decode())


def apply(node: AptNode) -> dict[str, dict[str, str]]:
    words = node.words(*node.apply_words())
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    return {item["setting"]: item for item in json.loads(done.stdout)["items"]}


def test_the_declared_words_win_in_the_run_that_moves_the_driver(node: AptNode, tmp_path: Path) -> None:
    packages = [built(tmp_path, version) for version in (OLD, NEW)]
    node.run("mkdir", "-p", "/run/fairlead")
    write(node, "/usr/sbin/grubby", GRUBBY, "755")
    for release in ("5.14.0-503.el9.x86_64", "5.14.0-570.el9.x86_64"):
        text = f"title Rocky\nversion {release}\nlinux /vmlinuz-{release}\noptions root=UUID=1 ro nomodeset\n"
        write(node, f"/boot/loader/entries/f5c-{release}.conf", text)
    wanted = {"iommu=pt", "nvidia-drm.modeset=0", "rd.driver.blacklist=nouveau", "nouveau.modeset=0", "ro", "root=UUID=1"}
    theirs = "--update-kernel=ALL --args=rd.driver.blacklist=nouveau nouveau.modeset=0 nvidia-drm.modeset=1"
    theirs += " --remove-args=nomodeset"
    called: list[str] = []
    for package, ours in zip(packages, ("iommu=pt nvidia-drm.modeset=0", "nvidia-drm.modeset=0"), strict=True):
        node.serve([package], tmp_path)
        declare(node, package, "iommu=pt", "nvidia-drm.modeset=0")
        called += [theirs, f"--update-kernel=ALL --args={ours}"]
        moved(node, wanted, called)
    declare(node, packages[1], "nomodeset")
    assert apply(node)["kernel_cmdline"]["state"] == "refused"


def moved(node: AptNode, wanted: set[str], called: list[str]) -> None:
    """One run moves the package, and every entry has the wanted words after it. A second run asks grubby for nothing."""
    items = apply(node)
    assert items["driver"]["persisted"] == "yes", items
    assert items["kernel_cmdline"]["persisted"] == "yes" and items["kernel_cmdline"]["pending"], items
    options = node.run("sh", "-c", "grep -h ^options /boot/loader/entries/*").splitlines()
    assert [set(line.split()[1:]) for line in options] == [wanted, wanted]
    assert node.run("cat", "/var/log/grubby").splitlines() == called
    apply(node)
    assert node.run("cat", "/var/log/grubby").splitlines() == called
