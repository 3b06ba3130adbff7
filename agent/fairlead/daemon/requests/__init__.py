"""Stores people's requests to the agent, and the audit trail of what was done."""
