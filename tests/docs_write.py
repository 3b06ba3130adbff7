"""Writes what the documentation takes from the code: man pages, completion, reference pages, README's table.

`make docs` writes; tests/contracts/test_docs.py fails when a file is not what would be written.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from fairlead import __version__, checks, config, settings
from fairlead.cli import COMMANDS, json_schema
from fairlead.cli.explain import parameters
from fairlead.cli.machine_tree import recorded_nvml
from fairlead.cli.value_text import value_text
from fairlead.config.accept_options import AcceptOptions
from fairlead.config.document import AgentOptions, HookOptions, JobEnvOptions, SlurmOptions
from fairlead.config.fabric import fabric_names, load_fabric
from fairlead.config.partitions import Partition
from fairlead.config.site import AnsibleOptions
from fairlead.daemon.publishing.metrics import Metrics, MetricsInput
from fairlead.fleet.event_options import EventsOptions
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.jobenv.never import NEVER, SITE
from fairlead.jobenv.variable_table import assemble
from fairlead.jobs.advice import RULES, AdviceOptions
from fairlead.jobs.cost_and_energy import UsageOptions
from fairlead.jobs.idle_rule import IdleOptions
from fairlead.measure.collective import size_text
from fairlead.model.check_definition import CheckParams
from fairlead.policy.decision_rules import Rules
from fairlead.topology.picture.machine_svg import draw
from release import argument_specs
from tests import completion_scripts, man_pages, rooms, selftest_pages
from tests.kept_files import kept_files_page
from tests.lab.trees import MACHINES, ensure
from tests.measure import fabric_simulation
from tests.scale import scale_arithmetic
from tests.slurm import node_states

ROOT = Path(__file__).resolve().parents[1]
JSON_HEAD = """\
`fairlead schema NAME` prints the JSON Schema of what `fairlead NAME --json` prints (draft 2020-12), and `fairlead schema` lists
the commands. The schema describes every key. A test runs each command and compares its output with the schema.

- A later release may add keys. It removes no key and changes no key's meaning without a line in the list of changes. So accept
  keys that you do not know.
