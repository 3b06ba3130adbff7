"""apply on trees: three layers, busy nodes, boot phase, a second run, refusals and failures."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import config, settings
from fairlead import settings as setting_list
from fairlead.apply import ApplyReport, TreeNvml, apply
from fairlead.cli import main
from fairlead.config import Document
from fairlead.config.document import resolve_layers
from fairlead.errors import ExitCode, HostError
from fairlead.host import change
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.change import Disruption
from fairlead.model.facts import unreadable
from fairlead.model.setting import drift
from tests.lab.trees import MACHINES

EVERYTHING = {n: {} for n in ("cpu_governor", "memlock", "nccl", "numa_balancing", "pcie_acs", "persistence")}


@pytest.fixture
def tree(memory: Path) -> Path:
    return Path(shutil.copytree(MACHINES / "hgx-h100", memory / "tree", symlinks=True))


def document(**settings: dict[str, object]) -> Document:
    return resolve_layers("gpu1", [("test", {"settings": settings or EVERYTHING})])[0]


def run(tree: Path, doc: Document | None = None, **options: object) -> ApplyReport:
    root = Root(str(tree))
    return apply(doc or document(), root, nvml=TreeNvml(root), **options)  # type: ignore[arg-type]


def test_first_run_changes_second_run_changes_nothing(tree: Path) -> None:
    first = run(tree)
    assert first.changed > 100 and first.failed == 0 and first.exit_code is ExitCode.OK
    assert {i.setting: i.state for i in first.items} == dict.fromkeys(EVERYTHING, "changed")
    assert {i.setting: i.effective for i in first.items} == dict.fromkeys(EVERYTHING, "yes")
    assert {i.setting: i.persisted for i in first.items} == {
        **dict.fromkeys(("memlock", "nccl", "numa_balancing"), "yes"),
        **dict.fromkeys(("cpu_governor", "pcie_acs", "persistence"), "boot"),
    }
    second = run(tree)
    assert second.changed == 0 and {i.state for i in second.items} == {"same"}
    assert not (tree / "run/fairlead/applying").exists()


def test_a_dry_run_shows_everything_and_touches_nothing(tree: Path) -> None:
    before = sorted((str(p), p.stat().st_mtime_ns) for p in tree.rglob("*") if p.is_file())
    report = run(tree, dry_run=True)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in tree.rglob("*") if p.is_file()) == before
    assert report.changed == run(tree).changed
    assert {i.state for i in report.items} == {"would_change"}
    assert all(s.diff and s.done is None for i in report.items for s in i.steps)


def test_a_busy_node_gets_only_what_no_job_notices(tree: Path) -> None:
    report = run(tree, busy=True)
    states = {i.setting: (i.state, i.pending) for i in report.items}
    assert states["pcie_acs"] == ("deferred", "idle") and states["numa_balancing"] == ("changed", "")
    assert report.exit_code is ExitCode.TRY_AGAIN
    again = run(tree)
    assert {i.setting for i in again.items if i.state == "changed"} == {"pcie_acs"}


@pytest.fixture
def needs_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """numa_balancing with changes that must not meet a job."""
    every = setting_list.load()
    own = every["numa_balancing"]

    def plan(want: Any, observed: Any) -> tuple[Any, ...]:
        return tuple(msgspec.structs.replace(c, disruption=Disruption.DRAIN) for c in own.plan(want, observed))

    changed = {**every, "numa_balancing": msgspec.structs.replace(own, plan=plan)}
    monkeypatch.setattr(setting_list, "load", lambda: changed)


@pytest.mark.usefixtures("needs_drain")
def test_what_must_not_meet_a_job_is_changed_on_a_drained_node_only(tree: Path) -> None:
    doc = document(numa_balancing={})
    (item,) = run(tree, doc).items  # idle is not enough: a job can come at any moment
    assert (item.state, item.pending) == ("deferred", "drain") and "apply --drained" in item.hint
    assert run(tree, doc, busy=True, drained=True).changed == 0
    report = run(tree, doc, drained=True)
    assert report.drained and report.changed == 2 and report.items[0].state == "changed"
    root = Root(str(tree))
    assert sorted(o.skipped for o in change.undo_all(root)) == [False, True], "the file does no harm, the value may"
    assert (tree / "proc/sys/kernel/numa_balancing").read_text() == "0\n"
    assert [o.done for o in change.undo_all(root, drained=True)] == [True]
    assert (tree / "proc/sys/kernel/numa_balancing").read_text() == "1\n"


def test_the_boot_phase_is_what_a_reboot_loses(tree: Path) -> None:
    assert [i.setting for i in run(tree, phase="boot").items] == ["cpu_governor", "pcie_acs", "persistence"]


def test_tampering_is_exactly_what_the_next_run_puts_right(tree: Path) -> None:
    run(tree)
    (tree / "proc/sys/kernel/numa_balancing").write_text("1\n")
    report = run(tree)
    assert report.changed == 1
    (item,) = [i for i in report.items if i.state == "changed"]
    assert item.setting == "numa_balancing" and item.steps[0].why == "kernel.numa_balancing is 1, wanted 0"


def test_what_is_not_managed_is_left_alone(tree: Path) -> None:
    report = run(tree, document(numa_balancing={"managed": False}))
    assert [(i.state, i.steps) for i in report.items] == [("unmanaged", ())]


def test_a_refusal_names_the_reason_and_the_next_step_and_changes_nothing(tree: Path) -> None:
    next((tree / "sys/kernel/iommu_groups").glob("*/type")).write_text("DMA\n")
    report = run(tree, document(pcie_acs={}))
    (item,) = report.items
    assert item.state == "refused" and "IOMMU translates" in item.message and "iommu=pt" in item.hint
    assert report.changed == 0 and report.exit_code is ExitCode.CONFIG


def test_a_site_s_own_nccl_conf_is_refused_until_declared(tree: Path) -> None:
    own = tree / "etc/nccl.conf"
    own.parent.mkdir()
    own.write_text("NCCL_IB_TIMEOUT=22\n")
    assert run(tree, document(nccl={})).items[0].state == "refused"
    assert own.read_text() == "NCCL_IB_TIMEOUT=22\n"
    assert run(tree, document(nccl={"replace_existing": True})).items[0].state == "changed"
    assert own.read_text().startswith("# Written by fairlead")


@pytest.mark.parametrize("own", [None, "NCCL_IB_TIMEOUT=22\n"])
def test_a_file_of_ours_goes_when_nothing_is_declared_any_more(own: str | None, tree: Path) -> None:
    """And what an admin had there before is there again; what he has made his own since, or keeps unmanaged, is left alone."""
    conf = tree / "etc/nccl.conf"
    conf.parent.mkdir(exist_ok=True)
    if own:
        conf.write_text(own)
    wants = document(nccl={"replace_existing": True})
    none = document(numa_balancing={"managed": False})
    assert run(tree, wants).changed == 1 and conf.read_text().startswith("# Written by fairlead")
    ours = conf.read_text()
    assert run(tree, document(nccl={"managed": False})).changed == 0 and conf.read_text() == ours
    assert run(tree, none, dry_run=True).changed == 1 and conf.read_text() == ours
    conf.write_text("NCCL_DEBUG=WARN\n")
    assert run(tree, none).changed == 0 and conf.read_text() == "NCCL_DEBUG=WARN\n"
    conf.write_text(ours)
    report = run(tree, none)
    assert report.changed == 1 and "nothing is declared any more" in report.items[-1].message
    assert (conf.read_text() if conf.exists() else None) == own
    assert run(tree, none).changed == 0


def test_a_value_that_cannot_be_written_fails_and_the_others_go_on(tree: Path) -> None:
    shutil.rmtree(tree / "etc", ignore_errors=True)
    (tree / "etc").write_text("a file where a folder should be")
    report = run(tree)
    states = {i.setting: i.state for i in report.items}
    assert states["numa_balancing"] == "failed" and states["cpu_governor"] == "changed"
    assert report.exit_code is ExitCode.UNAVAILABLE


def test_without_nvml_persistence_is_unreadable_never_healthy(tree: Path) -> None:
    (tree / "nvml.json").unlink()
    report = run(tree, document(persistence={}))
    assert report.items[0].state == "unreadable" and report.exit_code is ExitCode.UNAVAILABLE


def test_while_it_runs_the_mark_is_there_with_pid_and_expiry(tree: Path) -> None:
    seen: list[str] = []

    class Watching(TreeNvml):
        def set(self, pci: str, what: str, value: int) -> None:
            seen.append((tree / "run/fairlead/applying").read_text())
            super().set(pci, what, value)

    root = Root(str(tree))
    apply(document(persistence={}), root, nvml=Watching(root))
    version, pid, expires = seen[0].split("\t")
    assert version == "1" and int(pid) == os.getpid() and int(expires) > 0


def test_the_command_speaks_json_and_exit_codes(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(document()))
    assert main(["apply", "--root", str(tree), "--document", str(path), "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    assert main(["apply", "--root", str(tree), "--document", str(path)]) == 0
    assert "6 settings" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"generation": 0', '"generation": "x"'))
    assert main(["apply", "--root", str(tree), "--document", str(path)]) == 78
    assert "generation" in capsys.readouterr().err
    assert main(["apply", "--root", str(tree), "--undo"]) == 0
    assert (tree / "proc/sys/kernel/numa_balancing").read_text() == "1\n"


def test_a_tree_is_made_what_its_own_document_says(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never what the document of the machine says where the command runs."""
    assert main(["apply", "--root", str(tree)]) == 66
    assert str(tree / "etc/fairlead/node.json") in capsys.readouterr().err
    (tree / "etc/fairlead").mkdir(parents=True)
    (tree / "etc/fairlead/node.json").write_bytes(config.encode_document(document()))
    assert main(["apply", "--root", str(tree)]) == 0


