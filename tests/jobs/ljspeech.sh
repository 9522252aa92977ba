# LJSpeech: clips, and a text file with three columns separated by bars: the name of the clip, the transcript, and the
# transcript with numbers as words.
set -e

shardtool create LJSpeech-1.1/wavs 'shards/{split}-{000000..}.tar' --join LJSpeech-1.1/metadata.csv \
    --delimiter '|' --no-header --on 1 --field txt=3 --split train=0.9,val=0.1 --shuffle

shardtool verify shards/train.json --source LJSpeech-1.1/wavs --quiet
shardtool verify shards/val.json --source LJSpeech-1.1/wavs --quiet
