"""Each --json has a schema, and what each reading command prints on real inputs is as its schema says.

The other tests hold what they print too (tests/printed_json.py).
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from fairlead import config
from fairlead.cli import COMMANDS, json_schema, main
from fairlead.errors import ExitCode
from fairlead.jobs.job_run import SACCT_COLUMNS
from tests import printed_json
from tests.cli.test_hint_checkpoint import row
from tests.cli.test_job_nodes import folder_of, store_of
from tests.cli.test_usage import AFTER, BEFORE, DAYS, add_job
from tests.fleet.made_records import BEGIN, DAY, PCI, drained, record, resumed
from tests.fleet.recorded import write_folder
from tests.fleet.simulated_year import Planted, year
from tests.fleet.test_rma_sheet import DETAILS, XID
from tests.fleet.test_rma_sheet import folder as cards
from tests.jobs.few_columns import COLUMNS
from tests.lab.trees import MACHINES
from tests.nccl.test_recorded_comparison import text
from tests.topology.fabrics import rails

WITH_JSON = json_schema.with_json()
TREE, H100 = str(MACHINES / "l40s-pcie"), str(MACHINES / "hgx-h100.xid79")
DOCUMENT = ("--document", "good.json")
SITE = """
schema = 1
[classes.a]
nodes = "n[1-2]"
profile = "l40s-pcie"
[partitions.gpu]
classes = ["a"]
"""
PERIODS = [f"{day}/{day + timedelta(days=DAYS)}" for day in (BEFORE, AFTER)]

#: Command lines that need no root and no Slurm. In the folder are good inputs.
COMMAND_LINES: tuple[tuple[str, ...], ...] = (
    ("check", "--root", TREE, "--profile", "l40s-pcie"),
    ("check", "--root", H100, "--profile", "hgx-h100"),
    ("status", "--run-dir", "run"),
    ("why", "--no-slurm", "--run-dir", "run", "--state-dir", "state"),
    ("explain", "list"),
    ("explain", "xid", "79"),
    ("explain", "xid", "145"),
    ("explain", "xid", "154", *DOCUMENT),
    ("explain", "sxid", "12028"),
    ("explain", "xid"),
    ("explain", "gpu_count"),
    ("explain", "sysctl"),
    ("xid", "decode", "log"),
    ("lint", "job.sh"),
    ("nccl", "parse", "nccl.txt"),
    ("nccl", "compare", "nccl.txt", "nccl.txt"),
    ("nccl", "conf", "--root", TREE, "--profile", "l40s-pcie"),
    ("nccl", "key", "--root", TREE),
    ("nccl", "use", "none.json"),
    ("replay", "log"),
    ("replay", "log", "--against", "good.json"),
    ("topology", "--root", TREE),
    ("topology", "--root", H100),
    ("bind", "--root", TREE, "--tasks", "2"),
    ("run",),
    ("slurm-config", "gres", TREE),
    ("slurm-config", "nodes", TREE),
    ("slurm-config", "partitions", "--site", "site.toml"),
    ("slurm-config", "topology", "--ibnetdiscover", "fabric"),
    ("snapshot", "--root", TREE, "taken"),
    ("apply", "--root", TREE, "--dry-run", *DOCUMENT),
    ("apply", "--root", "tree", "--undo", "--dry-run", *DOCUMENT),
    ("plan", "--root", TREE, "--profile", "l40s-pcie"),
    ("render", "--site", "site.toml", "--output", "out", "--dry-run"),
    ("bundle", "--site", "site.toml", "--dry-run"),
    ("dashboards", "--list"),
    ("dashboards", "--write", ".", "--dry-run"),
    ("collect", "--from", "jobs"),
    ("job", "17", "--store", "store"),
    ("job", "17", "--nodes", "--store", "store"),
    ("usage", PERIODS[0], "--from", "usage", "--by", "account"),
    ("usage", "--compare", *PERIODS, "--from", "usage"),
    ("usage", "--compare", "2025-01", "2025-05", "--from", "usage"),
    ("report", "2026-Q3", "--from", "fleet"),
    ("idle", "observe", "--from", "usage", "--state", "idle", "--dry-run"),
    ("rma", "n1", PCI, "--from", "cards"),
    ("slow-nodes", "--from", "jobs"),
    ("hint", "checkpoint", "--nodes", "64", "--save", "2m", "--from", "hint"),
    ("template", "--list"),
    ("hold", "--show", "--state-dir", "state", "--run-dir", "run"),
    ("hold", "--reason", "x", "--until", "2h", "--dry-run", "--state-dir", "state", "--run-dir", "run"),
    ("ack", "--list", *DOCUMENT),
    ("env", "list"),
    ("env", "explain"),
    ("config", "check", "site.toml"),
    ("config", "check", "good.json"),
    ("config", "check", "job.sh"),
    ("config", "show", "good.json"),
    ("config", "show", "--site", "site.toml", "--node", "n1", "--changed"),
    ("config", "profiles"),
    ("profile", "draft", TREE, "--dry-run"),
    ("doctor", "--slurm-conf", "slurm.conf"),
    ("doctor", "--slurm-conf", "slurm.conf", "--diff"),
    ("docs",),
    ("schema",),
    ("version",),
)
#: The commands that need root, Slurm or ssh, and the test that holds their output.
ELSEWHERE = {
    "accept": "tests/measure/test_on_slurm.py",
    "init": "tests/cli/test_init.py",
    "provision": "tests/provision/test_provision.py",
    "maintain": "tests/maintain/maintain_admin.py",
    "lock": "tests/driver/test_lock.py",
    "fleet": "tests/slurm/test_roster.py",
    "events": "tests/controller/test_events.py",
    "drain": "tests/slurm/test_people.py",
    "resume": "tests/slurm/test_people.py",
    "clear": "tests/slurm/test_people.py",
    "audit": "tests/daemon/requests/test_audit_trail.py",
    "selftest": "tests/selftest/test_selftest_command.py",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("inputs")
    for name in ("usage", "cards", "hint", "store", "jobs", "idle", "run", "state", "tree/sys", "tree/proc"):
        (made / name).mkdir(parents=True)
    data = config.to_data(config.profile_document("n1", "l40s-pcie"))
    data["agent"] |= {"state_dir": str(made / "state"), "run_dir": str(made / "run"), "metrics_textfile": ""}
    del data["hash"]
    (made / "good.json").write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "good.json")))
    (made / "site.toml").write_text(SITE)
    (made / "hint/jobs.psv").write_text("|".join(COLUMNS) + "\n" + row(1, 1, "NODE_FAIL") + row(2, 2))
    one = record(drained(BEGIN + DAY, serials=f"{PCI}=A1"), resumed(BEGIN + 2 * DAY), details=(DETAILS,), xids=(XID,))
    cards(made / "cards", one)
    (made / "log").write_text("[    1.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    (made / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:8\nexport NCCL_ALGO=Ring\nsrun ./train\n")
    (made / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=a\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    (made / "fabric").write_text(rails().dump())
    (made / "nccl.txt").write_text(text())
    store_of(made / "store")
    folder_of(made / "jobs", "gpu005")
    (made / "usage/jobs.psv").write_text("|".join(SACCT_COLUMNS) + "\n")
    (made / "usage/nodes.psv").write_text("NODELIST|PARTITION|GRES\nn1|gpu*|gpu:h100:2(S:0-1)\n")
    (made / "usage/events.psv").write_text("NodeName|TimeStart|TimeEnd\n")
    for i in range(DAYS):
        add_job(made / "usage", 100 + i, BEFORE + timedelta(days=i))
        add_job(made / "usage", 200 + i, AFTER + timedelta(days=i))
    write_folder(made / "fleet", year(20, (Planted("a", (3,), 20, 60, 2),), driver_day=200), hours=24)
    return made


def printed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a command with --json in this process. Return its JSON documents."""
    main([words[0], "--json", *words[1:]] if words[0] == "run" else [*words, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err, err
    if words[:2] in (("xid", "decode"), ("nccl", "parse")):
        assert out, err
        return out.splitlines()
    return [out]


@pytest.mark.heavy  # each computes a report
@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_output_is_as_the_schema_says(
    words: tuple[str, ...], inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(inputs)
    for document in printed(words, capsys):
        printed_json.hold(words[0], document)


def test_the_status_of_an_agent(inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the agent itself has written: with findings, because the machine tree is not of its profile."""
    monkeypatch.chdir(inputs)
    main(["agent", "--root", H100, "--once", *DOCUMENT])
    capsys.readouterr()
    for words in (("status", "--run-dir", "run"), ("why", "--no-slurm", "--run-dir", "run", "--state-dir", "state")):
        (text,) = printed(words, capsys)
        status = printed_json.hold(words[0], text)
        status = status.get("agent", status)["status"]
        assert status["findings"] and set(status) >= {"schema", "slurm", "sweep", "standing"}


def test_each_command_with_json_is_held_to_its_schema() -> None:
    held = {words[0] for words in COMMAND_LINES}
    assert held | set(ELSEWHERE) == set(WITH_JSON), "give its output a type, and name a test that runs it"
    for command, path in ELSEWHERE.items():
        test = (Path(__file__).parents[2] / path).read_text()
        assert "--json" in test and ("main(" in test or "printed_json.hold" in test), f"{path} does not hold {command} --json"


@pytest.mark.parametrize("command", WITH_JSON)
def test_a_schema_is_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", command]) == 0
    schema = json.loads(capsys.readouterr().out)
    printed_json.validator(command)
    assert schema["title"] == f"fairlead {command} --json"
    known = {spelling for action in fairlead_options(command) for spelling in action}
    for words in json_schema.forms(command):
        named = {word.rstrip(",") for word in words.split() if word.startswith("--")}
        assert named <= known, f"{words}: no such option of {command}"


def fairlead_options(command: str) -> list[list[str]]:
    from fairlead.cli import command_parser

    return [list(action.option_strings) for action in command_parser(command)._actions]


def test_a_mistake_is_found() -> None:
    good = {"version": "1", "document_schema": 1, "python": "3.11"}
    assert printed_json.mistakes("version", good) == []
    for bad in ({**good, "more": 1}, {**good, "document_schema": "1"}, {"version": "1"}, [good], None):
        assert printed_json.mistakes("version", bad), bad


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["chek"], ExitCode.NO_INPUT, "did you mean check?"),
        (["agent"], ExitCode.NO_INPUT, "has no --json"),
        (["check", "--json"], ExitCode.USAGE, "JSON already"),
    ],
)
def test_bad_names(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", *words]) == code
    assert said in capsys.readouterr().err


def test_the_list_names_each_command_and_its_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:]] == WITH_JSON
    assert all(name in COMMANDS for name in WITH_JSON)
