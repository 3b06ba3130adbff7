#!/bin/bash
# Goes on after preemption, the time limit and a node failure, with a program that saves only from time to time.
#
# Your program has to do this:
#   - At its start it continues from what is in $CHECKPOINT, if anything is there.
#   - It saves from time to time (`fairlead hint checkpoint`). What it did after the last save is done again.
#   - It writes a new file and renames it, so that a save that was cut off never replaces a good one.
#   - It ends with exit code 0 if the work is done, and at once if it is started again after that.
#
# What happens:
#   time limit    Slurm sends SIGUSR1 to this script 60 to 120 s before the end, and the script requeues the job.
#   preemption    Slurm ends the program and requeues the job (PreemptMode=REQUEUE). Slurm 22.05 does not requeue a job that
#                 ends within GraceTime: the script does it.
#   node failure  Slurm requeues the job itself.
#   crash         The job ends as FAILED and is not requeued.
#   crash loop    After 3 starts in a row without a new save the script ends the job.
#
#SBATCH --job-name=saves-from-time-to-time
#SBATCH --nodes=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60

CHECKPOINT=${CHECKPOINT:-$SLURM_SUBMIT_DIR/checkpoint} # a folder that all nodes see
STARTS_MAX=3                                          # so many starts in a row without a new save
program=(srun --kill-on-bad-exit=1 "${@:-./train}")   # sbatch THIS_FILE ./train --more options

export CHECKPOINT
mkdir -p "$CHECKPOINT" || exit 1

# -- the guard against crash loops ------------------------------------------------------------------
newest=$(find "$CHECKPOINT" -type f ! -name ".starts-*" -printf '%T@ %s %p\n' | sort -n | tail -n 1)
starts_file=$CHECKPOINT/.starts-$SLURM_JOB_ID
{ read -r starts && read -r before; } 2>/dev/null <"$starts_file" || starts=0
[ "$newest" = "${before-}" ] || starts=0
if [ "$starts" -ge "$STARTS_MAX" ]; then
    echo "$(date '+%F %T') $starts starts in a row without a new save: the job is not started again" >&2
    exit 1
fi
printf '%s\n%s\n' $((starts + 1)) "$newest" >"$starts_file.new" && mv "$starts_file.new" "$starts_file"

# -- the program ------------------------------------------------------------------------------------
trap : TERM # Slurm has sent it to the tasks as well
trap 'echo "$(date "+%F %T") the time limit is near: the job is requeued"; scontrol requeue "$SLURM_JOB_ID"' USR1

echo "$(date '+%F %T') start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"
"${program[@]}" &
step=$!
while true; do # a signal ends wait before the program has ended
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break
done

preempted() { # says whether Slurm takes the nodes for another job since this start; a cancelled job is not preempted
    local job begin
    # From 24.11 on, Slurm requeues the job itself. If the script did it, 24.11 would start a job that is done once more.
    [[ $(scontrol --version) =~ \ ([0-9]+)\.([0-9]+) ]] && ((10#${BASH_REMATCH[1]}${BASH_REMATCH[2]} >= 2411)) && return 1
    job=$(SLURM_TIME_FORMAT=standard scontrol -o show job "$SLURM_JOB_ID") || return 1
    [[ $job =~ \ StartTime=([0-9T:-]+) ]] || return 1
    begin=${BASH_REMATCH[1]}
    [[ $job =~ \ PreemptTime=([0-9T:-]+) ]] && [[ ! ${BASH_REMATCH[1]} < $begin ]]
}

if [ "$code" -ne 0 ] && preempted; then
    echo "$(date '+%F %T') the job was preempted: it is requeued"
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
