# COCO: an image and its mask, with the boxes, classes and captions of its annotations, in a dataset for each split.
set -e

for split in train2017 val2017; do
    shardtool create coco/$split coco/stuffthingmaps/$split "boxes/$split-{000000..}.tar" --complete \
        --join coco/annotations/instances_$split.json --field boxes.json=boxes --field labels.json=labels
    shardtool reshard boxes/$split.json "shards/$split-{000000..}.tar" --shuffle \
        --join coco/annotations/captions_$split.json --field captions.json=captions
done
shardtool verify shards --decode
