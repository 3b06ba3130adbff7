"""Shell and SPANK plug-in give every task the CPU set that the Python rule gives it, on all machines.

Those two are written in other languages so that no task waits for a Python. Steps of many shapes on every machine tree: whatever
one of them answers has to be what binding_plan.py computes. What the shell leaves to Python needs no comparison.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import msgspec
import pytest

from fairlead.cli.machine_tree import recorded_nvml
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.cpulist import format_cpu_set
from fairlead.model.facts import Missing, Node
from fairlead.topology.binding import binding_plan, published_files
from fairlead.topology.binding.binding_plan import Machine
from fairlead.topology.distances.accelerators import on_the_bus
from tests.hooks.recorded_steps import Site, hexes, swapped
from tests.hooks.stage import Stage
from tests.hooks.steps import step
from tests.lab import spank, trees
from tests.lab.models import MODELS
from tests.topology.build import gpu
from tests.topology.test_mig_binding import divided
from tests.topology.topology_nodes import NAMES, READS, recorded_names
from tests.topology.topology_nodes import node as node_of

pytestmark = pytest.mark.root
KEPT = trees.names()
#: How many steps are compared on each machine, in `make test` and in `make test-all`.
FEW_SHAPES, SHAPES = 4, 10


@cache
def machine_tree(name: str) -> Node:
    """One of tests/machines, or of the models and recordings. Of a recording without NVML the GPUs are those on the bus."""
    if name in KEPT:
        tree = str(trees.ensure() / name)
        return gather(Root(tree), recorded_nvml(tree), reads=READS)
    node = node_of(name)
    if name not in recorded_names():
        return node
    return msgspec.structs.replace(node, gpus=tuple(gpu(i, d.address, nvlinks=0) for i, d in enumerate(on_the_bus(node))))


@cache
def single_cpus(mask: int) -> list[int]:
    """Masks of one CPU each."""
    return [1 << cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def assigned_by_slurm(machine: Machine, tasks: int, cores: int, *, cyclic: str, threads: int, skip: int) -> list[int]:
    """Masks as Slurm makes them: ``cores`` cores a task with ``threads`` CPUs of each, in blocks or in turns over the sockets
    or NUMA nodes (``cyclic``: "", "package", "numa"); [] where there are too few. The first ``skip`` cores are another job's."""
    groups: dict[int, list[int]] = {}
    for core in machine.cores:
        groups.setdefault(getattr(core, cyclic) if cyclic else 0, []).append(sum(single_cpus(core.cpus)[:threads]))
    free = [each[skip:] for each in groups.values()]
    masks = []
    for task in range(tasks):
        own = free[task % len(free)]
        if len(own) < cores:
            return []
        masks.append(sum(own[:cores]))
        del own[:cores]
    return masks


def gpu_lists(machine: Machine) -> list[list[int]]:
    """All GPUs; all but the first; every second one; one of each NUMA domain."""
    indices = sorted(g.index for g in machine.gpus)
    one_each = sorted({g.near: g.index for g in reversed(machine.gpus)}.values())
    lists = [indices, indices[1:], indices[::2], one_each]
    return [each for i, each in enumerate(lists) if each and each not in lists[:i]]


def step_shapes(machine: Machine, count: int) -> list[tuple[list[int], str]]:
    """Masks and GPU lists of steps, no two alike. Of all combinations ``count`` are drawn by chance, the same in every run."""
    chance = random.Random(len(machine.cores))
    threads = max(core.cpus.bit_count() for core in machine.cores)
    found: dict[tuple[tuple[int, ...], str], None] = {}
    for gpus in gpu_lists(machine):
        for tasks in {2, 3, len(gpus), 2 * len(gpus)} - {1}:
            most = len(machine.cores) // tasks
            for cores in {1, 3, max(1, most - 1), most}:
                for cyclic in ("package", "numa", ""):
                    for skip in (0, 2):
                        made = assigned_by_slurm(
                            machine, tasks, cores, cyclic=cyclic, threads=chance.choice((1, threads)), skip=skip
                        )
                        if made and tasks <= 16:
                            found[tuple(made), ",".join(map(str, gpus))] = None
    drawn = chance.sample(list(found), min(len(found), count))
    return [(list(masks), gpus) for masks, gpus in drawn]


def by_python(topology: str, machine: Machine, masks: list[int], listed: str, gpus: str) -> list[int]:
    """What the planner answers, as masks; Slurm's own where it knows no plan. listed: the masks as Slurm writes them."""
    try:
        said = binding_plan.answer_lines(topology, listed, gpus, allowed=machine.online, cpus_on_node="")
    except binding_plan.Doubt:
        return masks
    words = [line.split()[0] for line in said]
    return [mask if word == "-" else binding_plan.parse_cpu_set(word) for word, mask in zip(words, masks, strict=True)]


