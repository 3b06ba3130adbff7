"""Programs that measure: benchmarks and acceptance of nodes and fabrics.

tool tools/      what one measurement is, and the measurements: the folder is the list
judge            a figure beside its class's median, its siblings and the profile's reference (pure)
script report    the job that measures a node, as text, and what it wrote
jobs             sbatch, squeue and scancel
store            results in SQLite
run              one run over several nodes
"""
