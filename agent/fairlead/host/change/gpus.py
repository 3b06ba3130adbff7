"""Changes GPUs by NVML. If a change needs a GPU that no program has open, the agent is first asked to release NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fairlead.errors import HostError
from fairlead.host.change import nvml_release
from fairlead.host.root import Root

NvmlSet = Callable[[str, str, int | str], None]
#: NVML API reference, nvmlDeviceSetMigMode: the mode stays pending while another client has the GPU open.
ALONE = frozenset({"mig"})
# The time limit for all GPUs of a run together. The agent reads the request once a second, and ends an NVML worker that is busy.
LET_GO_SECONDS = 15.0
_IN_USE = "NVML IN_USE (19)"  # host.gpu_reader.return_text


@contextmanager
def setting(nvml_set: NvmlSet | None, root: Root, run_dir: str) -> Iterator[NvmlSet | None]:
    """Yield the function that sets NVML values in one run of changes, or None if ``nvml_set`` is None.

    Before the first change in ``ALONE`` the function asks the agent to release NVML until the run ends. If NVML returns IN_USE
    for such a change, the function tries it again until LET_GO_SECONDS have passed. Then it raises HostError, since another
    program has the GPU open.
    """
    with ExitStack() as stack:
        end = 0.0

        def make(pci: str, what: str, value: int | str) -> None:
            nonlocal end
            assert nvml_set is not None  # noqa: S101  (narrows for mypy)
            if what in ALONE and root.is_live and not end:
                stack.enter_context(nvml_release.asked(run_dir))
                end = time.monotonic() + LET_GO_SECONDS
            while True:
                try:
                    return nvml_set(pci, what, value)
                except HostError as e:
                    if what not in ALONE or _IN_USE not in str(e) or time.monotonic() >= end:
                        raise
                    time.sleep(0.5)

        yield make if nvml_set else None