def test_a_tree_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(document(nccl={"extra": {"NCCL_DEBUG": "WARN"}})))
    assert main(["apply", "--root", str(tmp_path / "typo"), "--document", str(path)]) == 66
    assert "no such tree" in capsys.readouterr().err and not (tmp_path / "typo").exists()


def test_drained_is_refused_where_a_job_step_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the live machine, with a process titled as slurmd titles a step's."""
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(document(numa_balancing={"managed": False})))
    step = tmp_path / "slurmstepd"
    shutil.copy("/bin/sleep", step)
    asked = ["apply", "--document", str(path), "--drained"]
    with subprocess.Popen(["slurmstepd: [7.0]", "60"], executable=step) as process:
        try:
            assert main([*asked, "--dry-run"]) == 0
            if os.geteuid() == 0:
                assert main(asked) == 75
                said = capsys.readouterr().err
                assert "job steps run on this node; nothing was changed" in said and "drain it in Slurm" in said
        finally:
            process.kill()
    assert main([*asked, "--busy"]) == 64


def test_draining_asks_slurm_and_changes_nothing_without_its_answer(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.json"
    layers = {"slurm": {"bin_dir": str(tmp_path / "none")}, "settings": {"mig": {}}}
    path.write_bytes(config.encode_document(resolve_layers("gpu1", [("test", layers)])[0]))
    asked = ["apply", "--document", str(path), "--draining"]
    assert main([*asked, "--busy"]) == main([*asked, "--drained"]) == main([*asked, "--undo"]) == 64
    assert main([*asked, "--root", str(tree)]) == 64
    capsys.readouterr()
    assert main([*asked, "--dry-run"]) != 0
    said = capsys.readouterr()
    assert "squeue" in said.err or "sinfo" in said.err or "scontrol" in said.err
    assert said.err.count("\n") <= 2 and not said.out


def test_undo_on_a_busy_node_leaves_what_a_job_would_notice(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(document()))
    apply_it = ["apply", "--root", str(tree), "--document", str(path)]
    assert main(apply_it) == 0
    assert main([*apply_it, "--undo", "--busy"]) == 75
    assert (tree / "proc/sys/kernel/numa_balancing").read_text() == "1\n"
    left = sorted(p.name.split(".")[0] for p in (tree / "var/lib/fairlead/undo").iterdir())
    assert set(left) == {"pcie_acs"}
    assert main([*apply_it, "--undo"]) == 0 and not list((tree / "var/lib/fairlead/undo").iterdir())


def test_two_runs_at_once_do_not_write_the_same_files(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot unit and a `fairlead provision` right after the reboot."""
    (tree / "run/fairlead").mkdir(parents=True)
    with open(tree / "run/fairlead/apply.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr("fairlead.apply.node_lock.LOCK_SECONDS", 0.1)
        with pytest.raises(HostError, match="another fairlead apply"):
            run(tree)
    assert run(tree).changed > 100


def test_a_missing_nccl_conf_is_neither_persisted_nor_effective(tree: Path) -> None:
    """NCCL reads the file when a job starts: as long as it is not there, it has no effect."""
    (item,) = run(tree, document(nccl={}), dry_run=True).items
    assert (item.state, item.persisted, item.effective) == ("would_change", "no", "no")
    (item,) = run(tree, document(nccl={})).items
    assert (item.state, item.persisted, item.effective) == ("changed", "yes", "yes")


def test_tuned_is_named_as_the_second_writer_of_what_it_writes_too(tree: Path) -> None:
    asked = document(numa_balancing={}, nccl={})
    assert {i.hint for i in run(tree, asked, dry_run=True).items} == {""}
    for path, text in (("proc/@tuned/comm", "tuned\n"), ("etc/tuned/active_profile", "throughput-performance\n")):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    rival = "tuned runs with the profile throughput-performance"
    hints = {i.setting: i.hint for i in run(tree, asked, dry_run=True).items}
    assert hints == {"nccl": "", "numa_balancing": f"{rival} and may set it back: declare settings.tuned"}
    setting, want = settings.load()["numa_balancing"], asked.settings["numa_balancing"]
    node = gather(Root(str(tree)), unreadable("not asked"), reads=setting.wanted_reads(want))
    assert {f.summary for f in drift("numa_balancing", setting, want, node)} > {f"kernel.numa_balancing is 1, wanted 0; {rival}"}
