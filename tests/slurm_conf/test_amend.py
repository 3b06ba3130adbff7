"""`fairlead doctor --diff`: the lines that slurm.conf lacks, kept apart from what the site chose; read by real slurmctlds."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.slurm.amend import Amended, amend
from fairlead.slurm.conf_review import review
from fairlead.slurm.slurm_conf import parse
from tests.lab import roots
from tests.lab.cluster import Cluster

HOOKS = (
    "/etc/slurm/prolog.d/50-fairlead",
    "/etc/slurm/epilog.d/50-fairlead",
    "/etc/slurm/fairlead/task-prolog",
    "/etc/slurm/fairlead/health-check",
)
BARE = "ClusterName=c\nSlurmctldHost=ctl\nTaskPlugin=task/affinity\nNodeName=n1 CPUs=2\n"
FULL = {
    "Prolog": "/etc/slurm/prolog.d/*",
    "Epilog": "/etc/slurm/epilog.d/*",
    "TaskProlog": HOOKS[2],
    "HealthCheckProgram": HOOKS[3],
    "HealthCheckInterval": "300",
    "PrologFlags": "Alloc",
    "SchedulerParameters": "nohold_on_prolog_fail",
    "PrologEpilogTimeout": "300",
    "PropagateResourceLimitsExcept": "MEMLOCK",
}


def amended(text: str, *, pyxis: bool = False, **files: str) -> Amended:
    read = {"/etc/slurm/slurm.conf": text, **{f"/etc/slurm/{name}.conf": value for name, value in files.items()}}
    return amend(text, parse("/etc/slurm/slurm.conf", read.get), pyxis=pyxis)


def values(text: str) -> dict[str, str]:
    return parse("x", {"x": text}.get).values


def test_a_bare_file_gets_every_line_once_and_then_doctor_has_nothing_to_say() -> None:
    made = amended(BARE)
    assert made.text == BARE + "# For fairlead:\n" + "".join(f"{k}={v}\n" for k, v in FULL.items()) and not made.notes
    assert amended(made.text).text == made.text
    found = review(parse("x", {"x": made.text}.get), hooks=HOOKS, plugstack="", version=(24, 11))
    assert {r.level for r in found} == {"ok"}


CHOSEN = [
    ("Prolog=/site/prolog", "Prolog=/etc/slurm/prolog.d/*", "ln -s /site/prolog /etc/slurm/prolog.d/10-site"),
    ("Epilog=/etc/slurm/epilog.d/*.sh", "Epilog=/etc/slurm/epilog.d/*", "runs everything there"),
    ("taskprolog = /site/task # ours", f"TaskProlog={HOOKS[2]}", 'hooks.site_task_prolog = "/site/task"'),
    ("HealthCheckProgram=/usr/sbin/nhc", "HealthCheckProgram=/usr/sbin/nhc", "is yours and stays"),
    ("PrologFlags=NoHold", "PrologFlags=NoHold,Alloc", ""),
    ("PrologFlags=Contain,X11", "PrologFlags=Contain,X11", ""),
    (
        "SchedulerParameters=bf_window=2880,\\\nbf_continue",
        "SchedulerParameters=bf_window=2880,bf_continue,nohold_on_prolog_fail",
        "",
    ),
    ("PrologEpilogTimeout=60", "PrologEpilogTimeout=60", ""),
    ("PropagateResourceLimits=NONE", "PropagateResourceLimits=NONE", ""),
    ("PropagateResourceLimitsExcept=CORE", "PropagateResourceLimitsExcept=CORE,MEMLOCK", ""),
]


@pytest.mark.parametrize(("line", "becomes", "reported"), CHOSEN)
def test_what_the_site_chose_is_kept_added_to_or_told(line: str, becomes: str, reported: str) -> None:
    made = amended(f"{line}\n{BARE}")
    assert made.text.splitlines()[0] == becomes, made.text
    assert reported in "\n".join(made.notes) and bool(reported) is bool(made.notes)
    assert all(len(re.findall(rf"(?mi)^{key}\s*=", made.text)) <= 1 for key in FULL)


def test_a_key_of_an_included_file_or_of_a_crowded_line_is_told_not_doubled() -> None:
    made = amended(f"Include site.conf\n{BARE}", site="SchedulerParameters=bf_continue\n")
    assert "SchedulerParameters" not in made.text
    assert made.notes == ("SchedulerParameters is set in a file that /etc/slurm/slurm.conf includes: "
                          "make it SchedulerParameters=bf_continue,nohold_on_prolog_fail there",)  # fmt: skip
    made = amended(f"PrologFlags=NoHold JobRequeue=1\n{BARE}")
    assert made.notes == ("PrologFlags is on a line with other keys: make it PrologFlags=NoHold,Alloc there",)


def test_pyxis_leaves_the_task_prolog_to_a_person() -> None:
    made = amended(BARE, pyxis=True)
    assert "TaskProlog" not in values(made.text) and "containers.md" in made.notes[0]


def test_the_command_prints_a_patch_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"Prolog=/site/prolog\n{BARE}")
    before = conf.stat()
    assert main(["doctor", "--diff", "--slurm-conf", str(conf)]) == 0
    reported = capsys.readouterr()
    assert (conf.stat().st_mtime_ns, conf.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert "note: Prolog: yours goes beside ours" in reported.err
    subprocess.run(["patch", "-s", str(conf)], input=reported.out, text=True, check=True, cwd=tmp_path)
    assert main(["doctor", "--diff", "--slurm-conf", str(conf)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: real Slurm runs in namespaces")
@pytest.mark.parametrize("suite", list(roots.SUITES))
def test_slurmctld_takes_every_line(suite: str) -> None:
    with Cluster(suite, nodes=1) as cluster:
        conf = cluster.folder / "etc/slurm.conf"
        text = conf.read_text()
        made = amend(text, parse(str(conf), lambda path: text if path == str(conf) else None))
        cluster.stop_slurmctld()
        conf.write_text(made.text)
        cluster.start_slurmctld()
        shown = dict(re.findall(r"(?m)^(\w+)(?:\[0\])?\s*= (.*?)\s*$", cluster.scontrol("show", "config")))
        for key, value in values(made.text).items():
            said = {k.lower(): v for k, v in shown.items()}.get(key, "")
            if key in {k.lower() for k in FULL}:
                assert set(value.lower().split(",")) <= set(re.split(r",| sec", said.lower())) or value in said, (
                    key,
                    value,
                    said,
                )
        errors = [
            x
            for x in cluster.logs().splitlines()
            if re.search(r"error:.*(pars|unknown|unrecogni|invalid|obsolete|deprecat)", x, re.I)
        ]
        assert not errors
