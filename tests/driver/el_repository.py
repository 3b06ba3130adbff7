"""A repository as NVIDIA's is for EL 9 and 10, of packages that are ours and have NVIDIA's names, versions and relations.

Names, epochs and releases are those of NVIDIA's release lists: driver packages have epoch 3 and the distribution in the release.
Fabric manager and its like have epoch 0 and, before 595, no distribution. The relations of the driver are those of NVIDIA's
public specs (515 to 570): exact versions. Ours are: the relations of the metapackage (">=", which is the hard case, because dnf
then takes the newest), and which former names the packages of 580 obsolete (all but ``libnvsdm-575``, so one former name has to
be removed by name). The kernel module is a text file that real dkms "builds" with cp. Packages that are not NVIDIA's: three
kernels with their headers, one package of a site that needs a library of one exact version, and one that is only newer.

rpmbuild and createrepo_c run in an EL root of the lab. The folder is made once for each suite and kept in the lab's folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from fairlead.model.change import Package
from tests.lab import el_roots, roots

DRIVERS = ("575.57.08", "580.82.07", "580.95.05", "595.58.03")
LIBRARY = "/usr/lib64/libnvidia-ml.so"
#: What a compute node asks for, and what follows from it, in the names that are valid from 580 on.
INSTALL = ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex")
DRIVER_SET = (
    "nvidia-driver-cuda", "nvidia-driver-cuda-libs", "libnvidia-ml", "libnvidia-gpucomp", "nvidia-kmod-common",
    "nvidia-persistenced", "nvidia-modprobe", "kmod-nvidia-open-dkms",
)  # fmt: skip
FABRIC = ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex")
OTHERS = (
    "datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13", "libnvidia-container1", "libnvidia-container-tools",
    "nvidia-container-toolkit-base", "nvidia-container-toolkit",
)  # fmt: skip
KERNELS = {
    "9": ("5.14.0-503.11.1", "5.14.0-570.17.1", "5.14.0-570.18.1"),
    "10": ("6.12.0-55.9.1", "6.12.0-55.12.1", "6.12.0-55.14.1"),
}
DKMS_CONF = """\
PACKAGE_NAME="nvidia-open"
PACKAGE_VERSION="{v}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/extra"
MAKE[0]="sh make.sh"
CLEAN="rm -f nvidia.ko"
STRIP[0]="no"
AUTOINSTALL="yes"
"""
#: What dkms runs. A node with the file /etc/no-compiler cannot build the module.
MAKE = "test ! -e /etc/no-compiler || { echo 'nvidia.c:1: error: no compiler is here'; exit 2; }\ncp nvidia.txt nvidia.ko\n"
#: $1: the EL root. $2: an empty folder with ``specs``; the repository is made in ``x86_64`` of it.
BUILD = r"""
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/up /mnt/wk /mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/up,workdir=/mnt/wk" /mnt/root
mount -t proc proc /mnt/root/proc
mount --bind "$2" /mnt/root/srv
exec chroot /mnt/root /bin/sh -ec '
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SOURCE_DATE_EPOCH=1795000000
for spec in /srv/specs/*.spec; do rpmbuild -bb --quiet --define "_topdir /tmp/build" "$spec"; done
mkdir /srv/x86_64
mv /tmp/build/RPMS/*/*.rpm /srv/x86_64
createrepo_c --quiet /srv/x86_64
'
"""
HEAD = """\
%define debug_package %{nil}
%define __os_install_post %{nil}
%define _build_id_links none
%define _binary_payload w0.gzdio
%define _buildhost lab
%define use_source_date_epoch_as_buildtime 1
"""


class Built(Struct, frozen=True, kw_only=True):
    """Describes one package of the repository.

    ``relations``: lines of the spec. ``files``: path and content; content that begins with @ is the path of a file of the root,
    and content with a written-out zero byte goes through printf. ``links``: path and target. ``scripts``: section and text.
    """

    name: str
    epoch: int
    version: str
    release: str
    architecture: str = "x86_64"
    relations: str = ""
    files: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    scripts: tuple[tuple[str, str], ...] = ()

    @property
    def evr(self) -> str:
        return f"{self.epoch}:{self.version}-{self.release}"

    @property
    def file(self) -> str:
        """The name that rpmbuild and NVIDIA's repository give the file; it has no epoch."""
        return f"{self.name}-{self.version}-{self.release}.{self.architecture}.rpm"


