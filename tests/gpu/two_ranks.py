"""Run a command as two ranks on one GPU: python -m tests.gpu.two_ranks -- COMMAND ...

NCCL takes the ranks for two nodes, because their NCCL_HOSTID differs, and connects them by a socket. So no second GPU is needed.
The speed says nothing about a fabric. What is shown is that NCCL runs, what it says, and how its launches vary.
Source: NCCL 2.30.7 src/misc/utils.cc (getHostHash), docs/userguide/source/env.rst (NCCL_HOSTID).
"""

from __future__ import annotations

import os
import subprocess
import sys

RANKS = 2


def main() -> int:
    command = sys.argv[sys.argv.index("--") + 1 :]
    alone = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    own = {**os.environ, **alone, "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0"}
    own["TWO_RANKS_MEET"] = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"two-ranks-{os.getpid()}")
    ranks = [subprocess.Popen(command, env={**own, "RANK": str(rank), "NCCL_HOSTID": f"host{rank}"}) for rank in range(RANKS)]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
