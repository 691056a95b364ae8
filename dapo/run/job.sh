#: head
#!/bin/bash
# Trains @{run}. Written by `dapo launch`.
# @{said}.
# Submitted with: sbatch @{script}
#SBATCH --job-name=@{name}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=1
#: options
@{options}
#: what the job needs itself
#SBATCH --signal=B:USR1@@{seconds}
#SBATCH --output=@{output}
#SBATCH --open-mode=append
#: requeue
#SBATCH --requeue
#: no requeue
#SBATCH --no-requeue
#: start

# First of all: Slurm's signal may come at any moment, and a script without a trap dies of it.
driver= asked=0 again=
stop() { asked=$((asked + 1)) again=$1; echo "$(date +%FT%T) $2: the run saves and ends"
  [ -z "$driver" ] || kill -TERM "$driver" 2>/dev/null; }
trap 'stop yes "the job has little time left"' USR1   # Slurm, before the end
trap 'stop "" "the job was asked to end"' USR2        # you: scancel --batch --signal=USR2 JOB
trap 'asked=$((asked + 1))' TERM                      # scancel JOB: Slurm tells every process of the job itself
set -uo pipefail

run=@{run_path}
job=@{job}
cd @{directory} || exit 2
#: without a container
export PATH=@{programs}:$PATH
#: setup
@{setup}
set +e   # the lines above may have set it, and what follows reads exit codes itself
#: command
container=@{container}   # stands before each command, split at its spaces

#: several machines
# A Ray cluster of this job alone: a head here, a worker on each other machine.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0   # hosts have the priority of processes without Ray
export RAY_task_events_report_interval_ms=0   # else the head keeps some KiB of each call
export RAY_gcs_rpc_server_reconnect_timeout_s=86400   # without a head a step is finished and saved, not given up
ip=$(hostname -I | cut -d' ' -f1); export RAY_ADDRESS=$ip:$((20000 + SLURM_JOB_ID % 10000))
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST")) steps=()
on() { local node=$1; shift   # a command on one machine, with all that the job has there
  srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" -w "$node" "$@" \
    < /dev/null > "$job/ray-$node.txt" 2>&1 & steps+=($!); }
leave() { kill "${steps[@]}" 2>/dev/null; wait "${steps[@]}" 2>/dev/null; }
trap leave EXIT
on "${nodes[0]}" $container ray start --head --node-ip-address="$ip" --port="${RAY_ADDRESS##*:}" \
  --num-cpus="$SLURM_CPUS_ON_NODE" --temp-dir="${TMPDIR:-/tmp}/ray-$SLURM_JOB_ID" --include-dashboard=false --block
for node in "${nodes[@]:1}"; do   # until the head answers
  on "$node" bash -c "until $container ray start --address=$RAY_ADDRESS \
    --num-cpus=$SLURM_CPUS_ON_NODE --block; do sleep 2; done"
done
until [ "$($container python -c '
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))' 2>/dev/null | tail -n 1)" = @{nodes} ]; do
  for step in "${steps[@]}"; do
    kill -0 "$step" 2>/dev/null || { echo "Ray ended on a machine; see $job/ray-*.txt"; exit 1; }
  done
  [ $asked = 0 ] || exit 1
  sleep 2
done
echo "$(date +%FT%T) Ray is up on @{nodes} machines: ${nodes[*]}"

#: train
# A run that this very job began is continued when the job starts again.
begun=$job/begun-$SLURM_JOB_ID
newest() { ls -d "$run"/checkpoints/step_[0-9]* 2>/dev/null | tail -n 1; }
had=$(newest)
if [ -e "$begun" ] && [ "$run/recipe.resolved.yaml" -nt "$begun" ]; then
  $container python -m dapo train --resume "$run"@{joins} < /dev/null & driver=$!
else
  [ -e "$begun" ] || touch "$begun"
#: new
  $container python -m dapo train "$job/@{recipe}"@{joins} < /dev/null & driver=$!
#: resume
  $container python -m dapo train --resume "$run"@{joins}@{overrides} < /dev/null & driver=$!
#: wait
fi
[ $asked = 0 ] || kill -TERM "$driver"   # it was asked before there was a run
while :; do   # a signal ends the waiting, and not the run
  before=$asked; wait "$driver"; code=$?
  [ $asked = "$before" ] && break
done
echo "$(date +%FT%T) dapo train ended with $code"

#: requeue
# 130: stopped and saved. 143: it was asked before there was anything to save.
# 75: trainer.max_hours or the loss of the Ray cluster ended it, saved.
if [ $code = 75 ] || { [ -n "$again" ] && { [ $code = 130 ] || [ $code = 143 ]; }; }; then
  if [ "$(newest)" = "$had" ]; then
    echo "no step was finished in this job's time, so it is not put back into the queue: raise slurm.options.time"
    exit 1
  fi
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi

#: end
exit $code
