"""A web server, and what fetches from it."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shardtool.fetch.fetcher import HttpFetcher
from shardtool.fetch.options import FetchOptions
from tests.fetch.server import WebServer, web_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Yield a separate web server for a test."""
    with web_server() as server:
        yield server


@contextmanager
def fetching(**options: Any) -> Iterator[HttpFetcher]:
    """Give what fetches from this machine."""
    chosen = {"allow_private": True, "retries": 0, "per_host": 64, **options}
    with closing(HttpFetcher(FetchOptions(**chosen))) as fetcher:
        yield fetcher


def held(fetcher: HttpFetcher) -> int:
    """Return the bytes that were read and not taken yet, behind all that was asked before."""

    async def found() -> int:
        return fetcher._limits.held  # noqa: SLF001 - only tests use this

    return asyncio.run_coroutine_threadsafe(found(), fetcher._loop).result()  # noqa: SLF001 - where it changes
