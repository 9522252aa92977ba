"""An emulator of Hugging Face's Hub for dataset repositories, sufficient for `HfFileSystem` and `datasets`.

    python -m tests.servers.hub PORT FOLDER

`FOLDER/ORG/NAME/REVISION/` contains the files of a revision, such as `main`. The optional file `FOLDER/ORG/NAME.json`
restricts access. With `{"token": ...}`, the repository is private: only clients with this token can see it. With
`{"token": ..., "gated": true}`, everybody can see the repository, but only clients with the token can read files.

The commit id is a hash of the current files of a revision. As on the Hub, a request for a small text file is redirected
to another path of the same server. A request for any other file (LFS) is redirected to another host. There, a signature
in the URL replaces the token, and the ETag differs.
Source: https://huggingface.co/.well-known/openapi.json, and the headers that huggingface_hub reads.
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

PAGE = 25  # entries per page of a listing, 1,000 on the Hub
_PLAIN = (".json", ".md", ".txt", ".csv", ".yaml")
_SIGNATURE = "X-Signature=sesame"


class _Refused(Exception):
    """The response to a request is an error. `code` is the error name, and `said` the message."""

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
        """Return the folder of a revision. `name` is a branch, a tag or a commit id."""
        for one in self._folder.iterdir():
            if name in (one.name, self.commit(one)):
                return one
        raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {name}")

    def commit(self, revision: Path) -> str:
        """Return the commit id of the folder `revision`."""
        held = sorted((str(one.relative_to(revision)), _digests(one)[0]) for one in _files(revision))
        return hashlib.sha1(f"{revision.name}{held}".encode(), usedforsecurity=False).hexdigest()

    def file(self, revision: Path, path: str) -> Path:
        """Return the path of a file, if the client can read the repository."""
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
        """Return a JSON response and headers for `/api/datasets/ORG/NAME/REST`. `rest` has the parts of REST."""
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
        """Return a page of a listing, and a `Link` header with the URL of the next page, if there is one."""
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
        """Return the redirect to the URL that serves the bytes of a file."""
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
    """Return the entry of a file or a folder in a listing."""
    name = str(path.relative_to(folder))
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    size, (blob, sha256) = path.stat().st_size, _digests(path)
    found = {"type": "file", "oid": blob, "size": size, "path": name}
    return found if path.suffix in _PLAIN else found | {"lfs": {"oid": sha256, "size": size, "pointerSize": 130}}


def _digests(path: Path) -> tuple[str, str]:
    """Return the hex digests of a file: the SHA-1 of its git blob, and the SHA-256."""
    fact = path.stat()
    return _digests_of(path, fact.st_size, fact.st_mtime_ns)


@functools.lru_cache(maxsize=10_000)
def _digests_of(path: Path, _size: int, _mtime_ns: int) -> tuple[str, str]:
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return blob, hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    asyncio.run(HubServer(Path(sys.argv[2])).listen(int(sys.argv[1])))
