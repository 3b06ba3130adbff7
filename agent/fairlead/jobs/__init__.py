"""Contains rules over what jobs used: usage records, their sums, the text of a report, and advice. All of it is pure."""
