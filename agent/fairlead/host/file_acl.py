"""Lets one more user read a file, by a POSIX ACL (acl(5)), which the kernel keeps in an extended attribute of the file.

The form is that of linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry, in the order of the tags.
"""

from __future__ import annotations

import os
import struct

ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_READ, _READ_WRITE, _NO_ID = 4, 6, 0xFFFFFFFF


def allow_reading(fd: int, uid: int) -> None:
    """Let this user read an open file. The owner reads and writes it, and nobody else may do anything. Raises OSError, which is
    ENOTSUP on a file system without ACLs.

    The mode of such a file is shown as 0640, because its group bits are the mask of the ACL. The group itself has no right.
    """
    entries = (
        (_USER_OBJ, _READ_WRITE, _NO_ID),
        (_USER, _READ, uid),
        (_GROUP_OBJ, 0, _NO_ID),
        (_MASK, _READ, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    os.setxattr(fd, ATTRIBUTE, _VERSION + b"".join(struct.pack("<HHI", *entry) for entry in entries))
