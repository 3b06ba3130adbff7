"""Runs playbooks/site.yml over the nodes through ansible-runner, and makes a report of its events.

The private folder is on tmpfs, has mode 0700, and is removed when the run ends. No event is written to a file, because the event
handler returns False to ansible-runner. The documents never appear on a command line.

fairlead does not trust a node's answer. The action plugin passes on only what provision/node_answer.py accepts (decisions/0037).
Ansible's own error message about a node may also have text that the node wrote, for example after a failed ssh.
provision_report.py turns such a message into one printable line.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from fairlead import assets
from fairlead.config import Site
from fairlead.errors import InputMissing, ProvisionError, UsageError
from fairlead.model.isolated import isolated
from fairlead.model.plain_text import one_line
from fairlead.provision import wheels
from fairlead.provision.ansible_lock import locked_command
from fairlead.provision.interrupt import interruptible
from fairlead.provision.inventory import Target, all_nodes, in_slurm, targets
from fairlead.provision.networks import differences
from fairlead.provision.node_answer import HINT, LINE_MAX
from fairlead.provision.provision_progress import SilentProgress, UnansweredNodes, display
from fairlead.provision.provision_report import NodeResult, ProvisionReport, node_result, with_origin
from fairlead.provision.run_bundle import write_bundle
from fairlead.provision.ssh import SSH_ARGS, shared_connections
from fairlead.slurm.scontrol import Scontrol

_PREFIX = "fairlead-provision."
INVENTORY = "inventory.ini"
IDLE_SECONDS = 3000  # how long Ansible may be silent; longer than the role's `node_seconds`, after which one node has failed


class ProvisionOptions(Struct, frozen=True, kw_only=True):
    """Holds the options of a run. wheel: the file of fairlead's wheel, or "" to pack it from this installation. wheelhouse: a
    folder with the dependencies' wheels."""

    nodelist: str = ""
    check: bool = False
    diff: bool = False
    quiet: bool = False
    wheel: str = ""
    wheelhouse: str = ""
    uninstall: bool = False
    undo: bool = False
    force: bool = False
    only: tuple[str, ...] = ()  # the chosen settings; () for all that are declared
    packages: str = ""  # the folder with the files of the lock's packages; "" for the cache of `fairlead lock`
    lock: str = ""  # a file that is locked as long as a process of Ansible runs (ansible_lock.py)
    drained: bool = False  # the caller says that these nodes are drained in Slurm and no job runs there


def run(site: Site, options: ProvisionOptions, slurm: Scontrol | None = None) -> ProvisionReport:
    """Make the nodes what the site declares, and return the report. With ``slurm``, only nodes that Slurm has are taken. Raises
    FairleadError for an error that is found before any node is touched."""
    begin, began = time.monotonic(), time.time()
    known = in_slurm(slurm) if slurm else None
    chosen = targets(site, options.nodelist, known)
    if options.only and not any(set(options.only) & set(t.document.settings) for t in chosen):
        raise UsageError(
            f"--tags: {', '.join(options.only)}: declared for none of these nodes", hint="see `fairlead config show`"
        )
    if site.ansible.private_key and not os.access(site.ansible.private_key, os.R_OK):
        raise InputMissing(f"{site.ansible.private_key}: cannot be read", hint="it is [ansible] private_key of the site")
    own = wheels.own_from(options.wheel)
    results: dict[str, NodeResult] = {}
    with display(len(chosen), quiet=options.quiet, check=options.check) as shown:
        _play(site, chosen, options, own=own, results=results, shown=shown)
        wanted = {(r.no_wheel["python"], r.no_wheel["machine"]) for r in results.values() if r.no_wheel}
        if wanted and not options.wheelhouse:  # only one retry: a node may claim another Python each time
            again = _fetch(wanted, [t for t in chosen if results[t.node].no_wheel], results)
            if again:
                _play(site, again, options, own=own, results=results, shown=shown)
        for target in chosen:
            if results[target.node].no_wheel:
                shown.done(results[target.node])
    nodes = tuple(results[t.node] for t in chosen)
    return ProvisionReport(
        site=site.file,
        generation=site.generation,
        check=options.check,
        seconds=time.monotonic() - begin,
        nodes=nodes,
        networks=differences(site, nodes),
        began=began,
        tags=options.only,
        undeclared=tuple(sorted(set(known or ()) - set(all_nodes(site)))) if not options.nodelist else (),
    )


