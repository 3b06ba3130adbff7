"""Applies the document to a node, in five steps: observe, plan, execute, verify, report.

The agent finds drift with the same observe and plan steps. The report has three fields for each declared setting: persisted (a
file for the next boot has the value), effective (the running kernel or hardware has it), pending (what must happen before it is
effective). A setting that is written but does not become effective has failed or is pending.
"""

from fairlead.apply.apply_report import AppliedStep, ApplyReport, Item, Phase
from fairlead.apply.apply_steps import NvmlCalls, apply
from fairlead.apply.node_lock import applying
from fairlead.host.tree_nvml import TreeNvml

__all__ = ["AppliedStep", "ApplyReport", "Item", "NvmlCalls", "Phase", "TreeNvml", "apply", "applying"]
