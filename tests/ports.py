"""A TCP port for a program that a test starts, and that binds it itself."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port on localhost that nobody uses. It is one of those that the kernel gives to nobody who does not name it
    (ip_local_port_range begins at 32768), so no other process gets it before the program binds it."""
    while True:
        with socket.socket() as probe:
            port = random.SystemRandom().randrange(10_000, 30_000)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
