"""Parsing and joining addresses."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.storage.remote import address
from shardtool.storage.remote.address import join_address, parse_address, split_address

_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1)
_FOLDERS = st.sampled_from(["https://h", "https://h/", "https://u:p@h:1/a%20b", "s3://b", "s3://b/a #?b", "az://c/d"])
_QUERIES = st.sampled_from(["", "?", "?t", "?t=a/b&c=d%20?"])


@given(_FOLDERS, _QUERIES, _NAMES)
@example("https://h", "?t", "a")
def test_join_and_split_are_inverse(folder: str, query: str, name: str) -> None:
    """Any name can be joined to a folder and split off again; a query stays at the end."""
    at = parse_address(folder + (query if folder.startswith("https") else ""))
    joined = parse_address(join_address(at.text(), name))
    assert (joined.host, joined.query) == (at.host, at.query)
    assert split_address(joined.text()) == (at._replace(key=at.key.rstrip("/")).text(), name)
    assert parse_address(at.text()) == at


@pytest.mark.parametrize(("scheme", "meant"), [("s3a", "s3"), ("gcs", "gs"), ("abfs", "az"), ("wasbs", "az")])
def test_scheme_aliases_are_suggested(scheme: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For another tool's scheme that nothing reads, the error suggests ours."""
    monkeypatch.setattr(address, "fsspec_schemes", frozenset)
    with pytest.raises(InvalidRequest) as caught:
        address.parse_address(f"{scheme}://bucket/key")
    assert caught.value.remedy == f"Did you mean {meant}://?"


def test_hugging_face_address_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fsspec, the error about an `hf://` address names the extra to install."""
    monkeypatch.setattr(address, "fsspec_schemes", frozenset)
    with pytest.raises(InvalidRequest) as caught:
        address.parse_address("hf://datasets/org/name/out.json")
    assert caught.value.remedy == "pip install 'shardtool[hf]'"


@pytest.mark.parametrize("host", ["[::1", "h]", "u:secret@[h", "\u2100"])
def test_invalid_server_name(host: str) -> None:
    """A server name that is not valid is an error of the user, without the password."""
    with pytest.raises(InvalidRequest, match="an invalid server name") as caught:
        parse_address(f"https://{host}/out.json?secret")
    assert "secret" not in str(caught.value)
