"""Measures nodes with benchmarks, and compares the figures with those of other nodes.

tool tools/                defines what one measurement is; the folder has one file for each measurement
collective                 reads the output of nccl-tests
judge_figure               compares a figure with its class's median, its siblings and the profile's reference (pure)
acceptance_plan            decides which nodes are measured, and with which tools
job_script job_output      writes the job that measures a node, as text, and reads what the job wrote
slurm_jobs                 calls sbatch, squeue and scancel
results_store              stores results in SQLite
acceptance_run             measures several nodes in one run
run_judgement              judges each figure in the results of a run

nccl_plan nccl_run         order and make the launches of `fairlead nccl measure`, and keep them in a folder
nccl_launch                launches one command with a time limit, alone or beside a GEMM loop
float_sums                 makes one all-reduce with known sums; runs as a program of its own for each rank
node_parts                 asks all nodes of a job what they are, for the key of a result
pairs/                     plans rounds of pairs of nodes, and judges the table of their figures (pure)
fabric_plan                decides which nodes are measured in pairs, and with which command
fabric_jobs step_output    keeps the nodes with one job, starts steps in it, and reads what they write
fabric_store fabric_run    stores runs over the fabric, and runs one round after the other
"""
