"""Changes of GPUs by NVML: those that need a GPU nobody holds open ask the agent to let go of NVML first."""

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
LET_GO_SECONDS = 15.0  # for all GPUs of a run together: the agent looks every second, and ends a worker that is busy
_IN_USE = "NVML IN_USE (19)"  # host.gpu_reader.return_text


@contextmanager
def setting(nvml_set: NvmlSet | None, root: Root, run_dir: str) -> Iterator[NvmlSet | None]:
    """``nvml_set`` for one run of changes. From the first change in ``ALONE`` on the agent has let go of NVML, and what says
    IN_USE is tried again for a while; a GPU that another program holds stays so, and is said."""
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
