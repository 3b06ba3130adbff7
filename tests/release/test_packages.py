"""The packages of fairlead: built twice to the same bytes, installed by real apt, dpkg, dnf and rpm in roots without a network.

What a rack does with them (real systemd, `fairlead provision`) is in tests/playbooks/test_packages_on_nodes.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.apt_node import AptNode, PackageNode
from tests.driver.dnf_node import DnfNode
from tests.lab.trees import MACHINES
from tests.release.build_packages import NEXT, PROJECT, VERSION, built, deb, empty_rpm, make_packages, rpm, source

HOME = "/usr/lib/fairlead"
STATE = "/etc/fairlead/node.json /etc/fairlead/hooks /var/lib/fairlead/ledger"
UNITS = ("fairlead-agent.service", "fairlead-apply.service", "fairlead-scratch@data.path", "fairlead-scratch@data.timer")
TREE = "hgx-h100.xid79"
pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


def gpg(home: Path, *words: str) -> bytes:
    command = ["gpg", "--batch", "--quiet", "--homedir", str(home), *words]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the releaser's key, which is made here: private.asc and public.asc."""
    folder = tmp_path_factory.mktemp("keys")
    home = folder / "gpg"
    home.mkdir(mode=0o700)
    gpg(home, "--passphrase", "", "--quick-generate-key", "releases@fairlead", "rsa3072", "sign", "never")
    (folder / "private.asc").write_bytes(gpg(home, "--armor", "--export-secret-keys"))
    (folder / "public.asc").write_bytes(gpg(home, "--armor", "--export"))
    yield folder
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, timeout=60)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    """The packages as a release has them."""
    return built(tmp_path_factory.mktemp("first") / "tree", key=str(keys / "private.asc"), compression="xz")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the next version, which are not signed."""
    return built(tmp_path_factory.mktemp("second") / "tree", NEXT)


@pytest.fixture(scope="module")
def empty_rpms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two RPMs without files, because rpm's database does not know the files that the root has from Debian: base.rpm provides
    /bin/sh as EL's bash does, and python3.11.rpm is EL's package of Python."""
    folder = tmp_path_factory.mktemp("empty")
    empty_rpm(folder, "base", "1", "/bin/sh")
    empty_rpm(folder, "python3.11", "3.11.7")
    return folder


def bring(node: PackageNode, folder: Path, to: str) -> None:
    """Copy a folder of this machine to the node."""
    node.run("mkdir", "-p", to)
    with subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE) as pack:
        subprocess.run(node.words("tar", "-C", to, "-x"), stdin=pack.stdout, check=True, timeout=120)


def sh(node: PackageNode, script: str, code: int | None = 0) -> str:
    return node.run("sh", "-ec", script, code=code)


def nothing_enabled(node: PackageNode) -> None:
    """No unit is enabled, and none becomes enabled when a first boot applies the presets."""
    for when in ("installed", "presets"):
        if when == "presets":
            node.run("systemctl", "--root=/", "preset", *UNITS)
        states = {unit: node.run("systemctl", "--root=/", "is-enabled", unit, code=None).split()[-1] for unit in UNITS}
        assert set(states.values()) == {"disabled"}, (when, states)


def works(node: PackageNode, python: str) -> None:
    """The command runs on this Python, judges a recorded machine, and writes nothing beside its files."""
    assert node.run("fairlead", "version").split()[:2] == ["fairlead", VERSION]
    bring(node, MACHINES / TREE, f"/srv/{TREE}")
    said = node.run("fairlead", "check", "--root", f"/srv/{TREE}", "--profile", "hgx-h100", "--only", "xid", code=2)
    assert "Xid 79 on GPU 0000:61:00.0" in said
    asked = "import sys, msgspec, fairlead; print(sys.version_info[:2], sys.prefix, msgspec.__file__, fairlead.__file__)"
    site = f"{HOME}/lib/python{python}/site-packages"
    said = node.run("/opt/fairlead/current/bin/python", "-I", "-c", asked)
    assert said.split() == [
        *str(tuple(map(int, python.split(".")))).split(),
        HOME,
        f"{site}/msgspec/__init__.py",
        f"{site}/fairlead/__init__.py",
    ]
    assert sh(node, f"find {HOME} -name '*.pyc'") == ""
    assert "fairlead" in sh(node, "find /var/cache/fairlead/python -name '*.pyc'")