def module_text(v: str) -> str:
    """The part of a module file that says its version (section .modinfo), for printf."""
    return f"x\\0license=NVIDIA\\0version={v}\\0"


def dkms_package(name: str, v: str, release: str, *, conflicts: str) -> Built:
    """A kernel module by dkms, with the scripts of NVIDIA's public spec: what fails in them is swallowed."""
    module = "nvidia-open" if "open" in name else "nvidia"
    source = f"/usr/src/{module}-{v}"
    text = DKMS_CONF.format(v=v).replace('"nvidia-open"', f'"{module}"')
    text = text.replace('BUILT_MODULE_NAME[0]="nvidia-open"', 'BUILT_MODULE_NAME[0]="nvidia"')
    post = "".join(
        f"dkms {verb} -m {module} -v {v} -q {more}|| :\n" for verb, more in (("add", ""), ("build", ""), ("install", "--force "))
    )
    return Built(
        name=name, epoch=3, version=v, release=release, architecture="noarch",
        relations=f"Requires: nvidia-kmod-common = 3:{v}\nProvides: nvidia-kmod = 3:{v}\nConflicts: {conflicts}\n",
        files=((f"{source}/dkms.conf", text), (f"{source}/make.sh", MAKE), (f"{source}/nvidia.txt", module_text(v))),
        scripts=(("post", post), ("preun", f"dkms remove -m {module} -v {v} -q --all || :\n")),
    )  # fmt: skip


def of_driver(v: str, major: str) -> Iterator[Built]:
    """The packages of one driver release."""
    release = f"1.el{major}"
    same = f"3:{v}-{release}"

    def package(name: str, *requires: str, architecture: str = "x86_64", more: str = "", **content: Any) -> Built:
        relations = "".join(f"Requires: {r}\n" for r in requires) + more
        return Built(
            name=name, epoch=3, version=v, release=release, architecture=architecture, relations=relations, **content
        )  # fmt: skip

    wide = (f"nvidia-driver-cuda >= 3:{v}", f"nvidia-driver >= 3:{v}")
    yield package("nvidia-open", *wide, f"kmod-nvidia-open-dkms >= 3:{v}", architecture="noarch")
    yield package("cuda-drivers", *wide, f"kmod-nvidia-latest-dkms >= 3:{v}", architecture="noarch")
    yield package("nvidia-driver", f"nvidia-driver-libs = {same}", f"nvidia-kmod-common = 3:{v}")
    yield package("nvidia-driver-libs", f"libnvidia-ml = {same}", f"libnvidia-gpucomp = {same}")
    common = (f"nvidia-kmod-common = 3:{v}", f"nvidia-persistenced = {same}", f"nvidia-modprobe = {same}")
    smi = (("/usr/bin/nvidia-smi", f"#!/bin/sh\necho {v}\n"),)
    yield package("nvidia-driver-cuda", f"nvidia-driver-cuda-libs = {same}", *common, files=smi)
    yield package("nvidia-driver-cuda-libs", f"libnvidia-ml = {same}", f"libnvidia-gpucomp = {same}")
    library = f"{LIBRARY}.{v}"
    yield package("libnvidia-ml", files=((library, "no library\n"),), links=((f"{LIBRARY}.1", os.path.basename(library)),))
    for name in ("libnvidia-gpucomp", "libnvidia-cfg", "libnvidia-fbc", "nvidia-persistenced", "nvidia-modprobe"):
        yield package(name, files=((f"/usr/share/doc/{name}/README", f"{name} {v}\n" * 2000),))
    conf = (("/usr/lib/modprobe.d/nvidia.conf", "options nvidia NVreg_OpenRmEnableUnsupportedGpus=1\n"),)
    grubby = "if command -v grubby >/dev/null; then grubby --update-kernel=ALL --args=rd.driver.blacklist=nouveau || :; fi\n"
    kmod = f"nvidia-kmod = 3:{v}"
    yield package("nvidia-kmod-common", kmod, architecture="noarch", files=conf, scripts=(("post", grubby),))
    yield dkms_package("kmod-nvidia-open-dkms", v, release, conflicts="kmod-nvidia-latest-dkms")
    yield dkms_package("kmod-nvidia-latest-dkms", v, release, conflicts="kmod-nvidia-open-dkms")
    for kernel in KERNELS[major][:2]:
        yield precompiled(v, kernel, major)


