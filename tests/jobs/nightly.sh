# Every night: pack the new files of a folder, verify the whole dataset, and write a report for CI.
set -e

shardtool create inbox 'shards/train-{000000..}.tar' --label-from-folder --update --on-error skip --quiet
shardtool verify shards/train.json --source inbox --report junit > report.xml
