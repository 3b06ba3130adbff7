"""The prolog under every shell and every state of its files: it exits 1 for a well-formed drain, and for nothing else
unless the site says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.errors import DataError
from fairlead.host import job_records
from fairlead.model.verdict import State, Verdict, parse_line
from tests.hooks.stage import HOOKS, SHELLS, Stage, uptime_seconds

pytestmark = pytest.mark.root
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0,1"}
LATER = 1 << 40


def line(state: str = "ok", expires: int | str = LATER, sequence: int | str = 7, text: str = "-") -> str:
    return f"1\t{state}\t{expires}\t{sequence}\t{text}\n"


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "newline": b"\n",
    "no newline": line("drain").encode()[:-1],
    "truncated": line("drain", text="GPU is lost").encode()[:9],
    "version": line("drain").replace("1", "2", 1).encode(),
    "four fields": b"1\tdrain\t99999999\t7\n",
    "six fields": b"1\tdrain\t99999999\t7\ttext\tmore\n",
    "empty field": b"1\tdrain\t\t7\ttext\n",
    "leading tab": b"\t1\tdrain\t99999999\t7\ttext\n",
    "trailing tab": b"1\tdrain\t99999999\t7\ttext\t\n",
    "spaces": b"1 drain 99999999 7 text\n",
    "state": line("DRAIN").encode(),
    "hex": line("drain", expires="0x10").encode(),
    "negative": line("drain", expires="-1").encode(),
    "too large": line("drain", expires="9" * 40).encode(),
    "sequence": line("drain", sequence="$(id)").encode(),
    "arithmetic": line("drain", expires="a[$(id)]").encode(),
    "binary": bytes(range(1, 10)) + bytes(range(11, 256)) + b"\n",
    "huge": b"1\tdrain\t" + b"9" * 200_000 + b"\n",
}


def test_ok_starts_and_records_the_job(stage: Stage, shell: str) -> None:
    stage.verdict(line("ok"))
    before = uptime_seconds()
    ran = stage.start(shell, "prolog", JOB)
    assert (ran.rc, ran.out, ran.err) == (0, "", "")
    version, state, uid, gpus, start, end, flags, mark = stage.job(4711)
    assert (version, state, uid, gpus, end, flags, mark) == ("1", "running", "1000", "0,1", "-", "-", ".")
    assert before <= float(start) <= uptime_seconds() + 1
    assert (stage.run / "jobs/4711").stat().st_mode & 0o777 == 0o644
    assert not (stage.run / "prolog.log").exists()


@pytest.mark.parametrize("sluid", ["s3JXM823B87S00", "a" * 32, "", "a" * 33, "s3 JX", "../4711", "s3\t.\tx", "é", "s*"])
def test_the_name_of_the_jobs_control_group_is_kept(stage: Stage, shell: str, sluid: str) -> None:
    """Slurm 26.05's SLURM_JOB_SLUID, behind the terminator: also in an ended record, and by the epilog alone."""
    stage.verdict(line("ok"))
    kept = [sluid, "."] if sluid.isascii() and sluid.isalnum() and len(sluid) <= 32 else []
    stage.start(shell, "prolog", {**JOB, "SLURM_JOB_SLUID": sluid})
    assert stage.job(4711)[7:] == [".", *kept]
    assert stage.start(shell, "epilog", JOB).rc == 0
    assert (stage.job(4711)[1], stage.job(4711)[7:]) == ("ended", [".", *kept])
    (stage.run / "jobs/4711").unlink()
    assert stage.start(shell, "epilog", {**JOB, "SLURM_JOB_SLUID": sluid}).rc == 0
    assert (stage.job(4711)[1], stage.job(4711)[7:]) == ("ended", [".", *kept])


MIG = "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"


