# Shards of webdataset, img2dataset and TensorFlow become one clean dataset: one order, one index, each key once.
set -e

shardtool inspect theirs/webdataset theirs/img2dataset theirs/tensorflow
shardtool verify theirs/webdataset theirs/img2dataset theirs/tensorflow --decode

# TensorFlow's names become those of the others. Keys that two have are told apart: `KEY` and `KEY-2`.
shardtool reshard theirs/webdataset theirs/img2dataset theirs/tensorflow 'clean/train-{000000..}.tar' \
    --fields jpg=image/encoded,cls=image/class/label \
    --fields=-image/filename,-image/format,-image/height,-json --on-duplicate rename --shuffle --max-size 500MB

shardtool verify clean/train.json --decode --for webdataset
