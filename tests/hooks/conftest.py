from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hooks.stage import SHELLS, Stage, needs_root


@pytest.fixture(scope="module")
def _namespace() -> Iterator[Stage]:
    if needs_root:
        pytest.skip("needs root: the hooks run in a private mount namespace")
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture
def stage(_namespace: Stage) -> Stage:
    _namespace.reset()
    return _namespace


@pytest.fixture(params=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)
