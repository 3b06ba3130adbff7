"""Fetching the files of a lock: what a repository or a folder gives is bounded by what the lock says."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import DataError, ProvisionError
from fairlead.model.change import Package
from fairlead.provision import package_files

CONTENT = b"a package" * 1000


def package(url: str) -> Package:
    digest = hashlib.sha256(CONTENT).hexdigest()
    return Package(name="x", version="1", architecture="all", sha256=digest, size=len(CONTENT), url=url)


class Endless(http.server.BaseHTTPRequestHandler):
    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while Endless.sent < 1 << 30:
                self.wfile.write(CONTENT)
                Endless.sent += len(CONTENT)
        except OSError:
            pass

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x.deb"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(60)
def test_an_answer_that_never_ends_is_read_no_further_than_the_lock_says(repository: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the file that the lock names"):
        package_files.fetch([package(repository)], tmp_path)
    assert not list(tmp_path.iterdir()) and Endless.sent < 64 << 20, "what the kernel's buffers took, not a full disk"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["device", "FIFO", "folder"])
def test_what_is_no_file_is_not_copied(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "FIFO":
        import os

        os.mkfifo(source)
    elif kind == "folder":
        source.mkdir()
    with pytest.raises(ProvisionError, match="not a file"):
        package_files.fetch([package("/dev/zero" if kind == "device" else str(source))], tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


def test_a_file_of_a_folder_is_copied(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_bytes(CONTENT)
    assert package_files.fetch([package(str(tmp_path / "x.deb"))], tmp_path / "into") == 1
    assert (tmp_path / "into" / package("").file).read_bytes() == CONTENT
