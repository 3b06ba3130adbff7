"""The courier: the thread that speaks to slurmctld for the loop, and how often it may."""
