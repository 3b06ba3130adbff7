"""A release: the same bytes each time, and verified by the commands of docs/how-to/verify-a-release.md on a machine without us.

The machine is the lab's Debian root in namespaces of its own: no network, and nothing of this checkout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import fairlead
from fairlead.provision import wheel_lock
from tests.lab import roots, wheels

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs/how-to/verify-a-release.md").read_text()
KEYED, VERIFY, INSTALL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[:3]
VERSION = fairlead.__version__
NAME = f"fairlead-{VERSION}"
VERIFIED = f"fairlead {VERSION} is what was signed"
FILES = (
    *(f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz", f"{NAME}.cdx.json", f"{NAME}.admin.txt", f"{NAME}.node.txt"),
    f"fairlead-nodes-{VERSION}.tar.gz",
)
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

#: $1: the root, $2: an empty folder, $3: what is copied to /srv there, $4: what is run there.
MACHINE = r"""
set -e
mount -t tmpfs tmpfs "$2"
mkdir "$2/up" "$2/wk" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/up,workdir=$2/wk" "$2/root"
cp -a "$3/." "$2/root/srv"
cd "$2/root"
mount -t proc proc proc
mount -t tmpfs tmpfs dev
for name in null urandom; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mount -t tmpfs tmpfs tmp
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PIP_NO_INDEX=1 PIP_FIND_LINKS=/srv/mirror \
  sh -ec "cd /srv; $4"
