"""Reads the outputs of nccl-tests that a command line names."""

from __future__ import annotations

from fairlead.cli.input_files import text_of
from fairlead.errors import DataError
from fairlead.nccl.results import NcclTestRun, parse

SIZE_MAX = 64 << 20  # bytes; -I with -J of many ranks makes a few MiB


def runs_of(file: str) -> tuple[NcclTestRun, ...]:
    """Return the runs in an output of nccl-tests. Raise DataError, InputMissing."""
    try:
        return parse(text_of(file, SIZE_MAX))
    except DataError as e:
        if str(e).startswith(file):
            raise
        raise DataError(f"{'standard input' if file == '-' else file}: {e}", hint=e.hint) from None
