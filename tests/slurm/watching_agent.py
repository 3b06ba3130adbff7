"""The whole agent on a machine tree, which sees the slurmd of a cluster by its arguments DOCUMENT TREE PROC.

An agent on a tree looks for no slurmd, since a tree has no processes. All else of it is as `fairlead agent --root TREE` has it.
"""

from __future__ import annotations

import sys

from fairlead.config import load_document
from fairlead.daemon.loop.main_loop import Loop
from fairlead.host.root import Root
from fairlead.host.slurmd import Slurmd

if __name__ == "__main__":
    document, tree, proc = sys.argv[1:]
    loop = Loop(document, load_document(document), Root(tree))
    loop.slurm.slurmd = Slurmd(proc)
    sys.exit(loop.run(once=False))
