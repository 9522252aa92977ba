"""Shell completion, installed as described in `--help`."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from shardtool import create
from shardtool.cli import cli
from tests.helpers import typed, write_tree

_LIMIT_S = 60.0  # for a shell on a busy machine
_START = {  # how each starts, and what `shardtool completion --help` has people put into its file
    "bash": ("bash --norc --noprofile -i", 'eval "$(shardtool completion bash)"'),
    "zsh": ("zsh -f -i", 'autoload -Uz compinit; compinit -u -D; eval "$(shardtool completion zsh)"'),
    "fish": ("fish --no-config -i", "shardtool completion fish | source"),
}
_PLACES = ("FILE", "TABLE", "DIR", "FOLDER", "SOURCE", "DATASET", "OUTPUT")


def _typed(shell: str, lines: list[str], folder: Path) -> str:
    """Type lines at a terminal, until the last has printed `<end>`; return what the terminal shows."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
    shown = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(shell, _START[shell][0].split(), env)  # noqa: S606 - a shell of the machine
    try:
        os.write(terminal, "".join(f"{line}\r" for line in lines).encode())
        end = time.monotonic() + _LIMIT_S
        while b"\n<end>" not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 2**16)
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return shown.decode(errors="replace")


def _completed(line: str, shell: str = "fish", **env: str) -> list[str]:
    """Return the completions that a shell receives for a line."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"COMP_LINE": line, **env}.items():
            patch.setenv(name, value)
        import_module("shardtool.cli.completion")  # as the command line does where a shell asks
        kind = get_completion_class(shell)
        assert kind is not None
        return kind(cli, {}, "shardtool", "_SHARDTOOL_COMPLETE").complete().splitlines()


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder, a table and a dataset to complete."""
    folder = tmp_path_factory.mktemp("named")
    write_tree(folder, {"pictures/1.jpg": b"x", "pictures/1.json": b'{"width": 3}', "labels.csv": b"ident,tag\n1,a\n"})
    write_tree(folder, {"other.json": b"{}", "out of it.txt": b"x", "outer/x": b""})
    create(folder / "pictures", f"{folder}/out-{{0..}}.tar", columns_from=["json"], workers=0)
    return folder


