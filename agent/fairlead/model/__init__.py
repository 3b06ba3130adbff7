"""Defines what fairlead speaks of: facts about a node, findings about what is wrong, and a verdict on whether jobs may run
there."""
