#!/bin/bash
# Pack a folder with an array of Slurm tasks: each task writes its own shards, the last to end publishes the dataset file.
#
#   sbatch deploy/slurm.sh SOURCE 'OUTPUT-{000000..}.tar' [options of shardtool create]
#
# SOURCE and OUTPUT lie on a file system that all nodes share. Tasks run in any order, side by side or not. One that was
# killed goes on where it was: Slurm requeues it with the same number, and --resume keeps what is finished. To run a
# few tasks again by hand, give each its own number of all:  shardtool create ... --resume --part 3/64
# Where listing takes long, it is done once:  shardtool create SOURCE OUTPUT [options] --plan-only plan.parquet
# and each task is given  --plan plan.parquet,  too.
# Where the last task was killed when all others had ended:  shardtool index 'OUTPUT-{000000..}.tar' --merge

#SBATCH --job-name=shardtool
#SBATCH --array=1-64
#SBATCH --cpus-per-task=8
#SBATCH --requeue

set -euo pipefail
source=$1 output=$2
shift 2
# The task's cores are found by shardtool itself. $SHARDTOOL may name another command.
exec ${SHARDTOOL:-shardtool} create "$source" "$output" --part slurm --resume --progress plain "$@"
