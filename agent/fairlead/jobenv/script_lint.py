"""Finds harmful and useless settings in job scripts, environment files and nccl.conf, and says why and what to write instead.

Each rule is one generator function. RULES lists the rules in the order in which findings of one line are reported. A rule reads a
Script, and yields nothing if it is not sure. The comment ``# fairlead: allow RULE`` before or behind a command switches that rule
off for the command.
"""

from __future__ import annotations

from fairlead.jobenv import lint_job, lint_nccl
from fairlead.jobenv.batch_script import Script
from fairlead.jobenv.lint_finding import LintFinding, LintLevel, LintRule, LintSite

__all__ = ["RULES", "LintFinding", "LintLevel", "LintSite", "lint"]

#: The rules by name, in the order in which findings of one line are reported.
RULES: dict[str, LintRule] = {**lint_nccl.RULES, **lint_job.RULES}


def lint(script: Script, site: LintSite | None = None) -> tuple[LintFinding, ...]:
    """Return all findings, sorted by line."""
    found = []
    for name, rule in RULES.items():
        for line, level, message, suggestion, source in rule(script, site or LintSite()):
            if name not in line.allowed:
                found.append(
                    LintFinding(line=line.number, rule=name, level=level, message=message, suggestion=suggestion, source=source)
                )
    return tuple(sorted(found, key=lambda f: f.line))
