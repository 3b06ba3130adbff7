"""Jobs in containers on a provisioned node, per release of Slurm: what the task prolog did is seen inside the container.

bubblewrap, Charliecloud, crun and Podman are the real ones of Debian. pyxis and enroot are in no package:
tests/lab/pyxis_stand_in.c stands in for them, and mounts what the setting enroot has written. On this node Slurm's order of CPUs
is far from the GPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.lab import containers, demo_steps, spank
from tests.lab.containers import IMAGE, MOUNTED, OWN_IMAGE
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import SUITES, USER
from tests.lab.wheels import wheelhouse
from tests.playbooks.admin import Admin, wait

pytestmark = [pytest.mark.rack, pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]
#: Slurm 24.11.5 starts the task prolog of a pyxis task from files that are not in the container (fixed in 24.11.7).
BROKEN = "trixie"
SITE = """
[classes.h100.agent]
kmsg_path = "/etc/fairlead-sim/kmsg"
interval_seconds = 0.5
[classes.h100.checks.clock]
synchronised = false
[classes.h100.settings.enroot]
"""
FAIRLEAD = "/opt/fairlead/current/bin/fairlead"
MASK = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status"
#: One line for each task: where it is, its CPUs, what the task prolog set, /etc/nccl.conf, and its CPUs under `fairlead run`.
INSIDE = f"""#!/bin/sh
echo "task $SLURM_LOCALID image=$(cat /etc/lab-image 2>/dev/null) cpus=$({MASK}) order=${{CUDA_DEVICE_ORDER-}}" \\
  "debug=${{NCCL_DEBUG-}} set=${{FAIRLEAD_SET:+yes}} conf=$(grep -c ^NCCL_SOCKET_IFNAME= /etc/nccl.conf)" \\
  "run=$([ ! -x {FAIRLEAD} ] || {FAIRLEAD} run --gpus-per-rank 4 -- {MASK})"
"""
#: What torchrun does in one task: a process for each local rank.
RANKS = f"""#!/bin/sh
for rank in 0 1; do
    LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 {FAIRLEAD} run --verbose --gpus-per-rank 4 -- \\
        /bin/sh -c "echo \\"task \\$LOCAL_RANK cpus=\\$({MASK})\\"" &
done
wait
"""
BWRAP = f"exec bwrap --ro-bind {IMAGE} / --dev-bind /dev /dev --proc /proc --ro-bind /sys /sys --bind /tmp /tmp "
BWRAP += " ".join(f"--ro-bind {path} {path}" for path in MOUNTED)
OTHER = f"exec bwrap --ro-bind {containers.OTHER_ROOT}/usr /usr "
OTHER += "--symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
OTHER += BWRAP.partition(f"{IMAGE} / ")[2]
CH_RUN = f"exec ch-run {' '.join(f'-b {path}:{path}' for path in MOUNTED)} {IMAGE} --"
CRUN = f"""
import json, os, subprocess, sys, tempfile
os.chdir(tempfile.mkdtemp())
subprocess.run(["crun", "spec", "--rootless"], check=True)
spec = json.load(open("config.json"))
spec["root"] = {{"path": "{IMAGE}", "readonly": True}}
spec["process"] |= {{"args": sys.argv[1:], "terminal": False, "env": [f"{{k}}={{v}}" for k, v in os.environ.items()]}}
spec["mounts"] = [m for m in spec["mounts"] if m["type"] != "cgroup"]
spec["mounts"] += [{{"destination": p, "source": p, "options": ["rbind", "ro"]}} for p in {MOUNTED!r}]
spec["mounts"] += [{{"destination": "/tmp", "source": "/tmp", "options": ["rbind"]}}]
json.dump(spec, open("config.json", "w"))
os.execvp("crun", ["crun", "--root", "state", "--cgroup-manager=disabled", "run", f"lab-{{os.getpid()}}"])
"""
PODMAN = f"""#!/bin/sh
# A folder of its own for each task, as for a user without a login session on the node.
own=/tmp/podman-$SLURM_JOB_ID-$SLURM_LOCALID
mkdir -m 700 "$own" "$own/run" && cd "$own"
HOME=$own XDG_RUNTIME_DIR=$own/run exec podman run --rm --env-host --network host --cgroups disabled --volume /tmp:/tmp \\
    {" ".join(f"--volume {path}:{path}:ro" for path in MOUNTED)} --rootfs {OWN_IMAGE} "$@"
