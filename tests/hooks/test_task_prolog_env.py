"""The environment that the task prolog prints, whatever the user, the site and srun have put there."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.jobenv.environment_text import NOTICE, published, render, value_mark
from fairlead.jobenv.variable_table import ROWS
from tests.hooks.stage import HOOKS, SHELLS, Ran, Stage
from tests.hooks.steps import JOB, STEP, exports, lay_out, run, step, table

pytestmark = pytest.mark.root
BATCH = {**JOB, "SLURM_JOB_GPUS": "0,1"}


def test_environment_of_a_batch_step(stage: Stage, shell: str) -> None:
    lay_out(stage)
    ran = run(stage, shell, {**JOB, "SLURM_JOB_GPUS": "0,1"})
    assert exports(ran).keys() == {
        "CUDA_DEVICE_ORDER",
        "NCCL_DEBUG",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "FAIRLEAD_SET",
    }
    assert ran.out.count("\n") == 5


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu[001-004,7]", "gpu001"),
        ("n1,n2", "n1"),
        ("r[2-3]n[07,09-11]x,z", "r2n07x"),
        ("a-b.c-1", "a-b.c-1"),
        ("n[1-", None),
        ("$(id)[1-2]", None),
        ("", None),
    ],
)
def test_rendezvous(stage: Stage, shell: str, nodelist: str, host: str | None) -> None:
    lay_out(stage)
    env = {
        **STEP,
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_ID": "3",
    }
    said = exports(run(stage, shell, env))
    assert said.get("MASTER_ADDR") == host
    assert said["MASTER_PORT"] == str(20000 + (4711 + 131 * 4) % 12750)
    het = exports(run(stage, shell, {**env, "SLURM_HET_SIZE": "2"}))
    assert not {"MASTER_ADDR", "MASTER_PORT"} & het.keys()


ANNOUNCED = f"print {NOTICE}\n"
WITH_NOTICE = render((), extra={"OURS": "1"}, notice=True)


@pytest.mark.parametrize(
    ("env", "announced"),
    [
        (BATCH, True),
        ({**BATCH, "FAIRLEAD_SKIP": "CPUS"}, True),
        (STEP, False),
        ({**BATCH, "OURS": "mine"}, False),
        ({**BATCH, "FAIRLEAD_SKIP": "OURS"}, False),
        ({**BATCH, "FAIRLEAD_PROFILE": "off"}, False),
        ({**BATCH, "FAIRLEAD_PROFILE": "minimal"}, False),
        ({**BATCH, "fl_notice": "evil"}, True),
    ],
)
def test_a_user_is_told_once_in_the_batch_step_that_something_was_set(
    stage: Stage, shell: str, env: dict[str, str], announced: bool
) -> None:
    lay_out(stage)
    (stage.run / "env").write_text(WITH_NOTICE)
    said = run(stage, shell, env).out
    assert said.count(ANNOUNCED) == announced and said.count("print ") == announced


@pytest.mark.parametrize("text", [WITH_NOTICE.partition("fl_notice")[0], WITH_NOTICE[:-20], WITH_NOTICE.replace(".'", "'", 1)])
def test_a_file_without_the_notice_or_cut_off_tells_nothing(stage: Stage, shell: str, text: str) -> None:
    lay_out(stage)
    (stage.run / "env").write_text(text)
    said = run(stage, shell, {**BATCH, "fl_notice": "evil"}).out
    assert "print " not in said


def test_the_page_shows_the_notice_as_it_is_printed() -> None:
    assert NOTICE in (HOOKS.parent / "docs/how-to/job-environment.md").read_text().splitlines()


def test_the_notice_changes_no_row() -> None:
    assert published(render(notice=True), ROWS) == published(render(), ROWS) == ROWS
    assert render() in render(notice=True), "a task prolog of an older release reads the same rows"
    assert published(render(notice=True)[:-5], ROWS) == ()


def test_the_user_wins(stage: Stage, shell: str) -> None:
    lay_out(stage)
    assert run(stage, shell, {**JOB, "NCCL_DEBUG": "INFO", "CUDA_DEVICE_ORDER": ""}).out == ""


def test_what_srun_carried_over_is_worked_out_anew(stage: Stage, shell: str) -> None:
    lay_out(stage)
    two = {"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    batch = exports(run(stage, shell, {**JOB, **two}))
    assert batch["MASTER_ADDR"] == "n1"
    other = {**STEP, **batch, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[2-3]"}
    said = exports(run(stage, shell, other))
    assert said["MASTER_ADDR"] == "n2"
    assert "NCCL_DEBUG" not in said  # ours, and still right
    # One task: no rendezvous, and ours from the batch step goes.
    alone = run(stage, shell, {**STEP, **batch, "SLURM_STEP_NUM_TASKS": "1"})
    assert "unset MASTER_ADDR\n" in alone.out
    # Changed by the user, or taken away: the user's, also one step further down.
    changed = {**other, "MASTER_ADDR": "mine"}
    del changed["NCCL_DEBUG"]
    said = exports(run(stage, shell, changed))
    assert not {"MASTER_ADDR", "NCCL_DEBUG"} & said.keys()
    assert "FAIRLEAD_SET" not in said or "NCCL_DEBUG:" in said["FAIRLEAD_SET"]


@pytest.mark.parametrize(
    "value",
    ["", "x", "NCCL_DEBUG", "NCCL_DEBUG:0", "NCCL_DEBUG:=WARN", "$(id)", "||::=|", "*|?", ",,::,", "NCCL_DEBUG:" + "9" * 500],
)
def test_hostile_fairlead_set(stage: Stage, shell: str, value: str) -> None:
    lay_out(stage)
    ran = run(stage, shell, {**JOB, "FAIRLEAD_SET": value, "NCCL_DEBUG": "mine"})
    assert ran.rc == 0
    assert "NCCL_DEBUG" not in exports(ran)


def test_skip_and_minimal(stage: Stage, shell: str) -> None:
    lay_out(stage)
    assert "NCCL_DEBUG" not in exports(run(stage, shell, {**JOB, "FAIRLEAD_SKIP": "PATH,NCCL_DEBUG"}))
    assert exports(run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "minimal"})).keys() == {"CUDA_DEVICE_ORDER", "FAIRLEAD_SET"}


THREADS = table("OMP_NUM_THREADS\talways\t3\tfull", "MKL_NUM_THREADS\talways!OMP_NUM_THREADS\t3\tfull")
NETWORK = table("NCCL_NET\tnodes!NCCL_NET_PLUGIN\tIB\tfull", "NCCL_IB_TIMEOUT\tnodes:4\t22\tfull", "A_GPU\tgpu\t1\tfull")


def test_a_variable_gives_way_where_the_user_says_the_same_by_another(stage: Stage, shell: str) -> None:
    lay_out(stage)
    (stage.run / "env").write_text(THREADS)
    both = exports(run(stage, shell, JOB))
    assert both.keys() == {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "FAIRLEAD_SET"}
    assert run(stage, shell, {**JOB, "OMP_NUM_THREADS": "1"}).out == ""
    assert run(stage, shell, {**STEP, **both}).out == ""  # ours, and still right
    # Changed by the user in the batch script: what we had derived from it goes.
    said = run(stage, shell, {**STEP, **both, "OMP_NUM_THREADS": "1"}).out
    assert "unset MKL_NUM_THREADS\n" in said and "export MKL" not in said and "export OMP" not in said
    (stage.run / "env").write_text(table("MKL_NUM_THREADS\talways!OTHER_ONE\t3\tfull"))
    assert exports(run(stage, shell, JOB)).keys() == {"MKL_NUM_THREADS", "FAIRLEAD_SET"}
    assert run(stage, shell, {**JOB, "OTHER_ONE": ""}).out == ""


@pytest.mark.parametrize("condition", ["always!", "always!a", "always!A;id", "always!$(id)", "nodes:x", "nodes:", "sometimes"])
def test_conditions_that_are_none(stage: Stage, shell: str, condition: str) -> None:
    lay_out(stage)
    (stage.run / "env").write_text(table(f"NCCL_DEBUG\t{condition}\tWARN\tfull"))
    ran = run(stage, shell, {**JOB, "SLURM_JOB_NUM_NODES": "9"})
    assert (ran.rc, ran.out) == (0, "")


@pytest.mark.parametrize(
    ("nodes", "more", "names"),
    [
        ("1", {}, set()),
        ("2", {}, {"NCCL_NET"}),
        ("4", {}, {"NCCL_NET", "NCCL_IB_TIMEOUT"}),
        ("4", {"NCCL_NET_PLUGIN": "none"}, {"NCCL_IB_TIMEOUT"}),
        ("4", {"NCCL_NET": "gIB", "SLURM_JOB_GPUS": "0"}, {"NCCL_IB_TIMEOUT", "A_GPU"}),
        ("4a", {}, set()),
    ],
)
def test_values_of_the_fabric(stage: Stage, shell: str, nodes: str, more: dict[str, str], names: set[str]) -> None:
    lay_out(stage)
    (stage.run / "env").write_text(NETWORK)
    assert exports(run(stage, shell, {**JOB, "SLURM_JOB_NUM_NODES": nodes, **more})).keys() - {"FAIRLEAD_SET"} == names


def test_rule_7_no_task_gets_an_adapter_of_its_own(stage: Stage, shell: str) -> None:
    """Of tests/nccl/test_rules.py: NCCL pairs ranks and adapters itself. What is set for one task is set for all of its step."""
    lay_out(stage)
    (stage.run / "env").write_text(NETWORK)
    tasks = [run(stage, shell, step(4194000, local, SLURM_STEP_NUM_NODES="4", SLURM_PROCID=str(local))) for local in (0, 1)]
    assert tasks[0].out == tasks[1].out
    assert {"NCCL_NET", "NCCL_IB_TIMEOUT"} <= exports(tasks[0]).keys()
    assert not {row.name for row in ROWS} & {"NCCL_IB_HCA", "UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME"}


def test_presets(stage: Stage, shell: str) -> None:
    lay_out(stage)
    (stage.run / "presets").mkdir()
    (stage.run / "presets/deep-1").write_text(table("OURS\talways\tyes\tfull"))
    assert exports(run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "deep-1"})).keys() == {"OURS", "FAIRLEAD_SET"}
    stage.hooks_line(profile="off")
    assert exports(run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "deep-1"})).keys() == {"OURS", "FAIRLEAD_SET"}
    for wrong in ("deep", "../env", "DEEP-1", "deep-1 ", "x" * 5000, "."):
        ran = run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": wrong})
        assert ran.rc == 0 and ran.out.startswith("print fairlead: FAIRLEAD_PROFILE") and ran.out.count("\n") == 1


def test_ports_of_steps_and_the_batch_step_differ(stage: Stage, shell: str) -> None:
    lay_out(stage)
    two = {"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
    envs = [{**JOB, **two}, *({**STEP, **two, "SLURM_STEP_ID": str(i)} for i in (0, 1, 96, 97, 12748))]
    ports = [int(exports(run(stage, shell, env))["MASTER_PORT"]) for env in envs]
    assert len(set(ports)) == len(ports) and min(ports) >= 20000 and max(ports) < 32768
    anywhere = exports(run(stage, shell, {**envs[1], "SLURM_DISTRIBUTION": "arbitrary"}))
    assert "MASTER_ADDR" not in anywhere and "MASTER_PORT" in anywhere


@pytest.mark.parametrize("wish", [{"FAIRLEAD_PROFILE": "fast"}, {"FAIRLEAD_SKIP": "A;B"}, {"FAIRLEAD_SKIP": "$(id)"}])
def test_malformed_wishes_mean_off_and_one_warning(stage: Stage, shell: str, wish: dict[str, str]) -> None:
    lay_out(stage)
    ran = run(stage, shell, {**JOB, **wish})
    assert ran.rc == 0
    assert ran.out.startswith("print fairlead: FAIRLEAD_")
    assert ran.out.count("\n") == 1
    assert run(stage, shell, {**STEP, **wish}).out == ""


def test_off_by_comment_and_by_the_site(stage: Stage, shell: str) -> None:
    lay_out(stage)
    record = stage.run / "jobs/4711"
    record.write_text("1\trunning\t65534\t0,1\t100\t-\toff\t.\n")
    assert run(stage, shell, JOB).out == ""
    record.write_text("1\trunning\t65534\t0,1\t100\t-\toff")  # incomplete: ignored
    assert exports(run(stage, shell, JOB))
    record.unlink()
    stage.hooks_line(profile="off")
    assert run(stage, shell, JOB).out == ""
    assert exports(run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "full"}))
    (stage.etc / "disabled").touch()
    assert run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "full"}).out == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fl_rows='",
        "fl_rows='\n",
        "fl_rows='\nNCCL_DEBUG\talways\tWARN\tfull\t1\n",
        "fl_rows='\nNCCL_DEBUG\talways\tWARN\tfull\t1\nCUDA_DEVICE_ORDER\talways\tPCI_BUS_ID\tmin",
        "fl_rows='\nNCCL_DEBUG\talways\tWARN\tfull\t1\n'\n",
        "fl_rows='\nNCCL_DEBUG\talways\tWARN\tfull\n.'\n",
        "fl_rows='\nNCCL_DEBUG\talways\tWARN\tfull\t1\nBAD NAME\talways\tx\tfull\t1\n.'\n",
        "fl_rows='\n.'\n)(\n",
        "NCCL_DEBUG\talways\tWARN\tfull\n.\n",  # of an older release
        "export NCCL_DEBUG=WARN\n",
    ],
)
def test_all_lines_or_none(stage: Stage, shell: str, text: str) -> None:
    lay_out(stage)
    (stage.run / "env").write_text(text)
    assert run(stage, shell, JOB) == Ran(0, "", "")


def test_no_table(stage: Stage, shell: str) -> None:
    lay_out(stage)
    (stage.run / "env").unlink()
    assert (run(stage, shell, JOB).rc, run(stage, shell, JOB).out) == (0, "")


def test_nothing_installed(stage: Stage, shell: str) -> None:
    stage.inside("rm", "-rf", "/run/fairlead", "/etc/fairlead")
    assert run(stage, shell, {**STEP, "SLURM_STEP_GPUS": "0,1"}) == Ran(0, "", "")


@pytest.mark.parametrize("disabled", [False, True])
def test_the_sites_own_task_prolog(stage: Stage, shell: str, disabled: bool) -> None:
    site = stage.run / "site"
    site.write_text('#!/bin/sh\nprintf "export NCCL_DEBUG=TRACE\\nprint hello x3\\nexport A=$USERS"\nexit ${SITE_STATUS:-0}\n')
    site.chmod(0o755)
    lay_out(stage, site="/run/fairlead/site")
    if disabled:
        (stage.etc / "disabled").touch()
    ran = run(stage, shell, {**JOB, "USERS": "value"})
    assert ran.rc == 0
    assert ran.out.startswith("export NCCL_DEBUG=TRACE\nprint hello x3\nexport A=value")
    assert ran.out.count("NCCL_DEBUG=") == 1
    assert ("export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in ran.out) is not disabled
    failed = run(stage, shell, {**JOB, "SITE_STATUS": "7"})
    assert failed.rc == 7
    assert failed.out.startswith("export NCCL_DEBUG=TRACE\nprint hello x3\n")
    assert "CUDA_DEVICE_ORDER" not in failed.out
    site.unlink()
    assert run(stage, shell, JOB).rc == 0


def test_no_fork_where_nothing_is_bound(stage: Stage, shell: str) -> None:
    lay_out(stage)
    env = {**JOB, "SLURM_JOB_GPUS": "0,1", "SLURM_NTASKS": "4"}
    expected = stage.start(shell, "task-prolog", env)
    assert exports(expected)
    assert stage.start(shell, "task-prolog", env, no_fork=True) == expected


def test_what_fairlead_set_says_of_a_value(stage: Stage, shell: str) -> None:
    """The value itself; a number where the value cannot stand there, which the table gives."""
    lay_out(stage)
    plain = "".join(c for c in map(chr, range(0x21, 0x7F)) if c.isalnum() or c in "_:./@,=^%#~+-")
    (stage.run / "env").write_text(table(f"NCCL_DEBUG\talways\t{plain}\tfull"))
    said = exports(run(stage, shell, JOB))
    assert said == {"NCCL_DEBUG": plain, "FAIRLEAD_SET": f"NCCL_DEBUG:{value_mark(plain)}"} and value_mark(plain) == f"={plain}"
    assert exports(run(stage, shell, {**JOB, **said})) == {}, "nothing is new"
    odd = "".join(map(chr, range(0x21, 0x7F)))
    (stage.run / "env").write_text(render((), extra={"OURS": odd, "LONG": "'" * 201}))
    said = exports(run(stage, shell, JOB))
    assert said == {"OURS": odd, "LONG": "'" * 201, "FAIRLEAD_SET": f"OURS:{value_mark(odd)}|LONG:{value_mark(chr(39) * 201)}"}
    assert exports(run(stage, shell, {**JOB, **said})) == {}
    assert set(exports(run(stage, shell, {**JOB, **said, "OURS": "mine"}))) == set(), "the user's"
    assert published((stage.run / "env").read_text(), ())[0].value == odd


NASTY = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF, exclude_categories=["Cs"]), max_size=24)
NAMES = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_LOCALID",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_STEP_GPUS",
    "SLURM_GTIDS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "CUDA_VISIBLE_DEVICES",
    "FAIRLEAD_SET",
    "FAIRLEAD_SKIP",
    "FAIRLEAD_PROFILE",
    "NCCL_DEBUG",
    "IFS",
    "PATH",
    "ENV",
    "fl_site",
    "fl_lines",
]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(env=st.dictionaries(st.sampled_from(NAMES), NASTY, max_size=6), shell=st.sampled_from(list(SHELLS)))
def test_hostile_environments(stage: Stage, env: dict[str, str], shell: str) -> None:
    """Whatever the user's environment holds: status 0, and nothing printed but our own lines. The pid is never a real one."""
    if not (stage.run / "env").exists():
        lay_out(stage, python="/nonexistent")
    ran = run(stage, shell, {**step(4194001, 0), **env})
    assert ran.rc == 0
    for line in ran.out.splitlines():
        assert line.startswith(("export ", "unset ", "print fairlead: ")), line
        assert "uid=" not in line


