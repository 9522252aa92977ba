"""Job files: `--save-config` and `--config` repeat the same request."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest
from shardtool.cli.commands import VERBS
from shardtool.cli.config import prepare_config, read_config
from tests.faults.helpers import start
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.request.observer import Observer

_USED = ("anonymous", "endpoint", "header", "retry_for", "store_option")  # they change this process
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
_PATH = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda text: "pipe:" not in text and "://" not in text and text.strip("/.")
)


@st.composite
def words_of_a_verb(draw: st.DrawFn, verb: click.Command) -> list[str]:
    """Generate arguments that click accepts for a verb."""
    words: list[str] = []
    options = [option for option in verb.params if isinstance(option, click.Option) and option.expose_value]
    for option in draw(
        st.lists(st.sampled_from([option for option in options if option.name not in _USED]), unique=True)
    ):
        if option.name in ("config", "save_config"):
            continue
        name = draw(st.sampled_from([opt for opt in option.opts if opt.startswith("--")]))
        if option.is_flag:
            words.append(name)
            continue
        value = _PATH if isinstance(option.type, click.Path) else _TEXT
        value = st.sampled_from([*option.type.choices]) if isinstance(option.type, click.Choice) else value
        words += [f"{name}={text}" for text in draw(st.lists(value, min_size=1, max_size=3 if option.multiple else 1))]
    return [*words, "--", *draw(st.lists(_PATH, min_size=2, max_size=4))]


def _params(verb: click.Command, words: list[str]) -> tuple[click.Context, dict[str, Any]]:
    """Return the parameters that click parses from words, with absolute paths."""
    context = verb.make_context(verb.name, [*words])
    values = {name: value for name, value in context.params.items() if name not in ("config", "save_config")}
    for param in verb.params:
        value = values.get(param.name or "")
        if isinstance(param.type, click.Path) and isinstance(value, str):
            values[param.name or ""] = os.path.abspath(value) + "/" * value.endswith("/")
        elif isinstance(param.type, click.Path) and value:
            values[param.name or ""] = [os.path.abspath(text) + "/" * text.endswith("/") for text in value]
    return context, values


@pytest.mark.parametrize("name", [name for name in VERBS if name not in ("cache", "completion", "help")])
@given(data=st.data())
def test_saving_and_loading_keeps_the_options(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any accepted command line gives the same options after saving and loading, from any folder."""
    verb = VERBS[name]()
    words = data.draw(words_of_a_verb(verb))
    path = f"{tmp_path_factory.mktemp('job')}/jöb.toml"
    context, expected = _params(verb, [f"--save-config={path}", *words])
    prepare_config(path, context)()
    assert _params(verb, [f"--config={path}"])[1] == {
        **expected,
        **({"dry_run": False} if "dry_run" in expected else {}),
    }
    prepare_config(path, context)()  # the same again is no other file


@pytest.fixture(name="source", autouse=True)
def _source(tmp_path: Path) -> Path:
    """Return a folder of classes."""
    return write_tree(tmp_path / "imgs", {f"{name}/{at}.jpg": b"x" * at for name in ("cat", "dog") for at in (1, 2, 3)})


def test_a_saved_job_writes_the_same_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved job writes the same bytes, also from another folder; typed options override it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    options = ("--label-from-folder", "--shuffle", "--seed=7", "--max-count=2", "--include", "*.jpg", "--workers", "0")
    first = typed("create", "imgs", "out/x-{0..}.tar", *options, "--save-config", "jobs/job.toml", "--quiet")
    assert (first.code, first.err) == (0, "")
    assert (tmp_path / "jobs/job.toml").read_text() == (
        "# shardtool create --config job.toml\n"
        'source = "../imgs"\n'
        'output = "../out/x-{0..}.tar"\n'
        "workers = 0\n"
        "max-count = 2\n"
        "shuffle = true\n"
        "seed = 7\n"
        'include = ["*.jpg"]\n'
        "label-from-folder = true\n"
        "quiet = true\n"
    )
    before = read_tree(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "jobs")
    assert typed("create", "--config", "job.toml", "--overwrite").code == 0
    assert read_tree(tmp_path / "out") == before
    assert typed("create", "--config", "job.toml", "../imgs", "y-{0..}.tar", "--max-count", "6").code == 0
    assert {name for name in read_tree(tmp_path / "jobs") if name.endswith(".tar")} == {"y-0.tar"}


