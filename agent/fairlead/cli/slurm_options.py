"""Adds the option that says where Slurm's commands are."""

from __future__ import annotations

import argparse
import os
import shutil


def add_bin_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--bin-dir DIR``. Without this option, the folder of the scontrol in PATH counts, as in the admin's own shell."""
    text = "the folder of Slurm's commands (default: the folder of the scontrol in PATH, otherwise /usr/bin)"
    parser.add_argument("--bin-dir", metavar="DIR", default=_folder_in_path(), help=text)


def _folder_in_path() -> str:
    """Return the folder of the first scontrol in PATH. A relative folder in PATH does not count, because it depends on the
    current folder."""
    folders = (folder for folder in os.get_exec_path() if os.path.isabs(folder))
    found = shutil.which("scontrol", path=os.pathsep.join(folders))
    return os.path.dirname(found) if found else "/usr/bin"
