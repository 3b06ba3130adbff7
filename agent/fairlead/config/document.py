"""Defines the schema of a node's document, and resolves documents. Checks, settings and policy declare the parts of the schema.

``/etc/fairlead/node.json`` is a node's only input. It is resolved on the admin host from layers: the defaults in the code, the
hardware profile, the site, the node's class, the node. A later layer wins over an earlier one. A node only reads the document.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from fairlead import checks as check_list
from fairlead import settings as setting_list
from fairlead.checks import gpu_count
from fairlead.config import document_json
from fairlead.errors import ConfigError, DataError, InputMissing
from fairlead.jobenv.variable_table import FabricRow
from fairlead.model.check_definition import CheckParams
from fairlead.model.setting import Want
from fairlead.policy import Rules

SCHEMA = 1
NODE_DOCUMENT = "/etc/fairlead/node.json"
HEAD_OF_LAYER = {"schema": SCHEMA, "generation": 0, "node": "x"}  # A document has these keys, a layer does not.
KEYS_LISTED_MAX = 12  # The hint about an unknown key lists at most this many keys of the table.
# A node reads schemas n and n-1, so that agents and documents can be updated independently.
READABLE_SCHEMAS = (SCHEMA, SCHEMA - 1)
#: The renamed keys by section. Version 0.1.0 has written documents with the old names, which are read too.
_RENAMED = {"slurm": {"look_seconds": "reconcile_seconds"}}


class AgentOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    interval_seconds: Annotated[float, Meta(ge=0.2, le=3600, description="Time from one full sweep to the next.")] = 15.0
    nvml_deadline_seconds: Annotated[
        float, Meta(ge=0.2, le=300, description="If NVML takes longer to answer, its values are unreadable.")
    ] = 5.0
    verdict_ttl_seconds: Annotated[int, Meta(ge=5, le=86400, description="A published verdict is valid for this long.")] = 120
    reapply: Annotated[bool, Meta(description="Apply PCIe settings again after a device's reset has lost them.")] = True
    kmsg_path: Annotated[str, Meta(description="The file that kernel records are read from.")] = "/dev/kmsg"
    run_dir: Annotated[str, Meta(description="Folder of the files for hooks and commands, on tmpfs.")] = "/run/fairlead"
    state_dir: Annotated[
        str,
        Meta(
            pattern=r"^(/[A-Za-z0-9_.+-]+)+(?!\n)$",
            description="Folder of ledger, history, audit trail, hold and usage records, on a disk that survives a boot.",
        ),
    ] = "/var/lib/fairlead"
    metrics_textfile: Annotated[
        str,
        Meta(
            pattern=r"^$|^(/[A-Za-z0-9_.+-]+)+(?!\n)$",
            description="Prometheus text file, NAME.prom in a folder that exists (node_exporter's). Empty: none.",
        ),
    ] = "/run/fairlead/metrics.prom"
    metrics_listen: Annotated[
        str,
        Meta(
            pattern=r"^$|^(127\.0\.0\.1|localhost|\[::1\]|[^:]+):\d+$",
            description="Address host:port that serves the metrics. Empty: no port is opened.",
        ),
    ] = ""
    metrics_nvlink_links: Annotated[
        bool,
        Meta(description="Add metrics of each NVLink of each GPU: 144 series on 8 GPUs with 18 links."),
    ] = False
    usage_records: Annotated[bool, Meta(description="Keep a record of what each job used, in the folder usage of state_dir.")] = (
        True
    )
    usage_days: Annotated[float, Meta(ge=1, le=3660, description="Usage records are kept for this number of days.")] = 30.0
    gpustat_dir: Annotated[
        str,
        Meta(
            pattern=r"^$|^(/[A-Za-z0-9_.+-]+)+(?!\n)$",
            description="Folder where jobstats' GPU exporter finds the job of each GPU: /run/gpustat. Empty: none.",
        ),
    ] = ""
    dcgm_job_dir: Annotated[
        str,
        Meta(
            pattern=r"^$|^(/[A-Za-z0-9_.+-]+)+(?!\n)$",
            description="Folder of dcgm-exporter's --hpc-job-mapping-dir, for the jobs of each GPU. Empty: none.",
        ),
    ] = ""


class SlurmOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    node_name: Annotated[str, Meta(description="Slurm's NodeName. Empty: the document's `node`.")] = ""
    conf: Annotated[str, Meta(description="SLURM_CONF. Empty: /etc/slurm/slurm.conf, else slurmd's copy.")] = ""
    bin_dir: Annotated[str, Meta(description="Folder of scontrol, sinfo and squeue.")] = "/usr/bin"
    deadline_seconds: Annotated[float, Meta(ge=1, le=120, description="How long each call of a Slurm command may take.")] = 10.0
    adapter: Annotated[
        Literal["scontrol", "pyslurm"],
        Meta(description="pyslurm: fairlead uses pyslurm where it was built for this node's Slurm, else scontrol."),
    ] = "scontrol"
    pyslurm_python: Annotated[str, Meta(description="The Python that has pyslurm. Empty: fairlead's own.")] = ""
    reconcile_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=3600,
            description="While the node is drained by fairlead, the agent asks slurmctld at this interval whether it still is."
            " If the agent can watch this node's slurmd, the interval is four times as long. The agent then asks"
            " earlier when slurmd is active.",
        ),
    ] = 30.0
    splay_seconds: Annotated[
        float,
        Meta(ge=0, le=5, description="Longest random wait before a drain, so that nodes see each other's drains in the budget."),
    ] = 0.05


class HookOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    on_stale: Annotated[
        Literal["allow", "refuse"],
        Meta(
            description="The prolog's answer without a valid verdict. Even with refuse, a job that was restarted 3 times or more"
            " may start."
        ),
    ] = "allow"
    env_profile: Annotated[
        Literal["full", "minimal", "off"], Meta(description="How much of the job environment the task prolog sets.")
    ] = "full"
    site_task_prolog: Annotated[
        str, Meta(pattern=r"^(/[^\t\n]*)?(?!\n)$", description="The site's own task prolog, which runs first.")
    ] = ""
    planner_python: Annotated[
        str, Meta(pattern=r"^/[^\t\n]*(?!\n)$", description="The Python that runs the binding planner.")
    ] = "/opt/fairlead/current/bin/python"


class Preset(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    extra: Annotated[dict[str, str], Meta(description="Variables that this preset sets.")] = field(default_factory=dict)
    skip: Annotated[tuple[str, ...], Meta(description="Variables that this preset leaves out.")] = ()


class JobEnvOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    extra: Annotated[dict[str, str], Meta(description="Variables that are set where the user has not set them.")] = field(
        default_factory=dict
    )
    skip: Annotated[tuple[str, ...], Meta(description="Variables of fairlead that this site does not want.")] = ()
    scratch: Annotated[
        str,
        Meta(
            pattern=r"^$|^(/[A-Za-z0-9_.+-]+)+(?!\n)$",
            description="Folder on a local disk (root's, 0755 or 1777) for TMPDIR and caches, one folder per job. Empty: none.",
        ),
    ] = ""
    rail_only: Annotated[bool, Meta(description="The rails are not connected to each other, so NCCL_CROSS_NIC=0 is set.")] = False
    master_suffix: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9.-]*(?!\n)$",
            description="Suffix to append to a host name to get the host's name on the fast network, such as i or -ib0.",
        ),
    ] = ""
    notice: Annotated[
        bool,
        Meta(
            description="A batch job in which fairlead sets variables says so in one line at the beginning of its output, and how"
            " to see and to switch it off."
        ),
    ] = False
    presets: Annotated[
        dict[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,30}(?!\n)$")], Preset],
        Meta(description="Presets by name. A job chooses one with FAIRLEAD_PROFILE=NAME."),
    ] = field(default_factory=dict)
    fabric: Annotated[tuple[FabricRow, ...], Meta(description="Variables of the fabric profile, for jobs on several nodes.")] = ()


class Document(Struct, frozen=True, kw_only=True):
    """Holds a node's resolved document. ``checks``: the parameters of every check, or of gpu_count alone if the caller did not
    ask for checks. ``settings``: only the declared settings."""

    schema: int
    generation: int
    hash: str
    node: str
    profile: str
    unsupported: tuple[str, ...]
    checks: dict[str, CheckParams]
    settings: dict[str, Want]
    policy: Rules
    agent: AgentOptions
    slurm: SlurmOptions
    hooks: HookOptions
    jobenv: JobEnvOptions

    @property
    def slurm_node(self) -> str:
        return self.slurm.node_name or self.node

    @property
    def gpu_pci_ids(self) -> tuple[str, ...]:
        """Return the PCI IDs of the GPU that the hardware profile is for, or () if it does not say."""
        params = self.checks.get("gpu_count")
        return params.pci_ids if isinstance(params, gpu_count.Params) else ()


def _composite(name: str, fields: list[tuple[str, Any, Any]]) -> type[Struct]:
    return defstruct(name, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)


_SECTIONS: list[tuple[str, Any, Any]] = [
    ("policy", Rules, field(default_factory=Rules)),
    ("agent", AgentOptions, field(default_factory=AgentOptions)),
    ("slurm", SlurmOptions, field(default_factory=SlurmOptions)),
    ("hooks", HookOptions, field(default_factory=HookOptions)),
    ("jobenv", JobEnvOptions, field(default_factory=JobEnvOptions)),
]
SECTION_NAMES = ("checks", "settings", *(name for name, _, _ in _SECTIONS))


class _OnlyGpuCount(TypedDict, total=False):
    gpu_count: gpu_count.Params


@cache
def node_schema(*, checks: bool = True) -> type[Struct]:
    """Return the type of the document as it is written to the file. Without ``checks`` only gpu_count is imported and validated,
    which says what GPU the profile is for. That saves half of the time that reading takes."""
    judged: Any = _OnlyGpuCount
    if checks:
        judged = _composite("Checks", [(n, c.params, field(default_factory=c.params)) for n, c in check_list.load().items()])
    declared = _composite("Settings", [(n, s.want | UnsetType, UNSET) for n, s in setting_list.load().items()])
    return defstruct(
        "NodeDocument",
        [
            ("schema", int),
            ("generation", int),
            ("node", Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+(?!\n)$")]),
            ("hash", str, ""),
            ("profile", str, ""),
            ("unsupported", tuple[str, ...], ()),
            ("checks", judged, field(default_factory=judged)),
            ("settings", declared, field(default_factory=declared)),
            *_SECTIONS,
        ],
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )


_AT = re.compile(r"^(?P<reason>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`$")


def config_error(
    where: str, error: msgspec.ValidationError, table: str = "", known: Sequence[str] = (), *, schema: Any = None
) -> ConfigError:
    """Return msgspec's error as a ConfigError with file and dotted key.

    ``table``: the key of the value that was converted. ``known``: the keys of this table, if ``schema`` does not have them.
    ``schema``: the type of the value, for a hint that names the key that was probably meant.
    """
    match = _AT.match(str(error))
    reason, inner = (match["reason"], match["path"] or "") if match else (str(error), "")
    path = f"{table}.{inner}".strip(".")
    unknown = _UNKNOWN.match(reason)
    if unknown:
        return unknown_key(where, path, unknown["name"], known or _known_keys(schema, inner), schema=schema)
    hint = ""
    if reason.startswith("Invalid enum value"):
        hint = _words_hint(schema, inner) or "`fairlead config schema` lists the allowed words"
    return ConfigError(where, path, reason, hint=hint)


def unknown_key(where: str, table: str, name: str, known: Sequence[str] = (), *, schema: Any = None) -> ConfigError:
    """Return the error for a key that a table does not have. ``known``: the keys of the table. ``schema``: the type of the
    whole document, for a hint if the key belongs to another table."""
    from fairlead.config import schema_keys

    few = 0 < len(known) <= KEYS_LISTED_MAX
    hint = f"known here: {', '.join(known)}" if few else "`fairlead config schema` lists every key"
    question = schema_keys.meant(name, known, schema)
    return ConfigError(where, f"{table}.{name}".strip("."), "unknown key", hint=f"{question} {hint}".strip())


def _known_keys(schema: Any, path: str) -> tuple[str, ...]:
    from fairlead.config import schema_keys

    table = schema_keys.at(schema, path) if schema is not None else None
    return tuple(schema_keys.fields(table)) if schema_keys.is_table(table) else ()


def _words_hint(schema: Any, path: str) -> str:
    from fairlead.config import schema_keys

    words = schema_keys.words(schema_keys.at(schema, path)) if schema is not None else ()
    return f"allowed: {', '.join(words)}" if words else ""


def _document(data: object, where: str, *, checks: bool = True) -> Document:
    if not isinstance(data, dict):
        raise ConfigError(where, "", "not a JSON object")
    schema = data.get("schema")
    if schema not in READABLE_SCHEMAS:
        known = " and ".join(str(s) for s in READABLE_SCHEMAS)
        hint = "run `fairlead provision` from the admin host: it brings a document and the release that reads it together"
        raise ConfigError(where, "schema", f"{schema!r} is not readable by this version, which reads {known}", hint=hint)
    try:
        wire = cast(Any, msgspec.convert(data, node_schema(checks=checks)))
    except msgspec.ValidationError as e:
        raise config_error(where, e, schema=node_schema(checks=checks)) from None
    settings = {n: w for n in wire.settings.__struct_fields__ if (w := getattr(wire.settings, n)) is not UNSET}
    return Document(
        schema=wire.schema,
        generation=wire.generation,
        hash=wire.hash,
        node=wire.node,
        profile=wire.profile,
        unsupported=wire.unsupported,
        checks=_judged({n: getattr(wire.checks, n) for n in wire.checks.__struct_fields__}, settings) if checks else wire.checks,
        settings=settings,
        policy=wire.policy,
        agent=wire.agent,
        slurm=wire.slurm,
        hooks=wire.hooks,
        jobenv=wire.jobenv,
    )


def _judged(checks: dict[str, CheckParams], settings: Mapping[str, Want]) -> dict[str, CheckParams]:
    """Return the checks. Each managed setting prescribes values for some parameters of checks (``instead_of``), and these values
    replace the declared ones. So no check judges again what a setting judges."""
    known = setting_list.load()
    for name, want in settings.items():
        for check, parameters in known[name].instead_of.items() if want.managed else ():
            checks[check] = msgspec.structs.replace(checks[check], **parameters)
    return checks


def content_hash(data: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a document without its ``hash`` and ``generation``."""
    body = {k: v for k, v in data.items() if k not in {"hash", "generation"}}
    return "sha256:" + hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


