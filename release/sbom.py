"""Makes the bill of materials of a release (CycloneDX): fairlead, what it brings to nodes and to the admin host, and what built
it.

The same release gives the same bytes: its time is the time of the commit, and its serial number is computed from the hashes of
the release's files.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

NAME = re.compile(r"^[A-Za-z0-9._-]+")


def component(name: str, version: str, licence: str, **more: object) -> Component:
    made = Component(
        name=name,
        version=version,
        licenses=[LicenseFactory().make_from_string(licence)] if licence != "not stated" else [],
        purl=PackageURL("pypi", None, name, version),
        bom_ref=f"pkg:pypi/{name}@{version}",
    )
    for key, value in more.items():
        setattr(made, key, value)
    return made


def file(name: str, digest: str) -> ExternalReference:
    """Return a reference to a file of the release or of the lock. It has only the file's name, because each site decides where it
    gets the file from."""
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    return ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(name), hashes=hashes)


def requirements(text: str) -> dict[str, tuple[str, str, list[str]]]:
    """Return version, licence and sha256 values by package name, from the text of a file that `make lock` wrote."""
    stanza = re.compile(r"^# (\S+): (.+)\n\1==(\S+) \\\n((?:    --hash=sha256:.*\n)+)", re.MULTILINE)
    return {name: (version, said, re.findall(r"[0-9a-f]{64}", hashes)) for name, said, version, hashes in stanza.findall(text)}


def normal(names: Iterable[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for name in names if (match := NAME.match(name))}


def sbom(tree: Path, files: Iterable[Path], epoch: int) -> str:
    """Return the bill of materials as JSON. tree: the source of the release. files: its wheel and its sdist. epoch: the time of
    the commit, in Unix seconds."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    locked = tomllib.loads((tree / "agent/fairlead/provision/node_wheels.toml").read_text())["packages"]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}
    ours = component("fairlead", project["version"], project["license"], type=ComponentType.APPLICATION)
    ours.external_references = [file(*entry) for entry in digests.items()]  # type: ignore[assignment]
    parts = {
        p["name"]: component(
            p["name"],
            p["version"],
            p["license"],
            scope=ComponentScope.REQUIRED,
            external_references=[file(w["name"], w["sha256"]) for w in p["wheels"]],
            properties=[Property(name="fairlead:runs-on", value="nodes and admin host")],
        )
        for p in locked
    }
    for name, (version, licence, hashes) in requirements((tree / "agent/fairlead/provision/admin.txt").read_text()).items():
        if name not in parts:
            found = [Property(name="fairlead:accepted-sha256", value=digest) for digest in hashes]
            where = Property(name="fairlead:runs-on", value="admin host")
            parts[name] = component(name, version, licence, scope=ComponentScope.OPTIONAL, properties=[where, *found])
    tools = requirements((tree / "release/build.txt").read_text())
    bom = Bom(components=parts.values(), serial_number=uuid.uuid5(uuid.NAMESPACE_OID, " ".join(digests.values())))
    bom.metadata.component = ours
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.tools = ToolRepository(components=[component(name, v, said) for name, (v, said, _) in tools.items()])
    extras = project["optional-dependencies"]
    direct = normal([*project["dependencies"], *extras["provision"], *extras["el"]])
    bom.register_dependency(ours, [part for name, part in sorted(parts.items()) if name in direct])
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"
