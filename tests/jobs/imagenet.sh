# ImageNet: one folder per class, upper-case extensions, junk files of two operating systems, and damaged images.
set -e

# Print the plan: the shards and their samples. Nothing is written.
shardtool create ILSVRC/train 'shards/train-{000000..}.tar' --label-from-folder --exclude '*.txt' --dry-run

# --probe opens each image. Images that cannot be decoded are skipped and listed; the others are packed unchanged.
shardtool create ILSVRC/train 'shards/train-{000000..}.tar' --label-from-folder --exclude '*.txt' \
    --fields jpg=JPEG --probe --on-error skip --shuffle
cat shards/train.skipped

# Use the class numbers of train for val.
shardtool create ILSVRC/val 'shards/val-{000000..}.tar' --label-from-folder --classes-from shards/train.json \
    --fields jpg=JPEG --probe

shardtool verify shards --decode --for webdataset
shardtool verify shards/train.json --source ILSVRC/train
shardtool inspect shards/train.json --contact-sheet shards/train.png
