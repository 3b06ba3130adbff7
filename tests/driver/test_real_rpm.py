"""rpm's database and the order of versions, compared with real rpm 4.18 and 4.20 in roots of the lab."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host import rpm_database
from fairlead.host.root import Root
from fairlead.model import rpm_version
from fairlead.model.facts import Missing
from tests.driver import el_repository
from tests.driver.dnf_node import DnfNode
from tests.host import rpm_headers
from tests.lab import packages

pytestmark = pytest.mark.root
_FORM = re.compile(r"([0-9]+:)?[^:-]+(-[^:-]+)?")
QUERY = "%{NAME} %{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n"
WHERE = "/var/lib/rpm"
#: On the node: reads /@packages as the agent does, where its unit makes everything read-only.
READ = "import sys; from fairlead.host import installed_packages as p, root; print(p.text(root.Root()), end='')"
#: On the node: removes a package, so that SQLite's log has it, and then changes more without an end. $1: the database.
WRITER = """
import sqlite3, sys, time
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA journal_mode=WAL")
c.execute("PRAGMA wal_autocheckpoint=0")
c.execute("PRAGMA cache_size=1")
c.execute("DELETE FROM Packages WHERE hnum = (SELECT max(hnum) FROM Packages)")
c.execute("BEGIN IMMEDIATE")
c.execute("UPDATE Packages SET blob = zeroblob(100000)")
print(flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DnfNode]:
    """A node with the packages of the lab's repository in rpm's database; their files are not there."""
    with DnfNode(tmp_path_factory.mktemp("node") / "node", request.param) as made:
        made.bring(el_repository.repository(request.param), "/srv/nvidia")
        names = sorted(path.name for path in el_repository.repository(request.param).glob("*.rpm"))
        one_each = {name.rsplit("-", 2)[0]: f"/srv/nvidia/{name}" for name in names}
        made.rpm("-i", "--justdb", "--replacefiles", "--nodeps", "--noscripts", "--nosignature", *one_each.values())
        yield made


def asked(node: DnfNode, *words: str) -> list[str]:
    """What real rpm says is installed, in the words of /@packages."""
    lines = node.rpm(*words, "-qa", "--qf", QUERY)
    return sorted(f"{line} - installed" for line in lines if " (none) " not in line)


def read(node: DnfNode) -> list[str]:
    """The lines of /@packages, as fairlead reads them on the node."""
    return sorted(node.run("python3", "-c", READ).splitlines())


def stamp(node: DnfNode) -> str:
    code = f"from fairlead.host import rpm_database as d, root; print(d.stamp(root.Root(), '{WHERE}'))"
    return node.run("python3", "-c", code)


def test_the_database_is_read_as_rpm_reads_it(node: DnfNode) -> None:
    found = read(node)
    assert found == asked(node) and len(found) > 40
    assert any(" 3:" in line for line in found) and any(" 1:" in line for line in found) and any(" 0:" in line for line in found)


def test_it_is_read_where_the_whole_file_system_is_read_only(node: DnfNode) -> None:
    """As in the agent's unit (ProtectSystem=strict). rpm leaves its -wal and -shm there."""
    script = f'mount --bind -o ro {WHERE} {WHERE}; ! touch {WHERE}/x 2>/dev/null || exit 9; exec python3 -c "$0"'
    known = asked(node)
    for name in ("", "-shm", "-wal"):  # with both of them, without the first, without both
        if name:
            node.run("rm", f"{WHERE}/rpmdb.sqlite{name}")
        elif not node.run("sh", "-c", f"ls {WHERE}").count("-wal"):
            pytest.fail("rpm has left no -wal: this test no longer shows what a node has")
        assert sorted(node.run("unshare", "-m", "sh", "-c", script, READ).splitlines()) == known


