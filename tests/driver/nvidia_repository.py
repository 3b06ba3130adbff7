"""A flat, signed repository laid out as NVIDIA's own is for Debian 12, of packages that are ours and carry its names.

Names, version forms and descriptions are those of `dpkg -l` on machines that installed from it (595.58.03-1, 580.95.05-1). The
relations are ours where no public file says them: libraries of one exact version, as in NVIDIA/debian-packaging-nvidia-driver;
metapackages with ">=", which is the hard case, since apt takes the newest unless it is told not to. nvidia-kernel-open-dkms
builds nothing here, and brings no dkms: tests/driver/test_dkms.py has Debian's, which does.
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

DRIVERS = ("575.57.08", "580.82.07", "580.95.05", "595.58.03")
LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
#: What Azure's images pin besides the driver's own pinning package: all of NVIDIA's at its newest.
PREFER = "Package: *nvidia* *cuda*\nPin: version 595.*\nPin-Priority: 1001\n"


def of_driver(v: str) -> Iterator[tuple[str, str, str]]:
    """(name, version, other fields) of one driver release. The daemons lost their branch in the name with 580."""
    same = f"(= {v}-1)"
    branch = "" if int(v[:3]) >= 580 else f"-{v[:3]}"
    yield "nvidia-open", f"{v}-1", f"Depends: nvidia-driver-cuda (>= {v}), nvidia-kernel-open-dkms (>= {v})"
    yield "cuda-drivers", f"{v}-1", f"Depends: nvidia-driver-cuda (>= {v}), nvidia-kernel-dkms (>= {v})"
    kernel = f"nvidia-kernel-open-dkms {same} | nvidia-kernel-dkms {same}"
    yield "nvidia-driver-cuda", f"{v}-1", f"Depends: libcuda1 {same}, libnvidia-ml1 {same}, nvidia-persistenced {same}, {kernel}"
    support = f"Depends: nvidia-kernel-support {same}, firmware-nvidia-gsp {same}\nProvides: nvidia-kernel-{v}\n"
    yield "nvidia-kernel-open-dkms", f"{v}-1", f"{support}Conflicts: nvidia-kernel-dkms"
    yield "nvidia-kernel-dkms", f"{v}-1", f"{support}Conflicts: nvidia-kernel-open-dkms"
    for name in ("nvidia-kernel-support", "firmware-nvidia-gsp", "libnvidia-ml1", "nvidia-persistenced"):
        yield name, f"{v}-1", ""
    yield "libcuda1", f"{v}-1", f"Depends: libnvidia-ml1 {same}"
    yield f"nvidia-fabricmanager{branch}", f"{v}-1", "Provides: nvidia-fabricmanager-any\nConflicts: nvidia-fabricmanager-any"
    yield f"nvidia-imex{branch}", f"{v}-1", ""
    yield f"nvidia-driver-pinning-{v[:3]}", f"{v[:3]}-1", "Conflicts: nvidia-driver-pinning\nProvides: nvidia-driver-pinning"


def others() -> Iterator[tuple[str, str, str]]:
    yield "datacenter-gpu-manager-4-core", "1:4.6.0-1", ""
    yield "datacenter-gpu-manager-4-cuda13", "1:4.6.0-1", "Depends: datacenter-gpu-manager-4-core (= 1:4.6.0-1)"
    yield "datacenter-gpu-manager-4-cuda12", "1:4.6.0-1", "Depends: datacenter-gpu-manager-4-core (= 1:4.6.0-1)"
    yield "libnvidia-container1", "1.19.1-1", ""
    yield "libnvidia-container-tools", "1.19.1-1", "Depends: libnvidia-container1 (>= 1.19.1-1)"
    yield "nvidia-container-toolkit-base", "1.19.1-1", ""
    both = "nvidia-container-toolkit-base (= 1.19.1-1), libnvidia-container-tools (>= 1.19.1-1)"
    yield "nvidia-container-toolkit", "1.19.1-1", f"Depends: {both}"
    yield "libgdrapi", "2.5.1-1", ""


def ubuntus(v: str, kernel: str) -> Iterator[tuple[str, str, str]]:
    """Ubuntu's own: the branch in each name, precompiled modules of each kernel, whose version is the kernel's."""
    own = f"{v}-0ubuntu0.24.04.1"
    branch, abi = v[:3], kernel.rpartition(".")[0]
    yield f"nvidia-headless-no-dkms-{branch}-server-open", own, f"Depends: libnvidia-compute-{branch}-server (= {own})"
    yield f"libnvidia-compute-{branch}-server", own, ""
    yield f"nvidia-utils-{branch}-server", own, f"Depends: libnvidia-compute-{branch}-server (= {own})"
    yield f"nvidia-kernel-common-{branch}-server", own, ""
    objects = f"linux-objects-nvidia-{branch}-server-open-{abi}-generic"
    yield objects, f"{kernel}+1", ""
    modules = f"linux-modules-nvidia-{branch}-server-open-{abi}-generic"
    common = f"nvidia-kernel-common-{branch}-server (>= {v})"
    yield modules, f"{kernel}+1", f"Depends: {objects} (= {kernel}+1), {common}"
    yield f"linux-modules-nvidia-{branch}-server-open-generic", f"{kernel}+1", f"Depends: {modules} (= {kernel}+1)"
    yield f"nvidia-fabricmanager-{branch}", own, ""


def build(folder: Path, name: str, version: str, fields: str) -> Path:
    """A package file, made by dpkg-deb."""
    with tempfile.TemporaryDirectory() as made:
        top = Path(made)
        (top / "DEBIAN").mkdir()
        control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: none <none@example.org>\n"
        control += (f"{fields}\n" if fields else "") + f"Description: {name}, without any content\n"
        (top / "DEBIAN/control").write_text(control)
        if name == "libnvidia-ml1":
            library = top / f"{LIBRARY}.{version.removesuffix('-1')}"
            library.parent.mkdir(parents=True)
            library.write_text("no library\n")
            (top / f"{LIBRARY}.1").symlink_to(library.name)
        top.chmod(0o755)
        file = folder / f"{name}_{version.rpartition(':')[2]}_amd64.deb"  # NVIDIA's file names have no epoch
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", made, str(file)], check=True, capture_output=True)
    return file


def repository(folder: Path) -> Path:
    """The folder: InRelease, Packages.gz and the package files side by side, and the key beside it. Gives the key's file."""
    flat = folder / "x86_64"
    flat.mkdir(parents=True)
    stanzas = []
    for name, version, fields in [*(row for v in DRIVERS for row in of_driver(v)), *others()]:
        file = build(flat, name, version, fields)
        control = subprocess.run(["dpkg-deb", "--field", str(file)], capture_output=True, text=True, check=True).stdout
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        stanzas.append(f"{control.rstrip()}\nFilename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n")
    packages = "\n".join(stanzas).encode()
    files = {"Packages": packages, "Packages.gz": gzip.compress(packages, mtime=0)}
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in files.items())
    for name, data in files.items():
        (flat / name).write_bytes(data)
    head = "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitecture: x86_64\nDate: Sun, 22 Nov 2026 04:00:00 UTC\n"
    (flat / "Release").write_text(f"{head}SHA256:\n{sums}")
    return sign(flat, folder / "cuda-archive-keyring.gpg")


def sign(flat: Path, key: Path) -> Path:
    """InRelease by a key made now; its public half goes to ``key``."""
    with tempfile.TemporaryDirectory(prefix="g") as home:  # short: gpg-agent's socket lies in it
        gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        try:
            for words in (
                ["--quick-generate-key", "nobody <none@example.org>", "ed25519", "sign", "never"],
                ["--output", str(flat / "InRelease"), "--clearsign", str(flat / "Release")],
                ["--output", str(key), "--export"],
            ):
                subprocess.run([*gpg, *words], check=True, capture_output=True, timeout=120)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True, timeout=60)
    return key
