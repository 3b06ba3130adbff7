"""Provisions nodes from the admin host: runs the playbooks over the nodes, and reports the result of each node."""