@pytest.mark.parametrize(
    ("visible", "sluid", "kept"),
    [
        (MIG, "", ["-", MIG, "."]),
        (f"{MIG},7", "s3JXM823B87S00", ["s3JXM823B87S00", f"{MIG},7", "."]),
        ("MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/9/0", "", ["-", "MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/9/0", "."]),
        ("0,1", "", []),
        ("GPU-5c89852c", "s3JX", ["s3JX", "GPU-5c89852c", "."]),
        (f"{MIG}\t.", "", []),
        (f"{MIG} $(id)", "s3JX", ["s3JX", "."]),
        ("MIG-é", "", []),
        (",".join([MIG] * 56), "", ["-", ",".join([MIG] * 56), "."]),
        (",".join([MIG] * 100), "", ["-", "."]),
    ],
)
def test_the_mig_instances_of_the_job_are_kept(stage: Stage, shell: str, visible: str, sluid: str, kept: list[str]) -> None:
    """slurmd gives the prolog the UUIDs in CUDA_VISIBLE_DEVICES. The epilog keeps them, and so does fairlead's reader."""
    stage.verdict(line("ok"))
    stage.start(shell, "prolog", {**JOB, "CUDA_VISIBLE_DEVICES": visible, "SLURM_JOB_SLUID": sluid})
    assert stage.job(4711)[7:] == [".", *kept]
    assert stage.start(shell, "epilog", JOB).rc == 0
    assert (stage.job(4711)[1], stage.job(4711)[7:]) == ("ended", [".", *kept])
    (job,) = job_records.scan(str(stage.run / "jobs")).known
    assert job.names == (tuple(kept[1].split(",")) if len(kept) == 3 else ())
    assert job.sluid == sluid


def test_warn_starts(stage: Stage, shell: str) -> None:
    stage.verdict(line("warn", text="fairlead: held"))
    assert stage.start(shell, "prolog", JOB).rc == 0


@pytest.mark.parametrize("expires", [LATER, 1, "007"])
def test_drain_refuses_also_when_expired(stage: Stage, shell: str, expires: int | str) -> None:
    stage.verdict(line("drain", expires=expires, text="GPU 0000:1b:00.0 fell off the bus; $(id) `id` %s \\n"))
    ran = stage.start(shell, "prolog", JOB)
    assert ran.rc == 1
    assert ran.err == ("fairlead: no job can start here: GPU 0000:1b:00.0 fell off the bus; $(id) `id` %s \\n (fairlead why)\n")
    assert stage.job(4711)[1] == "refused"
    assert (stage.run / "prolog.log").read_text().startswith("1\trefused\t4711\t")
    assert (stage.run / "prolog.log").read_text().endswith("\t.\n")


@pytest.mark.parametrize("on_stale", ["allow", "refuse", None, "REFUSE", ""])
@pytest.mark.parametrize("case", ["missing", "unknown", "expired ok", "expired warn", "malformed"])
def test_stale_is_the_sites_choice(stage: Stage, shell: str, on_stale: str | None, case: str) -> None:
    if on_stale is not None:
        stage.hooks_line(on_stale)
    if case != "missing":
        states = {
            "unknown": line("unknown"),
            "expired ok": line("ok", 1),
            "expired warn": line("warn", "010"),
            "malformed": "1\tok\n",
        }
        stage.verdict(states[case])
    ran = stage.start(shell, "prolog", JOB)
    assert ran.rc == (1 if on_stale == "refuse" else 0)
    assert stage.job(4711)[1] == ("refused" if on_stale == "refuse" else "running")
    if on_stale != "refuse":
        assert ran.err == ""
    word = "refused" if on_stale == "refuse" else "allowed"
    assert (stage.run / "prolog.log").read_text().startswith(f"1\t{word}\t4711\t")


@pytest.mark.parametrize(
    ("restarts", "starts"),
    [("0", False), ("2", False), ("3", True), ("12", True), ("", False), ("3x", False), ("-3", False), ("9" * 20, False)],
)
def test_a_job_that_was_restarted_three_times_drains_no_further_node_for_a_missing_verdict(
    stage: Stage, shell: str, restarts: str, starts: bool
) -> None:
    stage.hooks_line("refuse")
    ran = stage.start(shell, "prolog", {**JOB, "SLURM_JOB_RESTART_COUNT": restarts})
    assert ran.rc == (0 if starts else 1)
    assert stage.job(4711)[1] == ("running" if starts else "refused")
    told = (stage.run / "prolog.log").read_text()
    assert (f"restarted {restarts} times" in told) is starts


def test_a_drain_refuses_whatever_the_jobs_past(stage: Stage, shell: str) -> None:
    """It drains no node: that one is drained."""
    stage.verdict(line("drain"))
    assert stage.start(shell, "prolog", {**JOB, "SLURM_JOB_RESTART_COUNT": "9"}).rc == 1


