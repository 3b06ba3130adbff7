"""Holds reasons and sources that many rows of the catalogue share."""

WHY_APP = "The job's own work failed (bad commands or data); the GPU goes on with the next job."
WHY_IGNORE = "NVIDIA: ignore."
WHY_PEER = "Mostly seen when a peer GPU is reset or has crashed: look at the peer."
WHY_RESET = "NVIDIA: reset the GPU; until then its work cannot be relied on."
WHY_SUPPORT = "NVIDIA: contact support."
WHY_UNUSED = "Listed as unused: current drivers do not print it, so report it if one does."
WHY_NVLINK5 = "The line itself says Fatal or Nonfatal, which wins over the code; link -1 means all links of the GPU."
WHY_OWN = "NVIDIA has published no action for it: this one is fairlead's choice."

CATALOGUE = "NVIDIA Xid catalogue, 2025-10-29"
HEADER = "nverror.h, driver 595.45.04; no published action"
