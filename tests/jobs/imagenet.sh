# ImageNet as it lies on disk: a folder a class, endings in capitals, junk of two operating systems, damaged files.
set -e

# The plan: how many shards, and what they hold. Nothing is written.
shardtool create ILSVRC/train 'shards/train-{000000..}.tar' --label-from-folder --exclude '*.txt' --dry-run

# --probe opens each image, so that what no training could decode is left out and listed; all others stay as they are.
shardtool create ILSVRC/train 'shards/train-{000000..}.tar' --label-from-folder --exclude '*.txt' \
    --fields jpg=JPEG --probe --on-error skip --shuffle
cat shards/train.skipped

# The classes of val have the numbers of train's.
shardtool create ILSVRC/val 'shards/val-{000000..}.tar' --label-from-folder --classes-from shards/train.json \
    --fields jpg=JPEG --probe

shardtool verify shards --decode --for webdataset
shardtool verify shards/train.json --source ILSVRC/train
shardtool inspect shards/train.json --contact-sheet shards/train.png