def keep_state(node: PackageNode) -> str:
    """Write what provisioning and the agent leave on a node. Return a listing of these files with their hashes."""
    sh(node, f"for f in {STATE}; do echo $f > $f; done")
    return sh(node, f"sha256sum {STATE}")


def test_a_file_in_no_commit_is_refused(tmp_path: Path) -> None:
    tree = source(tmp_path / "tree")
    (tree / "more").touch()
    done = make_packages(tree)
    assert done.returncode != 0 and "in no commit" in done.stderr and not (tree / "dist").exists()


def test_a_key_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    tree = source(tmp_path / "tree")
    done = make_packages(tree, key="/no/such/key")
    assert done.returncode != 0 and "GPG_KEY=/no/such/key: cannot be read" in done.stderr and not (tree / "dist").exists()


@pytest.mark.slow
def test_the_same_commit_gives_the_same_bytes(second: Path, tmp_path: Path) -> None:
    again = built(tmp_path / "again", NEXT, umask="077")
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


def test_the_sums_are_of_these_files(first: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=first, check=True)
    assert len(list(first.iterdir())) == 5


def test_the_files_of_both_formats(first: Path) -> None:
    """Both formats have the same files, except where one has a place of its own for licences. Nothing of Slurm's bindings is
    in them, all belong to root, and every licence of what is bundled is there."""
    listed = subprocess.run(["dpkg-deb", "-c", first / deb(first)], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=5) for line in listed.splitlines()]
    assert {line[1] for line in lines} == {"root/root"}
    files = {line[5].removeprefix(".").partition(" -> ")[0] for line in lines if not line[5].endswith("/")}
    assert not [name for name in files if "pyslurm/" in name.lower() or name.endswith((".pyc", "/RECORD"))]
    for minor in range(11, 16):
        for machine in ("x86_64", "aarch64"):
            assert f"{HOME}/site/msgspec/_core.cpython-3{minor}-{machine}-linux-gnu.so" in files
    wanted = ["/etc/slurm/prolog.d/50-fairlead", "/etc/slurm/epilog.d/50-fairlead", "/etc/slurm/fairlead/task-prolog"]
    wanted += ["/etc/slurm/fairlead/bind-plan", "/etc/slurm/fairlead/health-check", "/usr/share/fairlead/spank/fairlead.c"]
    wanted += ["/usr/lib/systemd/system/fairlead-agent.service", "/usr/share/man/man1/fairlead.1", "/usr/bin/fairlead"]
    wanted += ["/usr/share/bash-completion/completions/fairlead", "/opt/fairlead/current", f"{HOME}/release"]
    assert set(wanted) <= files
    assert not [name for name in files if name.startswith("/etc/systemd")]
    text = subprocess.run(
        ["sh", "-c", f"dpkg-deb --fsys-tarfile {first / deb(first)} | tar -xO ./usr/share/doc/fairlead/copyright"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for words in (
        "Apache License",
        "msgspec, which is in this package",
        "Redistribution and use",
        "nvidia_ml_py",
        "prometheus_client",
    ):
        assert words in text


def test_the_controllers_units_and_examples_are_in_the_package_of_the_admin_host(first: Path) -> None:
    """Each file of slurm/controller, slurm/idle and slurm/events, as it is in the source. The examples can be run."""
    tar = f"dpkg-deb --fsys-tarfile {first / deb(first, 'fairlead-admin')}"
    listed = subprocess.run(["sh", "-c", f"{tar} | tar -tv"], capture_output=True, text=True, check=True).stdout
    modes = {line.split()[-1].removeprefix("."): line.split()[0] for line in listed.splitlines()}
    named = [path for folder in ("controller", "idle", "events") for path in (PROJECT / "slurm" / folder).iterdir()]
    assert len(named) >= 10
    for path in named:
        unit = path.name.startswith("fairlead-")
        at = f"/usr/lib/systemd/system/{path.name}" if unit else f"/usr/share/fairlead/{path.parent.name}/{path.name}"
        assert modes[at] == ("-rw-r--r--" if unit else "-rwxr-xr-x"), at
        content = subprocess.run(["sh", "-c", f"{tar} | tar -xO .{at}"], capture_output=True, check=True).stdout
        assert content == path.read_bytes()


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def apt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, first: Path, second: Path) -> Iterator[AptNode]:
    class Node(AptNode):
        suite = request.param

    with Node(tmp_path_factory.mktemp("apt") / request.param) as node:
        bring(node, first, "/srv/first")
        bring(node, second, "/srv/second")
        yield node


def test_the_life_of_the_deb(apt: AptNode, first: Path, second: Path) -> None:
    """Installed by apt, verified by dpkg, run, upgraded, removed and purged."""
    install = "DEBIAN_FRONTEND=noninteractive apt-get -y -q install"
    sh(apt, f"{install} /srv/first/{deb(first)} </dev/null")
    nothing_enabled(apt)
    works(apt, {"bookworm": "3.11", "trixie": "3.13"}[apt.suite])
    assert apt.run("dpkg", "-V", "fairlead") == ""
    kept = keep_state(apt)
    sh(apt, f"{install} /srv/second/{deb(second)} </dev/null")
    assert apt.run("fairlead", "version").split()[1] == NEXT
    assert sh(apt, f"sha256sum {STATE}") == kept and apt.run("dpkg", "-V", "fairlead") == ""
    assert "# of the next version" in sh(apt, "cat /etc/slurm/epilog.d/50-fairlead")
    sh(apt, "echo 'TaskProlog=/etc/slurm/fairlead/task-prolog' > /etc/slurm/slurm.conf")
    said = sh(apt, "apt-get -y -q remove fairlead </dev/null", code=100)
    assert "/etc/slurm/slurm.conf still says TaskProlog=" in said and apt.run("fairlead", "version").split()[1] == NEXT
    sh(apt, "rm /etc/slurm/slurm.conf; apt-get -y -q remove fairlead </dev/null")
    assert sh(apt, f"sha256sum {STATE}") == kept
    left = sh(apt, f"find {HOME} /opt/fairlead /usr/bin/fairlead /etc/slurm/fairlead /var/cache/fairlead 2>/dev/null || :")
    assert left == "", left
    sh(apt, "apt-get -y -q purge fairlead </dev/null")
    assert sh(apt, "find /etc/fairlead /var/lib/fairlead 2>/dev/null || :") == ""


@pytest.mark.release("bookworm")
def test_the_deb_of_the_admin_host(apt: AptNode, first: Path, second: Path) -> None:
    install = "DEBIAN_FRONTEND=noninteractive apt-get -y -q install"
    sh(apt, f"{install} /srv/first/{deb(first)} /srv/first/{deb(first, 'fairlead-admin')} </dev/null")
    assert apt.run("dpkg", "-V", "fairlead-admin") == ""
    assert "ansible-playbook [core " in apt.run(f"{HOME}/bin/ansible-playbook", "--version")
    site = 'schema = 1\n[classes.h100]\nnodes = "gpu[001-002]"\nprofile = "hgx-h100"\n'
    sh(apt, f"cat > /etc/fairlead/site.toml <<'E'\n{site}E")
    assert "gpu[001-002]" in apt.run("fairlead", "config", "check", "/etc/fairlead/site.toml")
    both = f"/srv/second/{deb(second)} /srv/second/{deb(second, 'fairlead-admin')}"
    sh(apt, f"{install} {both} </dev/null")
    sh(apt, "apt-get -y -q remove fairlead-admin </dev/null")
    assert sh(apt, "cat /etc/fairlead/site.toml") == site
    sh(apt, "apt-get -y -q purge fairlead-admin fairlead </dev/null")


def test_the_launcher_without_a_fitting_python(apt: AptNode, first: Path) -> None:
    sh(apt, f"dpkg --unpack /srv/first/{deb(first)}")
    script = "mkdir -p /root/away; mv /usr/bin/python3* /root/away"
    sh(apt, f"{script}; ln -s /bin/false /usr/bin/python3")
    try:
        assert apt.run("fairlead", "version", code=69).splitlines() == [
            "fairlead: /usr/bin has no Python 3.11 or newer", "  next: apt-get install python3",
        ]  # fmt: skip
        for release, words in {
            'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n': "dnf install python3.12",
            'ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="10.0"\n': "dnf install python3",
            'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"': "apt-get install python3.11 (universe)",
            'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\n': "zypper install python311 (module Python 3)",
            "ID=other\n": "install a package with Python 3.11 or newer as /usr/bin/python3.11, python3.12 or python3",
        }.items():
            sh(apt, f"rm -f /etc/os-release; printf '%s' '{release}' > /etc/os-release")
            assert apt.run("fairlead", "version", code=69).splitlines()[1] == f"  next: {words}"
        sh(apt, "cp -P /root/away/python3.1? /usr/bin; ln -s /usr/bin/python3.1? /usr/bin/python3.12 2>/dev/null || :")
        assert apt.run("fairlead", "version").split()[1] == VERSION
    finally:
        sh(apt, "rm -f /usr/bin/python3*; mv /root/away/* /usr/bin; ln -sf ../usr/lib/os-release /etc/os-release")
        sh(apt, "dpkg --purge fairlead")


@pytest.fixture(scope="module")
def on_el(first: Path, second: Path, empty_rpms: Path) -> dict[str, Path]:
    """What is copied to a node like EL, and where to."""
    return {"/srv/first": first, "/srv/second": second, "/srv/python": empty_rpms}


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def dnf(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, on_el: dict[str, Path], keys: Path
) -> Iterator[DnfNode]:
    with DnfNode(tmp_path_factory.mktemp("dnf") / request.param, request.param) as node:
        for to, folder in on_el.items():
            bring(node, folder, to)
        sh(node, "rpm -e --nodeps lab-base 2>/dev/null; rpm -i /srv/python/base.rpm 2>/dev/null")
        sh(node, f"cat > /srv/key <<'E'\n{(keys / 'public.asc').read_text()}E")
        yield node


def test_the_signature_of_the_rpm(dnf: DnfNode, first: Path, second: Path) -> None:
    """rpm verifies it with the releaser's key only, and refuses a package with one other byte. dnf refuses one without it."""
    path = f"/srv/first/{rpm(first)}"
    assert "SIGNATURES NOT OK" in dnf.run("rpm", "-K", path, code=1)  # nobody has told this node the key
    dnf.run("rpm", "--import", "/srv/key")
    assert "digests signatures OK" in dnf.run("rpm", "-K", path)
    sh(dnf, f"cp {path} /srv/flipped.rpm; printf x | dd of=/srv/flipped.rpm bs=1 seek=900000 conv=notrunc 2>/dev/null")
    assert "NOT OK" in dnf.run("rpm", "-K", "/srv/flipped.rpm", code=1)
    strict = "dnf -y -q --disablerepo='*' --setopt=localpkg_gpgcheck=1 install"
    said = sh(dnf, f"{strict} /srv/python/python3.11.rpm /srv/second/{rpm(second)} </dev/null", code=1)
    assert "not signed" in said


def test_the_signature_of_the_deb(first: Path, keys: Path, tmp_path: Path) -> None:
    """It is of the three members, and gpg verifies it with the commands of docs/how-to/packages.md."""
    shutil.copy(first / deb(first), tmp_path / "fairlead.deb")
    page = (PROJECT / "docs/how-to/packages.md").read_text()
    verify = re.search(r"```sh\n(ar p [^`]*)```", page)
    assert verify
    home = keys / "gpg"
    script = verify[1].replace("fairlead_0.1.0-1_all.deb", "fairlead.deb")
    words = ["sh", "-ec", script]
    env = {**os.environ, "GNUPGHOME": str(home)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Good signature" in done.stderr, done.stderr
    content = bytearray((tmp_path / "fairlead.deb").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "fairlead.deb").write_bytes(content)
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "BAD signature" in done.stderr


def test_the_life_of_the_rpm(dnf: DnfNode, first: Path, second: Path) -> None:
    """Refused without Python, then installed by dnf, verified by rpm, run, upgraded and removed."""
    install = "dnf -y -q --disablerepo='*' install"
    said = sh(dnf, f"{install} /srv/first/{rpm(first)} </dev/null", code=1)
    assert "python3.12" in said and "nothing provides" in said
    sh(dnf, f"{install} /srv/python/python3.11.rpm /srv/first/{rpm(first)} </dev/null")
    nothing_enabled(dnf)
    works(dnf, {"bookworm": "3.11", "trixie": "3.13"}[dnf.suite])
    assert dnf.rpm("-V", "fairlead") == []
    kept = keep_state(dnf)
    sh(dnf, f"{install} /srv/second/{rpm(second)} </dev/null")
    assert dnf.run("fairlead", "version").split()[1] == NEXT
    assert sh(dnf, f"sha256sum {STATE}") == kept and dnf.rpm("-V", "fairlead") == []
    sh(dnf, "echo 'TaskProlog=/etc/slurm/fairlead/task-prolog' > /etc/slurm/slurm.conf")
    said = sh(dnf, "dnf -y --disablerepo='*' remove fairlead </dev/null", code=1)
    assert "/etc/slurm/slurm.conf still says TaskProlog=" in said and dnf.run("fairlead", "version").split()[1] == NEXT
    sh(dnf, "rm /etc/slurm/slurm.conf; dnf -y -q --disablerepo='*' remove fairlead </dev/null")
    assert sh(dnf, f"sha256sum {STATE}") == kept
    left = sh(dnf, f"find {HOME} /opt/fairlead /usr/bin/fairlead /etc/slurm/fairlead /var/cache/fairlead 2>/dev/null || :")
    assert left == "", left


@pytest.mark.release("trixie")
def test_the_rpm_of_the_admin_host(dnf: DnfNode, first: Path, second: Path) -> None:
    sh(dnf, f"rpm -i --nodeps /srv/first/{rpm(first)} /srv/first/{rpm(first, 'fairlead-admin')} 2>/dev/null")
    assert dnf.rpm("-V", "--nodeps", "fairlead-admin") == []
    assert "ansible-playbook [core " in dnf.run(f"{HOME}/bin/ansible-playbook", "--version")
    sh(dnf, "echo '# ours' >> /etc/fairlead/site.toml")
    both = f"/srv/second/{rpm(second)} /srv/second/{rpm(second, 'fairlead-admin')}"
    sh(dnf, f"rpm -U --nodeps {both} 2>/dev/null")
    assert sh(dnf, "tail -n 1 /etc/fairlead/site.toml") == "# ours\n"
    sh(dnf, "rpm -e --nodeps fairlead-admin fairlead 2>/dev/null")
    assert sh(dnf, "tail -n 1 /etc/fairlead/site.toml.rpmsave") == "# ours\n"


SYSTEMCTL = """#!/bin/sh
echo "$* $(fairlead version) $(tail -n 1 /etc/slurm/epilog.d/50-fairlead)" >> /root/systemctl.log
"""


def test_the_agent_is_restarted_when_all_files_of_the_new_rpm_are_there(dnf: DnfNode, first: Path, second: Path) -> None:
    """This root runs no systemd. What stands for systemctl writes down when it was called, and what it saw of the package."""
    install = "dnf -y -q --disablerepo='*' install"
    sh(dnf, f"{install} /srv/python/python3.11.rpm /srv/first/{rpm(first)} </dev/null")
    sh(dnf, "mkdir -p /run/systemd/system; mv /usr/bin/systemctl /root")
    sh(dnf, f"cat > /usr/bin/systemctl <<'E'\n{SYSTEMCTL}E\nchmod 755 /usr/bin/systemctl")
    sh(dnf, f"{install} /srv/second/{rpm(second)} </dev/null")
    seen = f"fairlead {NEXT} # of the next version"
    assert sh(dnf, "cat /root/systemctl.log").splitlines() == [
        f"daemon-reload {seen}", f"try-restart fairlead-agent.service {seen}",
    ]  # fmt: skip
    sh(dnf, "rm /root/systemctl.log; dnf -y -q --disablerepo='*' remove fairlead </dev/null")
    said = [line.partition(" fairlead 9")[0] for line in sh(dnf, "cat /root/systemctl.log").splitlines()]
    assert said[:2] == [f"--quiet disable --now fairlead-{name}.service" for name in ("agent", "apply")]
    sh(dnf, "mv /root/systemctl /usr/bin; rmdir /run/systemd/system; rm /root/systemctl.log")