"""


def fresh_machine(folder: Path, downloaded: Path, script: str) -> subprocess.CompletedProcess[str]:
    place = folder / "machine"
    place.mkdir(exist_ok=True)
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
        "sh",
        "-c",
        MACHINE,
        "sh",
    ]
    command = [*words, str(roots.root("bookworm")), str(place), str(downloaded), script]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)


def checkout(folder: Path, date: str = "2026-11-01T12:00:00Z") -> Path:
    """A clone of this working tree, with what is in no commit yet, as one commit."""
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "-z", "--exclude-standard"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (PROJECT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=folder, env=env, check=True)
    (folder / ".cache").mkdir()
    (folder / ".cache/release").symlink_to(PROJECT / ".cache/release")
    return folder


def make_release(folder: Path, key: Path | str, umask: str = "022") -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f"umask {umask}; exec make --no-print-directory release KEY='{key}'"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "release"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "releaser", "-f", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with roots.locked("release-tools"):  # also of build_packages.py
        subprocess.run(["make", "--no-print-directory", ".cache/release/.done"], cwd=PROJECT, check=True)
    return checkout(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def release(tree: Path, key: Path) -> Path:
    done = make_release(tree, key)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "dist" / NAME


@pytest.fixture
def downloaded(release: Path, key: Path, tmp_path: Path) -> Path:
    """What an admin has: the download, and the key that came another way."""
    folder = tmp_path / "given"
    shutil.copytree(release, folder / NAME)
    shutil.copy(key.with_suffix(".pub"), folder / "fairlead-release.pub")
    return folder


def test_a_release_has_its_files_and_no_others(release: Path) -> None:
    assert {p.name for p in release.iterdir()} == {*FILES, "SHA256SUMS", "SHA256SUMS.sig"}


def test_the_same_commit_gives_the_same_bytes_elsewhere_and_later(release: Path, key: Path, tmp_path: Path) -> None:
    again = checkout(tmp_path / "elsewhere/deeper")
    for path in again.rglob("*"):
        if path.is_file() and not path.is_symlink() and ".git" not in path.parts:
            os.utime(path, (1, 1))
            path.chmod(path.stat().st_mode & 0o700)
    os.utime(again / "release/build.txt", (1, 1))
    done = make_release(again, key, umask="077")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (*FILES, "SHA256SUMS", "SHA256SUMS.sig"):
        assert (again / "dist" / NAME / name).read_bytes() == (release / name).read_bytes(), name
        assert (again / "dist" / NAME / name).stat().st_mode & 0o777 == 0o644


def test_the_page_names_this_version() -> None:
    assert f"VERSION={VERSION}\n" in VERIFY


def test_the_commands_of_the_page_pass_on_a_fresh_machine(downloaded: Path, tmp_path: Path) -> None:
    done = fresh_machine(tmp_path, downloaded, KEYED + VERIFY)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == VERIFIED, done.stdout + done.stderr


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def change_sums_and_file(folder: Path) -> None:
    """Somebody without the key makes the sums fit."""
    change(folder / FILES[0])
    lines = subprocess.run(["sha256sum", *sorted(FILES)], cwd=folder, capture_output=True, text=True, check=True).stdout
    (folder / "SHA256SUMS").write_text(lines)


def sign_by_another(folder: Path) -> None:
    change_sums_and_file(folder)
    other = folder.parent / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    (folder / "SHA256SUMS.sig").unlink()
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(other), "-n", "fairlead-release", str(folder / "SHA256SUMS")]
    subprocess.run(words, check=True)


def newer_name(folder: Path) -> None:
    """An old release under the name of the one that is asked for: its own files, and its own true signature."""
    for path in folder.iterdir():
        path.rename(folder / path.name.replace(VERSION, "0.0.9"))


TAMPERED: dict[str, Callable[[Path], None]] = {
    "wheel": lambda folder: change(folder / FILES[0]),
    "sdist": lambda folder: change(folder / FILES[1]),
    "bill of materials": lambda folder: change(folder / FILES[2]),
    "list for the admin host": lambda folder: change(folder / FILES[3]),
    "list for nodes": lambda folder: change(folder / FILES[4]),
    "collection": lambda folder: change(folder / FILES[5]),
    "sums": lambda folder: change(folder / "SHA256SUMS"),
    "signature": lambda folder: change(folder / "SHA256SUMS.sig"),
    "sums made to fit": change_sums_and_file,
    "signed by another key": sign_by_another,
    "no signature": lambda folder: (folder / "SHA256SUMS.sig").unlink(),
    "a file too many": lambda folder: (folder / "fairlead-9-py3-none-any.whl").touch(),
    "a hidden file too many": lambda folder: (folder / ".pth").touch(),
    "a folder too many": lambda folder: (folder / "more").mkdir(),
    "a name of two lines": lambda folder: (folder / "SHA256SUMS\nSHA256SUMS.sig").touch(),
    "a file too few": lambda folder: (folder / FILES[1]).unlink(),
    "renamed": newer_name,
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_release_is_refused(downloaded: Path, tmp_path: Path, what: str) -> None:
    TAMPERED[what](downloaded / NAME)
    done = fresh_machine(tmp_path, downloaded, KEYED + VERIFY)
    assert done.returncode not in (0, 32) and VERIFIED not in done.stdout, done.stdout + done.stderr
    assert "mount" not in done.stderr


def test_an_older_release_is_not_taken_for_a_newer_one(downloaded: Path, tmp_path: Path) -> None:
    """Every file as it was signed; only the folder says the newer version."""
    (downloaded / NAME).rename(downloaded / "fairlead-9.9.9")
    done = fresh_machine(tmp_path, downloaded, KEYED + VERIFY.replace(f"VERSION={VERSION}\n", "VERSION=9.9.9\n"))
    assert done.returncode not in (0, 32) and "is what was signed" not in done.stdout and "Good " in done.stdout


def test_a_signature_for_something_else_is_none_of_a_release(downloaded: Path, key: Path, tmp_path: Path) -> None:
    (downloaded / NAME / "SHA256SUMS.sig").unlink()
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(downloaded / NAME / "SHA256SUMS")]
    subprocess.run(words, check=True)
    done = fresh_machine(tmp_path, downloaded, KEYED + VERIFY)
    assert done.returncode not in (0, 32) and VERIFIED not in done.stdout


@pytest.mark.slow
def test_the_page_installs_it_from_a_mirror_and_nothing_that_is_changed(downloaded: Path, tmp_path: Path) -> None:
    shutil.copytree(wheels.admin_wheels(), downloaded / "mirror")
    done = fresh_machine(tmp_path, downloaded, KEYED + VERIFY + INSTALL)
    assert done.returncode == 0 and f"fairlead {VERSION}" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    other = next((downloaded / "mirror").glob("ansible_core-*"))
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr("evil.pth", "import os\n")
    done = fresh_machine(tmp_path, downloaded, KEYED + VERIFY + INSTALL)
    assert done.returncode == 1 and "DO NOT MATCH THE HASHES" in done.stderr, done.stdout + done.stderr


def test_the_bill_of_materials_is_valid_and_names_every_locked_package(release: Path) -> None:
    text = (release / FILES[2]).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom = json.loads(text)
    ours = bom["metadata"]["component"]
    assert (ours["name"], ours["version"]) == ("fairlead", VERSION)
    sums = dict(reversed(line.split("  ")) for line in (release / "SHA256SUMS").read_text().splitlines())
    assert {r["url"]: r["hashes"][0]["content"] for r in ours["externalReferences"]} == {n: sums[n] for n in FILES[:2]}
    parts = {c["name"]: c for c in bom["components"]}
    for package in wheel_lock.load().packages:
        part = parts[package.name]
        assert (part["version"], part["scope"]) == (package.version, "required") and part["licenses"]
        named = {r["url"]: r["hashes"][0]["content"] for r in part["externalReferences"]}
        assert named == {w.name: w.sha256 for w in package.wheels}
    admin = dict(re.findall(r"^([^#\s]\S*)==(\S+)", wheel_lock.ADMIN_FILE.read_text(), re.MULTILINE))
    assert admin == {name: part["version"] for name, part in parts.items()}
    assert "hatchling" in {c["name"] for c in bom["metadata"]["tools"]["components"]}


def test_no_release_without_a_key_or_of_what_is_in_no_commit(tree: Path, key: Path, release: Path, tmp_path: Path) -> None:
    for wrong in ("", tmp_path / "none"):
        done = make_release(tree, wrong)
        assert done.returncode and "name the private key that signs releases: make release KEY=FILE" in done.stderr
    added = tree / "agent/fairlead/added.py"
    added.write_text("x = 1\n")
    done = make_release(tree, key)
    added.unlink()
    assert done.returncode and "in no commit" in done.stderr and release.is_dir()
