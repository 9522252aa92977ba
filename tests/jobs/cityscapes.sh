# Cityscapes: images and labels are in two folder trees. The names of an image and its labels differ in their suffixes.
set -e

for split in train val; do
    shardtool create leftImg8bit/$split gtFine/$split "shards/$split-{000000..}.tar" --complete \
        --key-pattern '(.+)_(leftImg8bit|gtFine_labelIds)' --include '*_leftImg8bit.png' --include '*_labelIds.png' \
        --fields png=leftImg8bit.png,mask.png=gtFine_labelIds.png
done

shardtool verify shards/train.json --source leftImg8bit/train --source gtFine/train --decode
shardtool verify shards/val.json --source leftImg8bit/val --source gtFine/val --decode
