"""Holds the lint rules on a job's Slurm options, on how it starts its processes, and on variables that are not NCCL's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.jobenv.batch_script import Script, ScriptLine, allowed_at
from fairlead.jobenv.lint_data import TORCH_DDP
from fairlead.jobenv.lint_finding import Found, LintLevel, LintRule, LintSite, assigned
from fairlead.jobenv.lint_shape import directives, here_documents

SBATCH = "https://slurm.schedmd.com/sbatch.html"
SRUN = "https://slurm.schedmd.com/srun.html"
TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
TORCH_ENV = "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization"
PROCESS_GROUP = "PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, ErrorHandlingMode"
CUDA_ENV = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables"

#: These programs start a command on other nodes, or several times.
_STARTER = re.compile(r"\b(?:srun|mpirun|mpiexec|mpiexec\.hydra|prun|jsrun|aprun|ibrun|pdsh|clush|ssh|parallel)\b")
_TORCH = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch)\b")
_COMMAND = re.compile(
    r"^\s*(?:(?:if|then|else|do|time|exec|nohup|eval|apptainer|singularity|python[\d.]*|[A-Z][A-Z0-9_]*=\S*)\s+(?:-\S+\s+)*)*"
    r"(?:torchrun|python[\d.]*\s+(?:-\S+\s+)*-m\s+torch\.distributed\.(?:run|launch)|accelerate\s+launch)\b"
)
_PER_LAUNCHER = re.compile(r"--(?:nproc[_-]per[_-]node|num_gpus)[=\s]\s*(\d{1,4})(?!\d)")
_NNODES = re.compile(r"--(?:nnodes|num_machines)[=\s]+[\"']?([\w${}:]+)")
_ALONE = re.compile(r"--standalone\b|--(?:nnodes|num_machines)[=\s]+[\"']?1(?![\d:])")
_LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1|::1)(?![\w.-])")
_LOCAL_OPTION = re.compile(
    r"--(?:master[_-]addr|main_process_ip|rdzv[_-]endpoint)[=\s]+[\"']?\[?(?:localhost|127\.0\.0\.1|::1)(?![\w.-])"
)
_TRAINS = re.compile(r"\b(?:python[\d.]*|torchrun|accelerate|deepspeed)\b")

_TRAINING = re.compile(
    r"\b(?:torchrun|torch\.distributed|accelerate|deepspeed)\b|(?i:train|finetune|fine_tune)\w*\.py\b|num[_-]workers"
)


def _commands(script: Script) -> Iterator[ScriptLine]:
    """Return the commands that this script runs itself.

    The lines of here-documents are left out. For a file that is not a batch script of Slurm, nothing is returned.
    """
    return (line for line in script.lines if script.shape.batch and not line.here)


def _options(text: str) -> str:
    """Return the text of the launcher's options on this line, without the program that it starts and that program's options."""
    match = _TORCH.search(text) or re.search(r"\bdeepspeed\b", text)
    return "" if match is None else re.split(r"\s(?:-m\s|\S+\.py\b)", text[match.end() :], maxsplit=1)[0]


def _directive(script: Script, option: str) -> ScriptLine:
    number = script.shape.lines.get(option, 1)
    return ScriptLine(number=number, text=script.raw[number - 1], allowed=allowed_at(script.raw, number))


def _master_local(script: Script, site: LintSite) -> Found:
    """Find a MASTER_ADDR that is the local host, in a job of several nodes. MASTER_ADDR "should point to the IP address or host
    name of the node where rank 0 runs" (TORCH_ENV)."""
    if not script.shape.several_nodes or any(_ALONE.search(line.text) for line in script.lines):
        return
    at = [a.line for a in assigned(script, "MASTER_ADDR") if _LOCAL.fullmatch(a.value or "")]
    for line in (*at, *(x for x in script.lines if _LOCAL_OPTION.search(x.text))):
        yield (
            line,
            LintLevel.ERROR,
            f"the address of rank 0 is this node's own on each of the {script.shape.nodes} nodes: they wait for each other",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            TORCH_ENV,
        )


