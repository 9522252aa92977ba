"""Create the shards for the other examples: the photographs of sample_data as 64 x 64 pixels, with class numbers.

Run this script in the folder that contains `sample_data`. The script writes tar shards to photos/ and TFRecords to
photos-tfrecord/.
"""

from shardtool import create, reshard

made = create(
    "sample_data/photos", "photos/{split}-{000000..}.tar",
    label_from_folder=True,  # store the class number of each folder in the field `cls`
    resize="64x64", resize_mode="crop", max_count=16,
    shuffle=True, split={"train": 0.75, "val": 0.25},
    export=["dali-webdataset"],  # also write the index that DALI reads
    overwrite=True,
)  # fmt: skip
for split, result in made.splits.items():
    reshard(f"photos/{split}.json", f"photos-tfrecord/{split}-{{000000..}}.tfrecord", max_count=16, overwrite=True)
    print(split, result.samples, "samples")