def _fetch(wanted: set[tuple[str, str]], waiting: list[Target], results: dict[str, NodeResult]) -> list[Target]:
    """Download wheels, and return the nodes that can be tried again. After a failed download, the nodes that need its wheels
    have failed."""
    from msgspec.structs import replace

    again: list[Target] = []
    for python, machine in sorted(wanted):
        nodes = [t for t in waiting if results[t.node].no_wheel == {"python": python, "machine": machine}]
        try:
            wheels.download(python, machine, wheels.cache_folder())
        except ProvisionError as e:
            for t in nodes:
                results[t.node] = replace(results[t.node], message=str(e), hint=e.hint, failures=(str(e),))
        else:
            again += nodes
    return again


def _play(
    site: Site,
    chosen: Sequence[Target],
    options: ProvisionOptions,
    *,
    own: wheels.Wheel,
    results: dict[str, NodeResult],
    shown: SilentProgress,
) -> None:
    """Run the playbook on the chosen nodes, and put the result of each node into ``results``.

    Raises ProvisionError if Ansible is missing or ended before any node had a result. Raises KeyboardInterrupt if a person
    interrupted the run before that.
    """
    interface = _ansible_runner()
    with private_folder() as folder:
        _write_inputs(folder, site, chosen, options, own)
        for target in chosen:
            results[target.node] = NodeResult(
                node=target.node, state="unfinished", message="the run ended before this node was done", hint="run it again"
            )
        runner, stopped = _run_playbook(interface, folder, site, chosen, options, results=results, shown=shown)
        if any(r.state != "unfinished" for r in results.values()):
            return
        if stopped:
            words = "a node that has begun may finish by itself; what is there is complete, and the next run does the rest"
            raise KeyboardInterrupt("" if options.check else words)
        raise ProvisionError(f"ansible-playbook ended {runner.status}: {_last_words(runner)}")


def _ansible_runner() -> Any:
    """Return the module that starts Ansible. Raises ProvisionError if the module is not installed."""
    try:
        from ansible_runner import interface
    except ModuleNotFoundError:
        raise ProvisionError("ansible-runner is not installed", hint="install fairlead[provision]") from None
    return interface


def _write_inputs(folder: Path, site: Site, chosen: Sequence[Target], options: ProvisionOptions, own: wheels.Wheel) -> None:
    """Write what Ansible reads into ``folder``: the bundle, ansible.cfg and the inventory."""
    bundle = folder / "bundle"
    bundle.mkdir()
    write_bundle(
        bundle,
        chosen,
        own,
        wheels.collect(options.wheelhouse),
        state="absent" if options.uninstall else "present",
        undo=options.undo,
        force=options.force,
        only=options.only,
        drained=options.drained,
        packages=options.packages,
        declared=all_nodes(site),
        package=site.ansible.package,
    )
    (folder / "ansible.cfg").write_text("[defaults]\ninternal_poll_interval = 0.02\n")
    (folder / INVENTORY).write_text(inventory_text(site, chosen, str(bundle)))


def _run_playbook(
    interface: Any,
    folder: Path,
    site: Site,
    chosen: Sequence[Target],
    options: ProvisionOptions,
    *,
    results: dict[str, NodeResult],
    shown: SilentProgress,
) -> tuple[Any, bool]:
    """Run ansible-playbook to its end. Return Ansible's runner, and whether a person interrupted the run."""
    origins, asked = {target.node: target.origin for target in chosen}, UnansweredNodes()

    def on_event(event: Mapping[str, Any]) -> bool:
        _track_silence(event, asked)
        _add_result(event, results, shown, origins)
        return False

    def ended() -> bool:
        shown.silent(asked.silent())
        return interrupted()

    env = environment(site, folder, chosen[0].address)
    with interruptible() as interrupted, lean_environment():
        runner = interface.init_runner(
            private_data_dir=str(folder),
            project_dir=str(assets.directory("playbooks")),
            playbook="site.yml",
            inventory=str(folder / INVENTORY),
            envvars=env,
            cmdline=" ".join(["--check"] * options.check + ["--diff"] * options.diff) or None,
            event_handler=on_event,
            settings={"suppress_env_files": True, "idle_timeout": IDLE_SECONDS, "pexpect_timeout": 1},
            quiet=True,
            cancel_callback=ended,
        )
        if options.lock:
            runner.config.command = locked_command(options.lock, runner.config.command)
        runner.run()
        stopped = interrupted()
    return runner, stopped