def precompiled(v: str, kernel: str, major: str) -> Built:
    """The module for one kernel, as yum-packaging-precompiled-kmod makes it. There is none for the third kernel."""
    full = f"{kernel}.el{major}.x86_64"
    relations = f"Provides: nvidia-kmod = 3:{v}\nRequires: nvidia-kmod-common = 3:{v}\n"
    relations += f"Requires: (kernel = {kernel}.el{major} if kernel)\nConflicts: kmod-nvidia-latest-dkms kmod-nvidia-open-dkms\n"
    relations += f"Supplements: (nvidia-driver-cuda = 3:{v} and kernel = {kernel}.el{major})\n"
    number, _, release = kernel.partition("-")
    return Built(
        name=f"kmod-nvidia-{v}-{number}-{release}", epoch=3, version=v, release=f"3.el{major}", relations=relations,
        files=((f"/lib/modules/{full}/extra/drivers/video/nvidia/nvidia.ko", module_text(v)),),
        scripts=(("post", f"depmod -a {full} || :\n"), ("postun", f"depmod -a {full} || :\n")),
    )  # fmt: skip


def of_fabric(v: str, major: str) -> Iterator[Built]:
    """What no relation ties to the driver. The branch went from the names with 580."""
    branch, new = v[:3], int(v[:3]) >= 580
    release = "1" if int(branch) < 595 else f"1.el{major}"
    for name in FABRIC:
        former = {"nvidia-fabricmanager": "nvidia-fabric-manager"}.get(name, f"{name}-{branch}")
        obsolete = {"nvidia-fabricmanager": "nvidia-fabric-manager", "libnvsdm": ""}.get(name, f"{name}-575")
        relations = f"Obsoletes: {obsolete} < 580\nProvides: {obsolete} = {v}\n" if new and obsolete else ""
        here = name if new else former
        files = ((f"/usr/share/doc/{here}/README", f"{here} {v}\n" * 500),)
        yield Built(name=here, epoch=0, version=v, release=release, relations=relations, files=files)


def others() -> Iterator[Built]:
    """DCGM, containers, the NVLink subnet manager: versions of their own."""
    for v in ("4.4.1", "4.5.0"):
        yield Built(name="datacenter-gpu-manager-4-core", epoch=1, version=v, release="1")
        need = f"Requires: datacenter-gpu-manager-4-core = 1:{v}-1\n"
        for name in ("datacenter-gpu-manager-4-cuda12", "datacenter-gpu-manager-4-cuda13"):
            yield Built(name=name, epoch=1, version=v, release="1", relations=need)
    for v in ("1.18.2", "1.19.1"):
        yield Built(name="libnvidia-container1", epoch=0, version=v, release="1")
        need = f"Requires: libnvidia-container1 >= {v}-1\n"
        yield Built(name="libnvidia-container-tools", epoch=0, version=v, release="1", relations=need)
        yield Built(name="nvidia-container-toolkit-base", epoch=0, version=v, release="1")
        need = f"Requires: nvidia-container-toolkit-base = {v}-1\nRequires: libnvidia-container-tools >= {v}-1\n"
        yield Built(name="nvidia-container-toolkit", epoch=0, version=v, release="1", relations=need)
    yield Built(name="nvlsm", epoch=0, version="2025.06.11", release="1")


