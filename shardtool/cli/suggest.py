"""What people mean who type an option or a verb that there is not: words of other tools, and slips."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NEAR = 0.75  # of two words, from 0 to 1: a letter more or less, two that changed places
_NAMED = re.compile(r"--[a-z][a-z-]*|\b(?:OUTPUT|DEST|DIR|SOURCE|DATASET)\b")

# What other tools call what we have, and what to type, or to know, here. A line that names options or arguments is for
# the verbs that have them; of several lines for a word, the first one counts.
_OUTPUTS = "output out output-dir outdir output-folder output-path outfile dest destination to"
_INPUTS = "input in src input-dir source-dir data data-dir source dataset folder dir"
_OPTIONS = (
    ("force replace clobber yes", "--overwrite"),
    ("num-workers n-workers jobs threads num-threads processes num-processes parallel parallelism concurrency",
     "--workers"),
    (_OUTPUTS, "--output"),
    (_OUTPUTS, "OUTPUT is the last argument."),
    (_OUTPUTS, "DEST is the last argument."),
    (_OUTPUTS, "DIR is the last argument."),
    (_INPUTS, "SOURCE is an argument, before OUTPUT."),
    (_INPUTS, "DATASET is an argument."),
    ("shard-size maxsize size-limit bytes-per-shard max-shard-size max-bytes limit-size size", "--max-size"),
    ("maxcount samples-per-shard max-samples count shard-count-max", "--max-count"),
    ("num-shards n-shards shard-count nshards number-of-shards", "--shards"),
    ("random randomize randomise shuffled mix", "--shuffle"),
    ("random-seed random-state rng", "--seed"),
    ("filter query select condition", "--where"),
    ("limit first top max-n take n-samples num-samples", "--head"),
    ("fraction subset subsample ratio share", "--sample"),
    ("splits train-split val-split test-split train-test-split", "--split"),
    ("labels label class-from-folder labels-from-folders class-folders label-folders", "--label-from-folder"),
    ("glob pattern ext extension extensions suffix match files-from", "--include"),
    ("ignore skip filter-out", "--exclude"),
    ("drop remove-fields keep columns keys-only", "--fields"),
    ("sort order order-by sort-key", "--sort-by"),
    ("reverse desc", "--sort-by -COLUMN"),
    ("scale image-size img-size width height max-width thumbnail", "--resize"),
    ("image-format convert reencode re-encode to-format", "--encode"),
    ("format type writer shard-format tfrecord tar", "The ending of OUTPUT picks the format: .tar or .tfrecord."),
    ("output-format style reporter", "--report"),
    ("ignore-errors skip-errors keep-going continue-on-error skip-bad", "--on-error skip"),
    ("continue restart incremental sync", "--resume"),
    ("add extend", "--append"),
    ("silent no-progress", "--quiet"),
    ("debug log log-level", "--verbose"),
    ("dryrun simulate check plan-only preview what-if", "--dry-run"),
    ("recursive", "Folders are read with all that is below them."),
    ("compress compression gzip gz zstd", "Shards are not compressed, so that any sample can be read at its place."),
    ("rename", "--fields OLD=NEW"),
    ("csv table labels-file metadata annotations", "--join"),
    ("transform function fn preprocess", "--map"),
    ("part-of rank world-size node", "--part"),
    ("endpoint-url s3-endpoint", "--endpoint"),
    ("full deep", "Every byte is read, unless --quick is given."),
    ("fix", "--repair"),
    ("checksums hash md5 sha256", "--checksum"),
)  # fmt: skip
_VERBS = (
    ("unpack untar extract-all export-files dump", "extract"),
    ("delete rm drop erase prune", "remove"),
    ("compare cmp", "diff"),
    ("merge concat cat-shards join combine concatenate", "reshard A B OUTPUT, or index --merge for parts of a run"),
    ("convert shuffle split resplit filter sample transform repack rewrite sort rename", "reshard"),
    ("ls list keys", "inspect DATASET --keys"),
    ("head", "inspect DATASET --head N"),
    ("info show stat stats status describe summary view look count du cat get", "inspect"),
    ("pack build make write new import from-folder generate init", "create"),
    ("append add update", "create --append"),
    ("download fetch img2dataset", "create, with --url"),
    ("resize", "create --resize"),
    ("check validate test fsck audit lint", "verify"),
    ("repair fix mend", "verify --repair"),
    ("cp sync mirror push pull upload backup mv", "copy"),
    ("export reindex idx", "index --export"),
    ("version", "--version"),
    ("man docs usage", "help"),
)


def meant_option(typed: str, own: Iterable[str], others: Mapping[str, Iterable[str]]) -> str:
    """Return what may be meant by an option that a verb does not have; empty: nothing that is near.

    Args:
        typed: The option.
        own: Those that the verb shows, and its arguments.
        others: Those of the other verbs.
    """
    known, word = {*own}, typed.lower().replace("_", "-").lstrip("-")
    if alike := [one for one in known if _squeezed(one) == _squeezed(word)]:
        return f"Did you mean {alike[0]}?"
    for words, meant in _OPTIONS:
        if word in words.split() and known.issuperset(_NAMED.findall(meant)):
            return f"Did you mean {meant}?" if meant.startswith("-") else meant
    if verbs := [f"`shardtool {verb}`" for verb, theirs in others.items() if typed in theirs]:
        return f"It is an option of {' and '.join([', '.join(verbs[:-1]), verbs[-1]] if verbs[1:] else verbs)}."
    near = get_close_matches(word, sorted(one[2:] for one in known if one.startswith("--")), 2, _NEAR)
    return f"Did you mean {' or '.join(f'--{one}' for one in near)}?" if near else ""


def meant_verb(typed: str, verbs: Iterable[str]) -> str:
    """Return what may be meant by a verb that there is not; empty: nothing that is near."""
    known = [*verbs]
    for words, meant in _VERBS:
        if typed.lower() in words.split() and (meant.startswith("-") or meant.replace(",", "").split()[0] in known):
            return f"Did you mean `shardtool {meant}`?"
    near = get_close_matches(typed.lower(), known, 2, _NEAR)
    return f"Did you mean {' or '.join(f'`shardtool {one}`' for one in near)}?" if near else ""


def _squeezed(word: str) -> str:
    return word.replace("-", "")
