"""Contains the courier, the thread that speaks to slurmctld for the loop, and decides how often it may ask."""
