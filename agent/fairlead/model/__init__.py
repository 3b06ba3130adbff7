"""The nouns: facts about a node, findings about what is wrong, a verdict on whether jobs may run there."""
