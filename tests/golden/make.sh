#!/bin/bash
# Recreate this folder: make.sh CHECKOUT, where CHECKOUT is commit 2b7a2d2 with shardtool installed in .venv.
# Every folder is what a run of that version left; tests/test_golden.py continues these runs with today's version.
set -e
tool=$1/.venv/bin/shardtool python=$1/.venv/bin/python
cd "$(dirname "$0")"
rm -rf -- */ times.json
export PYTHONDONTWRITEBYTECODE=1

for n in 0 1 2 3 4 5 6 7; do
    mkdir -p source/$((n / 6))
    printf 'text %d' $n > source/$((n / 6))/$n.txt
    printf '%d' $((n % 3)) > source/$((n / 6))/$n.cls
done
cp -r source before && rm -r before/1  # the source before it grew
sleep 1.1

create() { "$tool" create "$@" --max-count 2 --workers 1 --quiet; }

# killed FOLDER SHARDS WORDS...: run the command line, and kill it after it has published SHARDS shards.
killed() {
    mkdir -p "$1"
    "$python" - "${@:2}" <<'END' || true
import os, signal, sys
from shardtool.publish import publisher
from shardtool.cli import main
left, add = int(sys.argv.pop(1)), publisher.Publisher.add
def counted(self, *words):
    global left
    add(self, *words)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
publisher.Publisher.add = counted
main()
END
}

for format in tar tfrecord; do
    create source "finished-$format/out-{000..}.$format"
    killed "killed-$format" 2 create source "killed-$format/out-{000..}.$format" --max-count 2 --workers 1 --quiet
done
# The plan fingerprint covers tests/mapped.py. If you change that file, even its docstrings, recreate killed-map.
killed killed-map 2 create source 'killed-map/out-{000..}.tar' --max-count 2 --workers 1 --quiet --map tests.mapped:doubled
killed killed-reshard 1 reshard finished-tar/out.json 'killed-reshard/out-{000..}.tar' --max-count 3 --workers 1 --quiet

create before 'killed-append/out-{000..}.tar'
killed killed-append 1 create source 'killed-append/out-{000..}.tar' --include '1/*' --max-count 1 --workers 1 --quiet --append
create before 'killed-update/out-{000..}.tar' --exclude x
killed killed-update 1 create source 'killed-update/out-{000..}.tar' --exclude x --max-count 1 --workers 1 --quiet --update

create source 'parts/out-{000..}.tar' --part 1/3
create source 'parts/out-{000..}.tar' --part 3/3
cp -rp parts parts-complete
create source 'last/out-{000..}.tar' --part 2/3  # alone, so that it does not merge
cp -p last/out-0* last/.out.part2of3 parts-complete/
create source 'killed-part/out-{000..}.tar' --part 1/3
mkdir last/again && killed last 1 create source 'last/again/out-{000..}.tar' --max-count 2 --workers 1 --quiet --part 3/3
cp -p last/out-0* last/.out.part2of3 killed-part/
cp -p last/again/* last/again/.out* killed-part/
rm -r last

"$python" - <<'END'
import os
import shardtool

def write(folder, numbers, **options):
    writer = shardtool.ShardWriter(f"{folder}/out-{{000..}}.tar", max_count=2, **options)
    for number in numbers:
        writer.write({"__key__": f"{number:03}", "txt": f"text {number}", "cls": number % 3}, metadata={"number": number})
    return writer

def write_and_die(folder, numbers, **options):
    if os.fork() == 0:
        write(folder, numbers, **options)
        os._exit(0)
    os.wait()

write("writer", range(8)).close()
write_and_die("killed-writer", range(5))
for folder in ("writer-parts", "killed-writer-parts"):
    write(folder, range(3), part=0, parts=3).close()
    write(folder, range(3, 3), part=1, parts=3).close()
write("writer-parts", range(3, 8), part=2, parts=3).close()
write_and_die("killed-writer-parts", range(3, 6), part=2, parts=3)
write("writer-names", range(3), part="a").close()
write("writer-names", range(3, 8), part="b").close()
END

# Git stores no times, but runs of that version trust them.
"$python" - <<'END'
import json, os
paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names)
times = {path[2:]: os.lstat(path).st_mtime_ns for path in paths if path.count("/") > 1}
with open("times.json", "w") as file:
    json.dump(times, file, indent=0)
    file.write("\n")
END
