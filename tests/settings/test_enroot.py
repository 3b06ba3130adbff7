"""The setting enroot: what containers of enroot and pyxis see of the node."""

from __future__ import annotations

from fairlead.settings import enroot


def test_containers_see_nccl_conf_and_the_hooks_and_may_not_write() -> None:
    text = enroot.content(enroot.EnrootWant(files=("/etc/slurm/site-prolog",), scratch="/local"))
    rows = {line.split()[0]: line.split()[3].split(",") for line in text.splitlines() if not line.startswith("#")}
    assert {
        "/etc/nccl.conf",
        "/run/fairlead",
        "/etc/fairlead/hooks",
        "/etc/slurm/fairlead",
        "/opt/fairlead",
        "/local",
    } <= rows.keys()
    assert all({"bind", "nofail", "nosuid"} <= set(options) for options in rows.values())
    assert [path for path, options in rows.items() if "ro" not in options] == ["/local"]
    assert not any("noexec" in rows[path] for path in ("/etc/slurm/fairlead", "/opt/fairlead"))