def test_an_incomplete_hooks_line_means_the_default(stage: Stage, shell: str) -> None:
    (stage.etc / "hooks").write_text("1\trefuse\tfull\t-\t-")
    assert stage.start(shell, "prolog", JOB).rc == 0


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_verdict_lets_jobs_run(stage: Stage, shell: str, case: str) -> None:
    stage.verdict(MALFORMED[case])
    assert stage.start(shell, "prolog", JOB).rc == 0
    assert stage.job(4711)[1] == "running"


def test_verdict_is_a_folder(stage: Stage, shell: str) -> None:
    (stage.run / "verdict").mkdir()
    assert stage.start(shell, "prolog", JOB).rc == 0


def test_verdict_without_permission(stage: Stage, shell: str) -> None:
    stage.verdict(line("drain"))
    (stage.run / "verdict").chmod(0o000)
    assert stage.start(shell, "prolog", JOB, as_nobody=True).rc == 0


def test_no_run_folder(stage: Stage, shell: str) -> None:
    stage.inside("rm", "-rf", "/run/fairlead")
    ran = stage.start(shell, "prolog", JOB)
    assert (ran.rc, ran.out) == (0, "")


def test_run_is_a_file(stage: Stage, shell: str) -> None:
    stage.inside("rm", "-rf", "/run/fairlead")
    stage.inside("touch", "/run/fairlead")
    assert stage.start(shell, "prolog", JOB).rc == 0


@pytest.mark.parametrize("state", ["ok", "drain", "missing"])
def test_full_run(stage: Stage, shell: str, state: str) -> None:
    stage.inside("mount", "-t", "tmpfs", "-o", "size=4096,nr_inodes=20", "tmpfs", "/run/fairlead")
    try:
        stage.inside("sh", "-c", "mkdir /run/fairlead/jobs; head -c 5000 /dev/zero >/run/fairlead/jobs/1 2>/dev/null; true")
        if state != "missing":
            stage.inside("mount", "-t", "tmpfs", "tmpfs", "/mnt")
            stage.inside("sh", "-c", f"printf '1\\t{state}\\t{LATER}\\t1\\tx\\n' >/mnt/v; touch /run/fairlead/verdict")
            stage.inside("mount", "--bind", "/mnt/v", "/run/fairlead/verdict")
        assert stage.start(shell, "prolog", JOB).rc == (1 if state == "drain" else 0)
        assert stage.start(shell, "epilog", JOB).rc == 0
        assert stage.start(shell, "health-check").rc == 0
    finally:
        if state != "missing":
            stage.inside("umount", "/run/fairlead/verdict")
            stage.inside("umount", "/mnt")
        stage.inside("umount", "/run/fairlead")


@pytest.mark.parametrize("state", ["ok", "drain"])
def test_read_only_run(stage: Stage, shell: str, state: str) -> None:
    stage.verdict(line(state))
    stage.inside("mount", "--bind", "/run/fairlead", "/run/fairlead")
    stage.inside("mount", "-o", "remount,bind,ro", "/run/fairlead")
    try:
        assert stage.start(shell, "prolog", JOB).rc == (1 if state == "drain" else 0)
        assert stage.start(shell, "epilog", JOB).rc == 0
        assert stage.start(shell, "health-check").rc == 0
    finally:
        stage.inside("umount", "/run/fairlead")


@pytest.mark.parametrize("job_id", ["", "../../etc/x", "1;id", "$(id)", "1 2", "-1", "٣", "9" * 30, "1\n2"])
def test_hostile_job_id_leaves_no_record(stage: Stage, shell: str, job_id: str) -> None:
    stage.verdict(line("ok"))
    ran = stage.start(shell, "prolog", {**JOB, "SLURM_JOB_ID": job_id})
    assert (ran.rc, ran.out) == (0, "")
    assert list((stage.run / "jobs").iterdir()) == []
    assert sorted(p.name for p in stage.etc.iterdir()) == []
    assert stage.start(shell, "epilog", {**JOB, "SLURM_JOB_ID": job_id}).rc == 0
    assert list((stage.run / "jobs").iterdir()) == []


