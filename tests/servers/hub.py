"""Repositories of datasets as Hugging Face's Hub serves them, as far as its file system and `datasets` need that.

    python -m tests.servers.hub PORT FOLDER

`FOLDER/ORG/NAME/REVISION/` has the files of a revision, `main` or another; `FOLDER/ORG/NAME.json` says who may read:
`{"token": ...}` for a private repository, with `"gated": true` for one that everybody sees and only that token reads.
A commit is what a revision holds now. As there, small texts are given by the server itself, behind a redirect without
a host; all else is large (LFS): a redirect leads to another host, with a signature in place of the token, and another
ETag. Source: https://huggingface.co/.well-known/openapi.json, and the headers that huggingface_hub reads.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.servers.files import give_file
from tests.servers.web import Head, WebServer, answer, body_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 25  # entries of a listing; the Hub gives a thousand
_PLAIN = (".json", ".md", ".txt", ".csv", ".yaml")
_SIGNATURE = "X-Signature=sesame"


class _Refused(Exception):
    """Status, error name and message of a refusal."""

    def __init__(self, status: int, code: str = "", said: str = "") -> None:
        super().__init__(status)
        self.head = answer(status, 0, {"X-Error-Code": code, "X-Error-Message": said} if code or said else None)


class _Repository:
    """A dataset repository, as one client sees it.

    Args:
        root: Folder of all repositories.
        name: `ORG/NAME`.
        token: Token of the client; empty if it sent none.
    """

    def __init__(self, root: Path, name: str, token: str) -> None:
        self.name, self._folder = name, root / name
        rules = self._folder.with_name(f"{self._folder.name}.json")
        self.rules: dict[str, Any] = json.loads(rules.read_text()) if rules.exists() else {}
        self.may_read = self.rules.get("token", token) == token
        if not self._folder.is_dir() or not (self.may_read or self.rules.get("gated")):
            status = HTTPStatus.NOT_FOUND if token else HTTPStatus.UNAUTHORIZED
            raise _Refused(status, "RepoNotFound", "Repository not found")

    def revision(self, name: str) -> Path:
        """Return the folder of a branch, a tag or a commit."""
        for one in self._folder.iterdir():
            if name in (one.name, self.commit(one)):
                return one
        raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {name}")

    def commit(self, revision: Path) -> str:
        """Return the commit of a revision."""
        held = sorted((str(one.relative_to(revision)), _digests(one)[0]) for one in _files(revision))
        return hashlib.sha1(f"{revision.name}{held}".encode(), usedforsecurity=False).hexdigest()

    def file(self, revision: Path, path: str) -> Path:
        """Return a file that this client may read."""
        if not self.may_read:
            raise _Refused(403, "GatedRepo", f"Access to dataset {self.name} is restricted")
        found = revision / path
        if not found.resolve().is_relative_to(revision.resolve()) or not found.is_file():
            raise _Refused(404, "EntryNotFound", "Entry not found")
        return found

    def info(self, revision: Path) -> dict[str, Any]:
        """Return the response of `/api/datasets/ORG/NAME`."""
        siblings = [{"rfilename": str(one.relative_to(revision))} for one in sorted(_files(revision))]
        return {
            "_id": "0" * 24, "id": self.name, "author": self.name.partition("/")[0], "sha": self.commit(revision),
            "private": "token" in self.rules and not self.rules.get("gated"), "disabled": False, "tags": [],
            "gated": "manual" if self.rules.get("gated") else False, "downloads": 0, "likes": 0,
            "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z", "siblings": siblings,
        }  # fmt: skip


class HubServer(WebServer):
    """Serve the repositories in a folder."""

    def __init__(self, folder: Path) -> None:
        self._root = folder

    async def answer(self, request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer as the Hub does."""
        body = b"".join([piece async for piece in body_of(request, reader)])
        try:
            return await self._given(request, body, writer)
        except _Refused as refused:
            return await self.reply(writer, refused.head)

    async def _given(self, request: Head, body: bytes, writer: asyncio.StreamWriter) -> bool:
        target = urlsplit(request.first[1])
        token = request.get("authorization").removeprefix("Bearer ")
        match [unquote(part) for part in target.path.strip("/").split("/")]:
            case ["api", "datasets", org, name, *rest]:
                found = self._api(_Repository(self._root, f"{org}/{name}", token), rest, target.query, body, request)
                said = json.dumps(found[0]).encode()
                head = answer(200, len(said), {"Content-Type": "application/json", **found[1]})
                return await self.reply(writer, head, said if request.first[0] != "HEAD" else b"")
            case ["api", "resolve-cache", "datasets", org, name, revision, *path]:
                repository = _Repository(self._root, f"{org}/{name}", token)
                file = repository.file(repository.revision(revision), "/".join(path))
                return await give_file(request, file, f'"{_digests(file)[0]}"', writer, {"X-Repo-Commit": revision})
            case ["datasets", org, name, "resolve", revision, *path]:
                repository = _Repository(self._root, f"{org}/{name}", token)
                return await self.reply(writer, self._resolved(repository, revision, "/".join(path), request))
            case ["lfs", org, name, revision, *path] if target.query == _SIGNATURE:
                if token:
                    raise _Refused(400, said="Only one auth mechanism allowed")
                file = self._root / org / name / revision / "/".join(path)
                return await give_file(request, file, f'"cdn-{_digests(file)[1][:8]}"', writer)
        raise _Refused(404)

    def _api(
        self, repository: _Repository, rest: list[str], query: str, body: bytes, request: Head
    ) -> tuple[Any, dict[str, str]]:
        """Return the answer to a question about a repository, and headers."""
        match rest:
            case []:
                return repository.info(repository.revision("main")), {}
            case ["revision", revision]:
                return repository.info(repository.revision(revision)), {}
            case ["paths-info", revision]:
                folder = repository.revision(revision)
                asked = [folder / one for one in parse_qs(body.decode()).get("paths", [])]
                return [_entry(folder, one) for one in asked if one.exists()], {}
            case ["tree", revision, *path]:
                return self._tree(repository.revision(revision), "/".join(path), query, request)
        raise _Refused(404)

    def _tree(self, folder: Path, path: str, query: str, request: Head) -> tuple[Any, dict[str, str]]:
        """Return a page of a listing, and where the next one is."""
        asked = parse_qs(query)
        below = folder / path
        if not below.is_dir():
            raise _Refused(404, "EntryNotFound", f"{path} does not exist")
        found = sorted(below.rglob("*") if asked.get("recursive") == ["true"] else below.iterdir())
        start = int(asked.get("cursor", ["0"])[0])
        more: dict[str, str] = {}
        if start + PAGE < len(found):
            others = "&".join(f"{name}={value[0]}" for name, value in asked.items() if name != "cursor")
            there = f"http://{request.get('host')}{urlsplit(request.first[1]).path}"
            more["Link"] = f'<{there}?{others}&cursor={start + PAGE}>; rel="next"'
        return [_entry(folder, one) for one in found[start : start + PAGE]], more

    def _resolved(self, repository: _Repository, revision: str, path: str, request: Head) -> Head:
        """Return the redirect to where a file's bytes are."""
        folder = repository.revision(revision)
        file, commit = repository.file(folder, path), repository.commit(folder)
        if file.suffix in _PLAIN:
            there = f"/api/resolve-cache/datasets/{repository.name}/{commit}/{quote(path)}"
            return answer(307, 0, {"Location": there, "X-Repo-Commit": commit})
        host = f"localhost:{request.get('host').rpartition(':')[2]}"
        there = f"http://{host}/lfs/{repository.name}/{folder.name}/{quote(path)}?{_SIGNATURE}"
        linked = {"X-Linked-Etag": f'"{_digests(file)[1]}"', "X-Linked-Size": str(file.stat().st_size)}
        return answer(302, 0, {"Location": there, "X-Repo-Commit": commit, **linked})


def _files(folder: Path) -> Iterator[Path]:
    return (one for one in folder.rglob("*") if one.is_file())


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    """Return the listing entry of a file or a folder."""
    name = str(path.relative_to(folder))
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    size, (blob, sha256) = path.stat().st_size, _digests(path)
    found = {"type": "file", "oid": blob, "size": size, "path": name}
    return found if path.suffix in _PLAIN else found | {"lfs": {"oid": sha256, "size": size, "pointerSize": 130}}


def _digests(path: Path) -> tuple[str, str]:
    """Return the git digest of a file, and its SHA-256."""
    fact = path.stat()
    return _digests_of(path, fact.st_size, fact.st_mtime_ns)


@functools.lru_cache(maxsize=10_000)
def _digests_of(path: Path, _size: int, _mtime_ns: int) -> tuple[str, str]:
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return blob, hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    asyncio.run(HubServer(Path(sys.argv[2])).listen(int(sys.argv[1])))
