"""What `fairlead provision` runs on a node: a program that needs nothing but Python's standard library.

The admin host sends this folder over ssh as a zip archive (provision/node_program.py), and the node's Python imports it from
there as the package ``on_node``, because fairlead may not be installed on the node yet, or in another version. Therefore its
modules import each other by relative imports. ``fairlead`` is imported in one place only (apply_command.py): there the program
already runs in the Python of the release that the admin host wants, and calls the command `fairlead apply` of that release.
"""
