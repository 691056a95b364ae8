#!/bin/bash
# Trains /shared/runs/math 7b. Written by `dapo launch`.
# From math.yaml with slurm.nodes=2.
# Submitted with: sbatch '/shared/runs/.jobs/math 7b/job.sh'
#SBATCH --job-name=dapo-math-7b
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --output="/shared/runs/.jobs/math 7b/job-%j.txt"
#SBATCH --open-mode=append
#SBATCH --requeue

# First of all: Slurm's signal may come at any moment, and a script without a trap dies of it.
driver= asked=0 again=
stop() { asked=$((asked + 1)) again=$1; echo "$(date +%FT%T) $2: the run saves and ends"
  [ -z "$driver" ] || kill -TERM "$driver" 2>/dev/null; }
trap 'stop yes "the job has little time left"' USR1   # Slurm, before the end
trap 'stop "" "the job was asked to end"' USR2        # you: scancel --batch --signal=USR2 JOB
trap 'asked=$((asked + 1))' TERM                      # scancel JOB: Slurm tells every process of the job itself
set -uo pipefail

run='/shared/runs/math 7b'
job='/shared/runs/.jobs/math 7b'
cd /shared/project || exit 2
export PATH=/shared/project/.venv/bin:$PATH
module load cuda
set +e   # the lines above may have set it, and what follows reads exit codes itself
container=''   # stands before each command, split at its spaces

# A run that this very job began is continued when the job starts again.
begun=$job/begun-$SLURM_JOB_ID
newest() { ls -d "$run"/checkpoints/step_[0-9]* 2>/dev/null | tail -n 1; }
had=$(newest)
if [ -e "$begun" ] && [ "$run/recipe.resolved.yaml" -nt "$begun" ]; then
  $container python -m dapo train --resume "$run" < /dev/null & driver=$!
else
  [ -e "$begun" ] || touch "$begun"
  $container python -m dapo train "$job/recipe.yaml" < /dev/null & driver=$!
fi
[ $asked = 0 ] || kill -TERM "$driver"   # it was asked before there was a run
while :; do   # a signal ends the waiting, and not the run
  before=$asked; wait "$driver"; code=$?
  [ $asked = "$before" ] && break
done
echo "$(date +%FT%T) dapo train ended with $code"

# 130: stopped and saved. 143: it was asked before there was anything to save.
# 75: trainer.max_hours or the loss of the Ray cluster ended it, saved.
if [ $code = 75 ] || { [ -n "$again" ] && { [ $code = 130 ] || [ $code = 143 ]; }; }; then
  if [ "$(newest)" = "$had" ]; then
    echo "no step was finished in this job's time, so it is not put back into the queue: raise slurm.options.time"
    exit 1
  fi
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi

exit $code
