"""The metrics port: whoever connects, the scrape is answered, and neither threads, descriptors nor memory grow."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from fairlead.daemon.publishing import scrape

BODY = b"# HELP x y\n" * 1_500_000  # more than a socket buffers


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One server for all tests of this file, because the end of a server takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrape, "SECONDS_MAX", 60.0)  # on a loaded machine a scrape may take longer than the usual limit
        server = scrape.serve("127.0.0.1:0", lambda: BODY, "text/plain; version=0.0.4")
        yield server.server_address[1]  # type: ignore[misc, index]
        server.shutdown()
        server.server_close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def scraped(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain")
        return bytes(answer.read())


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """The threads of this process take turns more often: client and server are the same process here."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before)


@pytest.mark.heavy
@pytest.mark.usefixtures("quick_turns")
def test_a_scrape_is_answered_among_two_thousand_idle_connections(port: int) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with ExitStack() as held:
        for number in range(2000):
            one = held.enter_context(connect(port))
            if number % 3 == 1:
                one.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")  # half a request
            if number % 500 == 499:
                assert scraped(port) == BODY
            if number % 100 == 99:
                assert threading.active_count() <= threads + scrape.CONNECTIONS_MAX + 1
                assert len(os.listdir("/proc/self/fd")) <= files + number + 1 + scrape.CONNECTIONS_MAX + 2
        assert scraped(port) == BODY


@pytest.mark.heavy
def test_readers_and_writers_that_take_their_time_are_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte every 0.1 s would go on for ever by a limit for each of them."""
    monkeypatch.setattr(scrape, "SECONDS_MAX", 1.0)
    threads = threading.active_count()
    with connect(port) as slow, connect(port) as drips:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        ended, until = False, time.monotonic() + 30
        while not ended:
            assert time.monotonic() < until
            with suppress(TimeoutError):
                drips.settimeout(0.1)
                try:
                    drips.send(b"G")
                    ended = drips.recv(1) == b""
                except ConnectionError:
                    ended = True
        while threading.active_count() > threads:  # nobody reads what it was sent
            assert time.monotonic() < until
            time.sleep(0.05)
    monkeypatch.undo()
    assert scraped(port) == BODY


@pytest.mark.parametrize(
    "request_",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"\xff" * 70_000, b"GET  /metrics x HTTP/1.1\n\n",
     b"PRI * HTTP/2.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_scrape_is_refused(port: int, request_: bytes) -> None:
    with connect(port) as one:
        one.sendall(request_)
        with suppress(ConnectionError):
            assert one.recv(65536).startswith(b"HTTP/1.1 400 ")
    with pytest.raises(urllib.error.HTTPError) as e:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd", timeout=30)
    assert e.value.code == 404
    e.value.close()
    assert scraped(port) == BODY


@pytest.mark.heavy
def test_without_a_host_it_listens_on_localhost_only() -> None:
    server = scrape.serve(":0", lambda: BODY, "text/plain")
    assert server.server_address[0] == "127.0.0.1"  # type: ignore[index]
    server.shutdown()
    server.server_close()


def test_the_peak_of_memory_is_one_body_not_one_for_each_connection(port: int) -> None:
    def rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = rss()
    with ExitStack() as held:
        for _ in range(200):
            one = held.enter_context(connect(port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.send(b"GET /metrics HTTP/1.1\r\n" + b"x" * 4096 + b"\r\n\r\n")
        assert rss() - before < len(BODY)
