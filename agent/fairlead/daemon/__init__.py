"""Program on the nodes: gather, judge, decide, publish."""
