"""`fairlead accept` against real Slurm; the programs that it runs are stand-ins (standin.py)."""

from __future__ import annotations

import pytest

from tests.measure.conftest import Site

pytestmark = [pytest.mark.slurm]


def test_all_pass(site: Site) -> None:
    code, out, err = site.accept("n[1-4]")
    print(out, err)
    assert code == 0