def test_a_job_file_can_be_written_by_hand(tmp_path: Path) -> None:
    """Lists are repeated options, tables are pairs and keys, and all option names are accepted."""
    keys = [f"{name}/{number}" for name in ("cat", "dog") for number in (1, 2, 3)]
    (tmp_path / "labels.csv").write_text("key,kind\n" + "".join(f"{key},{key[0]}\n" for key in keys))
    (tmp_path / "job.toml").write_text(
        'source = ["imgs"]\noutput = "out/{split}-{0..}.tar"\njoin = "labels.csv"\non = "key"\nclasses = ["cls"]\n'
        'where = "kind.notna()"\nfields = ["jpg"]\n[field]\ncls = "kind"\n[split]\na = 0.5\nb = 0.5\n'
    )
    assert typed("create", "--config", tmp_path / "job.toml", "--json", "--seed", "1").code == 0
    made = json.loads((tmp_path / "out/a.json").read_text())["shardtool"]["made"]["options"]
    assert made["values"] == ["cls=kind"]
    assert (made["split"], made["seed"], made["select_fields"]) == ("a=0.5,b=0.5", 1, ["jpg"])
    (tmp_path / "fetch.toml").write_text("source='t.csv'\noutput='x'\n[fetch]\nper-host = 4\nretry-failed = true\n")
    verb = VERBS["create"]()
    params = read_config(f"{tmp_path}/fetch.toml", click.Context(verb, info_name="create"))
    assert params["fetch"] in ("per-host=4,retry-failed", ["per-host=4", "retry-failed"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('max-sise = "1MB"', "{path}: max-sise: not an option of create. Did you mean max-size?"),
        ('max_size = "1MB"', "{path}: max_size: not an option of create. Did you mean max-size?"),
        ("zzz = 1", "{path}: zzz: not an option of create. `shardtool create --help` lists all options."),
        (
            "select-field = 1",
            "{path}: select-field: not an option of create. `shardtool create --help` lists all options.",
        ),
        ("where-not = 1", "{path}: where-not: not an option of create. `shardtool create --help` lists all options."),
        ('config = "other.toml"', "{path}: config: not an option of create. `shardtool create --help` lists"),
        ("f = true", "{path}: f: not an option of create. `shardtool create --help` lists all options."),
        ('shuffle = "yes"', "{path}: shuffle: 'yes'; expected true or false"),
        ("max-size = true", "{path}: max-size: true; expected a string or a number"),
        ("max-size = 1979-05-27", "{path}: max-size: a value of the type date; expected a string or a number"),
        ("[max-size]\na = 1", "{path}: max-size: a table; expected one value"),
        ("[field.cls]\na = 1", "{path}: field: a value of the type dict; expected a string or a number"),
        (
            "overwrite = true\nappend = true",
            "--overwrite: used with --append, which keeps the dataset; expected only one",
        ),
        ("workers = 'many'", "--workers: 'many'; expected a whole number"),
        ("resize-mode = 'x'", "{path}: resize-mode: 'x' is not one of 'shorter', 'longer', "),
        ("max-size", "{path}: invalid TOML: "),
        ("max-size = 1\nmax-size = 2", "{path}: invalid TOML: "),
        ("x = " + "[" * 5000, "{path}: invalid TOML: "),
        ("source = 'pipe:echo'", "{path}: source: a command, pipe:echo; expected a file, a folder or a URL. Commands"),
        ("source = ['a', 'pipe:echo']", "{path}: source: a command, pipe:echo; expected a file, a folder or a URL. Co"),
        ("join = 'pipe:echo'", "{path}: join: a command, pipe:echo; expected a file, a folder or a URL. Commands"),
    ],
)
def test_invalid_job_files_are_refused(text: str, message: str, source: Path, tmp_path: Path) -> None:
    """An unknown key or invalid value is an error with file and key; commands in files are not run."""
    path = tmp_path / "job.toml"
    path.write_text(text)
    run = typed("create", "--config", path, source, f"{tmp_path}/o/x-{{0..}}.tar")
    assert run.code == 2
    assert run.err.startswith(f"shardtool: {message.format(path=path)}"), run.err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("verb", "text", "problem"),
    [
        ("create", 'output = "x-{0..}.tar"', "create: no SOURCE... OUTPUT"),
        ("create", 'source = []\noutput = "x-{0..}.tar"', "create: no SOURCE... OUTPUT"),
        ("create", 'source = "x"', "OUTPUT: not given"),
        ("copy", 'dest = "x"', "copy: no DATASET... DEST"),
        ("cache", 'folder = "x"', "cache: no argument"),
    ],
)
def test_a_missing_argument_is_named(verb: str, text: str, problem: str, tmp_path: Path) -> None:
    """If a job file lacks the first argument, the other arguments do not take its place."""
    (tmp_path / "job.toml").write_text(text)
    run = typed(verb, "--config", tmp_path / "job.toml")
    assert run.code == 2
    assert run.err.startswith(f"shardtool: {problem}"), run.err


