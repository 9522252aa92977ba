#!/bin/bash
# Pack a folder with an array of Slurm tasks. Each task writes its own shards. The task that finishes last publishes the
# dataset file.
#
#   sbatch deploy/slurm.sh SOURCE 'OUTPUT-{000000..}.tar' [options of shardtool create]
#
# SOURCE and OUTPUT are on a file system that all nodes share. Tasks can run in any order, also at the same time. If a task
# is killed, Slurm requeues it with the same number, and --resume keeps the finished shards.
#
# To repeat a task by hand:  shardtool create ... --resume --part 3/64
# If listing the source takes long, list it once:  shardtool create SOURCE OUTPUT [options] --plan-only plan.parquet
# Then add  --plan plan.parquet  to the options of this script.
# If all tasks have finished, but no dataset file exists:  shardtool index 'OUTPUT-{000000..}.tar' --merge

#SBATCH --job-name=shardtool
#SBATCH --array=1-64
#SBATCH --cpus-per-task=8
#SBATCH --requeue

set -euo pipefail
source=$1 output=$2
shift 2
# shardtool detects the cores of the task. $SHARDTOOL can contain another command.
exec ${SHARDTOOL:-shardtool} create "$source" "$output" --part slurm --resume --progress plain "$@"
