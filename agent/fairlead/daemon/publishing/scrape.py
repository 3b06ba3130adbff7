"""Serves GET /metrics over HTTP in separate threads. It accepts few connections, each for a short time.

Every user of a node can reach a port on localhost. So at most ``CONNECTIONS_MAX`` connections are open. A further connection
ends the oldest connection. The oldest is never a normal scrape, because a normal scrape ends within milliseconds. Every
connection ends after ``SECONDS_MAX``, even if its client sends the request or reads the response byte by byte.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CONNECTIONS_MAX = 8
SECONDS_MAX = 10.0
_REQUEST_MAX_BYTES = 16384
_PATHS = (b"/", b"/metrics")


def serve(address: str, render: Callable[[], bytes], content_type: str) -> socketserver.BaseServer:
    """Start the server at host:port. Without a host, it listens on localhost. Raises OSError or ValueError if the address cannot
    be used."""

    class Scrape(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            words = _request(self.request).split(b" ")
            if len(words) != 3 or words[0] != b"GET":
                _answer(self.request, "400 Bad Request", "text/plain", b"only GET /metrics\n")
            elif words[1].split(b"?")[0] not in _PATHS:
                _answer(self.request, "404 Not Found", "text/plain", b"only /metrics\n")
            else:
                _answer(self.request, "200 OK", content_type, render())

    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = _Server((host.strip("[]") or "127.0.0.1", int(port)), Scrape, family=family)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _request(connection: socket.socket) -> bytes:
    """Return the first line of a request after the whole request has arrived. Its headers are read and ignored."""
    connection.settimeout(SECONDS_MAX)
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < _REQUEST_MAX_BYTES:
        data = connection.recv(4096)
        if not data:
            break
        head += data
    return head.split(b"\n", 1)[0].rstrip(b"\r")


def _answer(connection: socket.socket, status: str, content_type: str, body: bytes) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    connection.sendall(head.encode())
    connection.sendall(body)  # all connections send the same bytes object, so no copy is made


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], scrape: type[socketserver.BaseRequestHandler], *, family: int) -> None:
        self.address_family = family
        self._open: dict[socket.socket, float] = {}  # the start of each open connection (CLOCK_MONOTONIC), the oldest first
        self._few = threading.Condition()
        super().__init__(address, scrape)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._few:
            if len(self._open) >= CONNECTIONS_MAX:
                self._end(next(iter(self._open)))
                self._few.wait_for(lambda: len(self._open) < CONNECTIONS_MAX, 1.0)
            if len(self._open) >= CONNECTIONS_MAX:
                self.shutdown_request(request)
                return
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._few:
                self._open.pop(request, None)
                self._few.notify()

    def service_actions(self) -> None:
        """End the connections that have lasted too long. The server calls this twice a second."""
        late = time.monotonic() - SECONDS_MAX
        with self._few:
            for request in [r for r, since in self._open.items() if since < late]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # this wakes the connection's thread, which closes the connection

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection. Report any other error, because it is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