- A key that may be absent is not under `required`. An absent value is not known, or does not apply. It is never 0 or "".
- Most names of measured values end in their unit: `_seconds`, `_bytes`, `_unix` (seconds since 1970), `_gbps`.
- What is printed on standard error is for people, and has no schema. The exit codes are [here](exit-codes.md).
- A command that prints one document for each line says so below.
- `fairlead config schema` prints the schema of a node's document, which is a file and not the output of a command.
"""
BEGIN, END = "<!-- generated: {} -->", "<!-- end: {} -->"


def row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def readme_table() -> str:
    """Checks and settings by name only: there are many, and the reference says what each judges."""
    of_mode = {word: [n for n, c in checks.load().items() if c.mode.value == word] for word in ("enforce", "observe")}
    said = {"enforce": "drain by default", "observe": "only warn until the site says so"}
    out = [f"{len(checks.load())} [checks](docs/reference/checks.md)."]
    for word, names in of_mode.items():
        out += [*_filled((f"`{n}`" for n in names), f"Those that {said[word]}"), ""]
    out += [f"{len(settings.load())} [settings](docs/reference/settings.md):", ""]
    needs = {"none": "Also on busy nodes", "idle": "On an idle node", "drain": "On a drained node", "reboot": "With a reboot"}
    for word, said_of in needs.items():
        names = [n for n, s in settings.load().items() if s.disruption.value == word]
        out += _filled((f"`{n}`" for n in names), f"- {said_of}", "  ") if names else []
    return "\n".join([*out, ""])


def _filled(words: Iterable[str], before: str, indent: str = "") -> list[str]:
    text = f"{before}: {', '.join(words)}."
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def reference(kind: str) -> str:
    found = checks.load() if kind == "checks" else settings.load()
    out = [f"# Reference: {kind}", "", "Generated from the code by `make docs`. `fairlead explain NAME` prints the same.", ""]
    if kind == "checks":
        out += ["Every check has these parameters and its own:", "", *parameter_table("checks.NAME", CheckParams), ""]
    for name, item in found.items():
        doc = (importlib.import_module(f"fairlead.{kind}.{name}").__doc__ or "").strip()
        struct = item.params if kind == "checks" else item.want  # type: ignore[union-attr]
        out += [f"## {name}", "", doc, ""]
        if kind == "settings" and settings.load()[name].group:
            out += [f"Group `{settings.load()[name].group}` (`--tags`).", ""]
        if kind == "checks":
            check = checks.load()[name]
            out += [
                f"The default mode is `{check.mode.value}`. A finding counts after {_number(check.confirm, 'bad sweep')}"
                f"{f' of the last {check.confirm_of}' if check.confirm_of > 1 else ''}, and ends after"
                f" {_number(check.recover, 'clean sweep')}. The boot grace is {check.boot_grace_seconds} s."
                f' Metric `fairlead_check_status{{check="{name}"}}`.',
                "",
            ]
        own = parameter_table(f"{kind}.{name}", struct, CheckParams if kind == "checks" else None)
        out += [*(own or ["No parameters of its own."]), ""]
    return "\n".join(out).rstrip() + "\n"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parameter_table(prefix: str, struct: type[Struct], base: type[Struct] | None = None) -> list[str]:
    """The parameters of ``struct`` that ``base`` does not have; nothing where there are none."""
    common = {name for name, _, _ in parameters(base)} if base else set()
    rows = [row(f"`{prefix}.{name}`", f"`{default}`", text) for name, default, text in parameters(struct) if name not in common]
    return [row("key", "default", "meaning"), row("---", "---", "---"), *rows] if rows else []


def profiles_page() -> str:
    out = ["# Reference: hardware profiles", "", "Generated by `make docs`. Every value has its reason and its source.", ""]
    for name in config.profile_names():
        profile = config.load_profile(name)
        out += [f"## {name}", "", profile.summary, "", row("key", "value", "why", "source"), row("---", "---", "---", "---")]
        out += [row(f"`{v.key}`", f"`{value_text(v.value)}`", v.why, v.source) for v in profile.values] + [""]
        if profile.undeclared:
            out += ["Not declared, because it is not public or depends on the server or the site:", ""]
            out += [row("key", "why"), row("---", "---")]
            out += [row(f"`{u.key}`", u.why) for u in profile.undeclared] + [""]
        if profile.references:
            out += [
                "References that `fairlead accept` compares with:",
                "",
                row("figure", "reference", "why", "source"),
                row(*["---"] * 4),
            ]
            out += [
                row(f"`{r.measure}`" + (f" at {size_text(r.bytes)}" if r.bytes else ""), f"{r.value:g} {r.unit}", r.why, r.source)
                for r in profile.references
            ] + [""]
        if profile.peaks:
            out += [
                "Theoretical peaks, which `fairlead accept` shows and does not judge by:",
                "",
                row("figure", "peak", "of", "source"),
                row(*["---"] * 4),
            ]
            out += [row(f"`{p.measure}`", f"{p.value:g} {p.unit}", p.algorithm, p.source) for p in profile.peaks] + [""]
    return "\n".join(out).rstrip() + "\n"


def fabrics_page() -> str:
    out = ["# Reference: fabric profiles", ""]
    out += ['Generated by `make docs`. Choose a profile with `fabric = "NAME"` in a class of site.toml, or see what it sets with']
    out += [
        "`fairlead nccl conf --profile NAME`. A profile has only what differs from NCCL's default. Each value has its reason, its"
    ]
    out += ["source, and the day on which somebody last read the source.", ""]
    for name in fabric_names():
        fabric = load_fabric(name)
        out += [f"## {name}", "", f"{fabric.summary}.", ""]
        if fabric.owner:
            out += [f"{fabric.owner} owns the variables of this platform: fairlead sets none.", ""]
        out += [row("what", "value", "where", "NCCL", "why", "source", "reviewed"), row(*["---"] * 7)]
        out += [
            row(f"`{v.key}`", f"`{value_text(v.value)}`", "node.json", "", v.why, v.source, v.reviewed) for v in fabric.values
        ]
        for var in fabric.variables:
            unless = f", unless {var.unless}" if var.unless else ""
            where = "/etc/nccl.conf" if var.where == "node" else f"jobs, {var.when}{unless}"
            out.append(row(f"`{var.name}`", f"`{var.value}`", where, var.nccl, var.why, var.source, var.reviewed))
        out += [row(f"`{n.name}`", "not set", "", "", n.why, n.source, "") for n in fabric.left_out] + [""]
    return "\n".join(out).rstrip() + "\n"


JOB_ENVIRONMENT = """\
# Reference: the job environment

