"""fs.inotify.max_user_instances: each systemd takes about six; past the limit the next one hangs without a word."""

from __future__ import annotations

import os

from tests.lab.ledger import INOTIFY, Ledger, alone, labs

PER_HOST = 7


def in_use() -> int:
    """inotify instances that root's processes have open now."""
    count = 0
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                count += os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:inotify"
        except OSError:
            continue
    return count


def make_room(ledger: Ledger, hosts: int) -> None:
    """Raise the limit where ``hosts`` more would not fit; the ledger's end() puts the old value back.

    Other racks may be about to boot: the hosts of all are counted, those that already run a second time.
    """
    with alone():
        ledger.add("hosts", str(hosts))
        announced = sum(int(entry) for lab in labs() for entry in lab.entries("hosts"))
        needed = in_use() + announced * PER_HOST + 16
        if needed > int(INOTIFY.read_text()):
            ledger.raise_inotify(max(1024, 2 * needed))
