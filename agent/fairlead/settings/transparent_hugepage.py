"""Sets for which programs the kernel uses transparent huge pages of 2 MiB, and when it makes room for such a page.

``enabled = always`` helps training programs with large heaps. If the kernel compacts memory during a page fault, it stalls a rank
for milliseconds. ``defrag = madvise`` limits this to programs that requested huge pages with madvise(2). Source: kernel
documentation, admin-guide/mm/transhuge.rst. The values are lost at reboot. fairlead's boot unit applies them again, because the
kernel command line (``transparent_hugepage=``) can set only ``enabled``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import KernelValue
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

FOLDER = "/sys/kernel/mm/transparent_hugepage"
ENABLED, DEFRAG = f"{FOLDER}/enabled", f"{FOLDER}/defrag"


class TransparentHugepageWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: Annotated[
        Literal["always", "madvise", "never"],
        Meta(description="Which programs get huge pages: all (always), those that request them (madvise), or none (never)."),
    ] = "always"
    defrag: Annotated[
        Literal["always", "defer", "defer+madvise", "madvise", "never"],
        Meta(description="Which programs wait in a page fault until the kernel has made room for a huge page."),
    ] = "madvise"


class Observed(Struct, frozen=True):
    """Holds (effective choice, offered choices) by path. It is empty for a kernel without transparent huge pages."""

    files: dict[str, tuple[str, tuple[str, ...]]]


def observe(node: Node) -> Observed | Missing:
    files: dict[str, tuple[str, tuple[str, ...]]] = {}
    for path in (ENABLED, DEFRAG):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
        if text is None:
            continue
        words = text.split()
        chosen = words if len(words) == 1 else [w for w in words if w.startswith("[") and w.endswith("]")]
        if len(chosen) != 1:
            return unreadable(f"{path}: no choice in brackets: {text.strip()[:40]!r}")
        offered = tuple(w.strip("[]") for w in words) if len(words) > 1 else ()  # one word: others are unknown
        files[path] = (chosen[0].strip("[]"), offered)
    return Observed(files)


def plan(want: TransparentHugepageWant, observed: Observed) -> tuple[KernelValue, ...]:
    changes: list[KernelValue] = []
    for path, value in ((ENABLED, want.enabled), (DEFRAG, want.defrag)):
        name = path.rpartition("/")[2]
        if path not in observed.files:
            raise ConfigError(
                "node.json",
                "settings.transparent_hugepage",
                f"this kernel has no {path} (built without CONFIG_TRANSPARENT_HUGEPAGE)",
                hint="declare settings.transparent_hugepage.managed = false for this node",
            )
        now, offered = observed.files[path]
        if offered and value not in offered:
            raise ConfigError(
                "node.json",
                f"settings.transparent_hugepage.{name}",
                f"this kernel has no choice {value}; it offers {' '.join(offered)}",
                hint="declare one of these",
            )
        if now != value:
            why = f"transparent_hugepage/{name} is {now}, wanted {value}"
            changes.append(KernelValue(setting="transparent_hugepage", why=why, path=path, value=value, before=now))
    return tuple(changes)


setting = Setting(
    summary="Transparent huge pages and how the kernel makes room for them",
    group="kernel",
    want=TransparentHugepageWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=(ENABLED, DEFRAG),
    volatile=True,
)
