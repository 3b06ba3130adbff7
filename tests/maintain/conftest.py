"""The rack that the tests of one module share: eight nodes, provisioned, under real Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("ClusterShell")

from tests.lab import preflight
from tests.maintain.maintain_admin import Admin, provisioned


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip visibly, with the reason, where this machine cannot carry the lab."""
    reasons = preflight.preflight() or [f"apt-get install {name}" for name in preflight.missing_programs()]
    for item in items:
        if reasons and "/maintain/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=reasons[0]))


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with provisioned(8, tmp_path_factory.mktemp("admin")) as made:
        yield made
