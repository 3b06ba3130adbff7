"""Checks a file for NCCL_TOPO_FILE, a vendor's topology XML. Only a virtual machine needs such a file, and the file must describe
this machine.

The sources are NCCL 2.30.7 src/graph/xml.cc and the files that Azure, OCI and AWS publish. Such a file may leave out all GPUs,
and any NIC, because NCCL detects these itself. Its switches have made-up addresses (ffff:ff:..). The machine must have every GPU
and NIC that the file names. If the file names a GPU, it must name all NVIDIA GPUs of the machine.
"""

from __future__ import annotations

import re

from fairlead.model.facts import PciDevice

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PCI = re.compile(r"<pci\b[^>]*>")
_ATTRIBUTE = re.compile(r'\b(busid|class)="([^"]*)"')
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KINDS = {"0x03": "GPU", "0x02": "NIC", "0x12": "GPU"}  # PCI base classes: display, network, processing accelerator


def named(text: str) -> dict[str, str]:
    """Return "GPU" or "NIC" for each PCI address that a topology file names."""
    found = {}
    for tag in _PCI.findall(_COMMENT.sub("", text)):
        values = dict(_ATTRIBUTE.findall(tag))
        busid, kind = values.get("busid", "").lower(), _KINDS.get(values.get("class", "")[:4].lower(), "")
        if kind and _ADDRESS.fullmatch(busid):
            found[busid] = kind
    return found


def fault(text: str, pci: tuple[PciDevice, ...]) -> str:
    """Return why this file does not describe this machine, or "" if it does."""
    if "<system" not in text:
        return "is not a topology of NCCL (no <system>)"
    there = named(text)
    if not there:
        return "names no GPU and no NIC"
    real = {d.address for d in pci}
    absent = sorted(a for a in there if a not in real)
    if absent:
        return f"names {len(absent)} of {len(there)} devices that are not here, {there[absent[0]]} {absent[0]} the first"
    gpus = {d.address for d in pci if d.vendor == 0x10DE and d.class_code >> 16 == 0x03 and not d.virtual_function}
    missing = sorted(gpus - there.keys())
    if missing and "GPU" in there.values():
        return f"leaves out GPU {missing[0]} of this machine"
    return ""
