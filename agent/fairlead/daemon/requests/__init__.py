"""What people ask of the agent, and the audit trail of what was done."""