def by_python_with_mig(node: Node, masks: list[int], visible: str) -> list[int]:
    """As by_python, for a step whose devices are named by UUID."""
    allowed = published_files.planner_machine(node).online
    gpus = ",".join(map(str, range(visible.count(",") + 1)))
    text = published_files.render_topology(node)
    try:
        said = binding_plan.answer_lines(text, hexes(masks, node), gpus, allowed=allowed, cpus_on_node="", visible=visible)
    except binding_plan.Doubt:
        return masks
    words = [line.split()[0] for line in said]
    return [mask if word == "-" else binding_plan.parse_cpu_set(word) for word, mask in zip(words, masks, strict=True)]


def by_published_plan(machine: Machine, masks: list[int]) -> list[int]:
    """The published plan, where each task that has a CPU set of its own NUMA domain already keeps it."""
    planned = binding_plan.whole_node_cpu_sets(machine, len(masks))
    groups = binding_plan.tasks_by_numa_domain(binding_plan.assign_gpus(machine.gpus, len(masks)))
    patterns = binding_plan.threads_per_core(binding_plan.pieces_of_cores(machine, masks), len(masks))
    binding_plan.keep_own_cpu_sets(masks, planned, groups, patterns)
    return planned


def orders(cpu_sets: list[int], seed: int) -> list[list[int]]:
    """The CPU sets of a plan as Slurm may assign them, the one with the lowest CPU first: by number, by turns, and by chance."""
    in_order = sorted(cpu_sets, key=lambda mask: mask & -mask)
    half = (len(in_order) + 1) // 2
    by_turns = [mask for pair in zip(in_order[:half], [*in_order[half:], 0], strict=False) for mask in pair if mask]
    mixed = in_order[1:]
    random.Random(seed).shuffle(mixed)
    return [in_order, by_turns, [in_order[0], *mixed]]


#: Starts the plug-in for each task: a line of what it asks for, or an empty one.
EVERY_TASK = """i=0
while [ $i -lt $STUB_TASKS ]; do
	said=$(STUB_LOCAL=$i SLURM_LOCALID=$i "$0" /bin/true) || exit
	echo "$said"
	i=$((i + 1))
done
"""


