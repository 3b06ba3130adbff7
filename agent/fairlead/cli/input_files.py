"""Reads the files that a command line names."""

from __future__ import annotations

import sys

from fairlead.errors import DataError, InputMissing


def text_of(path: str, bytes_max: int) -> str:
    """Return a file's text. The path ``-`` means standard input. Bytes that are not UTF-8 are replaced.

    Raise InputMissing if the file cannot be read, and DataError if it is larger than ``bytes_max``.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise InputMissing("standard input is closed")
            data = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(bytes_max + 1)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}") from None
    if len(data) > bytes_max:
        raise DataError(f"{path}: more than {bytes_max >> 20} MiB", hint="is it the right file?")
    return data.decode("utf-8", "replace")


def text_if_there(path: str, bytes_max: int) -> str | None:
    """Return a text file's text, or None if there is no such file. Bytes that are not UTF-8 are replaced.

    Raise InputMissing if the file cannot be read, and DataError if it is not text or larger than ``bytes_max``.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}") from None
    if b"\0" in data:
        raise DataError(f"{path} is not a text file (it holds zero bytes)", hint="is it the right file?")
    if len(data) > bytes_max:
        raise DataError(f"{path}: more than {bytes_max >> 20} MiB", hint="is it the right file?")
    return data.decode("utf-8", "replace")