"""
FILES = {
    "inside": INSIDE,
    "ranks": RANKS,
    "bwrap": f'#!/bin/sh\n{BWRAP} "$@"\n',
    "other": f'#!/bin/sh\n{OTHER} "$@"\n',
    "other-ranks": RANKS.replace(FAIRLEAD, "python3 -I /opt/fairlead/current/lib/python3*/site-packages/fairlead"),
    "ch-run": f'#!/bin/sh\n{CH_RUN} "$@"\n',
    "crun": f"#!/usr/bin/python3\n{CRUN}",
    "podman": PODMAN,
}


@dataclass(frozen=True)
class Site:
    rack: Rack

    @property
    def host(self) -> Host:
        return self.rack.nodes[0]

    def job(self, step: str, **env: str) -> str:
        """The output of a job of alice on the whole node: two tasks, or one where the step is for one."""
        size = ("-n1", "-c2") if "-n1" in step else ("-n2", "-c1")
        script = f"#!/bin/sh\nexport USER={USER}\n{step}\n"  # ch-run asks for USER, which a login would set
        job = self.rack.submit(script, "-N1", *size, "--gres=gpu:8", "--exclusive", env=env)
        self.rack.wait_job(job)
        return self.host.run(["cat", f"/tmp/job-{job}.out"]).stdout

    def tasks(self, step: str, **env: str) -> list[dict[str, str]]:
        """What each task of a step said, in the order of the tasks."""
        said = self.job(step, **env)
        lines = sorted(re.findall(r"^task (\d) (.*)$", said, re.MULTILINE))
        assert [number for number, _ in lines] == ["0", "1"], said
        return [dict(word.split("=", 1) for word in words.split()) for _, words in lines]


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    suite = request.param
    folder = tmp_path_factory.mktemp("containers")
    tree = containers.crossed_tree(folder)
    plugin = (str(spank.plugin(suite)), spank.INSIDE, True)
    name = own_name(f"containers-{suite}")
    with Rack(nodes_wanted=1, suite=suite, name=name, trees=(tree,), binds=(*containers.binds(suite), plugin)) as rack:
        (host,) = rack.nodes
        admin = Admin(rack, folder)
        admin.write_site(more=SITE)
        admin.provision("--wheelhouse", str(wheelhouse(suite)))
        rack.configure(hooks=demo_steps.HOOKS)
        containers.install(host)
        for file, text in FILES.items():
            host.run(["/bin/sh", "-c", f"cat >/tmp/{file} && chmod 755 /tmp/{file}"], stdin=text)
        wait(lambda: host.run("cut -f2 /run/fairlead/verdict", check=False).stdout.strip() in ("ok", "warn"))
        rack.wait_idle()
        yield Site(rack)


WITHOUT = "srun -n2 -c1 /tmp/inside"
INSIDE_THEM = {"order": "PCI_BUS_ID", "debug": "WARN", "set": "yes", "conf": "1", "image": IMAGE}


def test_without_a_container(site: Site) -> None:
    """The binding that the others are compared with: the tasks' CPUs are crossed, as the GPUs are."""
    assert [task["cpus"] for task in site.tasks(WITHOUT, FAIRLEAD_PROFILE="off")] == ["0", "1"]
    assert [task["cpus"] for task in site.tasks(WITHOUT)] == ["1", "0"]


@pytest.mark.parametrize("runtime", ["bwrap", "ch-run"])
def test_the_binding_and_the_variables_are_kept(site: Site, runtime: str) -> None:
    found = site.tasks(f"srun -n2 -c1 /tmp/{runtime} /tmp/inside")
    assert found == [{**INSIDE_THEM, "cpus": cpu, "run": cpu} for cpu in "10"]


@pytest.mark.parametrize(("runtime", "image"), [("crun", IMAGE), ("podman", OWN_IMAGE)])
def test_crun_by_itself_and_under_podman(site: Site, runtime: str, image: str) -> None:
    """A new crun gives the container all CPUs; `fairlead run` inside puts it right. An old one keeps the binding."""
    found = site.tasks(f"srun -n2 -c1 /tmp/{runtime} /tmp/inside")
    version = tuple(map(int, re.findall(r"\d+", site.host.run("crun --version").stdout.split("\n")[0])))
    cpus = ["0-1", "0-1"] if version >= (1, 28) else ["1", "0"]
    assert found == [{**INSIDE_THEM, "image": image, "cpus": seen, "run": cpu} for seen, cpu in zip(cpus, "10", strict=True)]


@pytest.mark.parametrize("runtime", ["bwrap", "ch-run", "crun", "podman"])
def test_ranks_inside_one_task_in_a_container(site: Site, runtime: str) -> None:
    assert [task["cpus"] for task in site.tasks(f"srun -n1 -c2 /tmp/{runtime} /tmp/ranks")] == ["1", "0"]


@pytest.mark.parametrize("mount", ["bwrap --ro-bind IMAGE / --ro-bind", "ch-run -b"])
def test_a_read_only_image_needs_the_mount_points(site: Site, mount: str) -> None:
    paths = "/etc/nccl.conf /etc/nccl.conf" if "IMAGE" in mount else f"/etc/nccl.conf:/etc/nccl.conf {containers.OTHER_ROOT} --"
    said = site.job(f"srun -n1 {mount.replace('IMAGE', containers.OTHER_ROOT)} {paths} /bin/echo started")
    assert "started" not in said and "/etc/nccl.conf" in said, said


def test_an_image_with_another_python(site: Site) -> None:
    """The node's `fairlead` needs the node's Python. The image's own Python can start the same files."""
    assert site.job(f"srun -n1 -c2 /tmp/other {FAIRLEAD} version; echo status $?").endswith("status 1\n")
    assert [task["cpus"] for task in site.tasks("srun -n1 -c2 /tmp/other /tmp/other-ranks")] == ["1", "0"]