@pytest.fixture
def there(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy that folder; return the copy, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(named, tmp_path, dirs_exist_ok=True)


_LINES = {  # input before TAB, and the completed line
    "shardtool create pict": "shardtool create pictures",
    "shardtool create x --join lab": "shardtool create x --join labels.csv",
    "shardtool copy x pict": "shardtool copy x pictures",
    "shardtool verify o": "shardtool verify out",
    "shardtool verify out.": "shardtool verify out.json",
    "shardtool create labels.csv x --key id": "shardtool create labels.csv x --key ident",
    "shardtool create labels.csv x --field cls=t": "shardtool create labels.csv x --field cls=tag",
    "shardtool create x y --join labels.csv --on id": "shardtool create x y --join labels.csv --on ident",
    "shardtool reshard out.json x --sort-by wi": "shardtool reshard out.json x --sort-by width",
    "shardtool reshard out.json x --fields json,j": "shardtool reshard out.json x --fields json,jpg",
    "shardtool verify out\\ ": "shardtool verify out of it.txt",
    "shardtool resh": "shardtool reshard",
    "shardtool reshard x y --equal-c": "shardtool reshard x y --equal-count",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", _START)
def test_tab_completes_in_each_shell(shell: str, there: Path) -> None:
    """In a terminal, TAB completes files, datasets, columns, fields and option names."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    typed = [f"{line}\t\x01echo " for line in _LINES]  # then, at the start of the line, what prints it
    shown = _typed(shell, [_START[shell][1], *typed, "echo '<end>'"], there)
    printed = [line.strip().rstrip("/") for line in shown.replace("\r", "\n").split("\n")]
    missing = [line for line in _LINES.values() if line not in printed]
    assert missing == [], shown


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("create labels.csv x --field=cls=", ["--field=cls=ident", "--field=cls=tag"]),
        ("create pictures x --where 'size > 3 and ke", ["size > 3 and key"]),
        ("reshard out.json x --field w", []),
        ("reshard out.json x --field j", ["jpg=", "json="]),
        ("reshard . x --group-by ", ["width"]),
        ("reshard out.json x --for webdataset,da", ["webdataset,dali"]),
        ("create x y --fetch timeout=3,per", ["timeout=3,per-host="]),
        ("create x y --fetch timeout=3,ti", []),
        ("create x y --fetch allow-private,robots=", ["allow-private,robots=obey", "allow-private,robots=ignore"]),
        ("create x y --fetch=require", ["--fetch=require=image"]),
        ("create labels.csv x --sort-by -", ["-ident", "-tag"]),
        ("create labels.csv x --sort-by=-t", ["--sort-by=-tag"]),
        ("reshard out.json x --fields -j", ["-jpg", "-json"]),
        ("reshard out.json x --fields -json,-j", ["-json,-jpg"]),
        ("reshard out.json x --fields meta=json,j", ["meta=json,jpg"]),
        ("reshard out.json x --fields meta=j", ["meta=jpg", "meta=json"]),
        ("reshard out.json x --rename-field meta=json,j", ["meta=json,jpg"]),
        ("reshard out.json x --for wids,w", ["wids,webdataset"]),
        ("create x y --siz", ["--size-column"]),
        ("create x y --targ", []),
        ("verify o", ["out.json", "outer/"]),
        ("verify other", []),  # a file, which the shell completes
        ("verify ./out", ["./out.json", "./outer/"]),
        ("verify nowhere/", []),
        ("create nothing.csv x --key ", []),
        ("create s3://bucket/labels.csv x --key ", []),
        ("verify s3://bucket/o", []),
        ("create bad.parquet x --key ", []),
        ("create bad.json x --sort-by ", []),
        ("create 'labels", []),
        ("help resh", ["reshard"]),
        ("help create ur", ["urls"]),
        ("help nothing ", []),
        ("help create urls ", []),
    ],
)
def test_columns_fields_and_keys_complete(line: str, names: list[str], there: Path) -> None:
    """Column names, field names and keys complete wherever one starts; without candidates, nothing is printed."""
    write_tree(there, {"bad.parquet": b"PAR1PAR1", "bad.json": b'{"__kind__": "wids-shard-index-v1"'})
    texts = [text.partition("\t")[0] for text in _completed(f"shardtool {line}")]
    assert [text.removeprefix("plain,") for text in texts if text.startswith("plain,")] == names


@pytest.mark.slow
@pytest.mark.parametrize("shell", _START)
def test_invalid_utf8_is_no_error(shell: str, there: Path) -> None:
    """A command line, file or folder with invalid UTF-8 completes as far as possible."""
    write_tree(there, {"odd/sub/x": b""})
    os.rename(there / "odd/sub", os.fsencode(there) + b"/odd/\xff")
    for line in (b"verify \xff", b"verify x --html=\xff", b"create odd/\xff", b"verify odd/", b"\xff"):
        env = os.environb | {b"COMP_LINE": b"shardtool " + line, b"_SHARDTOOL_COMPLETE": f"{shell}_complete".encode()}
        code = "import sys; from shardtool.cli import main; sys.argv = ['shardtool']; main()"
        done = subprocess.run([sys.executable, "-c", code], cwd=there, env=env, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), line


def test_bash_completions_fit_its_word_breaks(there: Path) -> None:
    """Bash splits words at = and :; completions are quoted for it, except inside quotes."""
    write_tree(there, {"a b.csv": b"one two,it's\n"})
    line = "shardtool create 'a b.csv' x --field cls="
    assert _completed(line, "bash") == ["plain,one\\ two", "plain,it\\'s"]
    assert _completed(line, "bash", COMP_WORDBREAKS=" ") == ["plain,cls=one\\ two", "plain,cls=it\\'s"]
    assert _completed('shardtool create "a b.csv" x --field "cls=o', "bash") == ["plain,cls=one two"]


@pytest.mark.slow
def test_completion_imports_nothing_slow(there: Path) -> None:
    """Completion never imports pandas; for files and options it imports neither NumPy nor pyarrow."""
    for line, heavy in (("create lab", {"numpy", "pyarrow", "pandas"}), ("create labels.csv x --key ", {"pandas"})):
        code = "import sys; from shardtool.cli import main; sys.argv = ['shardtool']; main()"
        env = {**os.environ, "COMP_LINE": f"shardtool {line}", "_SHARDTOOL_COMPLETE": "fish_complete"}
        run = [sys.executable, "-X", "importtime", "-c", code]
        done = subprocess.run(run, cwd=there, env=env, capture_output=True, text=True, check=True)
        assert done.stdout != ""
        assert not {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & heavy


@pytest.mark.slow
def test_the_old_way_to_install_gives_the_same_script() -> None:
    """The installation command of earlier versions prints the script of `shardtool completion`."""
    for shell in _START:
        env = {**os.environ, "_SHARDTOOL_COMPLETE": f"{shell}_source"}
        before = subprocess.run(
            [sys.executable, "-m", "shardtool"], env=env, capture_output=True, text=True, check=True
        )
        assert before.stdout == typed("completion", shell).out


def test_every_path_option_completes_files() -> None:
    """Every argument and option for a file, table, folder or dataset completes files."""
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        command = cli.get_command(context, verb)
        assert command is not None
        below = click.Context(command, parent=context, info_name=verb)
        for param in command.get_params(below):
            shown = param.metavar or ""
            if isinstance(param.type, click.Path) or any(word in _PLACES for word in shown.replace("...", " ").split()):
                assert [item.type for item in param.shell_complete(below, "im")] == ["file"], (verb, param.name)
