"""Contains the protocol by which the agent, the command line and maintenance drain and resume a node, and the node's ledger."""
