"""The scorecard: faults put into one simulated GPU node, and who notices them. ``make scorecard``; docs/reference/scorecard.md."""