def _track_silence(event: Mapping[str, Any], asked: UnansweredNodes) -> None:
    """Record that a node was asked now, or that it has answered."""
    node = event.get("event_data", {}).get("host")
    if isinstance(node, str):
        (asked.begin if event.get("event") == "runner_on_start" else asked.end)(node)


def _add_result(
    event: Mapping[str, Any], results: dict[str, NodeResult], shown: SilentProgress, origins: Mapping[str, Mapping[str, str]]
) -> None:
    kind, data = event.get("event", ""), event.get("event_data", {})
    if kind not in {"runner_on_ok", "runner_on_failed", "runner_on_unreachable"} or data.get("host") not in results:
        return
    node: str = data["host"]

    def read() -> NodeResult:
        return with_origin(node_result(node, kind, str(data.get("task", "")), data.get("res") or {}), origins[node])

    result = isolated(read, lambda why: NodeResult(node=node, state="failed", message=why, failures=(why,), hint=HINT))
    results[node] = result
    if not result.no_wheel:  # the result of a node that lacks a wheel is shown after the download
        shown.done(result)


def _last_words(runner: Any) -> str:
    try:
        with runner.stdout as out:
            said = [line.strip() for line in out.read().splitlines() if line.strip()]
    except (OSError, AttributeError):
        said = []
    errors = [line for line in said if "ERROR" in line or "fatal" in line]
    return one_line((errors or said or ["no output"])[-1], 300)


def inventory_text(site: Site, chosen: Sequence[Target], bundle: str) -> str:
    """Return an INI inventory with the name and the address of each node. All other variables are the same for all nodes."""
    a = site.ansible
    lines = [t.node if t.address == t.node else f"{t.node} ansible_host={t.address}" for t in chosen]
    common = {
        "ansible_user": a.user,
        "node_bundle": bundle,
        "ansible_become": str(a.user != "root").lower(),
    }
    if a.python:
        common |= {"ansible_python_interpreter": a.python, "node_python": a.python}
    if a.private_key:
        common["ansible_ssh_private_key_file"] = os.path.abspath(a.private_key)
    return "\n".join([*lines, "", "[all:vars]", *(f"{k}={v}" for k, v in common.items()), ""])


def environment(site: Site, folder: Path, address: str) -> dict[str, str]:
    """Return Ansible's settings for a run. ``address``: the address of any node of the run."""
    own = site.ansible.ssh_args
    return {
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(assets.__file__))),
        "LC_ALL": "C.UTF-8",  # Ansible refuses other encodings, and locales that are not installed here
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_FORKS": str(site.ansible.forks),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_SSH_ARGS": " ".join(filter(None, (own, SSH_ARGS, shared_connections(own, address)))),
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_INJECT_FACT_VARS": "0",
        "MAX_EVENT_RES": str(4 * LINE_MAX),  # ansible-runner empties a longer result
        "ANSIBLE_INVENTORY_ENABLED": "ini",
        "ANSIBLE_RETRY_FILES_ENABLED": "0",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
    }


_KEPT = {"HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DISPLAY"}
_KEPT_PREFIXES = ("ANSIBLE_", "SSH_", "XDG_", "KRB5", "GSSAPI_")


@contextmanager
def lean_environment() -> Iterator[None]:
    """Reduce this process's environment to the variables that Ansible and ssh need, during the ``with`` block. ansible-runner
    writes all variables into a file (artifacts/*/command, Runner.run), and an admin's environment may have passwords."""
    before = dict(os.environ)
    secret = [n for n in before if "PASS" in n and not n.endswith(("_FILE", "_FILES"))]
    kept = {n: v for n, v in before.items() if (n in _KEPT or n.startswith(_KEPT_PREFIXES)) and n not in secret}
    os.environ.clear()
    os.environ.update(kept)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder with mode 0700, on tmpfs if there is one, and remove it after the ``with`` block. Folders of killed runs are
    removed too."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    _remove_orphaned(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}.", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphaned(base: str) -> None:
    for name in os.listdir(base):
        pid = name.removeprefix(_PREFIX).split(".")[0]
        path = os.path.join(base, name)
        dead = name.startswith(_PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}")
        try:
            ours = dead and os.lstat(path).st_uid == os.geteuid()
        except FileNotFoundError:  # another run has removed it
            continue
        if ours:
            shutil.rmtree(path, ignore_errors=True)
