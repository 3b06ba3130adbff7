"""Contains the program that `fairlead provision` runs on a node. It needs only Python's standard library.

The admin host sends this folder over ssh as a zip archive (provision/node_program.py), and the node's Python imports it from
there as the package ``on_node``. The node may have no fairlead yet, or another version of it. Therefore the modules import
each other by relative imports. ``fairlead`` is imported in one place only (apply_command.py). In this
place the program already runs in the Python of the release that the admin host wants, and calls its command `fairlead apply`.
"""
