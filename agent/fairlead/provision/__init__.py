"""Program on the admin host: runs the playbooks and reports."""
