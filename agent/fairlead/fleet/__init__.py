"""Contains rules over the history of all nodes, which only report: incidents, availability, lemons, early warning, slow nodes."""