def test_an_unreadable_job_file_is_an_error(tmp_path: Path) -> None:
    """A missing file, a folder, or invalid UTF-8 is a one-line error with exit code 2, also in JSON."""
    (tmp_path / "bytes.toml").write_bytes(b"a = '\xff'")
    for name in (f"{tmp_path}/missing.toml", tmp_path, f"{tmp_path}/bytes.toml", "", "-", "https://127.0.0.1:9/x.toml"):
        run = typed("verify", "--config", name, "--json")
        assert (run.code, json.loads(run.out)["error"]["code"]) == (2, "invalid-request")
        assert json.loads(run.out)["error"]["where"] == (str(name) or "''")
        run = typed("verify", tmp_path, "--save-config", name, "--json")
        assert run.code in (2, 5)


def test_json_in_the_job_file_applies_to_errors(tmp_path: Path) -> None:
    """If the job file sets `json`, an error is a document on stdout."""
    (tmp_path / "job.toml").write_text('source = "nowhere"\noutput = "x-{0..}.tar"\njson = true\n')
    run = typed("create", "--config", tmp_path / "job.toml")
    assert (run.code, json.loads(run.out)["error"]["code"], run.err) == (2, "invalid-request", "")


def test_secrets_and_invalid_requests_are_not_saved(source: Path, tmp_path: Path) -> None:
    """Secrets are omitted with a note; commands and invalid requests are not saved; no file is overwritten."""
    path, output = tmp_path / "job.toml", f"{tmp_path}/o/x-{{0..}}.tar"
    secret = ("--header", "Authorization: abc", "--address", "ray://me:word@127.0.0.1:9", "--executor", "ray")
    run = typed("create", source, f"{tmp_path}/{{split}}-{{0..}}.tar", *secret, "--save-config", path)
    assert run.code == 2  # that pattern is for --split
    assert not path.exists()
    run = typed("create", source, output, *secret[:2], "--dry-run", "--save-config", path)
    assert run.code == 0
    assert run.err.startswith(f"note: header may contain secrets and is not saved in {path}\n")
    assert "abc" not in path.read_text()
    before = path.read_text()
    run = typed("create", source, output, "--seed", "3", "--overwrite", "--save-config", path)
    assert (run.code, path.read_text()) == (5, before)
    assert run.err.startswith(f"shardtool: {path}: already exists. Choose another name, or delete it.")
    save = ("--save-config", tmp_path / "other.toml")
    assert typed("create", source, output, "--quality", "3", *save).code == 2
    assert typed("verify", "pipe:echo", *save).code == 2
    assert not (tmp_path / "other.toml").exists()
    again = (source, output, "--executor", "local", "--seed", "3", "--shuffle", "--save-config", path)
    for dry in (("--dry-run",), ()):
        assert typed("create", "--config", path, *again, *dry).code == 0
        assert "seed = 3\n" in path.read_text()
    assert "dry" not in path.read_text()


def test_a_job_is_saved_once_the_request_is_valid(source: Path, tmp_path: Path) -> None:
    """A refused request writes no file, so the name stays free; a dry run creates no folder."""
    path, output = tmp_path / "new" / "job.toml", f"{tmp_path}/o/x-{{0..}}.tar"
    for words in ((tmp_path / "nowhere", output), (source, output, "--where", "nothing == 1"), (source,)):
        assert typed("create", *words, "--save-config", path).code == 2
        assert not path.parent.exists()
    run = typed("create", source, output, "--dry-run", "--save-config", path)
    assert (run.code, path.parent.exists()) == (2, False)
    assert (
        run.err
        == f"shardtool: {path}: no folder {path.parent}; expected an existing folder, because this is a dry run\n"
    )
    assert typed("create", source, output, "--workers", "0", "--save-config", path).code == 0
    assert "output = " in path.read_text()
    assert typed("verify", f"{tmp_path}/o/x.json", "--save-config", path).code == 5
    before = read_tree(tmp_path / "o")
    run = typed("create", source, f"{tmp_path}/o/y-{{0..}}.tar", "--save-config", f"{tmp_path}/o/y.json")
    assert (run.code, read_tree(tmp_path / "o")) == (2, before)
    assert run.err == f"shardtool: {tmp_path}/o/y.json: does not end in .toml; expected a name such as job.toml\n"


@pytest.mark.slow
def test_an_interrupted_run_has_saved_its_job(source: Path, tmp_path: Path) -> None:
    """A run that is killed while packing has already saved its job, and this job file continues the run."""
    killed = "import os; hooked_one(self, *sizes); os.kill(os.getpid(), 9)"
    run = start(source, tmp_path / "o", f"--save-config={tmp_path}/job.toml", code=killed).end()
    assert (run.code, [*tmp_path.glob("o/*.json")]) == (-9, [])
    assert typed("create", "--config", tmp_path / "job.toml", "--resume").code == 0
    assert len([*tmp_path.glob("o/*.json")]) == 1


