"""What the site has beside the files of this folder: documents of the repository, and the examples, at their places.

The README is the site's first page. A link out of this folder, such as `../examples/resume.py`, leads to the same file
on the site, which has a copy of it.
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
_FENCE = re.compile(r"^(```python) [\w.]+$", re.MULTILINE)  # `python torch`: a test runs it where torch is


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List all decisions where the navigation says `decisions/*`."""
    found = sorted(
        path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir, "decisions").iterdir()
    )
    for section in config.nav or ():
        for title, entries in section.items() if isinstance(section, dict) else ():
            if "decisions/*" in entries:
                at = entries.index("decisions/*")
                section[title] = [*entries[:at], {"Decisions": found}, *entries[at + 1 :]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies elsewhere in the repository."""
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
    """Have links lead to where files are on the site."""
    source = "README.md" if page.file.src_uri == "index.md" else page.file.src_uri
    inside = source if source == "README.md" or source in _PAGES else f"docs/{source}"
    here = (_ROOT / inside).parent

    def lead(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        if not target.is_relative_to(_ROOT):
            return match[0]
        name = target.relative_to(_ROOT).as_posix().removeprefix("docs/")
        name = "index.md" if name == "README.md" else name
        if target.is_dir():  # its first page
            name = next((one.src_uri for one in files if one.src_uri.startswith(f"{name}/")), name)
        above = "../" * page.file.src_uri.count("/")
        return f"{match[1]}{above}{name}{match[3]}"

    return _FENCE.sub(r"\1", _LINK.sub(lead, markdown))
