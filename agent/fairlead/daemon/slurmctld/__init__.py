"""Contains the courier, which is the thread that talks to slurmctld for the main loop, and decides how often it may ask."""
