"""Finds playbooks/, templates/, slurm/ and docs/: in a wheel they are below the package, in a checkout beside agent/.

No other module searches for these folders. An editable install uses the folders of the checkout, which are always up to date.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fairlead.errors import InputMissing

#: The folders of docs/ whose pages the package has. Decisions and man pages are not in it.
DOC_KINDS = ("tutorial", "how-to", "explanation", "reference")
_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE / "_data" if (_PACKAGE / "_data").is_dir() else _PACKAGE.parents[1]


def directory(name: str) -> Path:
    """Return the folder ``playbooks``, ``templates``, ``slurm`` or ``docs``. Raises InputMissing for a broken installation."""
    path = _ROOT / name
    if name not in {"playbooks", "templates", "slurm", "docs"} or not path.is_dir():
        raise InputMissing(f"{path}: missing from this installation", hint="reinstall fairlead")
    return path


@cache
def running_release() -> str:
    """Return the name of the release that this program is part of, VERSION-DIGEST, or "" if it is no release on a node.

    `fairlead provision` installs a release below /opt/fairlead, and a package has its name in a file beside the program.
    """
    parts = _PACKAGE.parts
    if "site-packages" in parts and (folder := _PACKAGE.parents[3]).joinpath(".installed").is_file():
        return folder.name
    try:
        return (_PACKAGE.parents[1] / "release").read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def profile_directory() -> Path:
    """Return the folder of hardware profiles (TOML)."""
    return _PACKAGE / "profiles"


def dashboard_directory() -> Path:
    """Return the folder of Grafana dashboards (JSON, written by ``make dashboards``)."""
    return _PACKAGE / "dashboards"


def doc_pages() -> dict[str, Path]:
    """Return the pages of the documentation by their names, such as "how-to/driver". Raises InputMissing where there are none."""
    folder = directory("docs")
    found = (path for kind in DOC_KINDS for path in (folder / kind).rglob("*.md"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(found)}


def sbatch_template_names() -> list[str]:
    """Return the names of the job scripts for requeue and preemption."""
    return sorted(path.stem for path in (_PACKAGE / "sbatch").glob("*.sh"))


def sbatch_template(name: str) -> str:
    """Return the text of a job script. Raises InputMissing for a name that is not in the list."""
    if name not in sbatch_template_names():
        raise InputMissing(f"{name!r}: no such template", hint=f"there are {', '.join(sbatch_template_names())}")
    return (_PACKAGE / "sbatch" / f"{name}.sh").read_text(encoding="utf-8")
