"""Fetches the list of packages (primary metadata) of a dnf repository, and checks it.

The file repodata/repomd.xml of a repository names the other files of its metadata with their hashes. Where a key is declared, a
signature of this key on repomd.xml (repomd.xml.asc) is required, so a list that somebody else has changed is refused. Without a
key only damage is found. Everything is bounded, because the repository may be hostile. Sources: createrepo_c(8); dnf.conf(5),
repo_gpgcheck; gnupg's doc/DETAILS (status lines).
"""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast
from xml.etree import ElementTree

from msgspec import Struct

from fairlead.errors import DataError, InputMissing, ProvisionError, UsageError
from fairlead.model.plain_text import one_line

FETCH_SECONDS = 60.0  # a download that gets no byte for this long has failed
DOWNLOAD_SECONDS = 900.0
GPG_SECONDS = 60
REPOMD_MAX, SIGNATURE_MAX, KEY_MAX = 4 << 20, 64 << 10, 1 << 20
PACKED_MAX, UNPACKED_MAX = 256 << 20, 2 << 30
_SPACE = "{http://linux.duke.edu/metadata/repo}"
_LINE = re.compile(r"(?:\[\s*signed-by=(?P<key>[^\]\s]+)\s*\]\s*)?(?P<address>[^\s\[].*)")
_HASHES = {"sha256": 64, "sha512": 128}


class DnfRepository(Struct, frozen=True):
    """Describes one repository. address: http(s)://..., or the path of a folder on this host. key: a file with the public keys
    of which one must have signed the metadata, or "" for no signature."""

    address: str
    key: str = ""

    @property
    def is_folder(self) -> bool:
        return self.address.startswith("/")


class Primary(Struct, frozen=True, kw_only=True):
    """Says where the packed list of packages is, and what repomd.xml says of it."""

    href: str
    kind: str
    digest: str


def is_apt_line(line: str) -> bool:
    """Say whether a value of --repository is a line of sources.list(5)."""
    return re.match(r"\s*deb(-src)?[\s\[]", line) is not None


def parse_line(line: str) -> DnfRepository:
    """Return the repository of a value ``[signed-by=FILE] ADDRESS``. Raises UsageError."""
    match = _LINE.fullmatch(line.strip())
    hint = "a line of sources.list (deb ...), or [signed-by=FILE] and the address of a folder that has repodata/"
    if match is None:
        raise UsageError(f"--repository {one_line(line, 80)}: no repository", hint=hint)
    key, address = match["key"] or "", match["address"]
    if "$" in address:
        words = f"--repository {one_line(address, 80)}: dnf's variables are not known here"
        raise UsageError(words, hint="write the release and the architecture in place of $releasever and $basearch")
    if re.fullmatch(r"https?://[^/\s]\S*", address):
        return DnfRepository(address.rstrip("/"), key)
    path = re.sub(r"^file:(//)?(?=/)", "", address)
    if ":" in path.partition("/")[0]:
        raise UsageError(f"--repository {one_line(address, 80)}: only http, https and folders are read", hint=hint)
    return DnfRepository(os.path.abspath(path), key)


