"""The visible parts of a URL."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.fetch.options import redact_url

_PART = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h/a.jpg", "http://h/a.jpg"),
        ("https://h/a.jpg?id=1&w=640", "https://h/a.jpg?id=1&w=640"),
        ("http://user:pw@h:80/a", "http://h:80/a"),
        ("http://user@name:p/w@h/a@b", "http://name:p/w@h/a@b"),
        ("  http://u:p@h/", "  http://h/"),
        ("//u:p@h/a", "//h/a"),
        ("http:\\\\u:p@h/a", "http:\\\\h/a"),
        ("http://h/a#token=1", "http://h/a"),
        ("http://h/a?token=1", "http://h/a?token=REDACTED"),
        (
            "http://h/a?X-Amz-Signature=1&X-Amz-Date=2&X-Amz-Credential=3",
            "http://h/a?X-Amz-Signature=REDACTED&X-Amz-Date=2&X-Amz-Credential=REDACTED",
        ),
        ("http://h/a?accessToken=1&apiKey=2&keyword=x", "http://h/a?accessToken=REDACTED&apiKey=REDACTED&keyword=x"),
        ("http://h/a?sig=%2B&se=2030&sv", "http://h/a?sig=REDACTED&se=2030&sv"),
        ("http://h/a?w=1;sig=2&id=3", "http://h/a?w=REDACTED&id=3"),
        ("http://h/a?hdnts=st=1~exp=2~acl=/*~hmac=ab", "http://h/a?hdnts=REDACTED"),
        ("http://h/a?id=YWI=&keyword=token", "http://h/a?id=YWI=&keyword=token"),
        ("no url", "no url"),
        ("", ""),
    ],
)
def test_urls_are_redacted(url: str, shown: str) -> None:
    """User, password, fragment and secret parameters are removed; the parts that identify the file stay."""
    assert redact_url(url) == shown
    assert redact_url(shown) == shown


@settings(max_examples=100)
@given(_PART, _PART, st.sampled_from(["token", "Signature", "X-Amz-Security-Token", "api_key", "PASSWORD"]))
def test_no_secret_is_shown(user: str, word: str, name: str) -> None:
    """A password, or the value of a secret parameter, is never shown."""
    secret = f"<{word}>"
    assert secret not in redact_url(f"https://{user}:{secret}@example.org/x?a=1&{name}={secret}#{secret}")


def test_long_urls_are_truncated() -> None:
    """A picture in a `data:` URL does not fill the list."""
    assert len(redact_url("data:image/png;base64," + "A" * 10**6)) < 3000