Generated by `make docs`. `fairlead env list` prints the same for a node. A variable is set only if the user has not set it.

{rows}

The column *in which steps* has one of these words:

- `always`: all steps;
- `gpu`: steps with a GPU, and `gpus`: steps with several GPUs;
- `nodes`: steps on more than one node, and `nodes:N`: steps on N or more nodes;
- `distributed`: steps with several nodes or several tasks;
- `share`: steps with several tasks on a node and at most one GPU for each task.

`!NAME` after the word means that fairlead does not set the variable if the user has set NAME.

Rows with `@scratch` apply only if the site sets `jobenv.scratch`. fairlead knows NCCL's interface only if it manages
`settings.nccl`. It sets `NCCL_CROSS_NIC` only with `jobenv.rail_only`.

## Only if a site sets them

{site}

## Never set

{never}
"""


def job_environment_page() -> str:
    known = assemble(interface="NCCL's interface", scratch="FOLDER", crosses_rails=False)
    head = [row("variable", "in which steps", "value", "what", "why", "source"), row(*["---"] * 6)]
    rows = [*head, *(row(f"`{r.name}`", r.condition, f"`{r.value}`", r.what, r.why, r.source) for r in known)]
    site, never = (
        [row("variable", "why"), row("---", "---"), *(row(f"`{name}`", why) for name, why in table.items())]
        for table in (SITE, NEVER)
    )
    return JOB_ENVIRONMENT.format(rows="\n".join(rows), site="\n".join(site), never="\n".join(never))


def policy_page() -> str:
    out = [
        "# Reference: policy",
        "",
        "Generated by `make docs`. The policy decides by these rules of the site. The rules over several nodes are explained in",
    ]
    out += ["[many nodes at once](../explanation/many-nodes-at-once.md).", ""]
    out += [row("key", "default", "meaning"), row("---", "---", "---")]
    return "\n".join([*out, *(row(f"`policy.{n}`", f"`{d}`", t) for n, d, t in parameters(Rules))]) + "\n"


SITE_TOML = """\
## site.toml