@contextmanager
def opened(repository: DnfRepository, href: str) -> Iterator[IO[bytes]]:
    """Open a file of a repository. Raises InputMissing for a file that is not in a folder, and ProvisionError for a repository
    that does not answer."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.parse import quote
    from urllib.request import urlopen

    url = f"{repository.address}/{href}"
    try:
        if repository.is_folder:
            if not os.path.isfile(url):
                raise InputMissing(f"{url}: no such file", hint=_hint(repository, href))
            with open(url, "rb") as f:
                yield f
        else:
            with urlopen(quote(url, safe=":/%?=&@"), timeout=FETCH_SECONDS) as answer:  # noqa: S310 (http or https: parse_line)
                yield answer
    except HTTPError as e:
        raise ProvisionError(f"{url}: HTTP {e.code} {one_line(str(e.reason), 80)}", hint=_hint(repository, href)) from None
    except (OSError, URLError, HTTPException, ValueError) as e:
        if getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise  # this host's own disk, not the repository
        cause = getattr(e, "reason", None) or e
        words = f"{url}: {one_line(str(getattr(cause, 'strerror', None) or cause), 120)}"
        raise ProvisionError(words, hint="is the repository right, and reachable from here?") from None


def _hint(repository: DnfRepository, href: str) -> str:
    if href.endswith(".asc"):
        return "this repository is not signed: leave [signed-by=...] out, or use one that is"
    if repository.is_folder and list(Path(repository.address).glob("*.rpm")):
        return "--rpms takes a folder of package files without repodata/"
    return "name the folder that has repodata/ in it"


def _get(repository: DnfRepository, href: str, limit: int) -> bytes:
    with opened(repository, href) as source:
        data = source.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{repository.address}/{href}: larger than {limit >> 10} KiB", hint="is that a dnf repository?")
    return data


def fetch_primary(repository: DnfRepository, cache: Path) -> tuple[Path, Primary]:
    """Return the packed list of packages in the folder ``cache``, checked, with what repomd.xml says of it. A list that is
    already there is not fetched again. Raises ProvisionError, DataError, InputMissing."""
    repomd = _get(repository, "repodata/repomd.xml", REPOMD_MAX)
    if repository.key:
        _check_signature(repository, repomd)
    primary = parse_repomd(repomd, f"{repository.address}/repodata/repomd.xml")
    cache.mkdir(parents=True, exist_ok=True)
    suffix = Path(primary.href).suffix
    path = cache / f"{primary.digest}-primary.xml{suffix if re.fullmatch(r'[.][a-z0-9]{1,4}', suffix) else ''}"
    if path.is_file() and _digest(path, primary.kind) == primary.digest:
        return path, primary
    for old in cache.glob("*-primary.xml*"):
        old.unlink(missing_ok=True)
    part = cache / f".{path.name}.part"
    try:
        with opened(repository, primary.href) as source, open(part, "wb") as out:
            _copy(source, out, PACKED_MAX, f"{repository.address}/{primary.href}")
        if _digest(part, primary.kind) != primary.digest:
            words = f"{repository.address}/{primary.href}: not what repomd.xml says (another {primary.kind})"
            raise DataError(words, hint="the repository is being changed, or a cache between is stale: try again in a minute")
        os.rename(part, path)
    except OSError as e:
        raise ProvisionError(f"{part}: {e.strerror}", hint="make room there, or set XDG_CACHE_HOME") from None
    finally:
        part.unlink(missing_ok=True)
    return path, primary


def parse_repomd(data: bytes, name: str) -> Primary:
    """Return where the list of packages is. Raises DataError for a file that is not repomd.xml, or that names no such list."""
    hint = "the repository is not whole: make its metadata again with createrepo_c, or use another mirror"
    if b"<!" in data.replace(b"<!--", b""):  # a document type could define entities that grow without end
        raise DataError(f"{name}: not a list of metadata", hint=hint)
    try:
        root = ElementTree.fromstring(data)  # noqa: S314 (it has no document type)
    except ElementTree.ParseError as e:
        raise DataError(f"{name}: torn or no XML: {e}", hint=hint) from None
    entry = root.find(f"{_SPACE}data[@type='primary']")
    location = entry.find(f"{_SPACE}location") if entry is not None else None
    checksum = entry.find(f"{_SPACE}checksum") if entry is not None else None
    if location is None or checksum is None:
        raise DataError(f"{name}: names no primary metadata", hint=hint)
    kind, digest, href = checksum.get("type", ""), (checksum.text or "").strip(), location.get("href", "")
    if not re.fullmatch(rf"[0-9a-f]{{{_HASHES.get(kind, 1)}}}", digest):
        words = f"{name}: the hash of the primary metadata is {one_line(kind, 20) or 'nothing'}, and sha256 or sha512 is needed"
        raise DataError(words, hint=hint)
    if not is_below(href):
        raise DataError(f"{name}: the path of the primary metadata leads out of the repository", hint=hint)
    return Primary(href=href, kind=kind, digest=digest)


def is_below(path: str) -> bool:
    """Say whether a path in a repository is relative and stays below the repository's folder."""
    return bool(path) and path.isprintable() and not path.startswith("/") and ".." not in path.split("/")


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, kind).hexdigest()


def _copy(source: IO[bytes], out: IO[bytes], limit: int, name: str, forbidden: bytes = b"") -> None:
    """Copy at most ``limit`` bytes. Raises DataError for more bytes, for bytes that take too long, and for the word
    ``forbidden``."""
    left, end, before = limit, time.monotonic() + DOWNLOAD_SECONDS, b""
    while block := source.read(1 << 20):
        left -= len(block)
        if left < 0:
            raise DataError(f"{name}: larger than {limit >> 20} MiB", hint="is that a dnf repository?")
        if forbidden and forbidden in before[-len(forbidden) :] + block:
            raise DataError(f"{name}: not a list of packages", hint="make the metadata again with createrepo_c")
        if time.monotonic() > end:
            raise ProvisionError(f"{name}: no end within {DOWNLOAD_SECONDS:.0f} s", hint="is the mirror slow? try again")
        out.write(block)
        before = block


