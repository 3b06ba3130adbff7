"""Reads the settings that a command line chooses (`--only`, `--tags`). An error about an unknown word says what to write."""

from __future__ import annotations

from fairlead import checks, settings
from fairlead.config import schema_keys
from fairlead.errors import UsageError

ROLES = ("node", "reboot", "slurm_hooks")  # playbooks/roles


def chosen(option: str, words: str) -> tuple[str, ...]:
    """Return the settings that a list of names and groups chooses, or () for an empty list. Raise UsageError for other words."""
    if not words:
        return ()
    every, groups = settings.load(), settings.groups()
    for word in filter(None, (w.strip() for w in words.split(","))):
        if word not in every and word not in groups:
            raise UsageError(f"{option} {word}: no setting and no group of settings", hint=_hint(option, word))
    return settings.select(words)


def _hint(option: str, word: str) -> str:
    every, groups = settings.load(), settings.groups()
    bare = word.removeprefix("setting.")
    if bare in every:
        return f"name a setting without its prefix here: {option} {bare}"
    if word in checks.load():
        return f"{word} is a check, not a setting: `fairlead check --only {word}` runs it"
    if word in ROLES:
        return f"{word} is a role, and a run always uses all roles; {option} chooses settings: {', '.join(groups)}"
    like = schema_keys.nearest(word, [*every, *groups])
    known = "; ".join(f"{group}: {', '.join(names)}" for group, names in groups.items())
    return f"did you mean `{like}`?" if like else f"there are {known}"