WITHOUT_TASK_PROLOG = replace(demo_steps.HOOKS, task_prolog=None)
IN_PYXIS = {**INSIDE_THEM, "image": OWN_IMAGE}


@pytest.fixture(params=["alone", "after the SPANK plugin"])
def pyxis(site: Site, request: pytest.FixtureRequest) -> Iterator[bool]:
    """The stand-in in the plugstack.conf of the node. True: the SPANK plugin comes before it."""
    first = f"optional {spank.INSIDE}\n" if request.param != "alone" else ""
    site.host.run(["/bin/sh", "-c", "cat >/etc/slurm/plugstack.conf"], stdin=f"{first}required {containers.PYXIS}\n")
    yield bool(first)
    site.host.run("rm /etc/slurm/plugstack.conf")


def doctor(host: Host) -> dict[str, str]:
    said = host.run("/usr/local/bin/fairlead doctor --json", check=False).stdout
    return {remark["what"]: remark["level"] for remark in json.loads(said)["remarks"]}


def test_pyxis_with_the_task_prolog(site: Site, pyxis: bool) -> None:
    """The task prolog runs inside the container, with the files that the setting enroot mounts, and cannot bind the task."""
    step = f"STAND_IN_IMAGE={OWN_IMAGE} srun -n2 -c1 /tmp/inside"
    if site.rack.suite == BROKEN:
        assert site.job(f"{step}; echo status $?").endswith("status 127\n")
        return
    cpus = "10" if pyxis else "01"
    assert site.tasks(step) == [{**IN_PYXIS, "cpus": cpu, "run": cpu} for cpu in cpus]
    assert [task["cpus"] for task in site.tasks(f"STAND_IN_IMAGE={OWN_IMAGE} srun -n1 -c2 /tmp/ranks")] == ["1", "0"]


def test_pyxis_without_the_task_prolog(site: Site, pyxis: bool) -> None:
    """What doctor advises for a broken release: the SPANK plugin binds, and nothing sets variables."""
    site.rack.configure(hooks=WITHOUT_TASK_PROLOG)
    try:
        found = site.tasks(f"STAND_IN_IMAGE={OWN_IMAGE} srun -n2 -c1 /tmp/inside")
        ranks = site.tasks(f"STAND_IN_IMAGE={OWN_IMAGE} srun -n1 -c2 /tmp/ranks")
    finally:
        site.rack.configure(hooks=demo_steps.HOOKS)
    cpus = "10" if pyxis else "01"
    unset = {"order": "", "debug": "", "set": "", "conf": "1", "image": OWN_IMAGE}
    assert found == [{**unset, "cpus": cpu, "run": cpu} for cpu in cpus]
    assert [task["cpus"] for task in ranks] == ["1", "0"]


def test_variables_of_the_image_override_those_of_the_job(site: Site, pyxis: bool) -> None:
    """The task prolog takes such a value for the user's. On the broken release no task prolog runs."""
    site.host.run(f"echo NCCL_DEBUG=INFO >{OWN_IMAGE}/etc/environment")
    if site.rack.suite == BROKEN:
        site.rack.configure(hooks=WITHOUT_TASK_PROLOG)
    try:
        found = site.tasks(f"STAND_IN_IMAGE={OWN_IMAGE} srun -n2 -c1 /tmp/inside", NCCL_DEBUG="ERROR")
    finally:
        site.rack.configure(hooks=demo_steps.HOOKS)
        site.host.run(f": >{OWN_IMAGE}/etc/environment")
    assert {task["debug"] for task in found} == {"INFO"}


def test_doctor_refuses_the_broken_release_and_misses_enroot(site: Site, pyxis: bool) -> None:
    found = doctor(site.host)
    levels = [level for what, level in found.items() if what.startswith("pyxis with TaskProlog")]
    assert levels == ["wrong" if site.rack.suite == BROKEN else "warn"], found
    assert found["pyxis is configured, and enroot is not there"] == "wrong"
    assert not [what for what in found if "pyxis_stand_in.so is not there" in what]


def test_doctor_looks_for_the_programs_of_oci_conf(site: Site) -> None:
    oci = 'RunTimeQuery="runc --rootless=true state %n"\nRunTimeRun="crun --rootless=true run %n"\n'
    site.host.run(["/bin/sh", "-c", "cat >/etc/slurm/oci.conf"], stdin=oci)
    try:
        found = {what: level for what, level in doctor(site.host).items() if what.startswith("oci.conf")}
    finally:
        site.host.run("rm /etc/slurm/oci.conf")
    assert found.pop("oci.conf: runc is not there") == "wrong"
    version = site.host.run("crun --version").stdout.split()[2]
    lost = tuple(map(int, re.findall(r"\d+", version))) >= (1, 28)
    assert found == ({f"oci.conf: crun {version} gives a container all CPUs of the step": "note"} if lost else {})