def test_of_the_comment_one_flag_is_kept(stage: Stage, shell: str) -> None:
    stage.verdict(line("ok"))
    comment = "$(touch /run/fairlead/x)`id`\t.\n1\trefused %s fairlead:off \\"
    stage.start(shell, "prolog", {**JOB, "SLURM_JOB_COMMENT": comment})
    text = (stage.run / "jobs/4711").read_text()
    assert text.count("\n") == 1
    assert stage.job(4711)[1:4] == ["running", "1000", "0,1"]
    assert stage.job(4711)[5:] == ["-", "off", "."]
    stage.start(shell, "prolog", {**JOB, "SLURM_JOB_COMMENT": "my run"})
    assert stage.job(4711)[6] == "-"


def test_hostile_uid_and_gpus_become_none(stage: Stage, shell: str) -> None:
    stage.verdict(line("ok"))
    stage.start(shell, "prolog", {**JOB, "SLURM_JOB_UID": "a\tb", "SLURM_JOB_GPUS": "0;\nid"})
    assert stage.job(4711)[2:4] == ["-", "-"]


def test_disabled_stops_the_hook(stage: Stage, shell: str) -> None:
    stage.hooks_line("refuse")
    stage.verdict(line("drain"))
    (stage.etc / "disabled").touch()
    assert stage.start(shell, "prolog", JOB).rc == 0
    assert stage.job(4711) == []


@pytest.mark.parametrize("hook", ["prolog", "epilog", "health-check"])
@pytest.mark.parametrize("state", ["ok", "drain", "missing"])
def test_no_fork(stage: Stage, shell: str, hook: str, state: str) -> None:
    """As a user who may have one process, where any fork fails: the answers are the same."""
    if state != "missing":
        stage.verdict(line(state))
    stage.hooks_line("allow")
    expected = stage.start(shell, hook, JOB)
    stage.inside("rm", "-f", "/run/fairlead/jobs/4711", "/run/fairlead/health", "/run/fairlead/prolog.log")
    stage.inside("chmod", "-R", "0777", "/run/fairlead")
    assert stage.start(shell, hook, JOB, no_fork=True) == expected


@pytest.mark.parametrize("shell", ["dash", "busybox"])  # bash tries again for 15 s
def test_the_fork_limit_bites(stage: Stage, shell: str) -> None:
    script = stage.run / "forks"
    script.write_text("x=$(true) && echo forked\n")
    assert "forked" not in stage.start(shell, "/run/fairlead/forks", no_fork=True).out


def test_shellcheck() -> None:
    hooks = [str(HOOKS / name) for name in ("prolog", "epilog", "health-check", "task-prolog") if (HOOKS / name).exists()]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("shellcheck")), "-s", "sh", *hooks],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


FIELD = st.one_of(
    st.sampled_from(["1", "2", "ok", "warn", "drain", "unknown", "-", "", "07", str(LATER), "x y"]),
    st.text(st.characters(exclude_characters="\x00\n", exclude_categories=["Cs"]), max_size=12),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(fields=st.lists(FIELD, min_size=1, max_size=7), end=st.sampled_from(["\n", "\n", ""]), shell=st.sampled_from(list(SHELLS)))
def test_it_refuses_only_for_a_well_formed_drain(stage: Stage, fields: list[str], end: str, shell: str) -> None:
    text = "\t".join(fields) + end
    stage.verdict(text)
    ran = stage.start(shell, "prolog", JOB)
    try:
        parsed: Verdict | None = parse_line(text)
    except DataError:
        parsed = None
    if ran.rc:
        assert ran.rc == 1
        assert parsed is not None
        assert parsed.state is State.DRAIN
        assert parsed.text in ran.err


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    state=st.sampled_from(list(State)),
    expires=st.integers(0, 10**15 - 1),
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    shell=st.sampled_from(list(SHELLS)),
)
def test_it_agrees_with_what_the_agent_writes(stage: Stage, state: State, expires: int, text: str, shell: str) -> None:
    stage.hooks_line("refuse")
    now = uptime_seconds()
    stage.verdict(Verdict(state=state, expires=expires, sequence=1, text=text).to_line())
    rc = stage.start(shell, "prolog", JOB).rc
    if abs(expires - now) > 60:
        assert rc == (0 if state in {State.OK, State.WARN} and expires > now else 1)
