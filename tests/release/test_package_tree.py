"""The tree of the package fairlead-admin has what the controller needs. What is in the built packages: test_packages.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_the_controllers_units_and_examples_are_laid_out(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("package_tree", PROJECT / "release/package_tree.py")
    assert spec is not None and spec.loader is not None
    package_tree = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package_tree)
    package_tree.lay_out_admin(tmp_path, PROJECT, [], {})
    units, examples = tmp_path / "usr/lib/systemd/system", tmp_path / "usr/share/fairlead"
    source = [path for folder in ("controller", "idle", "events") for path in (PROJECT / "slurm" / folder).iterdir()]
    assert len(source) >= 10
    for path in source:
        made = (units if path.name.startswith("fairlead-") else examples / path.parent.name) / path.name
        assert made.read_bytes() == path.read_bytes()
        assert bool(made.stat().st_mode & 0o111) == (made.parent != units), made
    assert {path.name for path in units.iterdir()} >= {
        "fairlead-collect.timer",
        "fairlead-events.timer",
        "fairlead-idle.timer",
        "fairlead-running.service",
    }