def test_hook_files_are_executable() -> None:
    for name in ("prolog", "epilog", "health-check", "task-prolog"):
        assert (HOOKS / name).stat().st_mode & 0o777 == 0o755
        assert (HOOKS / name).read_text().startswith("#!/bin/sh\n")


@pytest.mark.parametrize("options", ["errexit", "nounset", "errexit:nounset:pipefail", "noglob", "noclobber"])
def test_shell_options_of_the_users_do_not_fail_the_task(stage: Stage, shell: str, options: str) -> None:
    """`set -eu; export SHELLOPTS` in a job script: bash, which is sh on many systems, takes them up in every script."""
    lay_out(stage)
    want = run(stage, shell, BATCH)
    for env in (BATCH, step(4194000, 0), {}):
        ran = run(stage, shell, {**env, "SHELLOPTS": options})
        assert ran.rc == 0, (env, ran.err)
        if env is BATCH:
            assert ran.out == want.out


HIJACK = "() {  echo 'export PWNED=1'; return 1; }"
SHELL_INPUT = [
    *({f"BASH_FUNC_{name}%%": HIJACK} for name in ("read", "printf", "command", "umask", "wait", "kill", "test", "true")),
    *(
        {f"BASH_FUNC_{name}%%": HIJACK}
        for name in ("[", "set", "unset", "exit", "trap", "fl_number", "fl_environment", "/bin/sleep")
    ),
    *({"OPTIND": value} for value in ("1", "7", "0")),
    {"ENV": "/run/fairlead/pwn", "BASH_ENV": "/run/fairlead/pwn"},
    {"IFS": "/=ex"},
    {"PS4": "$(echo 'export PWNED=1')", "SHELLOPTS": "braceexpand:hashall:xtrace"},
    {"POSIXLY_CORRECT": "1"},
    {"CDPATH": "/run", "PWD": "/nowhere", "OLDPWD": "x", "HOME": "/proc/self/mem"},
    {"BASHOPTS": "nocasematch:extglob:failglob", "BASH_COMPAT": "4.2"},
    {"SHELLOPTS": "history:histexpand"},
    {"SHELLOPTS": "xtrace", "BASH_XTRACEFD": "2", "PS4": "export PWNED=1 "},
    *({"BASH_COMPAT": value} for value in ("3.1", "4.4", "x")),
    *({name: value} for name in ("FUNCNEST", "TMOUT", "CHILD_MAX") for value in ("1", "x")),
    {"EXECIGNORE": "*", "GLOBIGNORE": "*", "FIGNORE": "x", "BASH_LOADABLES_PATH": "/run/fairlead", "IGNOREEOF": "0"},
    {"LC_ALL": "tr_TR.UTF-8", "LANG": "xx", "LOCPATH": "/run/fairlead"},
    {"PATH": "", "LINENO": "x", "PPID": "1", "_": "x", "OPTARG": "x", "HISTSIZE": "x", "TERM": "x", "MAIL": "x", "TMOUT": "1"},
]


