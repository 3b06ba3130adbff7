"""Runs the command line for `python -m fairlead`, and for `python FOLDER/fairlead`.

The second form is for a container whose image has another Python than the node. It needs no PYTHONPATH, which a command that
`fairlead run` starts would inherit.
"""

import os
import sys

if not __package__:  # Python has put this folder itself first, and its modules have names that other packages have too
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from fairlead.cli import main

sys.exit(main())
