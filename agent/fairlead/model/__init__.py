"""Defines fairlead's data: facts about a node, findings about what is wrong with the node, and the verdict on whether jobs may
start there."""