def test_a_writer_neither_blocks_a_reader_nor_shows_it_half_a_transaction(node: DnfNode) -> None:
    """What is committed counts, also while the program that did it runs on and after it was killed."""
    node.run("sh", "-c", f"rm -rf /srv/copy; cp -a {WHERE} /srv/copy")
    whole = asked(node, "--dbpath", "/srv/copy")
    code = "from fairlead.host import rpm_database as d, root; r = root.Root(); s = d.stamp(r, '/srv/copy'); "
    code += "print(d.lines(r, '/srv/copy'), end=''); assert d.stamp(r, '/srv/copy') == s"
    with subprocess.Popen(node.words("python3", "-c", WRITER, "/srv/copy/rpmdb.sqlite"), stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline()
            meanwhile = node.run("python3", "-c", code, code=None).splitlines()
        finally:
            for pid in node.processes("python3"):
                os.kill(pid, signal.SIGKILL)
            writer.kill()
    assert len(meanwhile) == len(whole) - 1 and set(meanwhile) < set(whole), "one that is blocked says that it is locked"
    read_only = 'mount --bind -o ro /srv/copy /srv/copy; ! touch /srv/copy/x 2>/dev/null || exit 9; exec python3 -c "$0"'
    assert node.run("unshare", "-m", "sh", "-c", read_only, code).splitlines() == meanwhile
    assert node.run("python3", "-c", code).splitlines() == meanwhile
    assert asked(node, "--dbpath", "/srv/copy") == sorted(meanwhile)


def test_a_change_is_seen_by_the_stamp(node: DnfNode) -> None:
    first = stamp(node)
    found = read(node)
    assert stamp(node) == first, "reading changes nothing"
    node.rpm("-e", "--justdb", "--nodeps", "--noscripts", "unrelated")
    assert stamp(node) != first
    after = read(node)
    assert after == asked(node) and len(after) == len(found) - 1


def test_the_next_program_reads_nothing_of_a_database_that_has_not_changed(node: DnfNode) -> None:
    code = (
        "from fairlead.host import installed_packages as p, root, rpm_database as d; import sys, time; t = time.process_time()\n"
    )
    code += "def lines(*words): print('READ'); return real(*words)\n"
    code += "real, d.lines = d.lines, lines\nt = time.process_time(); text = p.text(root.Root())\n"
    code += "print(text, end=''); print(f'{(time.process_time() - t) * 1e3:.2f} ms', file=sys.stderr)"
    node.run("sh", "-c", f"mkdir -p /run/fairlead; touch -d '5 seconds ago' {WHERE}/rpmdb.sqlite*")
    first = node.run("python3", "-c", code).splitlines()
    again = node.run("python3", "-c", code).splitlines()
    assert float(again[-1].split()[0]) < 10, (first[-1], again[-1])
    assert first[0] == "READ" and again[:-1] == first[1:-1] and sorted(again[:-1]) == asked(node)
    node.run("touch", f"{WHERE}/rpmdb.sqlite")
    assert node.run("python3", "-c", code).startswith("READ\n")
    assert node.run("python3", "-c", code).startswith("READ\n"), "a stamp of this second is not kept"
    node.run("rm", "-r", "/run/fairlead")


def test_two_versions_of_one_package_are_there_twice_and_kernels_are_not(node: DnfNode) -> None:
    files = sorted(f"/srv/nvidia/{p.name}" for p in el_repository.repository(node.suite).glob("kernel-core-*.rpm"))
    node.rpm("-i", "--justdb", "--nodeps", "--noscripts", "--force", "--nosignature", *files)
    old = sorted(el_repository.repository(node.suite).glob("nvidia-modprobe-575*.rpm"))[0].name
    node.rpm("-i", "--justdb", "--nodeps", "--noscripts", "--force", "--nosignature", f"/srv/nvidia/{old}")
    found = read(node)
    assert [line.rsplit(" ", 1)[1] for line in found if line.startswith("nvidia-modprobe ")] == ["twice", "twice"]
    assert {line.rsplit(" ", 1)[1] for line in found if line.startswith("kernel-core ")} == {"installed"}
    assert len([line for line in found if line.startswith("kernel-core ")]) == 3


def test_rpm_reads_the_databases_that_the_other_tests_make(node: DnfNode, tmp_path: Path) -> None:
    rpm_headers.database(tmp_path / "made", [*rpm_headers.many(20, 4000), rpm_headers.header("a", "1", "2", 3, "noarch")])
    node.bring(tmp_path / "made", "/tmp/made")
    assert asked(node, "--dbpath", "/tmp/made") == sorted(
        [f"package-{n:05d} x86_64 0:1.{n}-1.el9 - installed" for n in range(20)] + ["a noarch 3:1-2 - installed"]
    )


def test_a_database_of_el8_is_read_by_rpm(node: DnfNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real Berkeley DB, made by db_load from the headers of the SQLite file, and read by rpm's own reader of that format."""
    if node.suite != "bookworm":
        pytest.skip("one rpm is enough")
    before = asked(node)
    tools = packages.alone(node.suite, "db5.3-util")
    tree = tmp_path / "tree"
    (tree / "var/lib/rpm").mkdir(parents=True)
    for name in ("rpmdb.sqlite", "rpmdb.sqlite-wal"):
        (tmp_path / name).write_bytes(
            subprocess.run(node.words("cat", f"{WHERE}/{name}"), capture_output=True, check=True, timeout=60).stdout
        )
    with sqlite3.connect(tmp_path / "rpmdb.sqlite") as source:
        rows = source.execute("SELECT hnum, blob FROM Packages").fetchall()
    last = max(number for number, _ in rows)
    dump = "VERSION=3\nformat=bytevalue\ntype=hash\nHEADER=END\n"
    for number, blob in [(0, last.to_bytes(4, sys.byteorder)), *rows]:
        dump += f" {number.to_bytes(4, sys.byteorder).hex()}\n {blob.hex()}\n"
    subprocess.run(
        [tools / "usr/bin/db5.3_load", tree / "var/lib/rpm/Packages"],
        input=f"{dump}DATA=END\n",
        text=True,
        check=True,
        timeout=60,
    )
    node.bring(tree / "var/lib/rpm", "/srv/el8")
    shim = tmp_path / "bin/rpm"  # the node's rpm under the name that this machine looks for
    shim.parent.mkdir()
    words = " ".join(f"'{w}'" for w in node.words("rpm", "--define", "_db_backend bdb_ro", "--dbpath", "/srv/el8"))
    shim.write_text(f'#!/bin/sh\nshift 2\nexec {words} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    found = rpm_database.lines(Root(str(tree)), WHERE)
    assert not isinstance(found, Missing), found
    names = [line.replace(" twice", " installed") for line in found.splitlines()]
    assert sorted(names) == before
    node.run("sh", "-c", "head -c 9000 /dev/urandom > /srv/el8/Packages")
    torn = rpm_database.lines(Root(str(tree)), WHERE)
    assert isinstance(torn, Missing) and torn.detail.startswith(f"{WHERE}: rpm -qa: ") and "--rebuilddb" in torn.detail


def test_versions_are_ordered_as_rpm_orders_them(node: DnfNode) -> None:
    dice = random.Random(19)
    parts = ["0", "1", "01", "9", "10", "580", "95", "05", "a", "rc", "el9", "el9_5", "B", "9" * 30, "a1", "1a"]
    marks = [".", "_", "+", "~", "^", "", "..", "~~", "^~", "."]

    def version() -> str:
        def words() -> str:
            some = (dice.choice(parts) + dice.choice(marks) for _ in range(dice.randint(1, 4)))
            return "".join(some) + dice.choice(["", dice.choice(parts)])

        return dice.choice(["", "0:", "1:", "3:", "10:"]) + words() + dice.choice(["", "-" + words()])

    pairs = [(version(), version()) for _ in range(2500)]
    for first, second in list(pairs[:1500]):  # versions that are nearly the same are the hard ones
        at = dice.randrange(len(first))
        pairs.append((first, first[:at].rstrip("-:") + dice.choice(["~", "^", ".", "0", "1", "a", ""]) + first[at:].lstrip("-:")))
        pairs.append((first, second.split("-")[0] or "1"))
    pairs = [(a, b) for a, b in pairs if _FORM.fullmatch(a) and _FORM.fullmatch(b)]
    code = "for line in io.lines('/tmp/pairs') do local a, b = line:match('^(%S+) (%S+)$') "
    code += "print(string.format('%d;', rpm.vercmp(a, b))) end"
    text = "".join(f"{a} {b}\n" for a, b in pairs)
    subprocess.run(node.words("sh", "-c", "cat > /tmp/pairs"), input=text, text=True, check=True, timeout=60)
    said = [int(word) for word in "".join(node.rpm("--eval", f"%{{lua: {code}}}")).split(";") if word]
    assert len(said) == len(pairs) > 1500
    for (a, b), order in zip(pairs, said, strict=True):
        left, right = rpm_version.key(a), rpm_version.key(b)
        assert (left > right) - (left < right) == order, (a, b, order)
    assert {-1, 0, 1} <= set(said)
