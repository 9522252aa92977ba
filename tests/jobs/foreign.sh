# Merge shards of webdataset, img2dataset and TensorFlow into one shuffled dataset with unique keys.
set -e

shardtool inspect theirs/webdataset theirs/img2dataset theirs/tensorflow
shardtool verify theirs/webdataset theirs/img2dataset theirs/tensorflow --decode

# Rename TensorFlow's fields to the names of the other tools. If two shards contain the same key, rename the second to
# `KEY-2`.
shardtool reshard theirs/webdataset theirs/img2dataset theirs/tensorflow 'clean/train-{000000..}.tar' \
    --fields jpg=image/encoded,cls=image/class/label \
    --fields=-image/filename,-image/format,-image/height,-json --on-duplicate rename --shuffle --max-size 500MB

shardtool verify clean/train.json --decode --for webdataset