def _bare_launcher(script: Script, site: LintSite) -> Found:
    """Find a launcher without srun on several nodes.

    The batch script runs only on the first node of the allocation (sbatch(1)), and torchrun starts no launcher on another
    node.
    """
    if not script.shape.several_nodes or any(_STARTER.search(x.text) and "hostname" not in x.text for x in script.lines):
        return
    for line in _commands(script):
        if not _COMMAND.search(line.text) or "hostfile" in line.text:
            continue
        nodes = script.shape.nodes
        waits = bool(_NNODES.search(_options(line.text))) and not _ALONE.search(_options(line.text))
        yield (
            line,
            LintLevel.ERROR if waits else LintLevel.WARN,
            f"it runs on the first of the {nodes} nodes only"
            + (", and waits for launchers on the others" if waits else "; the others stay idle"),
            "srun --ntasks-per-node=1 in front of it, with --nnodes and --rdzv-endpoint; or ask for one node",
            TORCHRUN,
        )


def _launchers(script: Script, site: LintSite) -> Found:
    """Find a torchrun that srun starts several times on a node. torchrun itself starts one process for each GPU, so srun must
    start torchrun once on each node (TORCHRUN)."""
    tasks = script.shape.tasks_per_node or 1
    for line in _commands(script):
        srun = re.search(r"\bsrun\b(.*?)" + _TORCH.pattern, line.text)
        if tasks < 2 or srun is None or (_processes(line.text) == 1 and _PER_LAUNCHER.search(_options(line.text))):
            continue
        if "$" in srun[1] or re.search(r"--ntasks|--nodelist|\s-[nNw][\s\d]|--nodes", srun[1]):
            continue  # the step sets its own number of tasks or nodes
        yield (
            line,
            LintLevel.ERROR,
            f"srun starts {tasks} launchers on a node, and each starts a process for every GPU",
            "--ntasks-per-node=1 with torchrun, or srun python without torchrun",
            TORCHRUN,
        )


def _nnodes(script: Script, site: LintSite) -> Found:
    """Find a launcher that waits for more nodes than the job has.

    "--nnodes: Number of nodes, or the range of nodes in form <minimum_nodes>:<maximum_nodes>" (TORCHRUN).
    """
    nodes = script.shape.nodes
    for line in _commands(script):
        match = _NNODES.search(_options(line.text)) if _TORCH.search(line.text) else None
        if nodes and match and match[1].isdecimal() and len(match[1]) < 7 and int(match[1]) > nodes:
            yield (
                line,
                LintLevel.ERROR,
                f"the launcher waits for {match[1]} nodes, the job has {nodes}",
                "--nnodes=$SLURM_NNODES, and #SBATCH --nodes for as many",
                TORCHRUN,
            )


_EARLY = re.compile(r"--(?:node|machine)[_-]rank[=\s]+[\"']?\$\{?SLURM_(?:PROCID|NODEID)\b")
_EARLY_RANK = re.compile(r"^\s*export\s+(?:[A-Z_]+=\S*\s+)*(RANK|LOCAL_RANK)=[\"']?\$\{?SLURM_(?:PROCID|LOCALID|NODEID)\b")


def _early_rank(script: Script, site: LintSite) -> Found:
    """Find a rank that the batch script computes. SLURM_PROCID and similar variables have a value for each task (srun(1)). In the
    batch script they are 0."""
    shape = script.shape
    for line in _commands(script):
        match = _EARLY.search(line.text)
        inside = match is not None and line.text.count("'", 0, match.start()) % 2 == 1
        early = match and not inside and shape.several_nodes and not re.search(r"rdzv[_-]backend[=\s]+[\"']?c10d", line.text)
        if early or (_EARLY_RANK.search(line.text) and (shape.several_nodes or shape.tasks_on_node > 1)):
            yield (
                line,
                LintLevel.ERROR if early else LintLevel.WARN,
                "the rank is computed in the batch script, where it is 0: every task gets the same one",
                "compute it in the task: srun bash -c '... $SLURM_PROCID', or a script that srun starts",
                SRUN,
            )