The site's declaration, on the admin host. The later of these wins: defaults, profile, fabric, whole site, class, node. `fairlead
config check site.toml` prints every mistake of the file in one run and the nodes of each class. `fairlead config show --site
site.toml --node NODE --origin` says where each value of a node comes from.

| key | meaning |
| --- | --- |
| `schema` | `1` |
| `generation` | A number that you choose; default 0. Nodes and reports show it, so you see who has which declaration. |
| `classes.NAME.nodes` | A Slurm nodelist, `"gpu[001-064]"`, or a ClusterShell group, `"@gpu"`. |
| `classes.NAME.profile`, `.fabric` | The [hardware profile](profiles.md) and the [fabric profile](fabrics.md); may be left out. |
| `settings.NAME.KEY` ... | Whole site: [settings](settings.md), [checks](checks.md), [policy](policy.md), and below. |
| `classes.NAME.settings...` | The same keys for the nodes of a class. |
| `nodes.NODE.settings...` | The same keys for one node, which has to be in a class. |
| `partitions.NAME.KEY` | Keys of a partition for [`fairlead slurm-config`](../how-to/slurm-config.md), below. |
| `usage.KEY`, `advice.KEY` | Prices and thresholds of [`fairlead usage`](../how-to/usage.md), below. |
| `idle.KEY` | What [`fairlead idle`](../how-to/idle-gpus.md) may do, below. |
| `events.KEY` | Where [`fairlead events`](../how-to/events.md) sends what happens to nodes, below. |

What `config check` finds:

- Keys that do not exist, with the key that was probably meant, and values of another type or out of range, in each table.
- Lines that are not valid TOML. If the file can be read without such a line, `config check` checks the rest too.
- Nodelists that cannot be read, groups that ClusterShell does not have, and groups of the sample configuration that ClusterShell
  comes with: pip installs the sample, and `@gpu` is `example[156-159]` there.
- Nodes with a table of their own that are in no class, and addresses of nodes that nobody declares.
- Profiles and fabrics that do not exist, and two classes of one node that name different ones.
- Two classes of one node that declare different values of one key, unless the node declares it itself.
- A driver that is declared and is not in `fairlead.lock`.
- MIG geometries that the GPUs do not support, with those that they support. The hardware profile says which GPUs these are. If
  the profile is the site's own, `config check` compares the geometry with all GPUs that fairlead knows.

Each mistake is printed as a line with file and key. Most mistakes have a second line with the next step. `--json` prints the
mistakes as a list, beside the classes. Exit codes: 0 if the file is right, 78 for a mistake, 66 if a named file does not exist.
"""


def options_page() -> str:
    out = [
        "# Reference: site.toml, and options of the agent, of Slurm, of the hooks, of accept",
        "",
        "Generated by `make docs`.",
        "",
    ]
    out += [SITE_TOML, "## ansible", "", "These keys say how `provision`, `plan`, `maintain` and `fleet` reach the nodes.", ""]
    out += [row("key", "default", "meaning"), row("---", "---", "---")]
    out += [*(row(f"`ansible.{n}`", f"`{d}`", t) for n, d, t in parameters(AnsibleOptions)), ""]
    out += [
        "## partitions",
        "",
        "These keys describe Slurm partitions for `fairlead slurm-config partitions` and `all`. Their nodes may be in no class.",
        "",
    ]
    out += [row("key", "default", "meaning"), row("---", "---", "---")]
    out += [*(row(f"`partitions.NAME.{n}`", f"`{d}`", t) for n, d, t in parameters(Partition)), ""]
    sections: dict[str, type[Struct]] = {
        "agent": AgentOptions,
        "slurm": SlurmOptions,
        "hooks": HookOptions,
        "jobenv": JobEnvOptions,
    }
    on_site: dict[str, type[Struct]] = {
        "accept": AcceptOptions,
        "usage": UsageOptions,
        "advice": AdviceOptions,
        "idle": IdleOptions,
        "events": EventsOptions,
    }
    sections |= on_site
    for section, struct in sections.items():
        only = ["These are keys of `site.toml`, on the admin host. `[classes.NAME.accept]` has what differs in a class.", ""]
        out += [
            f"## {section}",
            "",
            *(only if section == "accept" else CONTROLLER if section in on_site else ()),
            row("key", "default", "meaning"),
            row("---", "---", "---"),
        ]
        out += [*(row(f"`{section}.{n}`", f"`{d}`", t) for n, d, t in parameters(struct)), ""]
    return "\n".join(out).rstrip() + "\n"


#: What the page of options says of the tables that programs on the controller read.
CONTROLLER = ("These are keys of `site.toml`, on the controller.", "")


def advice_page() -> str:
    out = ["# Reference: advice on jobs", "", "Generated by `make docs`. Each rule is a function of `jobs/advice.py`.", ""]
    out += [
        "All rules are silent for a job that ran less than 10 minutes, for a job that was measured for less than 95 % of its GPU"
    ]
    out += [
        "time, and for a job whose GPUs other jobs had at the same time. `off` in `[advice]` switches rules off by their name.",
        "",
    ]
    out += [row("rule", "what it finds"), row("---", "---")]
    out += [row(f"`{name}`", " ".join((rule.__doc__ or "").split())) for name, rule in RULES.items()]
    return "\n".join([*out, "", "Thresholds:", "", *parameter_table("advice", AdviceOptions)]) + "\n"


def metrics_page() -> str:
    tree = str(MACHINES / "hgx-h100")
    view = MetricsInput(version=__version__, node=gather(Root(tree), recorded_nvml(tree)))
    out = [
        "# Reference: metrics",
        "",
        "Generated by `make docs`. A metric is left out if the driver or the GPU does not give its value.",
        "",
    ]
    out += [
        "The agent computes the metrics every 14 s, from a sweep that reads all values. It also computes them when the verdict",
        "changes. In this case temperatures, power, memory in use, processes and NVLinks may be 14 s older than",
        "`fairlead_sweep_timestamp_seconds`.",
        "",
    ]
    out += [
        "Each series of a GPU has three labels for the GPU: `pci` (as in every finding), `index` (NVML's index, which may change",
        "when a GPU is missing) and `uuid`. dcgm-exporter calls these labels `pci_bus_id`, `gpu` and `UUID`. A lost GPU keeps",
        "the labels that it had last. [Monitoring](../how-to/monitoring.md) says how to scrape, join and alert.",
        "",
    ]
    out += [row("metric", "labels", "meaning"), row("---", "---", "---")]
    for family in sorted(Metrics(view).collect(), key=lambda f: f.name):
        name = family.name + "_total" * (family.type == "counter")
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        out.append(row(f"`{name}`", labels, family.documentation))
    return "\n".join(out) + "\n"


def node_states_page() -> str:
    said = {
        "drained": "drains it",
        "resumed": "resumes it",
        "held": "waits",
        "foreign": "leaves it: somebody else's",
        "error": "says that there is no such node",
    }
    out = ["# Reference: node states", ""]
    out += ["Generated by `make docs` from `tests/slurm/node_states.py`; tests/slurm/test_node_states.py puts a real"]
    out += [
        "node into each row, on Slurm 22.05, 24.11 and 26.05. States are written as `sinfo -O StateComplete` prints them.",
        "",
    ]
    out += ["*Drain* says what the agent does if a finding calls for a drain of a node in this state. *Reconcile* says what"]
    out += [
        "happens to a drain of fairlead when the node enters this state. *Resume* says what happens to it after the fault.",
        "",
    ]
    out += [row("state", "words", "drain", "reconcile", "resume", "releases", ""), row(*["---"] * 7)]
    for r in node_states.ROWS:
        reconciled = {
            "drained": "still ours",
            "held": "lifted, not acknowledged",
            "lost": "lifted, not acknowledged",
            "": "cannot happen",
        }.get(r.reconcile, said.get(r.reconcile, ""))
        waits = f"{said[r.drain]}: {r.why}" if r.why else said[r.drain]
        releases = "all" if r.releases == node_states.RELEASES else ", ".join(r.releases)
        words = "+".join(sorted(r.words)).lower()
        out.append(row(r.name, f"`{words}`", waits, reconciled, said.get(r.resume, "cannot happen"), releases, r.note))
    out += ["", "Flags that change nothing: `cloud`, `dynamic_norm`, `dynamic_future`, `reserved`, `planned`."]
    out += ["If the NodeName is not that of the host where the agent runs, it writes nothing to slurmctld.", ""]
    out += ["## What happens to a node", ""]
    out += [
        "The table says what slurmctld shows after each event and what fairlead does then. A row without a release is valid for"
    ]
    out += [
        "22.05, 24.11 and 26.05. *Seen* names the test below tests/slurm that does it to a real slurmctld; test_sequences.py runs"
    ]
    out += ["and judges those of directed.py and moves.py. How fairlead knows who lifted a drain is in"]
    out += ["[slurm-state-changes.md](../explanation/slurm-state-changes.md).", ""]
    out += [row("event", "Slurm shows", "fairlead does", "seen"), row(*["---"] * 4)]
    out += [row(e.name, e.shows, e.does, f"`{e.seen}`") for e in node_states.EVENTS]
    return "\n".join(out) + "\n"


def json_output_page() -> str:
    """What each --json prints, by the words that choose it."""
    out = ["# Reference: what --json prints", "", "Generated by `make docs` from the types that the program writes.", ""]
    out += [JSON_HEAD, row("command", "with", "prints"), row(*["---"] * 3)]
    for name in json_schema.with_json():
        schema = json_schema.schema(name)
        bodies = schema.get("anyOf", [schema])
        for words, body in zip(json_schema.forms(name), bodies, strict=True):
            kind, many = json_schema.named(body)
            known = schema.get("$defs", {}).get(kind, {})
            text = known.get("description", "").partition(". ")[0].rstrip(".")
            out.append(row(f"`{name}`", words, f"{'a list of ' if many else ''}`{kind}`: {text}" if text else f"`{kind}`"))
    return "\n".join(out) + "\n"


def picture() -> str:
    """A machine with one fault, as `fairlead topology --svg` draws it. The README shows it."""
    tree = str(MACHINES / "hgx-h100.width-x8")
    return draw(gather(Root(tree), recorded_nvml(tree), reads=("/proc/cpuinfo",)))


#: Few runs, so that the page is written in seconds. `make test-all` does a thousand.
FABRIC = ROOT / "docs/reference/fabric-acceptance.md"
SIMULATED_RUNS, SIMULATED_RUNS_OF_1024 = 100, 2


def fabric_page(cases: Sequence[fabric_simulation.Case] = fabric_simulation.CASES) -> str:
    """The page, or with fewer cases its first lines, their rows, and its last lines."""
    found = [fabric_simulation.simulate(case, SIMULATED_RUNS if case.nodes < 1000 else SIMULATED_RUNS_OF_1024) for case in cases]
    out = [
        "# Reference: what the rounds of pairs find",
        "",
        "Generated by `make docs` from `tests/measure/fabric_simulation.py`.",
        "",
    ]
    out += [
        "`fairlead accept --fabric` was run on simulated fabrics whose truth is known: 64 nodes on 4 leaves of 16, or 1,024",
        "nodes on 64 leaves. The figure of a pair is the quality of its slower node (spread 0.8 %) with 1 % of noise. In 2 %",
        "of the measurements a passing disturbance takes 5 to 30 % away. A pair is too slow below 0.93 of the median. A",
        "node-run is one node in one round. A node that goes down does so in one of the first five rounds, and 60 % of the",
        "pairs then lose 10 to 60 %. The simulation shows that the rounds and the judgement find the guilty part. It does not",
        "show that a real fabric behaves like this. [Decision",
        "49](../decisions/0049-a-node-is-accused-by-two-good-partners.md) says why the rounds are as they are.",
        "",
    ]
    out += [fabric_simulation.page(found)]
    out += [
        "Recall is the fraction of the guilty nodes that were named, and precision is the fraction of the named nodes that",
        "are guilty. `tests/measure/test_fabric_table.py` fails if the figures get worse than the published comparison of",
        "methods: three nodes slow by 15 % with recall and precision 1.00, no node accused for an uplink and its leaf named",
        "alone in 91 %, at most 0.05 healthy nodes accused in a run with 8 slow nodes, 6 rounds and 330 node-runs.",
        "",
        fabric_mark(),
    ]
    return "\n".join(out) + "\n"


def fabric_mark() -> str:
    """A comment that changes with the code that the page comes from."""
    code = [*sorted((ROOT / "agent/fairlead/measure/pairs").glob("*.py")), ROOT / "tests/measure/fabric_simulation.py"]
    whole = "".join([*(path.read_text() for path in code), inspect.getsource(fabric_page)])
    return f"<!-- made from {hashlib.sha256(whole.encode()).hexdigest()[:16]} -->"


def fabric_page_if_changed() -> str:
    """The page that is there if it was made from the present code: to make it takes 15 s of CPU time, all other pages 5 s."""
    there = FABRIC.read_text() if FABRIC.exists() else ""
    return there if there.endswith(f"\n{fabric_mark()}\n") else fabric_page()


def with_block(text: str, name: str, body: str) -> str:
    begin, end = BEGIN.format(name), END.format(name)
    return re.sub(re.escape(begin) + r".*?" + re.escape(end), lambda _: f"{begin}\n{body}\n{end}", text, flags=re.DOTALL)


ARCHITECTURE, ROOMS = ROOT / "docs/explanation/architecture.md", ROOT / "docs/images/rooms.svg"
#: Numbers of lines and files change with every commit: `make docs` writes them, and a page that has older ones is no stale page.
_COUNTS = re.compile(r"\d+(?= lines<)|(?<=\| )\d+(?= \|)")


def without_counts(path: Path, text: str) -> str:
    """What of a generated file has to be current."""
    return _COUNTS.sub("N", text) if path in (ARCHITECTURE, ROOMS) else text


def decisions_table() -> str:
    """Number, title, date and status of each decision."""
    out = ["| number | decision | date | status |", "|---|---|---|---|"]
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        match = DECISION.match(path.read_text())
        if match is None:
            raise SystemExit(f"{path.relative_to(ROOT)}: its third line is not 'Date: YYYY-MM-DD. Status: accepted.'")
        number, title, date, status = match.groups()
        status = re.sub(r"\]\((?=\d)", "](decisions/", status)
        out.append(row(number, f"[{title}](decisions/{path.name})", date, status))
    return "\n".join([*out, ""])


#: The first three lines of a decision.
DECISION = re.compile(r"# (\d+)\. ([^\n]+)\n\nDate: (\d{4}-\d\d-\d\d)\. Status: ((?:accepted|superseded by \[)[^\n]*)\.\n")


def index_page() -> str:
    """The index of all pages: manual pages and decisions are listed by what is there."""
    manual = textwrap.wrap(", ".join(f"[{n}](man/fairlead-{n}.1)" for n in COMMANDS) + ".", 130, break_on_hyphens=False)
    text = with_block((ROOT / "docs/README.md").read_text(), "manual", "\n".join(manual))
    return with_block(text, "decisions", decisions_table())


def architecture_page() -> str:
    return with_block(ARCHITECTURE.read_text(), "rooms", rooms.page_block(rooms.rooms_of(ROOT), rooms.room_sentences()))


SCALE = ROOT / "docs/explanation/scale.md"


def scale_page() -> str:
    text = with_block(SCALE.read_text(), "scale figures", scale_arithmetic.figures_table())
    return with_block(text, "scale breaks", scale_arithmetic.breaks_table())


PROVED = ROOT / "docs/explanation/what-was-proved-where.md"
#: Every generated file, and what it must hold.
GENERATED: dict[Path, Callable[[], str]] = {
    ROOMS: lambda: rooms.draw(rooms.rooms_of(ROOT), "The rooms of fairlead"),
    ARCHITECTURE: architecture_page,
    ROOT / "docs/man/fairlead.1": man_pages.main_page,
    **{ROOT / f"docs/man/fairlead-{name}.1": partial(man_pages.command_page, name) for name in COMMANDS},
    ROOT / "templates/usr/share/bash-completion/completions/fairlead": completion_scripts.bash,  # nodes get it, too
    ROOT / "docs/completion/_fairlead": completion_scripts.zsh,
    ROOT / "docs/completion/fairlead.fish": completion_scripts.fish,
    ROOT / "docs/reference/checks.md": lambda: reference("checks"),
    ROOT / "docs/reference/settings.md": lambda: reference("settings"),
    ROOT / "docs/reference/profiles.md": profiles_page,
    ROOT / "docs/reference/fabrics.md": fabrics_page,
    ROOT / "docs/reference/job-environment.md": job_environment_page,
    ROOT / "docs/reference/json-output.md": json_output_page,
    ROOT / "docs/reference/node-states.md": node_states_page,
    ROOT / "docs/reference/policy.md": policy_page,
    ROOT / "docs/reference/options.md": options_page,
    ROOT / "docs/reference/metrics.md": metrics_page,
    ROOT / "docs/reference/advice.md": advice_page,
    ROOT / "docs/reference/kept-files.md": kept_files_page,
    FABRIC: fabric_page_if_changed,
    ROOT / "docs/reference/selftest-report.md": selftest_pages.format_page,
    argument_specs.SPEC: argument_specs.text,
    PROVED: lambda: with_block(PROVED.read_text(), "claims", selftest_pages.claims_block()),
    SCALE: scale_page,
    ROOT / "docs/images/width-x8.svg": picture,
    ROOT / "docs/README.md": index_page,
    ROOT / "README.md": lambda: with_block((ROOT / "README.md").read_text(), "checks and settings", readme_table()),
}


def main() -> int:
    ensure()  # the pictures and the metrics come from machine trees
    for path, write in GENERATED.items():
        text = write()
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
