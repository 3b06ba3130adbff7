"""doctor: what is wrong with a slurm.conf is said with why and the line to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.slurm import slurm_conf
from fairlead.slurm.conf_review import review
from fairlead.slurm.plugstack import plugstack_text

HOOKS = (
    "/etc/slurm/prolog.d/50-fairlead",
    "/etc/slurm/epilog.d/50-fairlead",
    "/etc/slurm/fairlead/task-prolog",
    "/etc/slurm/fairlead/health-check",
)
GOOD = """
ClusterName=c
SchedulerParameters=bf_continue,nohold_on_prolog_fail
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
TaskProlog=/etc/slurm/fairlead/task-prolog
HealthCheckProgram=/etc/slurm/fairlead/health-check
HealthCheckInterval=300
PrologFlags=Alloc
PrologEpilogTimeout=300
TaskPlugin=task/affinity,task/cgroup
PropagateResourceLimitsExcept=MEMLOCK
NodeName=gpu[1-4] Gres=gpu:8
"""


def remarks(text: str, plugstack: str = "", version: tuple[int, ...] | None = (24, 5, 4)) -> dict[str, str]:
    conf = slurm_conf.parse("/etc/slurm/slurm.conf", {"/etc/slurm/slurm.conf": text}.get)
    return {r.what: r.level for r in review(conf, hooks=HOOKS, plugstack=plugstack, version=version)}


def test_a_good_file_has_nothing_wrong() -> None:
    assert set(remarks(GOOD).values()) == {"ok"}


def test_power_saving_that_spares_drained_nodes_is_fine() -> None:
    saving = "SuspendProgram=/s\nSuspendTime=600\n"
    assert set(remarks(f"{GOOD}{saving}SuspendExcStates=DOWN,drain\n").values()) == {"ok"}
    assert set(remarks(f"{GOOD}SuspendProgram=/s\nSuspendTime=-1\n").values()) == {"ok"}
    assert "SuspendTime also switches off drained nodes" in remarks(GOOD + saving, version=(22, 5, 8))


@pytest.mark.parametrize(
    ("version", "private", "said"),
    [
        ((22, 5, 8), "PrivateData=jobs", True),
        ((22, 5, 8), "PrivateData=jobs,cloud", False),
        ((23, 2, 0), "PrivateData=jobs", False),
        (None, "PrivateData=jobs", False),
    ],
)
def test_a_cloud_node_that_is_off_is_hidden_before_23_02(version: tuple[int, ...] | None, private: str, said: bool) -> None:
    saving = "SuspendProgram=/s\nSuspendTime=600\nSuspendExcStates=DRAIN\n"
    cloud = f"{saving}{private}\nNodeName=DEFAULT State=Cloud\nNodeName=c1 Gres=gpu:8\n"
    assert ("PrivateData lacks cloud" in remarks(GOOD + cloud, version=version)) is said


@pytest.mark.parametrize(
    ("node_file", "what"), [(None, "is slurmd's copy of the controller's file"), ("ClusterName=old\n", "differs from")]
)
def test_slurmds_copy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], node_file: str | None, what: str) -> None:
    for path, text in (("run/slurm/conf/slurm.conf", GOOD), ("etc/slurm/slurm.conf", node_file)):
        if text is not None:
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text(text)
    main(["doctor", "--root", str(tmp_path), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [r for r in said["remarks"] if what in r["what"]], said
    main(["doctor", "--root", str(tmp_path), "--diff"])
    assert ("apply this to slurm.conf on the controller" in capsys.readouterr().err) is (node_file is None)


@pytest.mark.parametrize(
    ("old", "new", "what", "level"),
    [
        ("Prolog=/etc/slurm/prolog.d/*\n", "", "Prolog is not set", "wrong"),
        ("Prolog=/etc/slurm/prolog.d/*", "Prolog=/opt/site/prolog", "Prolog=/opt/site/prolog does not run", "wrong"),
        ("PrologFlags=Alloc", "PrologFlags=Serial", "PrologFlags lacks Alloc", "wrong"),
        (",nohold_on_prolog_fail", "", "lacks nohold_on_prolog_fail", "warn"),
        ("ClusterName=c", "JobRequeue=0", "JobRequeue=0", "warn"),
        ("TaskProlog=/etc/slurm/fairlead/task-prolog", "TaskProlog=/opt/tp", "the site's own", "warn"),
        ("PropagateResourceLimitsExcept=MEMLOCK\n", "", "MEMLOCK is propagated", "warn"),
        ("HealthCheckInterval=300\n", "", "HealthCheckInterval is 0", "warn"),
        ("task/affinity,", "", "lacks task/affinity", "warn"),
        ("PrologEpilogTimeout=300\n", "", "PrologEpilogTimeout is not set", "note"),
        ("ClusterName=c", "SuspendProgram=/s\nSuspendTime=600", "SuspendExcStates lacks DRAIN", "warn"),
    ],
)
def test_each_flaw_is_found(old: str, new: str, what: str, level: str) -> None:
    assert old in GOOD
    found = {w: lv for w, lv in remarks(GOOD.replace(old, new)).items() if lv != "ok"}
    assert [lv for w, lv in found.items() if what in w] == [level], found


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((22, 5, 8), "warn"),
        ((24, 5, 4), "warn"),
        ((24, 11, 0), "wrong"),
        ((24, 11, 6), "wrong"),
        ((24, 11, 7), "warn"),
        ((24, 11), "warn"),
        ((25, 5, 1), "wrong"),
        ((25, 5, 2), "warn"),
        ((26, 5, 5), "warn"),
        (None, "warn"),
    ],
)
def test_pyxis_with_task_prolog(version: tuple[int, ...] | None, level: str) -> None:
    """Slurm mended it in 24.11.7 and 25.05.2 (its CHANGELOG). Seen with pyxis 0.24: 24.11.5 fails each task, 26.05.5 does not."""
    found = remarks(GOOD, "required /usr/lib/slurm/spank_pyxis.so\n", version)
    assert [lv for w, lv in found.items() if "pyxis" in w] == [level]
    assert not [w for w in remarks(GOOD, "# required spank_pyxis.so\n", version) if "pyxis" in w]


def test_a_task_prolog_under_pyxis_is_said_not_to_bind_unless_the_spank_plugin_does() -> None:
    conf = slurm_conf.parse("slurm.conf", {"slurm.conf": GOOD}.get)
    for plugstack, said in (("required spank_pyxis.so\n", True), ("optional fairlead.so\nrequired spank_pyxis.so\n", False)):
        found = [r for r in review(conf, hooks=HOOKS, plugstack=plugstack, version=(26, 5, 5)) if "pyxis" in r.what]
        assert ["cannot bind" in r.why for r in found] == [said]


def test_mig_instances_by_hand_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CUDA_VISIBLE_DEVICES is then Slurm's index (seen on 22.05, 24.11 and 26.05)."""
    folder = tmp_path / "etc/slurm"
    folder.mkdir(parents=True)
    (folder / "slurm.conf").write_text(GOOD)
    by_hand = "Name=gpu Type=1g.10gb multiplefiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap1,/dev/nvidia-caps/nvidia-cap2\n"
    beside = (f"AutoDetect=nvml\n{by_hand}", f"NodeName=g1 AutoDetect=nvml {by_hand}")  # slurmd takes the UUID from NVML then
    other = (f"NodeName=g2 AutoDetect=nvml\nNodeName=g1 {by_hand}", f"AutoDetect=nvml\nNodeName=g1 AutoDetect=off {by_hand}")
    rows = [("AutoDetect=nvml\n", False), (f"#{by_hand}", False), *((text, False) for text in beside)]
    for text, said in ((by_hand, True), *rows, *((text, True) for text in other)):
        (folder / "gres.conf").write_text(text)
        main(["doctor", "--root", str(tmp_path)])
        out = capsys.readouterr().out
        assert ("warn   gres.conf has MultipleFiles\n" in out) is said, out
        assert ("do: AutoDetect=nvml in gres.conf" in out) is said