def by_plugin(stage: Stage, masks: str, gpus: str, visible: str = "") -> list[int]:
    """What the plug-in asks the kernel for, task by task; Slurm's mask where it asks for nothing."""
    words = {
        "PATH": "/usr/bin:/bin",
        "STUB_TASKS": str(masks.count(",") + 1),
        "STUB_STEP": "0",
        **step(1, 0, masks=masks, gpus=gpus),
    }
    words |= {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    ran = stage.command("/bin/sh", "-c", EVERY_TASK, str(spank.on_any_cpus()), env=words)
    assert (ran.rc, ran.err) == (0, "")
    return [int(said or mask, 16) for said, mask in zip(ran.out.removesuffix("\n").split("\n"), masks.split(","), strict=True)]


ALL = [*KEPT, *NAMES]


@pytest.mark.parametrize("shapes", [FEW_SHAPES, pytest.param(SHAPES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ALL)
def test_the_shell_assigns_what_python_assigns(site: Site, name: str, shapes: int) -> None:
    """Part of a node, without a ready plan. Either every task is bound as Python says, or every task asks Python."""
    node = machine_tree(name)
    machine = published_files.planner_machine(node)
    if not machine.gpus:
        pytest.skip("no GPU there")
    site.cpuset(format_cpu_set(machine.online), version=1)
    topology = published_files.render_topology(node)
    for masks, gpus in step_shapes(machine, shapes):
        listed = hexes(masks, node)
        after = swapped(site.calls(topology, listed, gpus), masks)
        assert after is None or after == by_python(topology, machine, masks, listed, gpus), (listed, gpus)


@pytest.mark.parametrize("name", ALL)
def test_shell_and_plugin_apply_the_published_plan_alike(site: Site, name: str) -> None:
    """The whole node: each task has the CPU set that the plan and the rule of keeping one's own give it; none gets worse."""
    node = machine_tree(name)
    machine = published_files.planner_machine(node)
    files = published_files.plan_files(node)
    topology = published_files.render_topology(node)
    gpus = ",".join(str(index) for index in sorted(g.index for g in machine.gpus))
    for tasks in [n for n in (2, len(machine.gpus), 2 * len(machine.gpus)) if n > 1 and f"{n}.ready" in files]:
        for masks in orders(binding_plan.whole_node_cpu_sets(machine, tasks), tasks):
            if not masks[0] & 1:
                continue
            wanted = by_published_plan(machine, masks)
            listed = hexes(masks, node)
            assert swapped(site.calls(topology, listed, gpus, plans=files), masks) == wanted, listed
            assert by_plugin(site.stage, listed, gpus) == wanted, listed
            gpus_of_task = binding_plan.assign_gpus(machine.gpus, tasks)
            best = by_python(topology, machine, masks, listed, gpus)
            least = binding_plan.total_distance(machine, best, gpus_of_task)
            assert binding_plan.total_distance(machine, wanted, gpus_of_task) == least, listed


@pytest.mark.parametrize("name", MODELS)
def test_the_plugin_binds_tasks_near_their_instances_as_python_does(stage: Stage, name: str) -> None:
    """Every GPU in two instances. Either the plug-in leaves a step as Slurm made it, or each task gets what Python gives it."""
    whole = machine_tree(name)
    if isinstance(whole.gpus, Missing) or len(whole.gpus) < 2:
        pytest.skip("fewer than two NVIDIA GPUs there")
    node = divided(whole, at=tuple(range(len(whole.gpus))))
    machine = published_files.planner_machine(node)
    stage.reset()
    stage.hooks_line()
    (stage.run / "topology").write_text(published_files.render_topology(node))
    uuids = list(machine.by_uuid)
    uuids = [uuid for uuid in uuids if uuid.startswith("MIG-")]
    answered = 0
    lists = (uuids, uuids[::-1], [uuids[0], uuids[-1]])
    for tasks, (cores, cyclic), names in product((2, 4), ((1, "package"), (2, "numa"), (2, "")), lists):
        masks = assigned_by_slurm(machine, tasks, cores, cyclic=cyclic, threads=1 + cores % 2, skip=tasks // 4)
        if not masks:
            continue
        visible = ",".join(names)
        gpus = ",".join(map(str, range(len(names))))
        wanted = by_python_with_mig(node, masks, visible)
        found = by_plugin(stage, hexes(masks, node), gpus, visible)
        assert found in (masks, wanted), (hexes(masks, node), visible)
        answered += found != masks
    assert answered or name != "hgx-h100", "no step was bound"


@pytest.mark.parametrize(
    "visible",
    ["MIG-0-0", "MIG-0-0,MIG-0-0", "MIG-0-0,MIG-9-9", "MIG-0-0,", ",MIG-7-0", "MIG-0-0,GPU-00000000", "MIG-7-0,0", "MIG-" * 2000],
)
def test_the_plugin_leaves_a_step_whose_instances_are_not_clear(stage: Stage, visible: str) -> None:
    node = divided()
    stage.reset()
    stage.hooks_line()
    (stage.run / "topology").write_text(published_files.render_topology(node))
    masks = [0b11 << 56, 0b11]
    assert by_plugin(stage, hexes(masks[::-1], node), "6,8", "MIG-7-0,MIG-0-0") == masks
    assert by_plugin(stage, hexes(masks[::-1], node), "6,8", visible) == masks[::-1]
    assert by_plugin(stage, hexes(masks, node), "6,8", "MIG-0-0,MIG-7-0") == masks, "the user's own masks"


def test_the_plugin_finds_instances_by_index_where_gres_conf_lists_them(stage: Stage) -> None:
    node = divided()
    stage.reset()
    stage.hooks_line()
    listed = published_files.ListedDevices({3: "MIG-7-0", 5: "MIG-0-0", 35: "MIG-0-1"}, 1.5)
    (stage.run / "topology").write_text(published_files.render_topology(node, listed=listed))
    masks = [0b11, 0b11 << 56]
    assert by_plugin(stage, hexes(masks, node), "3,5", "0,1") == masks[::-1], "the first index is an instance of GPU 7"
    assert by_plugin(stage, hexes(masks, node), "5,3", "0,1") == masks
    for gpus, visible in (("3,4", "0,1"), ("3,5", "0,x"), ("3", "0"), ("3,5", "MIG-0-0,1"), ("3,", "0,1")):
        assert by_plugin(stage, hexes(masks, node), gpus, visible) == masks, (gpus, visible)


def test_the_shell_answers_many_steps_itself(site: Site) -> None:
    """Else the comparison above would compare nothing."""
    node = machine_tree("hgx-h100")
    machine = published_files.planner_machine(node)
    site.cpuset(format_cpu_set(machine.online), version=1)
    topology = published_files.render_topology(node)
    answers = [swapped(site.calls(topology, hexes(masks, node), gpus), masks) for masks, gpus in step_shapes(machine, 40)]
    assert sum(after is not None for after in answers) >= 10, answers
