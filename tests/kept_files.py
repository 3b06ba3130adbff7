"""The inventory of every file that fairlead keeps: `make docs` makes docs/reference/kept-files.md of it.

``tests/contracts/test_kept_files.py`` reads the syntax trees of the package and fails if a module writes files and is neither the
writer of a row here nor in ``KEEPS_NOTHING``. So a new file cannot be forgotten.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

AGENT = Path(__file__).resolve().parents[1] / "agent" / "fairlead"
NODES = 1000
DAYS = 365


class KeptFile(Struct, frozen=True, kw_only=True):
    """Describes one file or folder. writers: the modules that write it, or the hook. limit: what bounds it, enforced in code.
    keeps: how long what is in it stays. erase: how what it has of a user goes. each_bytes: measured size of one unit. units: how many
    of them at 1,000 nodes and a year, with the arithmetic in words."""

    path: str
    writers: tuple[str, ...]
    mode: str
    limit: str
    keeps: str
    erase: str = "has nothing of a user"
    backup: str = "no: it is made again"
    each_bytes: int = 0
    units: int = 1
    count: str = "one a node"

    @property
    def bytes_total(self) -> int:
        return self.each_bytes * self.units


STATE, RUN = "/var/lib/fairlead", "/run/fairlead"
ROOT = "root 0644"
#: On each node, on its disk. ``each_bytes`` of these is that of one node, and ``units`` is 1.
ON_NODES = (
    KeptFile(
        path=f"{STATE}/ledger.json",
        writers=("drains/ledger.py",),
        mode="root 0600",
        limit="one entry, 8 earlier texts",
        keeps="until the drain ends",
        backup="no: of the node's present drain only",
        each_bytes=1000,
    ),
    KeptFile(
        path=f"{STATE}/history.sqlite",
        writers=("history/sqlite_file.py",),
        mode="root 0600",
        limit="25 records of a kind, 100 kinds of a source, 1,000 events, 1,000 series of 400 days, the kernel records of one boot",
        keeps="records: this boot; counters: 400 days; state: until it changes",
        erase="goes with the next boot: user ids of jobs beside kernel records",
        backup="no: what a fleet needs is collected",
        each_bytes=4 << 20,
    ),
    KeptFile(
        path=f"{STATE}/ledger.json.schemaN, history.sqlite.schemaN",
        writers=("drains/ledger.py", "history/sqlite_file.py"),
        mode="root 0600",
        limit="one of each newer format that an older release has met",
        keeps="until a person removes it",
        erase="as history.sqlite; remove the file",
        backup="no",
        each_bytes=4 << 20,
    ),
    KeptFile(
        path=f"{STATE}/audit.jsonl, audit.jsonl.1",
        writers=("daemon/requests/audit_trail.py",),
        mode=ROOT,
        limit="1 MiB each",
        keeps="until 1 MiB is written twice",
        erase="names of admins stay: it is the audit trail",
        backup="collected: the last 30 days are in the service record",
        each_bytes=2 << 20,
    ),
    KeptFile(
        path=f"{STATE}/usage/, usage/aside/",
        writers=("host/usage_files.py",),
        mode="root 0600, with an ACL for the owner",
        limit="20,000 files and 64 MiB; aside: 100 files",
        keeps="`agent.usage_days` (30 days)",
        erase="goes after `agent.usage_days`, or remove usage/JOB-*",
        backup="collected into jobs.sqlite",
        each_bytes=64 << 20,
    ),
    KeptFile(
        path=f"{STATE}/requests/",
        writers=("daemon/requests/spool.py", "cli/agent_client.py"),
        mode="root 0600",
        limit="1,000 requests of at most 1 MiB, which only root can add",
        keeps="until the agent has applied it",
        each_bytes=4096,
    ),
    KeptFile(
        path=f"{STATE}/hold",
        writers=("cli/hold.py",),
        mode=ROOT,
        limit="one",
        keeps="until the hold ends",
        erase="has the admin's name",
        each_bytes=300,
    ),
    KeptFile(
        path=f"{STATE}/return.json",
        writers=("daemon/loop/return_command.py",),
        mode=ROOT,
        limit="one run, 200 characters",
        keeps="until the next run",
        each_bytes=500,
    ),
    KeptFile(
        path=f"{STATE}/undo/",
        writers=("host/change/undo.py",),
        mode="root 0700",
        limit="one record of each declared target: the first state",
        keeps="until `fairlead apply --undo`",
        backup="with the node's image, if you want to undo after a new installation",
        each_bytes=1 << 20,
    ),
    KeptFile(
        path="/etc/fairlead/left-for-boot",
        writers=("apply/image.py",),
        mode=ROOT,
        limit="one line for each setting",
        keeps="until the first boot of the image",
        each_bytes=1000,
    ),
    KeptFile(
        path="/etc/fairlead/node.json, hooks",
        writers=("on_node/managed_files.py",),
        mode=ROOT,
        limit="one document",
        keeps="until the next provision",
        backup="no: made from site.toml",
        each_bytes=64 << 10,
    ),
    KeptFile(
        path="/opt/fairlead/",
        writers=("on_node/installed_release.py",),
        mode="root 0755",
        limit="this release and the one before",
        keeps="until the next but one release",
        each_bytes=60 << 20,
    ),
    KeptFile(
        path="/var/cache/fairlead/packages/",
        writers=("host/change/cached_packages.py",),
        mode="root 0755",
        limit="the package files of this lock and of the one before",
        keeps="until the next lock",
        each_bytes=800 << 20,
    ),
)
#: On each node, in memory (tmpfs): gone with a reboot.
IN_MEMORY = (
    KeptFile(
        path=f"{RUN}/verdict, topology, env, plans/, presets/, status.json, metrics.prom",
        writers=("daemon/publishing/publisher.py",),
        mode=ROOT,
        limit="one of each; plans for 1 to 2 tasks for each GPU",
        keeps="this boot",
        erase="job ids only",
        each_bytes=400 << 10,
    ),
    KeptFile(
        path=f"{RUN}/service-record.json",
        writers=("daemon/publishing/service_keeper.py",),
        mode=ROOT,
        limit="2,000 entries, 500 Xids, 64 GPUs, 30 days",
        keeps="30 days; what no other file has is in history.sqlite",
        erase="names of admins, job ids",
        backup="collected into fleet.sqlite",
        each_bytes=12_846,
    ),
    KeptFile(
        path=f"{RUN}/jobs/, ended/",
        writers=("slurm/prolog", "slurm/epilog"),
        mode="root 0711",
        limit="one line for each job of this boot",
        keeps="this boot",
        erase="user id of each job: gone with the reboot",
        each_bytes=64 << 10,
    ),
    KeptFile(
        path=f"{RUN}/prolog.log, health",
        writers=("slurm/prolog", "slurm/health-check"),
        mode=ROOT,
        limit="one line",
        keeps="overwritten",
        each_bytes=100,
    ),
    KeptFile(
        path=f"{RUN}/agent.lock, apply.lock, applying, nvml-release, locked-clocks",
        writers=("daemon/loop/agent_lock.py", "apply/node_lock.py", "host/change/nvml_release.py", "daemon/loop/apply_marks.py"),
        mode="root 0600",
        limit="one line each",
        keeps="this boot",
        each_bytes=100,
    ),
    KeptFile(
        path=f"{RUN}/rpm-packages",
        writers=("host/packages_cache.py",),
        mode=ROOT,
        limit="64 MiB",
        keeps="this boot",
        each_bytes=200 << 10,
    ),
    KeptFile(
        path=f"{RUN}/job_map_files.json, and files in the folders of other tools",
        writers=("host/job_map_files.py",),
        mode=ROOT,
        limit="one file for each GPU and tool; the list 1 MiB",
        keeps="while the job runs",
        erase="user id, while the job runs",
        each_bytes=2000,
    ),
    KeptFile(
        path=f"{RUN}/scratch; BASE/fairlead/ on the local disk",
        writers=("host/scratch.py", "host/scratch_folders.py", "host/scratch_sweep.py"),
        mode="root 0711",
        limit="the disk; a folder for each job",
        keeps="until the job has ended",
        erase="removed when the job has ended",
        each_bytes=100,
    ),
)
COLLECT = "/var/lib/fairlead-collect"
#: On the controller.
ON_CONTROLLER = (
    KeptFile(
        path=f"{COLLECT}/jobs.sqlite",
        writers=("controller/job_store.py", "controller/store_file.py", "controller/sqlite_store.py"),
        mode="fairlead 0600",
        limit="by time; 10,000 records set aside; a run ends within 24 h of asking",
        keeps="`fairlead collect --days` (400)",
        erase="`fairlead collect --erase-user UID`",
        backup="`fairlead collect --backup DIR`",
        each_bytes=4858,
        units=NODES * 10 * DAYS,
        count="10 records of jobs a node and day: 1,000 x 10 x 365",
    ),
    KeptFile(
        path=f"{COLLECT}/fleet.sqlite",
        writers=("controller/fleet_store.py",),
        mode="fairlead 0600",
        limit="by time; a record at most 4 MiB and 20,000 entries",
        keeps="`fairlead collect --days` (400)",
        erase="`fairlead collect --erase-user UID`; names of admins stay 400 days",
        backup="`fairlead collect --backup DIR`",
        each_bytes=62_218,
        units=NODES,
        count="one row a node: 12 drains, 8 GPUs, weekly values",
    ),
    KeptFile(
        path=f"{COLLECT}/controller-release.json",
        writers=("controller/controller_release.py",),
        mode="fairlead 0644",
        limit="one note",
        keeps="until the next round",
        each_bytes=120,
        count="one",
    ),
    KeptFile(
        path="/var/lib/fairlead-events/events.sqlite",
        writers=("controller/event_store.py",),
        mode="fairlead 0600",
        limit="200,000 events; 50 of a node and day",
        keeps="until 200,000 newer ones are there",
        erase="`fairlead collect --erase-user UID`; names of admins go with the event",
        backup="`fairlead collect --backup DIR`; a whole queue is not replaced by a copy",
        each_bytes=484,
        units=NODES * 30,
        count="30 events a node and year: 1,000 x 30",
    ),
    KeptFile(
        path="/var/lib/fairlead-running/",
        writers=("controller/running_pull.py",),
        mode="fairlead 0640",
        limit="one record for each node of a running job",
        keeps="while the job runs",
        erase="goes when the job ends",
        each_bytes=4373,
        units=NODES,
        count="one running job a node",
    ),
    KeptFile(
        path=f"{STATE}/idle/idle-YYYY-MM.jsonl",
        writers=("controller/idle_journal.py",),
        mode="fairlead-idle 0600",
        limit="13 files of at most 1 GiB",
        keeps="13 months",
        erase="`fairlead collect --erase-user UID`",
        backup="`fairlead collect --backup DIR`",
        each_bytes=400,
        units=100 * DAYS,
        count="100 events a day: 100 x 365",
    ),
    KeptFile(
        path=f"{STATE}/idle/polls/, clock.json, lock",
        writers=("controller/idle_readings.py", "controller/idle_program.py"),
        mode="fairlead-idle 0600",
        limit="polls of three windows",
        keeps="3 x `idle.window_minutes`",
        erase="goes after three windows",
        each_bytes=4373,
        units=NODES * 18,
        count="18 polls of 1,000 records",
    ),
    KeptFile(
        path=f"{STATE}/idle-mail/",
        writers=("slurm/idle/mail",),
        mode="fairlead-idle 0700",
        limit="none: it is an example of the site's own program",
        keeps="until the site removes it",
        erase="remove the files",
        each_bytes=500,
        units=20 * DAYS,
        count="20 messages a day: 20 x 365",
    ),
)
#: On the admin host.
ON_ADMIN_HOST = (
    KeptFile(
        path=f"{STATE}/maintain.db, maintain.db.spare",
        writers=("provision/maintain/maintenance_journal.py",),
        mode="root 0600",
        limit="by time; the spare file 1 MiB",
        keeps="1,100 days after the end of a run, until 12 runs have begun later than that",
        erase="names of admins",
        backup="copy the file: it is one file, and complete",
        each_bytes=2000,
        units=NODES * 12,
        count="12 maintenances a node: 1,000 x 12",
    ),
    KeptFile(
        path=f"{STATE}/accept.sqlite",
        writers=("measure/results_store.py",),
        mode="root 0600",
        limit="by time; 16 MiB of one tool's output, compressed",
        keeps="1,100 days after the end of a run, until 12 runs have begun later than that",
        erase="name of the user who measured",
        backup="copy it with sqlite3 .backup",
        each_bytes=24_000,
        units=NODES * 4,
        count="4 acceptances a node: 1,000 x 4",
    ),
    KeptFile(
        path="fairlead-accept/RUN/, and the folder of `fairlead nccl measure`",
        writers=("measure/acceptance_run.py", "measure/nccl_run.py", "measure/nccl_launch.py", "cli/fabric_report.py"),
        mode="the user's",
        limit="8 MiB of a job, 64 MiB of a launch",
        keeps="until you remove the folder that you named",
        erase="yours",
        backup="as your own files",
        each_bytes=24_000,
        units=NODES * 4,
        count="4 acceptances a node: 1,000 x 4",
    ),
    KeptFile(
        path="/etc/fairlead/site.toml, fairlead.lock",
        writers=("cli/init.py", "cli/lock.py"),
        mode="the admin's",
        limit="one",
        keeps="yours",
        backup="with your configuration",
        each_bytes=200 << 10,
        count="one",
    ),
)
HOSTS = (
    ("On each node, on its disk", "of one node", ON_NODES),
    ("On each node, in memory", "of one node", IN_MEMORY),
    ("On the controller", "at 1,000 nodes after a year", ON_CONTROLLER),
    ("On the admin host", "at 1,000 nodes after a year", ON_ADMIN_HOST),
)
#: Modules that write files and keep none of them: what the person has named, what a change declares, what is removed at the end.
KEEPS_NOTHING = {
    "cli/apply.py": "undo and changes: what the document declares",
    "cli/audited.py": "reads; the trail is written by audit_trail.py",
    "cli/collect.py": "--units: the folder that the person names",
    "cli/dashboards.py": "the folder that the person names",
    "cli/events.py": "--dry-run: a copy that is removed at the end",
    "cli/new_file.py": "the file that the person names",
    "cli/node_pages.py": "the folder that the person names; each page is replaced",
    "cli/profile.py": "the file that the person names",
    "cli/prometheus_targets.py": "the file that the person names",
    "cli/provision.py": "--report: the file that the person names",
    "cli/report.py": "--html: the file that the person names",
    "cli/slurm_config.py": "the files that the person names",
    "cli/terminal.py": "/dev/null",
    "cli/topology.py": "the file that the person names",
    "cli/usage.py": "--html: the file that the person names",
    "controller/all_stores.py": "a copy in the folder that the person names; --restore fills the stores again",
    "controller/fleet_jobs.py": "reads jobs.sqlite",
    "daemon/loop/state_link.py": "a link in /run/fairlead to the state folder",
    "host/atomic_file.py": "writes for others",
    "host/change/__init__.py": "what the document declares; `fairlead apply --undo` takes it back",
    "host/change/package_command.py": "locks of apt and dnf",
    "host/rpm_database.py": "reads rpm's database",
    "host/tree_nvml.py": "the machine tree that the person names",
    "host/tree_snapshot.py": "the machine tree that the person names",
    "measure/float_sums.py": "reads",
    "measure/node_parts.py": "a folder that is removed at the end",
    "on_node/apply_command.py": "a folder that is removed at the end",
    "on_node/program.py": "a lock",
    "provision/dnf_repository.py": "a folder that is removed at the end",
    "provision/driver_lock.py": "fairlead.lock: the file that the person names",
    "provision/interrupt.py": "reads /proc",
    "provision/node_rpms.py": "a folder that is removed at the end",
    "provision/offline_bundle.py": "the folder that the person names",
    "provision/package_files.py": "the folder of package files that the person names",
    "provision/provision_run.py": "a folder on tmpfs that is removed at the end",
    "provision/rendered_playbook.py": "the folder that the person names",
    "provision/rpm_archive.py": "a file that is removed at the end",
    "provision/run_bundle.py": "the private folder of a run, which is removed at the end",
    "replay/recording.py": "a copy that is removed at the end",
    "selftest/hook_runs.py": "a folder on tmpfs that is removed at the end",
    "selftest/private_mounts.py": "a private mount",
    "selftest/report_file.py": "the file that the person names",
}
_WRITES = {
    "write_atomic", "write_file", "write_if_changed", "write_new", "copyfile", "copytree", "copy2", "mkstemp", "NamedTemporaryFile",
    "TemporaryDirectory", "mkdtemp", "write_bytes", "write_text", "mkfifo", "touch", "symlink",
}  # fmt: skip
_MODES = ("'w", "'a", "'x", "'r+", "O_CREAT", "_NEW")


def writing_modules() -> Iterator[str]:
    """Yield each module of the package that calls something which makes or writes a file."""
    for path in sorted(AGENT.rglob("*.py")):
        if any(isinstance(node, ast.Call) and _writes(node) for node in ast.walk(ast.parse(path.read_text()))):
            yield str(path.relative_to(AGENT))


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        text = ast.unparse(call)
        return any(mode in text for mode in _MODES)
    if name == "connect":
        return ast.unparse(call.func) == "sqlite3.connect"
    return name in _WRITES or (name == "replace" and any(keyword.arg == "temporary" for keyword in call.keywords))


def size_text(size: int) -> str:
    for unit, bytes_each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f} {unit}"
    return f"{size} B"


def kept_files_page() -> str:
    """Return docs/reference/kept-files.md."""
    out = [
        "# Reference: every file that fairlead keeps",
        "",
        "Generated by `make docs` from `tests/kept_files.py`. A test fails if a module writes a file that is not listed here.",
        "",
        "Each file has a limit that the code enforces. A full disk costs history and never safety: the agent goes on to judge and to",
        "drain, the hooks fail no job, and what is not kept is said once. [The last section](#full-disks) says how each writer ends.",
        "",
    ]
    for title, of, files in HOSTS:
        out += [f"## {title}", "", f"| path | owner, mode | limit | kept for | size {of} |", "|---|---|---|---|---|"]
        out += [
            f"| `{f.path}` | {f.mode} | {f.limit} | {f.keeps} | {size_text(f.bytes_total)}"
            + (f" ({f.each_bytes:,} B x {f.units:,}: {f.count})" if f.units > 1 else "")
            + " |"
            for f in files
        ]
        total = sum(f.bytes_total for f in files)
        out += ["", f"Together at most {size_text(total)} {of}.", ""]
    out += [
        "## Erasure of a user, backup and restore",
        "",
        "| path | what it has of a user, and how that goes | backup |",
        "|---|---|---|",
    ]
    out += [f"| `{f.path}` | {f.erase} | {f.backup} |" for _, _, files in HOSTS for f in files]
    return "\n".join([*out, "", *RESTORED.splitlines()]) + "\n"


RESTORED = """\
Back up on the controller with `fairlead collect --backup`, and the other files as the table says. A restored `fleet.sqlite` or
`jobs.sqlite` that is older than what the nodes have is filled again: the nodes have the last 30 days, and each record, incident and
event has an id, so that nothing is counted or sent twice. `fairlead events` says in one line that the history is older than before.
What is older than 30 days on the nodes and newer than the backup is lost.

The sizes of the files on the controller are measured: the bytes of one unit, by the test that compares them with this page, times
the number of units that the table says. The sizes on the nodes are the limits, or what a node of the lab has.

## Full disks

| writer | on a full disk |
|---|---|
| verdict, status, metrics, service record (/run) | the old file stays and expires; the agent says so once; the prolog follows `on_stale` |
| ledger | written to /run/fairlead; if that is full too, kept in memory; the agent drains and resumes all the same |
| history | kept in memory, and written when there is room; `trouble` in the status says so |
| audit trail | written to /run/fairlead, and moved to the disk when there is room |
| usage records | the running sums stay in memory and are written when there is room; a record that ends meanwhile may be lost |
| hooks | write with shell builtins only, and never fail a job because of it |
| jobs.sqlite, fleet.sqlite | the round ends with one line and exit code 69; the next one asks the nodes again |
| events.sqlite | nothing is sent whose delivery cannot be saved; the next run goes on |
| idle journal | the program ends before it acts: what cannot be written down is not done |
| maintenance journal | the spare file gives room for the steps of the nodes in work; no further node begins |
| accept.sqlite | the run ends with one line; what was measured before is whole |
"""