def test_plugins_of_included_files_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The usual installation of pyxis: plugstack.conf includes plugstack.conf.d, and pyxis.conf is there."""
    folder = tmp_path / "etc/slurm"
    (folder / "plugstack.conf.d").mkdir(parents=True)
    (folder / "slurm.conf").write_text(GOOD)
    (folder / "plugstack.conf").write_text("include plugstack.conf.d/*\n")
    (folder / "plugstack.conf.d/pyxis.conf").write_text("required /usr/lib/slurm/spank_pyxis.so\ninclude pyxis.conf\n")
    main(["doctor", "--root", str(tmp_path)])
    assert "pyxis with TaskProlog" in capsys.readouterr().out
    (folder / "slurm.conf").write_text(f"{GOOD}PlugStackConfig=/etc/slurm/none.conf\n")
    main(["doctor", "--root", str(tmp_path)])
    assert "pyxis" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plugstack", "expected"),
    [
        ("optional /usr/lib/fairlead-spank/fairlead.so\noptional spank_pyxis.so\n", []),
        ("required /usr/lib/fairlead-spank/fairlead.so memory=no\n", ["plugstack.conf: fairlead.so is required"]),
        ("required spank_pyxis.so\noptional fairlead.so\n", ["plugstack.conf: fairlead.so comes after pyxis"]),
        ("# required fairlead.so\n", []),
    ],
)
def test_where_the_spank_plugin_stands(plugstack: str, expected: list[str]) -> None:
    assert [what for what in remarks(GOOD, plugstack, (24, 11)) if what.startswith("plugstack.conf")] == expected


def test_includes_continuations_comments_and_case() -> None:
    files = {
        "/c/slurm.conf": "Include more.conf\nprologflags=Alloc,\\\nContain # not this\nNodeName=a[1-2] CPUs=4\n",
        "/c/more.conf": "Prolog=/x\nTaskPlugin=task/none TaskProlog=/t\n",
    }
    conf = slurm_conf.parse("/c/slurm.conf", files.get)
    assert conf.get("PROLOG") == "/x"
    assert conf.options("PrologFlags") == {"alloc", "contain"}
    assert conf.get("TaskProlog") == "/t"
    assert conf.nodes == ({"nodename": "a[1-2]", "cpus": "4"},)


@pytest.mark.timeout(20)
def test_files_that_include_each_other_twice_end() -> None:
    slurm_conf.parse("/c/a", {"/c/a": "Include b\nInclude b\n", "/c/b": "Include a\nInclude a\n"}.get)
    pair = {"/c/plugstack.conf": "include d/*\n", "/c/d/1": "include *\n", "/c/d/2": "include *\nrequired x.so\n"}
    text = plugstack_text("/c/plugstack.conf", pair.get, lambda pattern: [p for p in pair if p.startswith("/c/d/")])
    assert text == "required x.so"


def test_an_include_of_itself_ends() -> None:
    slurm_conf.parse("/c/slurm.conf", {"/c/slurm.conf": "Include /c/slurm.conf\n"}.get)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    conf = slurm_conf.parse("/s", {"/s": text}.get)
    list(review(conf, hooks=HOOKS, plugstack=text, version=None))


def test_the_command_ends_with_2_when_something_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text(GOOD)
    assert main(["doctor", "--root", str(tmp_path), "--slurm-conf", "/etc/slurm/slurm.conf", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["remarks"]
    assert any(r["what"].startswith("/etc/slurm/prolog.d/50-fairlead: No such file") for r in found)


def test_no_slurm_conf_is_66(tmp_path: Path) -> None:
    assert main(["doctor", "--root", str(tmp_path), "--slurm-conf", "/nowhere.conf"]) == 66
