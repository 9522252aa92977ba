# A folder of classes: packed, divided with the same share of each class, and one class taken out of it again. What that
# changed is told; what is left becomes files, of which the same samples are packed.
set -e

shardtool create photos 'all/photos-{000..}.tar' --max-size 500kB --label-from-folder --quiet
shardtool reshard all/photos.json 'split/{split}-{000..}.tar' --split train=0.7,val=0.3 --stratify cls --max-size 300kB --quiet
shardtool remove 'split/{split}.json' --where "cls == 'cat'" --quiet
shardtool verify 'split/{split}.json' --quiet
shardtool diff all/photos.json 'split/{split}.json' --json > difference.json || test $? = 3
shardtool extract 'split/{split}.json' files --fields=-cls --quiet
shardtool create files 'again/{split}-{000..}.tar' --label-from-folder --classes-from all/photos.json \
  --join files/.metadata.parquet --on key --split-by split --quiet
shardtool diff 'split/{split}.json' 'again/{split}.json' > same.txt
