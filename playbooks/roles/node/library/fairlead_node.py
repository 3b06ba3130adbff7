"""Documents the action fairlead_node; action_plugins/fairlead_node.py does the work."""

DOCUMENTATION = r"""
module: fairlead_node
short_description: Make a node what its document says
description:
  - Installs fairlead's release, hooks, units and the node's document where they differ, and runs C(fairlead apply).
  - Takes one round trip to a node that lacks nothing.
options:
  bundle:
    description: Folder that C(fairlead provision) wrote for this run on the admin host.
    type: path
    required: true
  python:
    description: Python 3.11 or newer on the node, used until fairlead's own is there. If empty, /usr/bin is searched.
    type: str
    default: ""
  answer_seconds:
    description: A node that has no driver to install and has not answered after this time has failed.
    type: int
    default: 900
attributes:
  check_mode:
    description: In check mode the node plans the changes, and makes none.
    support: full
  diff_mode:
    description: Shows the difference of each file and value.
    support: full
author:
  - The fairlead maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Make the node what its document says
  fairlead_node:
    bundle: "{{ node_bundle }}"
"""

RETURN = r"""
changes:
  description: What was changed, or would be in check mode.
  returned: success
  type: list
  elements: dict
apply:
  description: The report of C(fairlead apply) on the node.
  returned: success
  type: dict
"""
