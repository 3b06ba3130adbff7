"""`fairlead fleet --prometheus-targets`: Prometheus accepts the file, and every node of the site is in it once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.errors import ExitCode

SITE = """schema = 1
[classes.open]
nodes = "gpu[1-3]"
profile = "hgx-h100"
[classes.open.agent]
metrics_listen = "0.0.0.0:9477"
[classes.file]
nodes = "gpu[4-5]"
profile = "a100-pcie"
[ansible.hosts]
gpu5 = "fd00::5"
"""


@pytest.fixture
def site(tmp_path: Path) -> str:
    (tmp_path / "site.toml").write_text(SITE)
    return str(tmp_path / "site.toml")


def test_every_node_is_a_target_with_the_label_of_the_alert(site: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    assert main(["fleet", "--site", site, "--prometheus-targets", str(file)]) == ExitCode.OK
    groups = json.loads(file.read_text())
    assert {t: g["labels"] for g in groups for t in g["targets"]} == {
        **{f"gpu{n}:9477": {"fairlead": "expected", "profile": "hgx-h100"} for n in (1, 2, 3)},
        "gpu4:9100": {"fairlead": "expected", "profile": "a100-pcie"},
        "[fd00::5]:9100": {"fairlead": "expected", "profile": "a100-pcie"},
    }
    (tmp_path / "prometheus.yml").write_text(f"scrape_configs:\n- job_name: gpu-nodes\n  file_sd_configs:\n  - files: [{file}]\n")
    subprocess.run(["promtool", "check", "config", str(tmp_path / "prometheus.yml")], check=True, capture_output=True)


def test_a_file_that_is_right_is_left_alone(site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nodes.json"
    for word in ("written", "unchanged"):
        assert main(["fleet", "--site", site, "--prometheus-targets", str(file)]) == ExitCode.OK
        assert capsys.readouterr().out == f"{file}: {word}: 5 nodes\n"


@pytest.mark.parametrize(
    ("file", "code", "said"),
    [("nodes.txt", ExitCode.USAGE, "has to end in .json"), ("none/nodes.json", ExitCode.NO_INPUT, "no such folder")],
)
def test_bad_names_are_one_line(  # noqa: PLR0917 (fixtures)
    site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, code: ExitCode, said: str
) -> None:
    assert main(["fleet", "--site", site, "--prometheus-targets", str(tmp_path / file)]) == code
    assert said in capsys.readouterr().err.splitlines()[0]


def test_a_node_that_slurmctld_has_switched_off_is_no_target(
    site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The listing is that of sinfo, whose fields end in the mark that it was asked with."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("""#!/bin/sh
for words; do case $words in NodeList:*) mark=${words%%,*}; mark=${mark#NodeList:};; esac; done
for node in gpu1:idle gpu2:idle+powered_down gpu3:down+powered_down; do
    for field in ${node%:*} host ${node#*:} root 0 gpu none; do printf '%s%s' "$field" "$mark"; done; echo
done
""")
    sinfo.chmod(0o755)
    words = ["fleet", "--site", site, "--prometheus-targets", "-", "--skip-powered-down", "--bin-dir", str(tmp_path)]
    assert main(words) == ExitCode.OK
    said = capsys.readouterr().out
    assert [f"gpu{n}:" in said for n in (1, 2, 3, 4, 5)][:4] == [True, False, True, True]
    assert main(["fleet", "--site", site, "--skip-powered-down"]) == ExitCode.USAGE
    sinfo.write_text("#!/bin/sh\necho 'sinfo: error: Unable to contact slurm controller' >&2; exit 1\n")
    assert main(words) == ExitCode.TRY_AGAIN
