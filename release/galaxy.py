"""Builds the Ansible collection fairlead.nodes: the file that `ansible-galaxy collection install` takes, and its folder.

The roles, the module and its action plug-in are those of playbooks/, which `fairlead provision` uses. Only what a collection has
in addition lies in release/collection. The archive is written here and not by `ansible-galaxy collection build`, because the same
commit has to give the same bytes. `make release` runs this, and so does `python release/galaxy.py --output DIR`, from a checkout.

Source: the format of galaxy.yml, MANIFEST.json and FILES.json (docs.ansible.com, and ansible.galaxy.collection of ansible-core).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE, NAME = "fairlead", "nodes"
INFO: dict[str, Any] = {
    "namespace": NAMESPACE,
    "name": NAME,
    "version": "",
    "readme": "README.md",
    "authors": ["The fairlead maintainers"],
    "description": "Keeps every GPU node of a Slurm cluster tuned, and keeps jobs off the broken ones",
    "license": [],
    "license_file": "LICENSE",
    "tags": ["linux", "infrastructure", "slurm", "gpu", "nvidia", "hpc"],
    "dependencies": {},
    "repository": "",
    "documentation": "",
    "homepage": "",
    "issues": "",
}
#: Where the parts of the role `node` go, which plain playbooks take from beside the role.
MOVED = {
    "playbooks/roles/node/library": "plugins/modules",
    "playbooks/roles/node/action_plugins": "plugins/action",
}
#: The releases of ansible-core whose `ansible-test sanity` gets our exceptions. It reads them from a file for each release.
SANITY_RELEASES = ("2.17", "2.18", "2.19", "2.20")
RELEASE = 'RELEASE = ""'  # the line of each action plug-in that gets the version
SHORT_NAME = re.compile(r"^( +(?:- )?)fairlead_node:$", re.MULTILINE)  # a task of a plain playbook; a collection's name is longer
FOLDER_MODE, FILE_MODE = 0o755, 0o644


def collection_version(version: str) -> str:
    """Return a version of Python's form as SemVer, which Galaxy asks for: 0.2.0rc1 is 0.2.0-rc1."""
    return re.sub(r"(?<=\d)\.?(a|b|rc|dev)(\d+)$", r"-\1\2", version)


def lay_out(tree: Path, folder: Path) -> str:
    """Write the collection's folder from the source in ``tree``. Return the collection's version."""
    release = str(tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"])
    version = collection_version(release)
    copy = {"ignore": shutil.ignore_patterns("__pycache__", "own_options.yml"), "dirs_exist_ok": True}
    shutil.copytree(tree / "release/collection", folder, **copy)  # type: ignore[arg-type]
    for source, target in MOVED.items():
        shutil.copytree(tree / source, folder / target, **copy)  # type: ignore[arg-type]
    moved = shutil.ignore_patterns("__pycache__", *(Path(source).name for source in MOVED))
    shutil.copytree(tree / "playbooks/roles", folder / "roles", ignore=moved, dirs_exist_ok=True)
    for path in folder.glob("plugins/action/*.py"):
        text = path.read_text()
        if text.count(RELEASE) != 1:
            raise SystemExit(f"release: {path.name}: has not the line {RELEASE}, which gets the version")
        path.write_text(text.replace(RELEASE, f'RELEASE = "{release}"'))
    for path in (*folder.glob("roles/*/tasks/*.yml"), *folder.glob("plugins/modules/*.py")):
        path.write_text(SHORT_NAME.sub(rf"\1{NAMESPACE}.{NAME}.fairlead_node:", path.read_text()))
    ignored = folder / "tests/sanity/ignore.txt"
    for ansible in SANITY_RELEASES:
        shutil.copyfile(ignored, ignored.with_name(f"ignore-{ansible}.txt"))
    ignored.unlink()
    shutil.copyfile(tree / "LICENSE", folder / "LICENSE")
    (folder / "galaxy.yml").write_text(galaxy_yml(version))
    for path in sorted(folder.rglob("*")):
        path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
    return version


def galaxy_yml(version: str) -> str:
    """Return galaxy.yml, from which a site can build the collection itself. A text of JSON is a text of YAML."""
    text = "---\n"
    for key, value in (INFO | {"version": version}).items():
        if isinstance(value, list):
            text += f"{key}:\n" + "".join(f"  - {json.dumps(item)}\n" for item in value) if value else ""
        elif value:
            text += f"{key}: {json.dumps(value)}\n"
    return text


def archive(folder: Path, target: Path, version: str, epoch: int) -> Path:
    """Write the archive of a collection's folder. The same folder and time give the same bytes."""
    paths = [path for path in sorted(folder.rglob("*")) if path.name != "galaxy.yml"]
    rows = [_row(".", None)]
    rows += [_row(path.relative_to(folder).as_posix(), None if path.is_dir() else path.read_bytes()) for path in paths]
    files = _json({"files": rows, "format": 1})
    listed = _row("FILES.json", files) | {"name": "FILES.json"}
    info = {key: value or None if isinstance(value, str) else value for key, value in (INFO | {"version": version}).items()}
    manifest = _json({"collection_info": info, "file_manifest_file": listed, "format": 1})
    made = target / f"{NAMESPACE}-{NAME}-{version}.tar.gz"
    with (
        open(made, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in (("MANIFEST.json", manifest), ("FILES.json", files)):
            _add(tar, name, content, epoch)
        for path in paths:
            _add(tar, path.relative_to(folder).as_posix(), None if path.is_dir() else path.read_bytes(), epoch)
    return made


def _row(name: str, content: bytes | None) -> dict[str, Any]:
    kind = {"name": name, "ftype": "dir" if content is None else "file"}
    digest = None if content is None else hashlib.sha256(content).hexdigest()
    return kind | {"chksum_type": None if content is None else "sha256", "chksum_sha256": digest, "format": 1}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _add(tar: tarfile.TarFile, name: str, content: bytes | None, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode = epoch, FOLDER_MODE if content is None else FILE_MODE
    entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    entry.size = len(content or b"")
    tar.addfile(entry, io.BytesIO(content or b""))


def build_collection(tree: Path, work: Path, target: Path, epoch: int) -> Path:
    """Build the collection of the source in ``tree``, in the folder ``work``. Return the archive in ``target``."""
    folder = work / "ansible_collections" / NAMESPACE / NAME
    return archive(folder, target, lay_out(tree, folder), epoch)


def main() -> None:
    parser = argparse.ArgumentParser(prog="release/galaxy.py", description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, help="a new folder, for the archive and for ansible_collections/")
    output = parser.parse_args().output
    output.mkdir(parents=True)
    print(build_collection(ROOT, output, output, 0))


if __name__ == "__main__":
    main()
