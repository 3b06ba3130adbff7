"""`make bench`: the budgets of the design, measured now, side by side with what they are compared to."""
