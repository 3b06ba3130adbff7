"""The lab's own tests: they need root and build what they need under FAIRLEAD_LAB_DIR."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import preflight
from tests.lab.ledger import own_name
from tests.lab.rack import Rack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip visibly, with the reason, where this machine cannot carry the lab."""
    reasons = preflight.preflight() or [f"apt-get install {name}" for name in preflight.missing_programs()]
    for item in items:
        if reasons and "/rack/" in str(item.path) and item.path.name != "test_preflight.py":
            item.add_marker(pytest.mark.skip(reason=reasons[0]))


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """Four nodes on bookworm, up for one module's tests."""
    with Rack(4, name=own_name("test-rack")) as made:
        yield made