def decode_document(data: bytes, where: str, *, checks: bool = True) -> Document:
    """Return a node's document. Raises ConfigError (file, key, reason; one short line) for anything that is not a valid
    document.

    checks=False leaves all checks but gpu_count out, for a caller that does not judge. In a document without a hash, all checks
    are validated even then, because nothing has validated them yet.
    """
    raw = document_json.decode(data, where)
    try:
        document = _document(_with_new_names(raw), where, checks=checks or not raw.get("hash"))
    except ConfigError as e:
        short = document_json.short
        raise ConfigError(where, short(e.key, 100), short(e.reason), hint=e.hint) from None
    if document.hash and document.hash != content_hash(raw):
        hint = (
            f"the file was edited by hand: `fairlead provision -l {document.node}` on the admin host writes it anew; to use the"
            ' edited one until then, delete its entry "hash"'
        )
        raise ConfigError(where, "hash", "does not match the content", hint=hint)
    return document


def _with_new_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document whose renamed keys have their new names. The document that is passed in does not change."""
    found = dict(data)
    for section, names in _RENAMED.items():
        if isinstance(table := found.get(section), dict):
            found[section] = {names.get(key, key): value for key, value in table.items()}
    return found


def load_document(path: str, *, checks: bool = True) -> Document:
    """Read and decode a document file (``decode_document``). Raises InputMissing, ConfigError."""
    try:
        with open(path, "rb") as f:
            data = f.read(document_json.MAX_BYTES + 1)
    except FileNotFoundError:
        own = "run `fairlead provision` for this node"
        hint = own if path == NODE_DOCUMENT else f"name the document that you have; on a node it is {NODE_DOCUMENT}"
        raise InputMissing(f"{path}: no such file", hint=hint) from None
    except IsADirectoryError as e:
        raise InputMissing(f"{path}: {e.strerror}", hint="name the file, not its folder") from None
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}", hint=f"see that you may read it: ls -l {path}") from None
    return decode_document(data, path, checks=checks)


def to_data(document: Document) -> dict[str, Any]:
    """Return a document as plain JSON data, with every default filled in."""
    return cast(dict[str, Any], msgspec.to_builtins(document))


def encode_document(document: Document) -> bytes:
    """Return the bytes of a document's file: indented, with the keys in a fixed order and the hash set. The same document
    always gives the same bytes."""
    data = to_data(document)
    data["hash"] = content_hash(data)
    return msgspec.json.format(msgspec.json.encode(data, order="deterministic"), indent=1) + b"\n"


def hooks_line(document: Document) -> str:
    """Return the line that the shell hooks read: ``1 ON_STALE ENV_PROFILE SITE_TASK_PROLOG PLANNER_PYTHON``, separated by TAB."""
    h = document.hooks
    return "\t".join(("1", h.on_stale, h.env_profile, h.site_task_prolog or "-", h.planner_python)) + "\n"


def merge(into: dict[str, Any], layer: Mapping[str, Any], origin: str, origins: dict[str, str], prefix: str = "") -> None:
    """Lay ``layer`` over ``into``: tables are merged, and every other value is replaced. Record in ``origins`` which layer
    each leaf came from, by dotted key."""
    for key, value in layer.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping):
            child = into.get(key)
            into[key] = dict(child) if isinstance(child, Mapping) else {}
            merge(into[key], value, origin, origins, dotted + ".")
        else:
            into[key] = value
            origins[dotted] = origin


def resolve_layers(
    node: str,
    layers: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    profile: str = "",
    generation: int = 0,
) -> tuple[Document, dict[str, str]]:
    """Return the document that the layers (origin, tree) make, and the origin of each declared value. A later layer wins.

    Each layer is first validated alone, so that an error names the layer that has the mistake. Raises ConfigError.
    """
    head = {"schema": SCHEMA, "generation": generation, "node": node, "profile": profile}
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _check_layer(origin, layer)
        merge(data, layer, origin, origins)
    document = _document({**data, **head}, " + ".join(origin for origin, _ in layers) or "defaults")
    complete = to_data(document)
    return msgspec.structs.replace(document, hash=content_hash(complete)), origins


def _check_layer(origin: str, layer: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first mistake of a layer. A layer may leave out required values, because another layer may
    have them. Every value that it has must be valid."""
    from fairlead.config.mig_declared import mig_mistakes

    for mistake in mig_mistakes(origin, layer):
        raise mistake
    try:
        msgspec.convert({**layer, **HEAD_OF_LAYER}, node_schema())
    except msgspec.ValidationError as e:
        if not str(e).startswith("Object missing required field"):
            raise config_error(origin, e, schema=node_schema()) from None
    for mistake in mistakes_of_values(origin, layer):
        raise mistake