def _cpus(script: Script, site: LintSite) -> Found:
    """Find a job whose tasks get one CPU for their GPUs.

    "-c: ... The default is one processor per task" (sbatch(1)). A site may set DefCpuPerGPU (slurm.conf(5)).
    """
    shape = script.shape
    gpus = shape.gpus or 0
    if not gpus or shape.cpus_per_gpu or shape.exclusive:
        return
    if shape.tasks_on_node >= gpus and not any(_TRAINS.search(x.text) for x in script.lines):
        return  # molecular dynamics and similar programs need one CPU for a GPU
    if (shape.cpus_per_task or 1) > 1 or shape.tasks_on_node > gpus:
        return
    told = shape.cpus_per_task == 1
    if not told and (gpus == 1 or not shape.batch):
        return
    trains = any(_TRAINING.search(x.text) for x in script.lines)
    tasks = f"{shape.tasks_on_node} tasks" if shape.tasks_on_node > 1 else "a task"
    yield (
        _directive(script, "cpus_per_task" if told else "gpus_per_node"),
        LintLevel.WARN if told and (trains or gpus > 1) else LintLevel.INFO,
        f"{tasks} with {gpus} GPU{'s' if gpus > 1 else ''} of a node {'get' if shape.tasks_on_node > 1 else 'gets'} one CPU"
        + (" each" if shape.tasks_on_node > 1 else "")
        + ("" if told else ", unless the site sets DefCpuPerGPU"),
        "the CPUs of the node divided by its GPUs: --cpus-per-task with a task for each GPU, or --cpus-per-gpu",
        SBATCH,
    )


def _shebang(script: Script, site: LintSite) -> Found:
    """Find a batch script without an interpreter.

    sbatch says: "This does not look like a batch script. The first line must start with #! followed by the path to an
    interpreter".
    """
    if script.shape.batch and not script.raw[0].startswith("#!") and not any(_TEMPLATE.search(x) for x in script.raw):
        yield (
            ScriptLine(number=1, text=script.raw[0], allowed=allowed_at(script.raw, 1)),
            LintLevel.ERROR,
            "sbatch refuses this file: its first line does not begin with #!",
            "#!/bin/bash as the first line",
            SBATCH,
        )


_TEMPLATE = re.compile(r"\{%|\{\{|<%|^% ")  # a Jinja or Mako template: it is not submitted itself


def _late_option(script: Script, site: LintSite) -> Found:
    """Find an #SBATCH line after the first command, which sbatch does not read: "#SBATCH ... before any executable commands in
    the script" (sbatch(1))."""
    first = next((x.number for x in script.lines if not script.raw[x.number - 1].startswith("#SBATCH")), None)
    if first is None or not script.raw[0].startswith("#!") or any(_TEMPLATE.search(x) for x in script.raw):
        return
    inside = here_documents(script.raw)
    late = [(number, text.strip()) for number, text in directives(script.raw) if number > first and number not in inside]
    if late and not any("$" in text for _, text in late):  # a $ is for another program, which writes the real script
        number, text = late[0]
        others = f" and {len(late) - 1} more are not asked for" if len(late) > 1 else " is not asked for"
        yield (
            ScriptLine(number=number, text=text, allowed=allowed_at(script.raw, number)),
            LintLevel.WARN,
            f"sbatch reads no #SBATCH line behind the first command (line {first}): {text[:60]}{others}",
            "move it above the first command, or write ##SBATCH",
            SBATCH,
        )


