"""Add documents and examples of the repository to the documentation site.

The README is the start page. A link to a file outside this folder, such as `../examples/resume.py`, points to the copy
of the file on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "benchmarks/results.md")
_FOLDERS = ("examples", "deploy", "tests/jobs")
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
_FENCE = re.compile(r"^(```(?:python|sh)) [\w.]+$", re.MULTILINE)  # `python torch`: tests run it if torch is installed

_SHORT_CODE = re.compile(r"<code>(?=[^<\n]{1,30}</code>)")
_SHELL_BLOCK = re.compile(r'<div class="language-(?:sh|bash) highlight">.*?</div>', re.DOTALL)
_OPTION = re.compile(r"(?<=[\s>])--?[a-z][\w-]*")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace `decisions/*` in the navigation by the list of decisions."""
    decisions = sorted(
        path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir, "decisions").iterdir()
    )
    for section in config.nav or ():
        for title, entries in section.items() if isinstance(section, dict) else ():
            if "decisions/*" in entries:
                index = entries.index("decisions/*")
                section[title] = [*entries[:index], {"Decisions": decisions}, *entries[index + 1 :]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files from other folders of the repository."""
    for name in ("README.md", *_PAGES):
        text = (_ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, "index.md" if name == "README.md" else name, content=text))
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).iterdir()):
            if path.suffix in (".py", ".sh") and not path.name.startswith("_"):
                name = path.relative_to(_ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_more: Any) -> str:
    """Rewrite links to the locations of files on the site."""
    source = "README.md" if page.file.src_uri == "index.md" else page.file.src_uri
    inside = source if source == "README.md" or source in _PAGES else f"docs/{source}"
    here = (_ROOT / inside).parent

    def rewrite_link(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        if not target.is_relative_to(_ROOT):
            return match[0]
        name = target.relative_to(_ROOT).as_posix().removeprefix("docs/")
        name = "index.md" if name == "README.md" else name
        if target.is_dir():  # its first page
            name = next((file.src_uri for file in files if file.src_uri.startswith(f"{name}/")), name)
        above = "../" * page.file.src_uri.count("/")
        return f"{match[1]}{above}{name}{match[3]}"

    return _FENCE.sub(r"\1", _LINK.sub(rewrite_link, markdown))


def on_page_content(html: str, **_more: Any) -> str:
    """Mark short code and the options of commands: site.css keeps each in one line."""
    html = _SHORT_CODE.sub('<code class="short">', html)
    return _SHELL_BLOCK.sub(lambda block: _OPTION.sub(r'<span class="short">\g<0></span>', block[0]), html)
