"""Measures nodes and fabrics: benchmarks, and their acceptance.

tool tools/                what one measurement is, and the measurements; the folder is the list of them
collective                 reads the output of nccl-tests
judge_figure               compares a figure with its class's median, its siblings and the profile's reference (pure)
acceptance_plan            decides which nodes are measured, and with which tools
job_script job_output      writes the job that measures a node, as text, and reads what the job wrote
slurm_jobs                 calls sbatch, squeue and scancel
results_store              keeps results in SQLite
acceptance_run             measures several nodes in one run
run_judgement              judges each figure in the results of a run
"""
