"""Fetches the files of a lock's packages to the admin host, from the addresses in the lock, and checks each by its hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from fairlead.errors import DataError, ProvisionError
from fairlead.model.change import Package
from fairlead.provision.driver_lock import cache_folder

FETCH_SECONDS = 60.0  # a download that gets no byte for this long has failed


def default_folder() -> Path:
    """Return the folder in which package files are kept between runs."""
    return cache_folder() / "packages"


def is_right(path: Path, package: Package) -> bool:
    """Say whether the file is there with the content that the lock names."""
    try:
        with open(path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest() == package.sha256
    except OSError:
        return False


def missing(packages: Iterable[Package], folder: Path) -> list[Package]:
    """Return the packages whose file is not in the folder, or has other content."""
    return [p for p in packages if not is_right(folder / p.file, p)]


def fetch(packages: Iterable[Package], folder: Path, say: Callable[[str], None] = lambda text: None) -> int:
    """Put every file into the folder, whole or not at all. Return how many were fetched. Raises ProvisionError, DataError."""
    from urllib.error import URLError
    from urllib.parse import quote
    from urllib.request import urlopen

    folder.mkdir(parents=True, exist_ok=True)
    wanted = missing(packages, folder)
    total = sum(p.size for p in wanted)
    begun = 0
    for number, package in enumerate(wanted, 1):
        say(f"{number} of {len(wanted)} packages, {begun >> 20} of {total >> 20} MiB: {package.name} {package.version}")
        part = folder / f".{package.file}.part"
        try:
            if package.url.startswith("/"):
                if not os.path.isfile(package.url):
                    raise ValueError("not a file")
                source: BinaryIO = open(package.url, "rb")  # noqa: SIM115
            else:
                source = urlopen(quote(package.url, safe=":/%?=&"), timeout=FETCH_SECONDS)  # noqa: S310
            with source, open(part, "wb") as out:
                left = package.size + 1  # one byte more than the right size shows that the file is wrong
                while left and (block := source.read(min(left, 1 << 20))):
                    left -= out.write(block)
            if not is_right(part, package):
                hint = "the repository has another file by that name now: run `fairlead lock` again"
                raise DataError(f"{package.url}: not the file that the lock names (another sha256)", hint=hint)
            os.rename(part, folder / package.file)
        except (OSError, URLError, ValueError) as e:
            said = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
            hint = "the lock's address may be gone (a point release): run `fairlead lock` again, or name a folder that has it"
            raise ProvisionError(f"{package.url}: {said}", hint=hint) from None
        finally:
            part.unlink(missing_ok=True)
        begun += package.size
    return len(wanted)
