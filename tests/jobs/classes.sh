# A folder of classes: pack it, split it with the same class proportions in each split, and remove one class. Compare
# the result with the original dataset. Then extract the files, pack them again, and compare both datasets.
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
