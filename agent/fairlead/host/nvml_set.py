"""Sets values of a GPU by NVML, inside the NVML worker. A value is a number, or a word of ``model.change.Nvml``.

Source: NVML API reference, "Device Commands" and "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
from typing import Any

from fairlead.host.nvml_links import FUNCTION_NOT_FOUND
from fairlead.host.nvml_mig import INVALID_ARGUMENT, Mig

OFF = "off"
#: These calls take a handle and an unsigned int.
_NUMBERS = {
    "persistence": "nvmlDeviceSetPersistenceMode",
    "compute_mode": "nvmlDeviceSetComputeMode",
    "power_limit_milliwatts": "nvmlDeviceSetPowerManagementLimit",
    "ecc_mode": "nvmlDeviceSetEccMode",
}
#: The first call sets two clocks in MHz ("1200-1500", or memory and graphics "2619,1980"). The second ends this ("off").
_CLOCKS = {
    "locked_clocks": ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"),
    "locked_memory_clocks": ("nvmlDeviceSetMemoryLockedClocks", "nvmlDeviceResetMemoryLockedClocks"),
    "application_clocks": ("nvmlDeviceSetApplicationsClocks", "nvmlDeviceResetApplicationsClocks"),
}


def make(mig: Mig, handle: Any, what: str, value: str) -> int:
    """Set ``what`` of one GPU. Return NVML's code, or FUNCTION_NOT_FOUND for an unknown ``what``."""
    try:
        if what in _NUMBERS:
            return mig.ask(_NUMBERS[what], handle, _number(value))
        if what in _CLOCKS:
            lock, unlock = _CLOCKS[what]
            if value == OFF:
                return mig.ask(unlock, handle)
            first, _, second = value.replace(",", "-").partition("-")
            return mig.ask(lock, handle, _number(first), _number(second))
        return _mig(mig, handle, value) if what == "mig" else FUNCTION_NOT_FOUND
    except ValueError:
        return INVALID_ARGUMENT


def _number(word: str) -> ctypes.c_uint:
    return ctypes.c_uint(int(word))


def _mig(mig: Mig, handle: Any, value: str) -> int:
    """Turn MIG off, or on with these instances. If the driver cannot change the mode at once, return the code of the
    activation: IN_USE while a program has the GPU open, RESET_REQUIRED on GPUs that need a reset for the change."""
    current, pending, activation = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    code = mig.ask("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    if code:
        return code
    if value == OFF and current.value and (code := mig.make(())):
        return code
    wanted = int(value != OFF)
    if (current.value, pending.value) != (wanted, wanted):
        code = mig.ask("nvmlDeviceSetMigMode", handle, ctypes.c_uint(wanted), ctypes.byref(activation))
        if code or activation.value:
            return code or int(activation.value)
        if code := mig.again():
            return code
    return mig.make(tuple(value.split(","))) if wanted else 0
