"""Runs on the admin host: runs the playbooks over the nodes, and reports what they did."""