def of_kernel(kernel: str, major: str) -> Iterator[Built]:
    """A kernel as three packages, of which the last has the headers."""
    number, _, release = kernel.partition("-")
    release = f"{release}.el{major}"
    full = f"{number}-{release}.x86_64"

    def package(name: str, relations: str, **content: Any) -> Built:
        return Built(name=name, epoch=0, version=number, release=release, relations=relations, **content)

    yield package("kernel", f"Requires: kernel-core = {number}-{release}\n")
    modules = f"/lib/modules/{full}"  # with a module of its own: dkms takes modules.dep away with the last module
    files = ((f"/boot/vmlinuz-{full}", "kernel\n"), (f"{modules}/modules.builtin", ""), (f"{modules}/kernel/lib/crc.ko", "crc\n"))
    only = "Provides: installonlypkg(kernel)\n"
    yield package("kernel-core", only, files=files, scripts=(("post", f"depmod -a {full} || :\n"),))
    headers = f"/usr/src/kernels/{full}"
    files = tuple((f"{headers}/{name}", "") for name in ("Makefile", ".config", "include/linux/kernel.h"))
    links = ((f"/lib/modules/{full}/build", headers), (f"/lib/modules/{full}/source", "build"))
    yield package("kernel-devel", only, files=files, links=links)


def of_the_distribution(major: str) -> Iterator[Built]:
    """Kernels with headers, versionlock's own plugin, and packages that only this site has."""
    for kernel in KERNELS[major]:
        yield from of_kernel(kernel, major)
    plugin = ("/usr/lib/python3/dist-packages/dnf-plugins/versionlock.py", "/etc/dnf/plugins/versionlock.conf")
    files = tuple((path, f"@{path}") for path in plugin)  # the root's own files
    yield Built(
        name="python3-dnf-plugin-versionlock",
        epoch=0,
        version="4.3.0",
        release=f"13.el{major}",
        architecture="noarch",
        files=files,
    )
    for v in ("1", "2"):
        yield Built(name="unrelated", epoch=0, version=v, release="1", files=(("/usr/share/doc/unrelated/README", f"{v}\n"),))
    for v in DRIVERS:
        need = f"Requires: libnvidia-ml = 3:{v}-1.el{major}\n"
        yield Built(name="site-monitor", epoch=0, version=v, release="1", architecture="noarch", relations=need)


def all_built(major: str) -> tuple[Built, ...]:
    """Every package of the repository for EL ``major``."""
    drivers = [row for v in DRIVERS for row in (*of_driver(v, major), *of_fabric(v, major))]
    return (*drivers, *others(), *of_the_distribution(major))


def spec(name: str, packages: Iterable[Built]) -> str:
    """One spec whose subpackages are these packages; no two of them may have one name."""
    text = f"{HEAD}Name: {name}\nVersion: 1\nRelease: 1\nSummary: Stand-ins\nLicense: none\n%description\nNone.\n%install\n"
    sections = ""
    for p in packages:
        for path, content in p.files:
            text += f"mkdir -p '%{{buildroot}}{os.path.dirname(path)}'\n"
            if content.startswith("@"):
                text += f"cp '{content[1:]}' '%{{buildroot}}{path}'\n"
            elif "\\0" in content:
                text += f"printf '{content}' > '%{{buildroot}}{path}'\n"
            else:
                text += f"cat > '%{{buildroot}}{path}' <<'@END'\n{content.replace('%', '%%')}@END\n"
        for path, target in p.links:
            text += f"mkdir -p '%{{buildroot}}{os.path.dirname(path)}'\nln -s '{target}' '%{{buildroot}}{path}'\n"
        sections += f"%package -n {p.name}\nSummary: A stand-in for {p.name}\n"
        sections += f"Epoch: {p.epoch}\nVersion: {p.version}\nRelease: {p.release}\n"
        sections += "BuildArch: noarch\n" if p.architecture == "noarch" else ""
        sections += (
            f"AutoReqProv: no\n{p.relations}%description -n {p.name}\nIt has the name and the relations of the real package.\n"
        )
        for section, script in p.scripts:
            sections += f"%{section} -n {p.name}\n{script}"
        mode = "%attr(0755, root, root) " if any(path.startswith("/usr/bin") for path, _ in p.files) else ""
        sections += f"%files -n {p.name}\n" + "".join(f"{mode}{path}\n" for path, _ in (*p.files, *p.links))
    return text + sections


