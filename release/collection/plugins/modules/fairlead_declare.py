"""Documents the action fairlead_declare; plugins/action/fairlead_declare.py does the work."""

DOCUMENTATION = r"""
module: fairlead_declare
short_description: Write a site and its files for the nodes from an inventory
description:
  - Reads the variable C(declare_own) of every host of the play, which the role C(fairlead.nodes.declare) sets.
  - Writes C(site.toml) and the files for the nodes into the folder that it names, with C(fairlead render).
  - It runs on the control node, and reaches no node.
options: {}
attributes:
  check_mode:
    description: In check mode it writes into C(check) in the folder, so that the role C(fairlead.nodes.node) can be tried too.
    support: full
  diff_mode:
    description: Shows the difference of C(site.toml).
    support: full
author:
  - The fairlead maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Declare the nodes of this play
  hosts: gpu
  gather_facts: false
  roles:
    - role: fairlead.nodes.declare
      declare_folder: /srv/fairlead
      declare_profile: hgx-h100
    - role: fairlead.nodes.node
"""

RETURN = r"""
bundle:
  description: Folder with the files for the nodes, for the variable C(node_bundle) of the role C(fairlead.nodes.node).
  returned: success
  type: str
site:
  description: Path of the declaration, for commands such as C(fairlead plan --site).
  returned: success
  type: str
"""