def _async_errors(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        if (a.value or "").strip() == "0":
            yield (
                a.line,
                LintLevel.WARN,
                f"{a.name}=0: when one rank fails, the others wait in a collective until the time limit of the job",
                "leave it unset: PyTorch then ends them",
                PROCESS_GROUP,
            )


def _visible_devices(script: Script, site: LintSite) -> Found:
    """Find a script that sets CUDA_VISIBLE_DEVICES. Slurm sets it for the job and its steps (gres.conf(5), "GPU Management")."""
    for a in assigned(script, "CUDA_VISIBLE_DEVICES"):
        devices = (a.value or "").replace(" ", "").split(",")
        if not script.shape.gpus or not all(d.isdecimal() for d in devices) or not _lasts(a.line.text):
            continue
        own = {*map(str, range(script.shape.gpus))} == {*devices}
        yield (
            a.line,
            LintLevel.INFO if own else LintLevel.WARN,
            f"CUDA_VISIBLE_DEVICES={a.value} replaces what Slurm set"
            + ("" if own else f": the job has {script.shape.gpus} GPU{'s' if script.shape.gpus > 1 else ''} of a node")
            + "; where GPUs are not confined it names other jobs' GPUs",
            "remove it: Slurm sets it for each job and step",
            "https://slurm.schedmd.com/gres.html#GPU_Management",
        )


def _lasts(text: str) -> bool:
    """Say whether the assignment applies to the commands on the following lines, and not only to one command on its own line."""
    return bool(
        re.search(r"\bexport\b[^;&|]*CUDA_VISIBLE_DEVICES=|^\s*(?:setenv\s+)?CUDA_VISIBLE_DEVICES[=\s]\S*\s*(?:;|$)", text)
    )


_IPC = re.compile(r"\b(?:vllm|vllm-serve|sglang)\b")
_SHARED_TOO = re.compile(r"(?:--tensor[_-]parallel[_-]size|-tp|--tp(?:-size)?)[=\s]+[\"']?(?!1\b)[\d$]")


def _expandable(script: Script, site: LintSite) -> Found:
    """Find PyTorch's expandable segments in an inference server that shares GPU memory between processes. These segments are
    virtual memory, which cudaIpcGetMemHandle refuses (vllm#42609)."""
    text = "\n".join(line.text for line in script.lines)
    if not _IPC.search(text) or not _SHARED_TOO.search(text) or "disable-custom-all-reduce" in text:
        return
    for a in assigned(script, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if re.search(r"expandable_segments\s*:\s*True", a.value or ""):
            yield (
                a.line,
                LintLevel.WARN,
                f"{a.name}: expandable segments cannot be shared by CUDA IPC: the server's all-reduce over GPUs ends with "
                "'invalid argument'",
                "remove expandable_segments for the server, or pass --disable-custom-all-reduce",
                "https://github.com/vllm-project/vllm/issues/42609",
            )


_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "NEPTUNE_API_TOKEN", "OPENAI_API_KEY")


def _never(script: Script, site: LintSite) -> Found:
    """Find the variables of never.py that do harm even if the user sets them, and that no other rule finds."""
    torchrun = any(_TORCH.search(line.text) for line in script.lines)
    for a in script.assignments:
        value = a.value or ""
        if a.name in _SECRETS and re.fullmatch(r"(?=.*\d)[\w=+/.-]{16,}", value) and not re.search(r"(?i)your|xxx|token", value):
            text = f"{a.name} is a secret, and everybody who reads this file has it"
            yield a.line, LintLevel.WARN, text, "keep it in a file with mode 600 and read it from there", "fairlead env list"
        elif a.name in {"NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"} and value:
            text = f"{a.name} changes the results of every matrix product in the program"
            yield a.line, LintLevel.INFO, text, "choose the precision in the program", CUDA_ENV
        elif a.name == "OMP_PROC_BIND" and torchrun and value.lower() not in {"", "false"}:
            text = f"OMP_PROC_BIND={value} with torchrun: all its workers bind their threads to the same cores"
            yield a.line, LintLevel.WARN, text, "remove it, or use --numa-binding=node", TORCHRUN
        elif a.name == "LD_PRELOAD" and "libnccl" in a.line.text:
            text = "LD_PRELOAD replaces the NCCL that the program was built with"
            yield (
                a.line,
                LintLevel.INFO,
                text,
                "install the wanted NCCL into the program's environment",
                "fairlead env list",
            )


_NODES = (re.compile(r"\s(?:--(?:cpunodebind|cpubind)[=\s]|-N[\s=]?)\s*\d{1,9}(?![\d,-])"),
          re.compile(r"\s(?:--membind[=\s]|-m[\s=]?)\s*\d{1,9}(?![\d,-])"))  # fmt: skip
_LAUNCHER = re.compile(r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate)\b")


def _numactl(script: Script, site: LintSite) -> Found:
    for line in script.lines:
        if not _on_one_node(line.text) or "$" in line.text.partition("numactl")[2].partition("python")[0]:
            continue
        several = bool(_LAUNCHER.search(line.text)) and script.shape.tasks_per_node != 1
        if several:
            yield (
                line,
                LintLevel.ERROR,
                "numactl puts every rank on one NUMA node: those of other sockets compute remotely, and its memory runs out",
                "remove numactl: fairlead binds each task to the CPUs nearest its GPU; in torchrun use --numa-binding=node",
                "numactl(8); https://pytorch.org/docs/stable/elastic/run.html",
            )


def _on_one_node(text: str) -> bool:
    """Say whether a command of the line is numactl that binds both the CPUs and the memory to one NUMA node."""
    for command in re.split(r"[|;&]", text):
        at = re.search(r"\bnumactl\b", command)
        if at is not None and all(pattern.search(command, at.end()) for pattern in _NODES):
            return True
    return False


_WORKERS = re.compile(r"(?<!\w)(?:(?:--)?num[_-]|--)workers(?:[=\s]\s*|\s*:\s*)(\d{1,9})(?!\d)(\s*\*)?")
_PER_GPU = re.compile(
    r"\bnum_workers\s*=\s*(?:\d+\s*\*\s*[\w.]{0,80}(?:gpu|device_count)|[\w.]{0,80}(?:gpu|device_count)\w{0,80}(?:\(\))?\s*\*\s*\d+)"
)


def _workers(script: Script, site: LintSite) -> Found:
    for line in script.lines:
        if _PER_GPU.search(line.text):
            yield (
                line,
                LintLevel.WARN,
                "num_workers counts per process: multiplied by the number of GPUs, every rank starts workers for all of them",
                "at most the CPUs of one task minus one: int(os.environ['SLURM_CPUS_PER_TASK']) - 1",
                "https://pytorch.org/docs/stable/data.html",
            )
            continue
        match = _WORKERS.search(line.text)
        if not match or match[2] or not script.shape.cpus_per_task:
            continue
        processes = _processes(line.text)
        cpus = script.shape.cpus_per_task * (1 if _STARTER.search(line.text) or processes == 1 else script.shape.tasks_on_node)
        if int(match[1]) * processes > cpus:
            of_all = f"{match[1]} x {processes}" if processes > 1 else match[1]
            yield (
                line,
                LintLevel.WARN,
                f"{of_all} loader processes share the {cpus} CPUs of a task",
                f"num_workers at or below {max(1, cpus // processes - 1)}, or a larger --cpus-per-task",
                "https://pytorch.org/docs/stable/data.html",
            )


def _processes(text: str) -> int:
    """Return how many processes a launcher on this line starts on a node, or 1 if its options do not say."""
    match = _PER_LAUNCHER.search(_options(text))
    return max(1, int(match[1])) if match else 1


def _bucket_cap(script: Script, site: LintSite) -> Found:
    text = "\n".join(line.text for line in script.lines)
    for match in re.finditer(r"\binit_process_group\s*\((?:[^()]|\([^()]*\))*?\bbucket_cap_mb\s*=", text):
        at = text.count("\n", 0, match.end())
        yield (
            script.lines[at],
            LintLevel.ERROR,
            "init_process_group() has no bucket_cap_mb: the call ends with a TypeError",
            "pass it to DistributedDataParallel(model, bucket_cap_mb=...)",
            TORCH_DDP,
        )


RULES: dict[str, LintRule] = {
    "shebang": _shebang,
    "late-option": _late_option,
    "cpus": _cpus,
    "master-local": _master_local,
    "bare-launcher": _bare_launcher,
    "launchers": _launchers,
    "nnodes": _nnodes,
    "early-rank": _early_rank,
    "async-errors": _async_errors,
    "visible-devices": _visible_devices,
    "expandable": _expandable,
    "never": _never,
    "numactl": _numactl,
    "workers": _workers,
    "bucket-cap": _bucket_cap,
}
