"""The columns of jobs.psv that tests write: those that a reader needs, and the QOS."""

COLUMNS = (
    *("JobIDRaw", "User", "Account", "Partition", "QOS", "State", "Start", "End", "TimelimitRaw", "AllocTRES", "NodeList"),
)
