"""rpm's database, read without rpm: any bytes, torn files, what a writer leaves, and what reading costs."""

from __future__ import annotations

import os
import random
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host import installed_packages, rpm_database
from fairlead.host.root import Root
from fairlead.model.facts import Missing
from tests.host import rpm_headers
from tests.host.rpm_headers import BINARY, INT32, NAME, RELEASE, STRING, VERSION, header, packed

WHERE = "/var/lib/rpm"
SOME = (header("bash", "5.1.8", "9.el9"), header("nvidia-open", "580.95.05", "1.el9", 3, "noarch"))
LINES = "bash x86_64 0:5.1.8-9.el9 - installed\nnvidia-open noarch 3:580.95.05-1.el9 - installed\n"
#: Packages of a node, the bytes of a header there (26 MB in all), and how many times the CPU time of SQLite's own reading we may
#: take. That is for a database that has changed. Otherwise the kept lines are read (tests/driver/test_real_rpm.py).
PACKAGES, BYTES, TIMES = 1414, 18300, 4.0


@pytest.fixture
def where(tree: Path) -> Path:
    return tree / "var/lib/rpm"


def lines(tree: Path) -> str | Missing:
    return rpm_database.lines(Root(str(tree)), WHERE)


def refused(tree: Path, *words: str) -> None:
    """Reading gives one clear line with the file and the next step, never a part of the packages."""
    found = lines(tree)
    assert isinstance(found, Missing) and found.detail.startswith(WHERE) and "\n" not in found.detail, found
    for word in (*words, "rpmdb --verifydb"):
        assert word in found.detail, found.detail


def test_the_lines_of_a_database(tree: Path, where: Path) -> None:
    rpm_headers.database(where, [*SOME, header("gpg-pubkey", "1", "2", architecture="")])
    assert lines(tree) == LINES
    assert sorted(path.name for path in where.iterdir()) == ["rpmdb.sqlite"], "reading leaves nothing there"


@given(st.binary(max_size=400))
def test_any_bytes_are_a_row_or_refused(data: bytes) -> None:
    try:
        row = rpm_database.package(data)
    except ValueError:
        return
    assert len(" ".join(row).split(" ")) == 3 and " ".join(row).isprintable()


@given(st.data())
def test_a_header_with_wrong_bytes_is_a_row_or_refused(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(SOME)))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for some in (bytes(whole), cut):
        test_any_bytes_are_a_row_or_refused.hypothesis.inner_test(some)  # type: ignore[attr-defined]


WORD = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x2FF).filter(str.isprintable), min_size=1, max_size=30).filter(
    lambda word: " " not in word
)


@given(st.tuples(WORD, WORD, WORD), st.none() | st.integers(0, 2**32 - 1), WORD, st.lists(WORD, max_size=20))
def test_what_a_header_says_is_read(words: tuple[str, str, str], epoch: int | None, arch: str, files: list[str]) -> None:
    name, version, release = words
    row = rpm_database.package(header(name, version, release, epoch, arch, files))
    assert row == (name, arch, f"{epoch or 0}:{version}-{release}")


def test_bytes_of_a_tag_inside_another_tag_are_not_taken_for_it() -> None:
    number = NAME.to_bytes(4, "big")
    words = [(100, int.from_bytes(number, "big"), 1, number * 4), (NAME, STRING, 1, b"bash\0")]
    words += [(VERSION, STRING, 1, b"1\0"), (RELEASE, STRING, 1, b"2\0")]
    assert rpm_database.package(packed(words)) == ("bash", "", "0:1-2")


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "package number 2: it is not a header"),
        (None, "NOT NULL"),
        ("text", "package number 2: it is not a header"),
        (SOME[0][:-1], "the sizes in its header do not agree"),
        (struct.pack(">II", 0, 0), "the sizes in its header do not agree"),
        (struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF), "the sizes in its header do not agree"),
        (packed([(VERSION, STRING, 1, b"1\0")]), "its header has no name, no version or no release"),
        (header("two words", "1", "2"), "has a blank or a control character"),
        (header("line\nfeed", "1", "2"), "has a blank or a control character"),
        (header("a", "1\x1b[2J", "2"), "has a blank or a control character"),
        (header("a" * 5000, "1", "2"), "is too long"),
        (struct.pack(">IIIIiI", 1, 4, NAME, STRING, 1 << 30, 1) + b"abc\0", "a tag lies outside its header"),
        (struct.pack(">IIIIiI", 1, 4, NAME, INT32, 2, 1) + b"abc\0", "a tag lies outside its header"),
        (packed([(NAME, BINARY, 4, b"\xff\xfe\0\0"), (VERSION, STRING, 1, b"1\0")]), "its header has no name"),
    ],
)
def test_one_bad_package_makes_all_unreadable(tree: Path, where: Path, blob: object, words: str) -> None:
    """Otherwise a package that is there would count as not installed."""
    path = rpm_headers.database(where, SOME[:1])
    with sqlite3.connect(path) as connection:
        if blob is None:
            connection.execute("DROP TABLE Packages")
            connection.execute("CREATE TABLE Packages (hnum INTEGER, other BLOB)")
            words = "no such column"
        else:
            connection.execute("INSERT INTO Packages VALUES (2, ?)", (blob,))
    connection.close()
    refused(tree, words)


