"""Programs that measure: benchmarks and acceptance of nodes and fabrics.

tool tools/                what one measurement is, and the measurements: the folder is the list
collective                 reads the output of nccl-tests
judge_figure               a figure beside its class's median, its siblings and the profile's reference (pure)
acceptance_plan            which nodes are measured, and with which tools
job_script job_output      the job that measures a node, as text, and what it wrote
slurm_jobs                 sbatch, squeue and scancel
results_store              results in SQLite
acceptance_run             one run over several nodes
run_judgement              the results of a run, each figure judged
"""
