"""All checks over file system roots of real machines (third-party, not in this repository): no fault is made up, none raises.

They were recorded without a driver's answers, so what needs NVML is unknown there; what the files alone say is judged.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairlead import checks
from fairlead.config.document import resolve_layers
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.judge import reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Why
from fairlead.model.finding import Level

pytestmark = pytest.mark.trees

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/sysroots"
ARCHIVES = sorted(DATA.glob("*.tar.gz"))
#: NVML gave no answer: that is what these are about.
OF_THE_DRIVER = {"nvml_responsive"}
NO_ANSWER = Missing(Why.UNREADABLE, "NVML was not recorded")


@pytest.mark.parametrize("archive", ARCHIVES or [DATA / "absent"], ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_a_machine_that_runs_has_no_fault_that_its_files_show(archive: Path, tmp_path: Path) -> None:
    if not archive.exists():
        pytest.skip(f"{archive.parent} is not there: recorded machines are third-party and not in this repository")
    subprocess.run(["tar", "xzf", archive, "-C", tmp_path, "--no-same-owner"], check=True)
    (tree,) = tmp_path.iterdir()
    document, _ = resolve_layers("n1", [])
    node = gather(Root(str(tree)), NO_ANSWER, reads=reads(document), unsupported=document.unsupported, wanted=wanted(document))
    found = {
        name: list(check.findings(node, Past(available=True), document.checks[name])) for name, check in checks.load().items()
    }
    bad = {name: [f.summary for f in said if f.level in (Level.DRAIN, Level.WARN)] for name, said in found.items()}
    assert {name: said for name, said in bad.items() if said and name not in OF_THE_DRIVER} == {}
    assert any(f.level is not Level.OK for f in found["nvml_responsive"]), "silence is not health"