def mistakes_of_values(origin: str, layer: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield the mistakes that would otherwise appear only on the nodes: presets with the name of a built-in profile, and
    variables that a site must not set."""
    from fairlead.jobenv.environment_text import render
    from fairlead.jobenv.variable_table import of_fabric
    from fairlead.nccl.nccl_conf import fault

    options = layer.get("jobenv", {})
    presets = options.get("presets", {})
    for reserved in sorted({"full", "minimal", "off"} & presets.keys()):
        yield ConfigError(origin, f"jobenv.presets.{reserved}", "is the name of a built-in profile (full, minimal, off)")
    tables = {"jobenv.extra": options.get("extra")}
    tables |= {f"jobenv.presets.{name}.extra": preset.get("extra") for name, preset in presets.items()}
    for key, variable in ((key, {name: value}) for key, extra in tables.items() for name, value in (extra or {}).items()):
        try:
            render((), extra=variable)
        except DataError as e:
            yield ConfigError(origin, key, str(e))
    try:
        render(of_fabric(msgspec.convert(options.get("fabric", ()), tuple[FabricRow, ...])))
    except DataError as e:
        yield ConfigError(origin, "jobenv.fabric", str(e))
    nccl = layer.get("settings", {}).get("nccl", {})
    declared = [("extra", n, v) for n, v in nccl.get("extra", {}).items()]
    declared += [("variables", v["name"], v["value"]) for v in nccl.get("variables", ())]
    for table, name, value in declared:
        reason = fault(name, value)
        if reason:
            yield ConfigError(origin, f"settings.nccl.{table}.{name}", reason)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a node's document, for editors and for `fairlead config schema`."""
    return msgspec.json.schema(node_schema())
