"""Makes a node what its document says: observe, plan, execute, verify, report.

The agent finds drift with the same observe and plan. For each declared setting the report gives three layers: persisted (a
file for the next boot), effective (the running kernel or hardware, read back), pending (what must happen before it is
effective). A setting counts as made when it is effective, not when it is written.
"""

from fairlead.apply.apply_steps import NvmlCalls, apply
from fairlead.apply.node_lock import applying
from fairlead.apply.report import AppliedStep, ApplyReport, Item, Phase
from fairlead.host.tree_nvml import TreeNvml

__all__ = ["AppliedStep", "ApplyReport", "Item", "NvmlCalls", "Phase", "TreeNvml", "apply", "applying"]