def test_a_huge_header_is_not_read_into_memory(tree: Path, where: Path) -> None:
    path = rpm_headers.database(where, SOME)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO Packages VALUES (3, zeroblob(?))", (rpm_database.HEADER_MAX_BYTES + 1,))
    connection.close()
    refused(tree, "too big")


@pytest.mark.parametrize("end", ["", "torn", "short", "zeros", "text", "folder"])
def test_a_file_that_is_no_database(tree: Path, where: Path, end: str) -> None:
    path = rpm_headers.database(where, rpm_headers.many(200, 3000))
    data = bytearray(path.read_bytes())
    whole = lines(tree)
    dice = random.Random(end)
    if end == "torn":
        for at in range(4096, len(data), 8192):
            data[at : at + 4096] = dice.randbytes(min(4096, len(data) - at))
    elif end == "short":
        del data[len(data) // 2 :]
    elif end == "zeros":
        data[4096:] = bytes(len(data) - 4096)
    else:
        data[:] = {"text": b"this is text\n" * 1000}.get(end, b"")
    path.write_bytes(data)
    if end == "folder":
        path.unlink()
        path.mkdir()
    assert isinstance(whole, str)
    refused(tree, "rpmdb.sqlite: ")


def test_every_torn_page_is_found_or_harmless(tree: Path, where: Path) -> None:
    """Never other packages than those that are there."""
    path = rpm_headers.database(where, rpm_headers.many(60, 1000))
    whole, data, dice = lines(tree), path.read_bytes(), random.Random(7)
    assert isinstance(whole, str)
    for at in range(0, len(data), 4096):
        path.write_bytes(data[:at] + dice.randbytes(4096) + data[at + 4096 :])
        found = lines(tree)
        assert isinstance(found, Missing) or set(found.splitlines()) <= set(whole.splitlines()), at


def test_a_database_in_a_folder_that_nobody_may_write(tree: Path, where: Path) -> None:
    rpm_headers.database(where, SOME)
    os.chmod(where, 0o555)
    assert lines(tree) == LINES
    os.chmod(where, 0o755)


def test_one_that_changes_all_the_time_is_said_to(tree: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rpm_headers.database(where, SOME)
    real = rpm_database._read_sqlite
    left = [2]

    def read(root: Root, folder: str) -> object:
        found = real(root, folder)
        if left[0]:
            left[0] -= 1
            os.utime(path, ns=(1, time.time_ns() + left[0]))
        return found

    monkeypatch.setattr(rpm_database, "_read_sqlite", read)
    assert lines(tree) == LINES, "the third reading was undisturbed"
    left[0] = 99
    found = lines(tree)
    assert isinstance(found, Missing) and "another program changes rpm's database now" in found.detail


def test_a_locked_database_is_said_to_be(tree: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rpm's own mode never locks readers out; this one is of another mode, with a writer in the middle."""
    monkeypatch.setattr(rpm_database, "BUSY_SECONDS", 0.2)
    path = rpm_headers.database(where, SOME, journal="delete")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("DELETE FROM Packages")
    refused(tree, "locked")
    connection.execute("ROLLBACK")
    connection.close()
    assert lines(tree) == LINES


@pytest.mark.parametrize("name", ["Packages", "Packages.db"])
def test_an_older_database_without_rpm_is_unreadable(tree: Path, where: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where.mkdir(parents=True)
    (where / name).write_bytes(b"\0" * 4096)
    monkeypatch.setenv("PATH", str(tree))
    found = installed_packages.text(Root(str(tree)))
    assert isinstance(found, Missing) and "only rpm can read this database" in found.detail


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("printf 'a x86_64 0:1-2\\ngpg-pubkey (none) 0:1-2\\n'", ""),
        ("printf 'a b x86_64 0:1-2\\n'", "'a b x86_64 0:1-2' is not the name and the version of a package"),
        ("printf 'a\\n x86_64 0:1-2\\n'", "'a' is not the name"),
        ("echo 'error: db5 error(5) from dbenv->open: I/O error' >&2; exit 1", "rpm -qa: error: db5 error(5)"),
        ("exit 3", "rpm -qa: failed"),
        ("sleep 600", "no answer within 1 s"),
    ],
)
def test_what_rpm_says_of_an_older_database(
    tree: Path, where: Path, script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is a stand-in for rpm. tests/driver/test_real_rpm.py reads a Berkeley DB with real rpm."""
    monkeypatch.setattr(rpm_database, "QUERY_SECONDS", 1.0 if "sleep" in script else 60.0)
    where.mkdir(parents=True)
    (where / "Packages").write_bytes(b"x")
    rpm = tree / "bin/rpm"
    rpm.parent.mkdir()
    rpm.write_text(f"#!/bin/sh\n{script}\n")
    rpm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{rpm.parent}:{os.environ['PATH']}")
    if words:
        refused(tree, words)
    else:
        assert lines(tree) == "a x86_64 0:1-2 - installed\n"


def test_dpkg_counts_where_it_has_packages_and_rpm_where_dpkg_has_none(tree: Path, where: Path) -> None:
    root = Root(str(tree))
    rpm_headers.database(where, SOME)
    (tree / "var/lib/dpkg").mkdir(parents=True)
    (tree / "var/lib/dpkg/status").write_text("")  # EPEL's dpkg
    assert installed_packages.text(root) == LINES
    (tree / "var/lib/dpkg/status").write_text(
        "Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n"
    )  # rpm on Debian
    assert installed_packages.text(root) == "a all 1 install installed\n"


def test_el10_has_it_in_another_folder_with_a_link(tree: Path) -> None:
    rpm_headers.database(tree / "usr/lib/sysimage/rpm", SOME)
    assert installed_packages.text(Root(str(tree))) == LINES
    (tree / "var/lib").mkdir(parents=True, exist_ok=True)
    (tree / "var/lib/rpm").symlink_to("../../usr/lib/sysimage/rpm")
    assert installed_packages.text(Root(str(tree))) == LINES


def test_what_is_known_is_not_read_again(tree: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rpm_headers.database(where, SOME)
    root = Root(str(tree))
    assert installed_packages.text(root) == LINES
    with monkeypatch.context() as patched:
        patched.setattr(rpm_database, "lines", lambda *_: pytest.fail("it was read again"))
        assert installed_packages.text(root) == LINES
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM Packages WHERE hnum = 2")
    connection.commit()  # it is in the -wal, which is not yet copied into the file
    assert installed_packages.text(root) == LINES.splitlines(keepends=True)[0]
    connection.close()


def test_reading_costs_little_more_than_sqlite_s_own_reading(tree: Path, where: Path) -> None:
    """1,414 packages, 26 MB. The least of several CPU times counts, both taken in turn: other programs run here too."""
    path = rpm_headers.database(where, rpm_headers.many(PACKAGES, BYTES))
    assert path.stat().st_size > 26 << 20
    least = {"ours": 60.0, "SQLite's": 60.0}
    for _ in range(40):
        begun = time.process_time()
        text = rpm_database.lines(Root(str(tree)), WHERE)
        least["ours"] = min(least["ours"], time.process_time() - begun)
        assert isinstance(text, str) and text.count("\n") == PACKAGES
        begun = time.process_time()
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            assert len(list(connection.execute("SELECT hnum, blob FROM Packages ORDER BY hnum"))) == PACKAGES
        least["SQLite's"] = min(least["SQLite's"], time.process_time() - begun)
        if least["ours"] < TIMES * least["SQLite's"]:
            break
    assert least["ours"] < TIMES * least["SQLite's"], least


def test_what_is_known_is_examined_and_not_read(tree: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "var/lib/dpkg").mkdir(parents=True)
    (tree / "var/lib/dpkg/status").write_text("Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n")
    root = Root(str(tree))
    text = installed_packages.text(root)
    monkeypatch.setattr(Root, "read_text", lambda *_: pytest.fail("it was read again"))
    assert installed_packages.text(root) == text == "a all 1 install installed\n"
