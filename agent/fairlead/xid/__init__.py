"""Reads the lines in which the NVIDIA driver reports faults (Xid and SXid), and returns the meaning of each code.

Formats: NVIDIA/open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c and kernel-open/nvidia/nv.c.
"""

from fairlead.xid.line import XidKind, XidLine, parse, read

__all__ = ["XidKind", "XidLine", "parse", "read"]
