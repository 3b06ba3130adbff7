"""The wheel: built, installed into a clean environment, compared with the checkout and with the wheel that provision packs."""

from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path

from fairlead.assets import DOC_KINDS
from fairlead.provision.wheels import own_wheel
from tests.contracts.conftest import run
from tests.lab.trees import MACHINES

PROJECT = Path(__file__).resolve().parents[2]
DATA = ("playbooks", "templates", "slurm", *(f"docs/{kind}" for kind in DOC_KINDS))
Files = dict[str, tuple[int, str]]  # path -> executable bits, sha256


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tracked() -> Files:
    """What git has of playbooks/, templates/, slurm/, the pages of docs/ and the package, by its place in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *DATA, "agent/fairlead"], cwd=PROJECT, capture_output=True, check=True, text=True
    )
    found: Files = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = PROJECT / name
        place = name.removeprefix("agent/") if name.startswith("agent/") else f"fairlead/_data/{name}"
        found[place] = (path.stat().st_mode & 0o111, digest(path.read_bytes()))
    return found


def in_wheel(content: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {
            m.filename: (m.external_attr >> 16 & 0o111, digest(archive.read(m)))
            for m in archive.infolist()
            if not m.is_dir() and m.filename.startswith("fairlead/")
        }


def test_the_wheel_holds_the_checkout(wheel: Path) -> None:
    assert in_wheel(wheel.read_bytes()) == tracked()


def test_the_wheel_that_provision_packs_holds_the_same() -> None:
    assert in_wheel(own_wheel().content) == tracked()


def test_installed_files_have_content_and_modes_of_the_checkout(environment: Path) -> None:
    site = next(environment.glob("lib/python3*/site-packages"))
    installed = {
        path.relative_to(site).as_posix(): (path.stat().st_mode & 0o111, digest(path.read_bytes()))
        for path in (site / "fairlead").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert installed == tracked()
    assert {n.rpartition("/")[2] for n, (bits, _) in installed.items() if bits} == {
        "prolog",
        "epilog",
        "health-check",
        "task-prolog",
        *("cancel", "mail", "requeue"),  # examples for fairlead idle
        "ticket",  # an example for fairlead events, beside its mail
    }


def test_the_manual_is_where_man_looks(environment: Path) -> None:
    manual = environment / "share/man/man1"
    assert {page.name: page.read_bytes() for page in manual.iterdir()} == {
        page.name: page.read_bytes() for page in (PROJECT / "docs/man").iterdir()
    }


def test_the_completion_is_where_each_shell_looks(environment: Path) -> None:
    for place, source in {
        "bash-completion/completions/fairlead": "templates/usr/share/bash-completion/completions/fairlead",
        "zsh/site-functions/_fairlead": "docs/completion/_fairlead",
        "fish/vendor_completions.d/fairlead.fish": "docs/completion/fairlead.fish",
    }.items():
        assert (environment / "share" / place).read_bytes() == (PROJECT / source).read_bytes()


def test_the_installed_command_works_without_the_extras(environment: Path) -> None:
    fairlead = environment / "bin/fairlead"
    assert run(fairlead, "version").startswith("fairlead ")
    tree = MACHINES / "hgx-h100.xid79"
    assert "xid" in run(fairlead, "check", "--root", tree, "--profile", "hgx-h100", code=2)
    assert "hgx-h100" in run(fairlead, "config", "profiles")
    assert run(fairlead, "docs", "driver") == (PROJECT / "docs/how-to/driver.md").read_text()


def test_provision_without_its_extra_says_what_to_install(environment: Path, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\n')
    fairlead = environment / "bin/fairlead"
    assert "--nodelist" in run(fairlead, "provision", "--help")
    done = subprocess.run([fairlead, "provision", "--site", site], capture_output=True, text=True, check=False, cwd="/")
    said = done.stderr.strip().splitlines()
    assert done.returncode == 69 and len(said) == 1 and "fairlead[provision]" in said[0], done.stderr
    done = subprocess.run([fairlead, "config", "check", site], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 69 and "fairlead[provision]" in done.stderr


def test_the_wheel_installed_packs_itself_again_with_the_same_files(environment: Path) -> None:
    """An admin host that installed the wheel sends its nodes what a checkout would send."""
    out = environment / "packed.whl"
    code = f"from fairlead.provision.wheels import own_wheel; open({str(out)!r}, 'wb').write(own_wheel().content)"
    run(environment / "bin/python", "-I", "-c", code)
    assert in_wheel(out.read_bytes()) == in_wheel(own_wheel().content)
    assert out.read_bytes() == own_wheel().content