@pytest.fixture
def bash_as_sh(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name is what makes bash behave as sh: started as `bash --posix` it takes up other things."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "sh").symlink_to("/bin/bash")
        monkeypatch.setitem(SHELLS, "bash as sh", (f"{folder}/sh",))
        yield "bash as sh"


@pytest.mark.usefixtures("bash_as_sh")
@pytest.mark.parametrize("more", SHELL_INPUT, ids=lambda more: ",".join(more))
@pytest.mark.parametrize("installed", ["dash", "bash as sh", "busybox"])  # what can be /bin/sh
def test_what_a_shell_takes_from_the_environment_changes_nothing(stage: Stage, installed: str, more: dict[str, str]) -> None:
    lay_out(stage)
    (stage.run / "pwn").write_text("echo 'export PWNED=1'; exit 1\n")
    for known in (BATCH, step(4194000, 0)):
        want, ran = run(stage, installed, known), run(stage, installed, {**known, **more})
        assert (ran.rc, ran.out) == (0, want.out), ran.err


def options_of_bash(builtin: str) -> list[str]:
    return subprocess.run(["bash", "-c", builtin], capture_output=True, text=True, check=False).stdout.split()[::2]


#: bash reads no line of a script with the first, and one line with the second: nothing is set or bound.
BEFORE_ANY_LINE = ["noexec", "onecmd"]


def test_no_option_of_bash_changes_anything(stage: Stage, bash_as_sh: str) -> None:
    """All that this bash knows, each alone, as a job can export them."""
    lay_out(stage)
    for known in (BATCH, step(4194000, 0), {**BATCH, "FAIRLEAD_PROFILE": "FULL"}):
        want = run(stage, bash_as_sh, known).out
        for variable, builtin in (("BASHOPTS", "shopt"), ("SHELLOPTS", "set -o")):
            options = options_of_bash(builtin)
            assert len(options) > 20
            for option in options:
                ran = run(stage, bash_as_sh, {**known, variable: option})
                assert (ran.rc, ran.out) == (0, "" if option in BEFORE_ANY_LINE else want), (option, ran.err)


@pytest.mark.parametrize("installed", ["bash-posix", "busybox"])
def test_an_optind_that_is_no_number(stage: Stage, installed: str) -> None:
    """dash ends with 2 before it reads a line of any script, so its user's task ends: nothing in a script can change that."""
    lay_out(stage)
    assert run(stage, installed, {**BATCH, "OPTIND": "x"}).out == run(stage, installed, BATCH).out
    assert run(stage, "dash", {**BATCH, "OPTIND": "x"}).rc == 2, "dash has learnt it: slurm/README.md and this say otherwise"
