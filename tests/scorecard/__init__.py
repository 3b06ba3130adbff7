"""The scorecard: faults put into a simulated GPU node, and who notices them. `make scorecard`; docs/reference/scorecard.md."""
