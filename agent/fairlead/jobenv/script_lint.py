"""Harmful and useless settings in job scripts, environment files and nccl.conf: what is wrong, why, and what instead.

One generator per rule; RULES is the list, and the order of telling within a line. A rule looks at a Script and says
nothing where it is not sure. ``# fairlead: allow RULE`` before or behind a command takes that rule out of it.
"""

from __future__ import annotations

from fairlead.jobenv import lint_job, lint_nccl
from fairlead.jobenv.batch_script import Script
from fairlead.jobenv.lint_finding import LintFinding, LintLevel, LintRule, LintSite

__all__ = ["RULES", "LintFinding", "LintLevel", "LintSite", "lint"]

#: The order within one line.
RULES: dict[str, LintRule] = {**lint_nccl.RULES, **lint_job.RULES}


def lint(script: Script, site: LintSite | None = None) -> tuple[LintFinding, ...]:
    """Everything found, by line."""
    found = []
    for name, rule in RULES.items():
        for line, level, message, suggestion, source in rule(script, site or LintSite()):
            if name not in line.allowed:
                found.append(
                    LintFinding(line=line.number, rule=name, level=level, message=message, suggestion=suggestion, source=source)
                )
    return tuple(sorted(found, key=lambda f: f.line))