# -- unpacking -------------------------------------------------------------------------------------


def unpack(path: Path, name: str, out: IO[bytes]) -> None:
    """Write the unpacked list of packages to ``out``. name: what a message calls the list. Raises DataError for a torn list,
    and ProvisionError where this host cannot unpack its kind."""
    openers: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _open_zstd}
    opener = openers.get(path.suffix)
    if opener is None and path.suffix != ".xml":
        raise DataError(f"{name}: packed in a way that is not known here", hint="known are gz, xz, bz2 and zst")
    try:
        with opener(path) if opener else open(path, "rb") as source:
            _copy(source, out, UNPACKED_MAX, name, b"<!DOCTYPE")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise ProvisionError(f"{out.name}: {e.strerror}", hint="make room there, or set TMPDIR") from None
        hint = "the repository is not whole: try again, or use another mirror"
        raise DataError(f"{name}: torn: {one_line(str(e), 80)}", hint=hint) from None


@contextmanager
def _open_zstd(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that is packed with zstd. Python has no reader before 3.14, so the program zstd is used."""
    program = shutil.which("zstd")
    if program is None:
        hint = "install zstd on this host (its program unpacks the list)"
        raise ProvisionError(f"{path}: packed with zstd, which cannot be read here", hint=hint)
    words = [program, "-dcq", "--memory=256MB", "--", str(path)]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            yield cast(IO[bytes], child.stdout)
            if child.wait(GPG_SECONDS):
                raise EOFError("zstd cannot unpack it")
        finally:
            child.kill()


# -- the signature ---------------------------------------------------------------------------------


def _check_signature(repository: DnfRepository, repomd: bytes) -> None:
    """Raise DataError unless a key of the declared file has signed repomd.xml."""
    if shutil.which("gpg") is None:
        raise ProvisionError("gpg is not installed here, and a key is declared", hint="install gnupg (gnupg2 on EL)")
    key = _key(repository.key)
    signature = _get(repository, "repodata/repomd.xml.asc", SIGNATURE_MAX)
    with tempfile.TemporaryDirectory(prefix="fl") as home:  # a short name, because gpg's socket lies in it
        base = Path(home)
        for name, data in (("key", key), ("repomd.xml", repomd), ("repomd.xml.asc", signature)):
            (base / name).write_bytes(data)
        _gpg(base, "--import", str(base / "key"))
        said = _gpg(base, "--trust-model", "always", "--verify", str(base / "repomd.xml.asc"), str(base / "repomd.xml"))
    good = {"GOODSIG", "VALIDSIG"} <= said.keys()
    wrong = said.keys() & {"BADSIG", "ERRSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG"}
    if good and not wrong:
        return
    kinds = {
        "BADSIG": "the signature does not fit",
        "ERRSIG": "signed by another key",
        "EXPSIG": "the signature has expired",
        "EXPKEYSIG": "the key has expired",
        "REVKEYSIG": "the key is revoked",
    }
    reason = next((text for word, text in kinds.items() if word in wrong), "no signature that gpg knows")
    by = next((one_line(said[w].split(" ")[0], 40) for w in ("BADSIG", "ERRSIG", "EXPKEYSIG", "REVKEYSIG") if said.get(w)), "")
    words = f"{repository.address}/repodata/repomd.xml.asc: {reason}" + (f" ({by})" if by else "")
    raise DataError(words, hint=f"is {repository.key} the key of this repository? if it is, do not use this mirror")


def _key(path: str) -> bytes:
    try:
        with open(path, "rb") as f:
            data = f.read(KEY_MAX + 1) if os.path.isfile(path) else b""
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}", hint="[signed-by=FILE] names the key of the repository") from None
    if not data or len(data) > KEY_MAX:
        raise DataError(f"{path}: not a file with a key", hint="[signed-by=FILE] names the key of the repository")
    return data


def _gpg(home: Path, *words: str) -> dict[str, str]:
    """Run gpg with a keyring of its own, and return its status lines by their first word."""
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-autostart", "--no-auto-key-retrieve"]
    try:
        done = subprocess.run(
            [*command, "--status-fd", "1", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GPG_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProvisionError(f"gpg: no end within {GPG_SECONDS} s", hint="try again") from None
    lines = (line.removeprefix("[GNUPG:] ").partition(" ") for line in done.stdout.splitlines() if line.startswith("[GNUPG:] "))
    found = {word: rest for word, _, rest in lines}
    if words[0] == "--import" and "IMPORT_OK" not in found:
        raise DataError(
            "the file of [signed-by=...] has no public key", hint="take the repository's own key file (ASCII or binary)"
        )
    return found