def build(suite: str, folder: Path, packages: Iterable[Built]) -> Path:
    """Build the packages and their repository data in ``folder``/x86_64, and return that folder. It must be new."""
    (folder / "specs").mkdir(parents=True)
    rounds: list[dict[str, Built]] = []
    used: list[set[str]] = []  # names and paths of each round: one build has one tree of files
    for package in packages:
        takes = {package.name, *(path for path, _ in (*package.files, *package.links))}
        number = next((n for n, names in enumerate(used) if not takes & names), len(rounds))
        if number == len(rounds):
            rounds.append({})
            used.append(set())
        rounds[number][package.name] = package
        used[number] |= takes
    for number, chosen in enumerate(rounds):
        (folder / f"specs/{number}.spec").write_text(spec(f"round{number}", chosen.values()))
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", BUILD, "sh"]
    words += [str(el_roots.el_root(suite)), str(folder)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise roots.LabError(f"rpmbuild: {(done.stderr.strip() or done.stdout.strip())[-1500:]}")
    return folder / "x86_64"


def repository(suite: str) -> Path:
    """Return the folder of the RPM files and of ``repodata`` for the EL root of ``suite``; made once. Raises LabError."""
    code = Path(__file__).read_bytes() + el_roots.el_root(suite).name.encode()
    made = roots.lab_dir() / "build" / f"el-repository-{suite}-{hashlib.sha256(code).hexdigest()[:12]}"
    with roots.locked(f"el-repository-{suite}"):
        if not made.is_dir():
            roots.say(f"building the stand-in packages of NVIDIA for EL {el_roots.RELEASES[suite]}")
            fresh = made.with_name(f".{made.name}")
            shutil.rmtree(fresh, ignore_errors=True)
            build(suite, fresh, all_built(el_roots.RELEASES[suite]))
            fresh.rename(made)
    return made / "x86_64"


def rename(name: str, version: str) -> str:
    """The name that a package of FABRIC has in this driver release."""
    if name not in FABRIC or int(version[:3]) >= 580:
        return name
    return {"nvidia-fabricmanager": "nvidia-fabric-manager"}.get(name, f"{name}-{version[:3]}")


def package_of(folder: Path, built: Built, *, kept: bool = True) -> Package:
    """What a lock says of one package file of the repository."""
    data = (folder / built.file).read_bytes()
    return Package(
        name=built.name,
        version=built.evr,
        architecture=built.architecture,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        url=built.file,
        installed_kib=len(data) // 1024 + 1,
        kept=kept,
        format="rpm",
    )


def driver_set(suite: str, version: str, *more: str) -> tuple[Package, ...]:
    """The set that `fairlead lock` gives for a compute node: the driver, its fabric packages, and ``more`` by name, each of these
    in its newest version."""
    folder, major = repository(suite), el_roots.RELEASES[suite]
    rows = all_built(major)
    names = [*DRIVER_SET, *(rename(n, version) for n in FABRIC)]
    found = [next(b for b in rows if b.name == name and b.version == version) for name in names]
    found += [[b for b in rows if b.name == name][-1] for name in more]
    return tuple(package_of(folder, b) for b in found)


if __name__ == "__main__":
    for each in sys.argv[1:] or ["bookworm"]:
        print(repository(each))
