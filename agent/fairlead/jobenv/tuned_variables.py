"""Lists the variables of NCCL that `fairlead nccl measure` compares and that a measured result may set for a job.

They choose how NCCL uses the hardware that it has. Variables that hide hardware (``NCCL_P2P_DISABLE``) or that may corrupt data
(``NCCL_PROTO``, nccl#2001) are not among them. All ranks must have equal values, so a result sets them for a whole job and never
on one node. Source: NCCL 2.30.7, docs/userguide/source/env.rst.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.errors import DataError
from fairlead.jobenv.lint_names import NUMBERS

_NAMES = """
    ALGO BUFFSIZE CGA_CLUSTER_SIZE COLLNET_ENABLE CROSS_NIC CTA_POLICY IB_AR_THRESHOLD IB_QPS_PER_CONNECTION IB_SPLIT_DATA_ON_QPS
    MAX_CTAS MAX_NCHANNELS MAX_P2P_NCHANNELS MIN_CTAS MIN_NCHANNELS MIN_P2P_NCHANNELS NCHANNELS_PER_NET_PEER NETDEVS_POLICY
    NET_GDR_LEVEL NET_GDR_READ NSOCKS_PERTHREAD NTHREADS NVLS_ENABLE NVLS_NCHANNELS P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE
    P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL PAT_ENABLE PXN_DISABLE SOCKET_NTHREADS
"""
TUNED = frozenset("NCCL_" + name for name in _NAMES.split())
REFUSED = {
    "NCCL_PROTO": "a forced LL128 has corrupted data (nccl#2001)",
    "NCCL_TUNER_PLUGIN": "tuner plug-ins are not supported (decision 50)",
    "NCCL_TUNER_CONFIG_FILE": "tuner plug-ins are not supported (decision 50)",
}
_VALUE = re.compile(r"[A-Za-z0-9_.:;,^+-]{1,100}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})")


def checked(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables. Raises DataError for a name that is not on the list, or for a value that NCCL would read wrongly."""
    for name, value in variables.items():
        if name not in TUNED:
            why = REFUSED.get(name, "it does not choose how NCCL uses its hardware, or it hides hardware")
            raise DataError(f"{name}: fairlead does not measure this variable: {why}", hint="docs/how-to/nccl-measure.md")
        if not _VALUE.fullmatch(value):
            raise DataError(f"{name}: its value is not one plain word")
        if name in NUMBERS and not _NUMBER.fullmatch(value):
            raise DataError(f"{name}={value}: NCCL reads a whole number here, and takes 4M for 4", hint="write all digits")
    return dict(variables)


def tuned_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the list, and those that are refused, that an environment sets."""
    return {name: value for name, value in sorted(environment.items()) if name in TUNED or name in REFUSED}
