"""`make release KEY=FILE`: the files of a release, from the commit that is checked out, into dist/fairlead-VERSION/.

fairlead-VERSION-py3-none-any.whl   built from the sdist
fairlead-VERSION.tar.gz             the sdist
fairlead-VERSION.cdx.json           the bill of materials (CycloneDX)
fairlead-VERSION.admin.txt          what the admin host needs, with hashes, for `pip install --require-hashes`
fairlead-VERSION.node.txt           what the nodes need, with hashes, for the same command
fairlead-nodes-VERSION.tar.gz       the Ansible collection
SHA256SUMS                          the sha256 of each of these files
SHA256SUMS.sig                      the signature of SHA256SUMS (ssh-keygen -Y sign) with the releaser's key

The same commit, key (ed25519) and Python give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from galaxy import build_collection
from sbom import sbom

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "fairlead-release"  # a signature that this key has made for another purpose is not valid for a release


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return its standard output. Its standard error and a question for a passphrase go to the terminal."""
    env = {**os.environ, **environment}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, words[:4]))}: exit code {done.returncode}; nothing is written")
    return done.stdout


def unpack(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    run("tar", "-xf", archive, "-C", folder)
    return folder


def build(work: Path, made: Path, epoch: int) -> Path:
    """Build the sdist and the wheel into ``made``, and return the folder of the source."""
    os.umask(0o022)
    run("git", "archive", "--format=tar", "-o", work / "commit.tar", "HEAD")
    tree = unpack(work / "commit.tar", work / "tree")
    hatchling = (sys.executable, "-m", "hatchling", "build")
    run(*hatchling, "-t", "sdist", "-d", made, cwd=tree, SOURCE_DATE_EPOCH=str(epoch))
    (sdist,) = made.iterdir()
    (source,) = unpack(sdist, work / "sdist").iterdir()
    run(*hatchling, "-t", "wheel", "-d", made, cwd=source, SOURCE_DATE_EPOCH=str(epoch))
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--key", default="", help="the private key that signs (ssh-keygen -t ed25519), or a public one in ssh-agent"
    )
    parser.add_argument("--output", default=str(ROOT / "dist"))
    args = parser.parse_args()
    if not args.key or not os.access(args.key, os.R_OK):
        sys.exit(f"release: KEY={args.key}: no such key; name the private key that signs releases: make release KEY=FILE")
    if run("git", "status", "--porcelain"):
        sys.exit("release: the checkout has changes or files that are in no commit; commit or remove them first")
    epoch = int(run("git", "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="fairlead-release.") as folder:
        work, made = Path(folder), Path(folder) / "made"
        made.mkdir()
        tree = build(work, made, epoch)
        version = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
        stem = f"fairlead-{version}"
        (made / f"{stem}.cdx.json").write_text(sbom(tree, tuple(made.iterdir()), epoch))
        for name in ("admin.txt", "node.txt"):
            shutil.copyfile(tree / "agent/fairlead/provision" / name, made / f"{stem}.{name}")
        build_collection(tree, work / "collection", made, epoch)
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir())]
        (made / "SHA256SUMS").write_text("".join(lines))
        run("ssh-keygen", "-q", "-Y", "sign", "-f", Path(args.key).resolve(), "-n", NAMESPACE, made / "SHA256SUMS")
        for path in (*made.iterdir(), made):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (epoch, epoch))
        target = Path(args.output) / stem
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    print(f"release: {target}: " + " ".join(sorted(path.name for path in target.iterdir())))


if __name__ == "__main__":
    main()
