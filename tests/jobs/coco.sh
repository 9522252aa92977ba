# COCO: each sample contains an image, its mask, and the boxes, classes and captions of its annotations. Each split
# becomes a dataset.
set -e

for split in train2017 val2017; do
    shardtool create coco/$split coco/stuffthingmaps/$split "boxes/$split-{000000..}.tar" --complete \
        --join coco/annotations/instances_$split.json --field boxes.json=boxes --field labels.json=labels
    shardtool reshard boxes/$split.json "shards/$split-{000000..}.tar" --shuffle \
        --join coco/annotations/captions_$split.json --field captions.json=captions
done
shardtool verify shards --decode
