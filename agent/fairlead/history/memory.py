"""Remembers for the agent the policy's state, the kernel records of this boot, samples of counters, and events.

The agent stays safe if the history is lost, because drains are in the ledger. If the history's file (``sqlite_file``) is damaged,
cannot be written or is on a disk that does not answer, the history is kept in memory. ``trouble`` then has the reason, and the
new data is written later.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from fairlead import checks
from fairlead.history.daily_values import Days
from fairlead.history.samples import KEEP_SECONDS, SAMPLE_SECONDS, Series
from fairlead.history.sqlite_file import DELETE, INSERT, PRUNE, PUT, Key, Statement, Store
from fairlead.history.xid_counts import XidCounts
from fairlead.host.bounded_disk import Direct, Storage
from fairlead.model.check_definition import KernelRecord, Past, Sample
from fairlead.model.facts import Missing
from fairlead.model.json_text import NOT_JSON
from fairlead.model.kernel_text import NAME_MAX, begins_with_a_name
from fairlead.policy.policy_state import PolicyState, state_of
from fairlead.xid import XidKind as Line
from fairlead.xid import parse
from fairlead.xid.meaning import meaning

EVENTS_SPARE = 100  # old events are deleted each time that so many new ones were stored
#: Kernel records that say the same about the same device are of one kind. Only the first and the last few records of each kind
#: are kept, so that a job that floods the log with its own faults cannot push out another fault. Each kind has a source. If a
#: source has too many kinds, its further kinds become one kind, so that it cannot push out records of another source. The sources
#: are: the jobs' own faults that the driver reports (a program can cause any number of them), the driver's other reports, the
#: records of each check (by the first word of the check's kind), and the site's patterns.
FIRST_KEPT, LAST_KEPT = 5, 20
KINDS_MAX = 100
OTHER, OTHERS_MAX, OTHER_KINDS_MAX = "other", 50, 10  # records that matter only to the site's patterns, by their first words
_OTHER_CHARACTERS = 40
_RUNNING = re.compile(r"\d{4,}")  # the number of a process, a sector or a time must not make a new kind
Source = str
Kind = tuple[object, ...]  # the source, and what distinguishes this kind from the source's other kinds


class History:
    """Holds the history of one boot. ``state_dir``: the folder of the history's file, or "" for no file. Records and samples of
    other boots are dropped."""

    def __init__(self, state_dir: str, boot_id: str, disk: Storage | None = None) -> None:
        self.boot_id = boot_id
        self.overrun = 0  # how many records were lost in this boot, in all runs of the agent
        self._overrun_seconds = 0.0
        self._earlier: tuple[int, float] | None = None  # number and time of earlier runs' losses; None until the file is read
        self._lost = 0
        self.log: Missing | None = None
        self._store = Store(state_dir, boot_id, disk or Direct())
        self._undecoded = ""
        self._saved_state = b""
        self._records: dict[Key, KernelRecord] = {}
        self._kinds: dict[Kind, list[Key]] = {}
        self._made: dict[Source, int] = {}  # how many kinds each source has made
        self._events = 0
        self._series = Series()
        self._sampled_at = float("-inf")
        self._gpu_cards: dict[str, str] = {}
        self.gpu_labels: dict[str, tuple[str, str]] = {}  # index and UUID as last read, by PCI address
        self.xids = XidCounts()
        self._days = Days()
        self._readable: set[str] = set()
        self._devices: frozenset[str] = frozenset()
        self._past: Past | None = None
        self._open(first=True)

    # -- in memory -------------------------------------------------------------------------------

    def past(self) -> Past:
        """Return everything that a check may know of the past, as one value."""
        if self._past is None:
            self._past = Past(
                available=True,
                records=tuple(self._records.values()),
                samples=self._series.all(),
                readable=frozenset(self._readable),
                gpu_cards=dict(self._gpu_cards),
                devices=self._devices,
                daily=self._days.past(time.time()),
                overrun=self.overrun,
                overrun_seconds=self._overrun_seconds,
                log=self.log,
            )
        return self._past

    def add_records(self, records: Iterable[KernelRecord], cursor: int | None = None) -> int:
        """Remember kernel records and return how many of them were new.

        ``cursor``: how far the log was read with these records. Records and cursor are saved together. Otherwise records that
        were dropped to make room would be read again after a crash, and would look like new records.
        """
        new: list[Key] = []
        texts: list[str] = []
        dropped: list[Key] = []
        for record in records:
            key = (record.sequence, record.seconds, record.text)
            if key not in self._records:
                dropped += self._remember(key, record)
                new.append(key)
                texts.append(record.text)
        if new:
            self.heal()  # before the Xids are counted, because the file may have an earlier count
            self._past = None
            counted = [self._xids_row()] if self.xids.add(texts) else []
            told: list[Statement] = [
                (INSERT, [self._row(self._records[key]) for key in new if key in self._records]),
                (DELETE, [(self.boot_id, *key) for key in dropped]),
            ]
            self._write(*told, (PUT, [*counted, *self._cursor_row(cursor)]))
        return len(new)

    def _remember(self, key: Key, record: KernelRecord) -> list[Key]:
        """Take in a record, and return the records of its kind that were dropped for it."""
        kind = _kind(record)
        source = str(kind[0])
        if kind not in self._kinds:
            others = source.startswith(OTHER)
            if others and source not in self._made and sum(known.startswith(OTHER) for known in self._made) >= OTHERS_MAX:
                kind = (source := OTHER, "all others")
            if self._made.get(source, 0) >= (OTHER_KINDS_MAX if others else KINDS_MAX):
                kind = (source, "all others")
        if kind not in self._kinds:
            self._made[source] = self._made.get(source, 0) + 1
        keys = self._kinds.setdefault(kind, [])
        gone = [keys.pop(FIRST_KEPT)] if len(keys) >= FIRST_KEPT + LAST_KEPT else []
        for old in gone:
            del self._records[old]
        keys.append(key)
        self._records[key] = record
        return gone

    def _row(self, record: KernelRecord) -> tuple[object, ...]:
        jobs, uids = (",".join(map(str, numbers)) for numbers in (record.jobs, record.uids))
        # "," means that no job was there, "" that the jobs are not known. An older agent reads both as "not known"
        jobs = jobs or ("," if record.attributed else "")
        return (self.boot_id, record.sequence, record.seconds, record.priority, record.text, jobs, uids)

    def add_samples(self, seconds: float, values: Iterable[tuple[str, str, float]]) -> None:
        """Remember counters (device, name, value) at ``seconds`` of CLOCK_BOOTTIME, at most one a minute of each."""
        if self._series.add(seconds, values):
            self._past = None
            self._sampled_at = seconds

    def samples_due(self, seconds: float) -> bool:
        """Return whether ``add_samples`` would remember anything. If not, the values of hundreds of counters need not be
        collected."""
        return not 0 <= seconds - self._sampled_at < SAMPLE_SECONDS

    def add_gpu_cards(self, gpu_cards: Mapping[str, str]) -> None:
        """Remember which card is at which address, the first time that it is seen there. After the card was exchanged, a person
        has to run `fairlead clear`."""
        new = {slot: card for slot, card in gpu_cards.items() if slot not in self._gpu_cards}
        if new:
            self._gpu_cards |= new
            self._past = None
            self._put("boards", msgspec.json.encode(self._gpu_cards))

    def add_gpu_labels(self, labels: Mapping[str, tuple[str, str]]) -> None:
        """Remember the index and the UUID of GPUs that report both. The metrics of a GPU that is lost still have them."""
        if not labels.items() <= self.gpu_labels.items():
            self.gpu_labels |= labels
            self._put("gpu_labels", msgspec.json.encode(self.gpu_labels))

    def add_daily(self, values: Iterable[tuple[str, str, float]]) -> None:
        """Remember lifetime counters of GPU cards, at most one value a day of each."""
        if self._days.add(time.time(), values):
            self._past = None
            self._put("days", self._days.saved())

    def add_readable(self, names: frozenset[str]) -> None:
        """Remember which fields of which devices could be read."""
        if not names <= self._readable:
            self._readable |= names
            self._past = None
            self._put("readable", msgspec.json.encode(sorted(self._readable)))

    def add_devices(self, names: frozenset[str]) -> None:
        """Remember which devices this boot has had, because a device that fails may vanish."""
        if not names <= self._devices:
            self._devices |= names
            self._past = None
            self._put(f"devices {self.boot_id}", msgspec.json.encode(sorted(self._devices)))

    def forget_readable(self, devices: Collection[str], *, everything: bool = False) -> None:
        """Forget which fields of these devices could be read."""
        left = {n for n in self._readable if not (everything or n.partition("/")[0] in devices)}
        if left != self._readable:
            self._readable = left
            self._past = None
            self._put("readable", msgspec.json.encode(sorted(left)))

    def forget(self, devices: Collection[str], *, everything: bool = False) -> None:
        """Forget, after a repair of these devices, which of their fields could be read and which card was at their address."""
        self.forget_readable(devices, everything=everything)
        boards = {s: b for s, b in self._gpu_cards.items() if not (everything or s in devices or b in devices)}
        if boards != self._gpu_cards:
            self._gpu_cards = boards
            self._past = None
            self._put("boards", msgspec.json.encode(boards))

    def set_log(self, log: Missing | None, lost: int, seconds: float = 0.0, cursor: int | None = None) -> None:
        """Remember the state of the kernel log: why it cannot be read, and how many records this run of the agent has lost.
        ``seconds``: the present time, by the node's own uptime. ``cursor``: how far the log was read. The cursor is saved
        together with the loss, so that the loss counts once."""
        if log != self.log:
            self.log, self._past = log, None
        if lost != self._lost:
            self.overrun += lost - self._lost
            self._lost, self._overrun_seconds, self._past = lost, seconds, None
            self._write((PUT, [self._lost_row(), *self._cursor_row(cursor)]))

    def _cursor_row(self, cursor: int | None) -> list[tuple[object, ...]]:
        return [] if cursor is None else [(f"cursor {self.boot_id}", str(cursor).encode())]

    def _lost_row(self) -> tuple[str, bytes]:
        return f"lost {self.boot_id}", msgspec.json.encode((self.overrun, self._overrun_seconds))

    def _xids_row(self) -> tuple[str, bytes]:
        counts = [(*code, number) for code, number in self.xids.counts.items()]
        return f"xids {self.boot_id}", msgspec.json.encode(counts)

    # -- on disk ---------------------------------------------------------------------------------

    def load_state(self) -> PolicyState:
        """Return the policy's state as last saved. An empty state is a safe start."""
        data = self._get("state")
        if data is None:
            return PolicyState()
        try:
            state, unread = state_of(data)
        except NOT_JSON as e:
            self._undecoded = f"{self.path}: the policy's state cannot be read and begins anew ({e})"
            return PolicyState()
        if unread:
            self._undecoded = f"{self.path}: parts of the policy's state cannot be read, and are kept aside ({', '.join(unread)})"
            self._put("state unread", data)
        else:
            self._saved_state = data
        return state

    def save_state(self, state: PolicyState) -> None:
        """Save the policy's state if it has changed. A number of clean sweeps above 3 counts as 3."""
        data = msgspec.json.encode(
            replace(state, clean_sweeps=min(state.clean_sweeps, 3), thorough_clean_sweeps=min(state.thorough_clean_sweeps, 3))
        )
        if data != self._saved_state:
            self._saved_state = data
            self._write((PUT, [("state", data)]))

    def cursor(self) -> int | None:
        """Return the kernel log's sequence number up to which records were read in this boot."""
        data = self._get(f"cursor {self.boot_id}")
        return int(data) if data is not None and data.isdigit() else None

    def save_cursor(self, cursor: int | None) -> None:
        if cursor is not None:
            self._put(f"cursor {self.boot_id}", str(cursor).encode())

    def service(self) -> bytes:
        """Return what ``save_service`` has saved last, or b""."""
        return self._get("service") or b""

    def save_service(self, data: bytes) -> None:
        """Save the memory of the service record."""
        self._write((PUT, [("service", data)]))

    def event(self, event: str, text: str) -> None:
        """Store an event for `fairlead why`."""
        self._events += 1
        prune: list[Statement] = [(PRUNE, [()])] if self._events % EVENTS_SPARE == 0 else []
        self._write(("INSERT INTO event VALUES (?, ?, ?)", [(time.time(), event, text)]), *prune)

    def events(self, count: int = 20) -> list[dict[str, object]]:
        """Return the last events, the oldest first."""
        rows = self._store.read("SELECT unix_seconds, event, text FROM event ORDER BY rowid DESC LIMIT ?", (count,))
        return [{"unix_seconds": row[0], "event": row[1], "text": row[2]} for row in reversed(rows)]

    def save_samples(self) -> None:
        """Write the samples that were collected, and delete samples that are too old."""
        unsaved = self._series.unsaved()
        if unsaved:
            oldest = unsaved[-1].seconds - KEEP_SECONDS
            self._write(
                (
                    "INSERT INTO sample VALUES (?, ?, ?, ?, ?)",
                    [(self.boot_id, s.device, s.name, s.seconds, s.value) for s in unsaved],
                ),
                ("DELETE FROM sample WHERE boot_id != ? OR seconds < ?", [(self.boot_id, oldest)]),
            )

    @property
    def on_disk(self) -> bool:
        """Return whether the last commit is in the file."""
        return self._store.is_open

    @property
    def trouble(self) -> str:
        """Return why the history is in memory only, or was lost. Return "" if neither is the case."""
        return self._store.trouble or self._undecoded or self._store.note

    @property
    def path(self) -> str:
        return self._store.path

    def heal(self) -> None:
        """Open the file again if it is closed and should be tried again now."""
        if self._store.wants_open:
            self._open()

    def commit(self) -> None:
        """Commit the writes that are not committed yet, if the file can be written."""
        self._write()

    def close(self) -> None:
        self.save_samples()
        self.commit()
        self._store.close()

    def _open(self, *, first: bool = False) -> None:
        """Open the file, take in its contents, and store what was remembered while the file was closed."""
        stored = self._store.open(first=first)
        if stored is None:
            return
        self._merge(stored.records, stored.samples)
        statements: list[Statement] = [
            (INSERT, [self._row(r) for key, r in self._records.items() if key not in stored.records]),
            (DELETE, [(self.boot_id, *key) for key in stored.records if key not in self._records]),
        ]
        if self._earlier is None:
            self._earlier = stored.lost
            self.overrun += stored.lost[0]
            self._overrun_seconds = max(self._overrun_seconds, stored.lost[1])
            self.xids.merge(stored.xids)
        if self.xids.counts != stored.xids:
            statements.append((PUT, [self._xids_row()]))
        self.gpu_labels = stored.gpu_labels | self.gpu_labels
        if self.gpu_labels != stored.gpu_labels:
            statements.append((PUT, [("gpu_labels", msgspec.json.encode(self.gpu_labels))]))
        if self.overrun != stored.lost[0]:
            statements.append((PUT, [self._lost_row()]))
        if not self._readable <= stored.readable:
            statements.append((PUT, [("readable", msgspec.json.encode(sorted(self._readable | stored.readable)))]))
        self._readable |= stored.readable
        if self._gpu_cards | stored.gpu_cards != stored.gpu_cards:
            statements.append((PUT, [("boards", msgspec.json.encode(self._gpu_cards | stored.gpu_cards))]))
        self._gpu_cards |= stored.gpu_cards
        if not self._devices <= stored.devices:
            statements.append((PUT, [(f"devices {self.boot_id}", msgspec.json.encode(sorted(self._devices | stored.devices)))]))
        self._devices |= stored.devices
        self._days.merge(stored.days)
        statements.append((PUT, [("days", self._days.saved())]))
        self._past = None
        self._saved_state = b""
        self._store.write(*statements)

    def _merge(self, stored: dict[Key, KernelRecord], samples: list[Sample]) -> None:
        # an older agent also stored records whose beginning a user may have chosen
        together = {k: r for k, r in stored.items() if not begins_with_a_name(r.text)} | self._records
        self._records, self._kinds, self._made = {}, {}, {}
        for key, record in sorted(together.items(), key=lambda item: (item[0][1], item[0][0])):
            self._remember(key, record)
        self._series.merge(samples)

    def _write(self, *statements: Statement, commit: bool = True) -> None:
        self.heal()
        if self._store.is_open:
            self._store.write(*statements, commit=commit)

    def _put(self, key: str, value: bytes) -> None:
        self._write((PUT, [(key, value)]), commit=False)

    def _get(self, key: str) -> bytes | None:
        self.heal()
        rows = self._store.read("SELECT value FROM kept WHERE key = ?", (key,))
        value = rows[0][0] if rows else None
        return value if isinstance(value, bytes) else None


def _kind(record: KernelRecord) -> Kind:
    """Return the kind of a record. It contains nothing that a user can choose."""
    text = record.text
    line = parse(text)
    if line is not None:
        of_a_job = line.kind is Line.XID and meaning(line).blames == "application"
        return (
            "faults of jobs" if of_a_job else "faults",
            (line.kind, line.code, line.pci, line.fatal, line.link, line.caused_by, line.recovery, record.uids),
        )
    for name, check in checks.load().items():
        if check.kind is not None and text.startswith(check.wakes_on) and (said := check.kind(text)):
            return (f"{name} {said.partition(' ')[0]}", said)
    beginning = _RUNNING.sub("", text[: 2 * _OTHER_CHARACTERS])[:_OTHER_CHARACTERS]
    # records of the site's patterns are distinguished by the kernel's own first words
    return (f"{OTHER} {beginning[:NAME_MAX]}", beginning)