@pytest.mark.parametrize(
    ("said", "words", "same"),
    [
        ("fetch = {per-host = 4, timeout = 9, user-agent = 'a, b'}", "--per-host 8",
         "--fetch per-host=8,timeout=9,user-agent=a, b"),
        ("fetch = 'per-host=4,timeout=9'", "--fetch timeout=3,allow-private",
         "--fetch per-host=4,timeout=3,allow-private"),
        ("per-host = 4\ntimeout = 9", "--fetch timeout=3", "--fetch per-host=4,timeout=3"),
        ("per-host = 4\ntimeout = 9", "--timeout 3", "--fetch per-host=4,timeout=3"),
        ("fields = ['jpg', '-txt']", "--select-fields json", "--fields json,-txt"),
        ("select-fields = 'jpg'\nrename-field = {a = 'b'}", "--fields json", "--fields json,a=b"),
        ("fields = ['jpg']", "--no-fields --drop-fields json", "--fields -json"),
        ("split-by = 'folder'", "--split-column tag", "--split-by tag"),
        ("split-column = 'tag'", "--split-by folder", "--split-by folder"),
        ("split = {a = 1}", "--no-split --split-by folder", "--split-by folder"),
        ("sort-by = '-width'", "--sort-by size", "--sort-by size"),
        ("sort-by = 'width'\ndescending = true", "--sort-by size", "--sort-by size"),
        ("sort-by = 'width'", "--descending", "--sort-by -width"),
        ("overwrite = true", "--resume", "--resume"),
        ("overwrite = true\nresume = true", "--append", "--append"),
        ("update = true", "--overwrite", "--overwrite"),
        ("update = true", "--no-update", ""),
        ("shuffle = true\nwhere = 'a == 1'", "--no-shuffle --no-where", ""),
        ("no-stat = true\nworkers = 3\nfor = 'dali'", "--no-no-stat --workers 2 --no-target", "--workers 2"),
    ],
)  # fmt: skip
def test_typed_options_override_the_job_file(
    said: str, words: str, same: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed options override the file key by key, in any spelling; this result is saved."""
    requests: list[CreateOptions] = []

    def create(_source: object, _output: object, options: CreateOptions, observer: Observer) -> None:
        requests.append(options)
        observer.start(0, 0, 0)
        raise InvalidRequest("", "")

    monkeypatch.setattr("shardtool.verbs.create.create", create)
    job, saved, urls = tmp_path / "job.toml", tmp_path / "saved.toml", ("t.csv", "o-{0..}.tar", "--url", "a=a", "-n")
    job.write_text(f"{said}\n")
    typed("create", "--config", job, *urls, *words.split(), "--save-config", saved)
    typed("create", *urls, *(re.split(r"(?<!,) ", same) if same else ()))
    typed("create", "--config", saved, "--dry-run")
    assert len(requests) == 3
    assert requests[0] == requests[1] == requests[2]


def test_a_conflict_with_the_job_file_names_the_fix(source: Path, tmp_path: Path) -> None:
    """If a typed option conflicts with one in the file, the error explains how to ignore that one."""
    (tmp_path / "job.toml").write_text("shuffle = true\n")
    words = ("create", source, f"{tmp_path}/o/x-{{0..}}.tar", "--config", tmp_path / "job.toml", "--sort-by", "size")
    remedy = "Use --no-KEY to ignore an option from the job file."
    message = f"shardtool: --sort-by: used with --shuffle; expected only one of them. {remedy}\n"
    assert (typed(*words).code, typed(*words).err) == (2, message)
    assert typed(*words, "--no-shuffle", "--dry-run").code == 0


@pytest.mark.parametrize("words", ["--no-shuffle", "--no-shuffle=1", "--no-shufle", "--no-", "--no-config"])
def test_no_key_without_a_job_file_is_refused(words: str, source: Path, tmp_path: Path) -> None:
    """`--no-KEY` is refused if no job file sets the option."""
    run = typed("create", source, f"{tmp_path}/o/x-{{0..}}.tar", words)
    assert run.code == 2
    assert run.err.startswith(f"shardtool: {words.partition('=')[0]}: no")


def test_saved_paths_work_across_links(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved paths name the same files if a folder is a symbolic link."""
    write_tree(tmp_path / "deep/down", {"keep": b""})
    (tmp_path / "jobs").symlink_to(tmp_path / "deep/down")
    (tmp_path / "linked").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    words = ("linked", "out/x-{0..}.tar", "--workers", "0", "--dry-run", "--quiet")
    assert typed("create", *words, "--save-config", "jobs/job.toml").code == 0
    assert 'source = "../../linked"\n' in (tmp_path / "deep/down/job.toml").read_text()
    for folder in (tmp_path, tmp_path / "jobs", tmp_path / "deep"):
        monkeypatch.chdir(folder)
        assert "x-0.tar" in typed("create", "--config", tmp_path / "jobs/job.toml", "--dry-run").out
