"""Stores of objects: how a bucket is reached, who has the keys, what is signed, and what is asked and told there.

obstore finds keys by the usual environment variables of each cloud's own tools; profiles and single sign-on of AWS are
read by boto3 where it is installed.
"""

from __future__ import annotations

import base64
import functools
import hmac
import os
import re
import threading
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.storage.remote.address import DECIDING, FROM, SOURCE, STORES, certificates, is_web, parse_address, shown
from shardtool.storage.remote.retry import Attempts, PassingFailure, apart, retried, store_failures
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# What a store is told of the objects that it keeps, and who pays: `--store-option KEY=VALUE`.
#
# Google's store takes what it is told of an object only where that is signed by its client, which signs no headers:
# there the bucket says it.


STORE_OPTIONS = "SHARDTOOL_STORE_OPTIONS"  # an environment variable: so workers have it, too. `KEY=VALUE`, a line each


class _Option(NamedTuple):
    """One of them.

    Attributes:
        values: What its values look like.
        expected: The same, in words.
        s3: The header of S3 that says it; empty: there is none.
        az: That of Azure.
        variable: That of the environment, where AWS's own tools have one.
    """

    values: str
    expected: str
    s3: str = ""
    az: str = ""
    variable: str = ""


_SSE = "x-amz-server-side-encryption"
_OPTIONS = {
    "sse": _Option(
        "AES256|aws:kms(:dsse)?", "AES256, aws:kms or aws:kms:dsse", _SSE, "", "AWS_SERVER_SIDE_ENCRYPTION",
    ),
    "sse-kms-key-id": _Option("[!-~]+", "the name of a key", f"{_SSE}-aws-kms-key-id", "", "AWS_SSE_KMS_KEY_ID"),
    "sse-bucket-key": _Option(
        "true|false", "true or false", f"{_SSE}-bucket-key-enabled", "", "AWS_SSE_BUCKET_KEY_ENABLED",
    ),
    "storage-class": _Option(
        "(?!(GLACIER|DEEP_ARCHIVE)$)[A-Z0-9_]+",
        "a class that is read at once, such as STANDARD_IA or GLACIER_IR; a lifecycle rule of the bucket archives",
        "x-amz-storage-class", "", "AWS_STORAGE_CLASS",
    ),
    "access-tier": _Option("Hot|Cool|Cold", "Hot, Cool or Cold, which are read at once", "", "x-ms-access-tier"),
    "tags": _Option(
        "[^=&]+=[^=&]*(&[^=&]+=[^=&]*){,9}", "NAME=VALUE&NAME=VALUE, ten at most, encoded as in a URL",
        "x-amz-tagging", "x-ms-tags",
    ),
    "request-payer": _Option("requester", "requester", "x-amz-request-payer", "", "AWS_REQUEST_PAYER"),
}  # fmt: skip
_OF_OPTIONS = (STORE_OPTIONS, *(one.variable for one in _OPTIONS.values() if one.variable))
_PAYER, _CLASS, _TIER = "request-payer", "storage-class", "access-tier"


def use_store_options(lines: Iterable[str]) -> None:
    """Tell stores more of what is written to them, and who pays, from this process and those it starts.

    Args:
        lines: `KEY=VALUE`.

    Raises:
        InvalidRequest: A key is not known, or a value is none that it takes.
    """
    text = "\n".join(lines)
    _parsed_options(text)
    os.environ[STORE_OPTIONS] = text


@functools.lru_cache(maxsize=8)
def _parsed_options(text: str) -> Mapping[str, str]:
    pairs = (line.strip().partition("=") for line in text.splitlines() if line.strip())
    return {key: _checked_option(STORE_OPTIONS, key, value) for key, _, value in pairs}


def _checked_option(where: str, key: str, value: str) -> str:
    if key not in _OPTIONS:
        raise InvalidRequest(where, f"the key {key!r}", expected=f"KEY=VALUE, where KEY is {', '.join(_OPTIONS)}")
    if not re.fullmatch(_OPTIONS[key].values, value):
        raise InvalidRequest(where, f"{key}={value}", expected=_OPTIONS[key].expected)
    return value


def _options_for(scheme: str, keys: Iterable[str] = tuple(_OPTIONS)) -> dict[str, str]:
    """Return what is asked of a store: what was given, and of S3 what the variables of AWS say."""
    said, given = {}, _parsed_options(os.environ.get(STORE_OPTIONS, ""))
    for key in keys if scheme == "s3" else ():
        if key not in given and (value := os.environ.get(_OPTIONS[key].variable, "")):
            if key == _PAYER and value.lower() == "false":
                continue
            is_payer = key == _PAYER and value.lower() in ("true", "requester")
            said[key] = _checked_option(_OPTIONS[key].variable, key, "requester" if is_payer else value)
    found = {**said, **{key: value for key, value in given.items() if key in keys}}
    if "sse-kms-key-id" in found and found.setdefault("sse", "aws:kms") == "AES256":
        raise InvalidRequest(STORE_OPTIONS, "a KMS key, and sse=AES256", expected="sse=aws:kms, or no key")
    return found


def client_config(scheme: str) -> dict[str, str]:
    """Return what obstore's client is to say with each of its own requests, under the names that it has for that.

    Raises:
        InvalidRequest: The environment holds something else.
    """
    names = {key: one.variable for key, one in _OPTIONS.items() if one.variable and key != _CLASS}
    asked = _options_for(scheme, names) if scheme == "s3" else {}
    return {names[key].removeprefix("AWS_").lower(): value for key, value in asked.items()}


def of_small(address: str, *, lasting: bool) -> dict[str, Any]:
    """Return what obstore is to be told of a small object, beside `client_config`: arguments of its `put`.

    Args:
        address: Of the object.
        lasting: Whether it stays: what goes soon belongs into no class that is paid for by the month.
    """
    asked = _options_for(parse_address(address).scheme)
    kinds = [asked[key] for key in (_CLASS, _TIER) if key in asked]
    tags = dict(parse_qsl(asked.get("tags", ""), keep_blank_values=True))
    attributes = {"attributes": {"Storage-Class": kinds[0]}} if kinds and lasting else {}
    return {**attributes, **({"tags": tags} if tags else {})}


def object_headers(address: str) -> dict[str, str]:
    """Return the headers of a request that writes an object, or begins to: what a store is told of it.

    Raises:
        InvalidRequest: The store cannot be told.
    """
    scheme, found = parse_address(address).scheme, {}
    for key, value in _options_for(scheme).items():
        if header := getattr(_OPTIONS[key], scheme, ""):
            tags = parse_qsl(value, keep_blank_values=True) if key == "tags" else None
            found[header] = value if tags is None else urlencode(tags, quote_via=quote)
        elif key != _PAYER:  # where it is read from may want that
            known = ", ".join(other for other, one in _OPTIONS.items() if getattr(one, scheme, ""))
            expected = known or "its bucket to say that: by its default storage class, and its default key"
            raise InvalidRequest(f"the store option {key}", f"nothing that {scheme}:// is told", expected=expected)
    return found


# How a bucket is reached: its server, and who has the keys.


_PORT = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = re.compile(rf"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::{_PORT})?")
ENDPOINT, ANONYMOUS = "SHARDTOOL_ENDPOINT", "SHARDTOOL_ANONYMOUS"  # environment variables: so workers have them, too
_SKIPPED = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE", "az": "AZURE_SKIP_SIGNATURE"}
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
         "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")  # fmt: skip

_SERVER = (ENDPOINT, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PAIR = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")  # the third is not always there
_IDENTITY = (*_AWS_KEYS, *_PAIR[1:], "AWS_PROFILE")
_OWN = (*_PAIR, "AWS_PROFILE", "AWS_SKIP_SIGNATURE", *_REGION, *_SERVER[1:])  # that a source may have
_DECIDING = (  # which server is asked, and who asks: what is set later is not to be missed
    *_SERVER, *_IDENTITY, *_REGION, "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS", *_SKIPPED.values(), ANONYMOUS, "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", *_OF_OPTIONS, *DECIDING,
)  # fmt: skip


def use_endpoint(url: str) -> None:
    """Have requests for `s3://`, `gs://` and `az://` go to another server, in this process and in those it starts.

    Args:
        url: Its address: `https://minio.example:9000`.

    Raises:
        InvalidRequest: It is none, or holds a user and a password.
    """
    _check_endpoint(url, url)
    os.environ[ENDPOINT] = url


def _check_endpoint(url: str, where: str) -> None:
    at = parse_address(url) if is_web(url) else None
    if at is None or not _HOST.fullmatch(at.host) or at.query:
        found = "no address of a server" if at is None else "an address with more than a server and a path"
        if at is not None and "@" not in at.host and not at.query:
            found = "no name of a server and number of a port"
        expected = "such as https://minio.example:9000; keys come from the environment"
        raise InvalidRequest(where, found, expected=expected)


def use_anonymous(asked: bool = True) -> None:  # noqa: FBT001, FBT002 - what a flag of the command line gives
    """Have no request to a store signed, in this process and in those it starts: public buckets need no keys.

    Nobody is asked for keys then: no profile, no metadata service of the machine.
    """
    if asked:
        os.environ[ANONYMOUS] = "true"


def _is_anonymous(scheme: str, environment: Mapping[str, str] = os.environ) -> bool:
    return any(environment.get(name, "").lower() in ("1", "true") for name in (ANONYMOUS, _SKIPPED[scheme]))


def as_source(address: str, endpoint: str | None) -> str:
    """Return the address by which something in S3 is read as a source's, where that has its own server or keys.

    Variables whose names begin with `SHARDTOOL_SOURCE_` take the place of those without. Once there is one, nothing
    else says which server is asked; and once one says who asks, none without it does.

    Args:
        address: Where it is.
        endpoint: Its server; None: what the environment says.

    Raises:
        InvalidRequest: The server is none, or for no address of S3; or a variable is not known, or makes half a key.
    """
    own = [name.removeprefix(SOURCE) for name in os.environ if name.startswith(SOURCE) and os.environ[name]]
    if unknown := {*own}.difference(_OWN, ("ENDPOINT",)):
        expected = f"{SOURCE} before ENDPOINT, {', '.join(_OWN)}"
        raise InvalidRequest(SOURCE + min(unknown), "a variable that a source has not", expected=expected)
    if {*own}.intersection(_PAIR) and not {*own}.issuperset(_PAIR[:2]):
        expected = " and ".join(SOURCE + name for name in _PAIR[:2])
        raise InvalidRequest(f"keys of {SOURCE}*", "half a pair", expected=expected)
    if server := endpoint or os.environ.get(f"{SOURCE}ENDPOINT", ""):
        _check_endpoint(server, server)
    if endpoint and not address.startswith("s3://"):
        found, expected = "not in S3, whose server was given", f"s3://, or no {option('source_endpoint')}"
        raise InvalidRequest(shown(address), found, expected=expected)
    is_own = address.startswith("s3://") and (server or own)
    return f"s3://{FROM}{quote(server, '')}@{address[len('s3://') :]}" if is_own else address


def _environment_of(server: str) -> dict[str, str]:
    """Return what says how S3 is reached, and by whom, where `as_source` is read, whose server may be known."""
    own = {name: value for name in _OWN if (value := os.environ.get(SOURCE + name))}
    others = {*_SERVER, *(_REGION if {*own}.intersection(_REGION) else ())}
    others |= {*_IDENTITY, *_REGION, ANONYMOUS} if {*own}.intersection(_IDENTITY) else set()
    kept = {name: os.environ[name] for name in _DECIDING if name in os.environ and name not in others}
    return {**kept, **own, ENDPOINT: server}


def store_of(address: str) -> tuple[Any, str | None]:
    """Return the store of the bucket that an address names, and its plain address where requests are not signed.

    Raises:
        InvalidRequest: It is of a scheme that is only read, or obstore is not installed.
    """
    at = parse_address(address)
    if at.scheme not in STORES:
        where, expected = f"{at.scheme}://{at.host}", f"{'://, '.join(STORES)}:// or a folder"
        raise InvalidRequest(where, "a place that is only read", expected=expected)
    who, _, bucket = at.host.rpartition("@")
    if who.startswith(FROM):
        return _made(at.scheme, bucket, tuple(_environment_of(unquote(who[len(FROM) :])).items()), from_source=True)
    return _made(at.scheme, at.host, tuple((name, os.environ[name]) for name in _DECIDING if name in os.environ))


_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_AZURE_TOKENS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_KINDS = {  # environment variables that have credentials, in the order in which they are looked at, and what these are
    "s3": {
        "AWS_ACCESS_KEY_ID": "key", "AWS_WEB_IDENTITY_TOKEN_FILE": "web identity",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container",
    },
    "gs": dict.fromkeys(
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"), "service account"
    ) | {"GOOGLE_APPLICATION_CREDENTIALS": "application default"},
    "az": dict.fromkeys(_AZURE_TOKENS, "shared access signature") | dict.fromkeys(_AZURE_KEYS, "key of the account") | {
        "AZURE_FEDERATED_TOKEN_FILE": "web identity", "AZURE_CLIENT_SECRET": "client secret",
    },
}  # fmt: skip


def credentials_kind(address: str) -> str:
    """Return which credentials requests to a store have, and where these come from; never a secret.

    Raises:
        AccessRefused: There are none.
        InvalidRequest: As `store_of`.
    """
    scheme, (store, plain) = parse_address(address).scheme, store_of(address)
    if plain is not None:
        return "none: requests are not signed"
    if provider := getattr(store, "credential_provider", None):
        return f"{provider.credentials.method} (profile {os.environ.get('AWS_PROFILE') or 'default'}, by boto3)"
    found = (f"{kind} (environment: {name})" for name, kind in _KINDS[scheme].items() if os.environ.get(name))
    return next(found, f"{'application default of gcloud, or ' * (scheme == 'gs')}metadata service of this machine")


@functools.lru_cache(maxsize=256)
def _made(
    scheme: str, bucket: str, environment: tuple[tuple[str, str], ...], *, from_source: bool = False
) -> tuple[Any, str | None]:
    env = dict(environment)
    endpoint = env.get(ENDPOINT, "")
    try:
        from obstore import store
    except ImportError:
        raise not_installed("obstore") from None
    client: dict[str, Any] = {"allow_http": True}  # obstore goes by the variables of proxies itself
    if more := certificates():
        client["root_certificate"] = more
    options: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    options["config"] = client_config(scheme)
    anonymous = _is_anonymous(scheme, env)
    if anonymous:
        options["config"]["skip_signature"] = True
    with store_failures(f"{scheme}://{bucket}"):
        if scheme == "s3":
            return _s3(bucket, env, options, anonymous=anonymous, from_source=from_source)
        if scheme == "gs":
            if endpoint:
                options["config"]["base_url"] = endpoint
            plain = f"{(endpoint or 'https://storage.googleapis.com').rstrip('/')}/{bucket}"
            return store.GCSStore(bucket, **options), plain if anonymous else None
        if endpoint:
            options["endpoint"] = endpoint
        made = store.AzureStore(bucket, **options)  # which says what lacks, as the account
        return made, f"{_azure_server()}/{bucket}" if anonymous else None


def _s3(
    bucket: str, env: Mapping[str, str], options: dict[str, Any], *, anonymous: bool, from_source: bool
) -> tuple[Any, str | None]:
    from obstore.store import S3Store

    session = None if anonymous else _aws_session(bucket, env)
    endpoint = next(filter(None, map(env.get, _SERVER)), "")
    if endpoint := endpoint or _aws_endpoint(session):
        _check_endpoint(endpoint, f"the endpoint {endpoint}")
        options["endpoint"] = endpoint
    if session is not None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        options["credential_provider"] = Boto3CredentialProvider(session)
    region = next(filter(None, map(env.get, _REGION)), _configured(session).get("region", "us-east-1"))
    if from_source:  # nothing of the environment that obstore reads itself is about it
        endpoint = options["endpoint"] = endpoint or f"https://s3.{region}.amazonaws.com"
        options["config"] |= {"region": region, "skip_signature": anonymous}
        if session is None and env.get("AWS_ACCESS_KEY_ID"):
            options["credential_provider"] = partial(_pair_of, env)
    plain = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else f"https://{bucket}.s3.{region}.amazonaws.com"
    return S3Store(bucket, **options), plain if anonymous else None


def _pair_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return keys that stand in the environment, as obstore asks for them."""
    key, secret, token = map(environment.get, _PAIR)
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _aws_session(bucket: str, environment: Mapping[str, str]) -> Any:
    """Return boto3's session that finds keys, or None where obstore finds them by itself.

    Without keys at hand obstore asks the metadata service of the machine, also where the environment forbids that.
    """
    profile = environment.get("AWS_PROFILE")
    if environment.get("AWS_ACCESS_KEY_ID") and not profile:
        _check_pair(bucket, environment)
        return None
    try:
        import boto3
    except ImportError:
        if profile:
            found, expected = "boto3 is not installed", "boto3, which reads profiles"
            raise InvalidRequest("AWS_PROFILE", found, expected=expected, remedy="pip install boto3") from None
    else:
        with _aws_failures(profile or "default"):
            session = boto3.Session(profile_name=None if profile == os.environ.get("AWS_PROFILE") else profile)
            if (keys := session.get_credentials()) is not None:
                keys.get_frozen_credentials()  # now, for what obstore says of a failure is not this
                return session
    asked = any(map(environment.get, _AWS_KEYS))  # obstore gets them by itself
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" and not asked:
        raise AccessRefused(
            f"s3://{bucket}", "no credentials", expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
            remedy=f"A public bucket is read with {ANONYMOUS}=true.",
        )  # fmt: skip
    return None


@contextmanager
def _aws_failures(profile: str) -> Iterator[None]:
    """Say that boto3 cannot read a profile, or get its keys; what it says itself may hold secrets."""
    from botocore.exceptions import BotoCoreError, ClientError, ConfigParseError, ProfileNotFound

    remedy = "`aws sts get-caller-identity`, with this profile, shows what is wrong."
    try:
        yield
    except ProfileNotFound:
        found, expected = "no such profile", "one of ~/.aws/config, or of the file that AWS_CONFIG_FILE names"
        raise InvalidRequest(f"AWS_PROFILE={profile}", found, expected=expected) from None
    except (ConfigParseError, UnicodeDecodeError):
        where = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
        raise AccessRefused(where, "no configuration of AWS", expected="sections of profiles", remedy=remedy) from None
    except (BotoCoreError, ClientError, OSError, ValueError) as error:
        found = f"no keys are to be had by it ({type(error).__name__})"
        raise AccessRefused(f"the AWS profile {profile}", found, remedy=remedy) from None


def _aws_endpoint(session: Any) -> str:
    """Return the endpoint that a profile names, for S3 or for all; empty: none, or it is to be ignored."""
    if session is None or os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    profile = _configured(session)
    services = session._session.full_config.get("services", {}).get(profile.get("services", ""), {})  # noqa: SLF001
    return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url", ""))


def _configured(session: Any) -> Mapping[str, Any]:
    """Return what a profile says."""
    return {} if session is None else session._session.get_scoped_config()  # noqa: SLF001 - boto3 hands it on nowhere


def _check_pair(bucket: str, environment: Mapping[str, str]) -> None:
    """Refuse half a pair of keys, for which obstore would ask the metadata service of the machine."""
    given = [name for name in _PAIR[:2] if environment.get(name)]
    if given == ["AWS_ACCESS_KEY_ID"] and not any(environment.get(name) for name in _AWS_KEYS[1:]):
        raise AccessRefused(f"s3://{bucket}", "AWS_ACCESS_KEY_ID alone", expected="AWS_SECRET_ACCESS_KEY beside it")


def not_installed(library: str) -> InvalidRequest:
    """Return the error that a library of the extra `remote` is missing."""
    return InvalidRequest(
        library, "not installed", expected="the libraries for remote files", remedy="pip install 'shardtool[remote]'"
    )


# What a store wants to see signed, made without its client: obstore signs addresses, and no headers; and Azure's only
# where a name needs no encoding.


# Requests to S3, signed with their headers.


_AWS_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which no client writes into `Host`


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], keys: Mapping[str, Any], region: str, now: datetime | None = None
) -> dict[str, str]:
    """Return the headers of a request to S3, with those that sign it; all that are given are signed.

    Args:
        method: Of HTTP.
        url: Where it goes, with its query (`?uploads`).
        headers: What it says of the object. `x-amz-content-sha256` is the checksum of a body that is signed, too.
        keys: Who asks, as obstore has it: `access_key_id`, `secret_access_key`, `token`.
        region: Where the bucket is.
        now: When it is sent.

    Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk" (AWS
    Signature Version 4).
    """
    at, when = urlsplit(url), f"{now or datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    given = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **headers, "x-amz-date": when}
    if keys["token"]:
        given["x-amz-security-token"] = keys["token"]
    host = at.netloc.removesuffix(_AWS_DEFAULT_PORTS[at.scheme])
    lines = {"host": host, **{name.lower(): " ".join(value.split()) for name, value in given.items()}}
    names = ";".join(sorted(lines))
    query = sorted((quote(name, ""), quote(value, "")) for name, value in parse_qsl(at.query, keep_blank_values=True))
    request = "\n".join([
        method, quote(unquote(at.path)) or "/", "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{lines[name]}" for name in sorted(lines)), "", names, lines["x-amz-content-sha256"],
    ])  # fmt: skip
    scope = [when[:8], region, "s3", "aws4_request"]
    secret = f"AWS4{keys['secret_access_key']}".encode()
    for part in scope:
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", when, "/".join(scope), sha256(request.encode()).hexdigest()])
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = "/".join([keys["access_key_id"], *scope])
    given["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"
    return given


# Addresses in Azure's store, signed with the key of the account for a whole container.
#
# obstore signs a blob by its encoded name, where Azure wants the plain one: any name with a blank, or a letter beyond
# ASCII, would be refused. A signature of the container holds no name. Source: Microsoft, "Create a service SAS",
# version 2020-12-06 of the string to sign.


_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_ENDPOINTS = (ENDPOINT, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_VERSION = "2022-11-02"
_SLACK = timedelta(minutes=15)  # by which our clock may be ahead
SIGNED_FOR = timedelta(hours=1)
_PERMISSIONS = {"GET": "r", "PUT": "cwt"}  # t: with tags


def signed_with_key(container: str, key: str, method: str) -> str | None:
    """Return the signed address of a blob; None where the environment has neither an account's key nor a token.

    Args:
        container: The container.
        key: The blob's name.
        method: Of HTTP.

    Raises:
        InvalidRequest: The key is none.
    """
    account, token, secret = _first(_ACCOUNTS), _first(_AZURE_TOKENS), _first(_AZURE_KEYS)
    if not account or not (token or secret):
        return None
    base = _azure_server()
    query = token.lstrip("?") if token else _sas(account, secret, container, _PERMISSIONS[method], base)
    return f"{base}/{quote(container)}/{quote(key)}?{query}"


def _azure_server() -> str:
    """Return the address of Azure's server, with the account."""
    return (_first(_ENDPOINTS) or f"https://{_first(_ACCOUNTS)}.blob.core.windows.net").rstrip("/")


def _sas(account: str, secret: str, container: str, permissions: str, base: str) -> str:
    try:
        raw = base64.b64decode(secret, validate=True)
    except ValueError:
        raise InvalidRequest(_AZURE_KEYS[0], "no key of an account", expected="one in Base64") from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _SLACK, now + SIGNED_FOR))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


# Stores of objects: S3 and what speaks like it, Google Cloud Storage, Azure; by obstore (decision 017).
#
# A forked child may call `signed` and nothing else of this module: what obstore needs for requests, a fork has lost. No
# message of obstore is shown or chained: it may hold secrets.


# No signature is under way in a process that forks: obstore's RSA (Google) ends a child that finds one half done.
_SIGNING = threading.Lock()
os.register_at_fork(before=_SIGNING.acquire, after_in_parent=_SIGNING.release, after_in_child=_SIGNING.release)
_PAGE = 1000
_ASKING: dict[str, int] = {}  # the process that made the first request


class BucketEntry(NamedTuple):
    """What lies in a bucket.

    Attributes:
        key: The object's key; of a prefix that stands for a folder, without a slash behind.
        size: Bytes; -1 for a folder.
        version: Its ETag as a number, as `read_file` has it; 0 where it has none.
        changed_ns: When it was written, by the store's clock.
    """

    key: str
    size: int
    version: int
    changed_ns: int

    @property
    def name(self) -> str:
        """Its plain name."""
        return self.key.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether it is a prefix of other keys."""
        return self.size < 0


def signed(address: str, method: str) -> str:
    """Return where a request goes: an address of the web as it is, one of a store signed. It is secret while it lasts.

    Raises:
        AccessRefused: There are no keys.
        InvalidRequest: obstore is not installed, or the key is none that it takes.
    """
    if is_web(address):
        return address
    at = parse_address(address)
    if at.scheme == "az" and not _is_anonymous("az") and (url := signed_with_key(at.host, at.key, method)):
        return url
    store, plain = store_of(address)
    if plain is not None:
        return f"{plain}/{quote(at.key)}"
    import obstore

    key = quote(at.key) if at.scheme == "gs" else at.key  # else a name ends at its first #, and another is signed
    with _SIGNING, store_failures(address):
        return str(obstore.sign(store, cast("Any", method), key, SIGNED_FOR))


def signed_put(address: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return where an object is written, and the headers of that request, signed with what S3 takes no other way.

    Args:
        address: Of the object, in a store.
        headers: What is said of the object, and nothing that is changed on the way.

    Raises:
        AccessRefused: There are no keys, or only such that sign no headers.
        InvalidRequest: obstore is not installed, or the key is none that it takes.
    """
    url = signed(address, "PUT")
    asked = dict(parse_qsl(urlsplit(url).query))
    if "X-Amz-Credential" not in asked or not any(name.startswith("x-amz-") for name in headers):
        return url, dict(headers)
    url = url.partition("?")[0]  # whose server and region are obstore's
    if payer := asked.get("x-amz-request-payer"):
        headers = {**headers, "x-amz-request-payer": payer}
    region = asked["X-Amz-Credential"].split("/")[2]
    with _SIGNING, store_failures(address):
        keys = (store_of(address)[0].credential_provider or partial(_pair_of, os.environ))()
    if not (keys["access_key_id"] and keys["secret_access_key"]):
        found, remedy = "keys that come from a server, which obstore keeps to itself", "pip install boto3"
        raise AccessRefused(shown(address), found, expected="boto3, which gets them, too", remedy=remedy)
    return url, signed_headers("PUT", url, headers, keys, region)


def listed(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield what lies directly in a folder of a store, or with `below` all objects at any depth, in the store's order.

    Raises:
        AccessRefused: We may not list it.
        StoreFailed: It fails time and again.
        InvalidRequest: It is an address of the web, which nobody can list.
    """
    at = parse_address(address)
    if is_web(address):
        raise InvalidRequest(shown(address), "a folder on the web", expected="files: a web server does not list them")
    store, prefix = store_of(address)[0], at.key.rstrip("/")
    if not below:
        found = _asked(address, lambda: store.list_with_delimiter(prefix or None), lists=True)
        for folder in found["common_prefixes"]:
            yield BucketEntry(folder.rstrip("/"), -1, 0, 0)
        yield from (one for one in map(_one, found["objects"]) if one.key != prefix)  # which stands for the folder
        return
    yield from _below(address, store, prefix)


def _below(address: str, store: Any, prefix: str) -> Iterator[BucketEntry]:
    """Yield all objects below a prefix, page by page; a page that fails is asked for again, from the last key on.

    The key of an empty object may lack a slash, so that the store would go on elsewhere: another one must be the last.
    """
    attempts, last, done = Attempts(shown(address)), "", set[str]()
    while True:
        pages = store.list(prefix or None, offset=last or None, chunk_size=_PAGE)
        try:
            while page := _page(address, pages):
                for one in page:
                    if one.key not in done:
                        yield one
                    if one.size:
                        last, done = one.key, set()
                    else:
                        done.add(one.key)
                attempts.progress()
        except PassingFailure as error:  # such a list is at its end: asked for more it would say that there is none
            attempts.failed(error)
        else:
            return


def _check_process(address: str) -> None:
    """Refuse what would hang: a request of obstore in a process that was forked after its parent had made one.

    Raises:
        InvalidRequest: This is such a process.
    """
    if _ASKING.setdefault("pid", os.getpid()) != os.getpid():
        raise InvalidRequest(
            shown(address), "asked for in a forked process, where a store cannot be listed or written",
            expected="a process that was started by spawn or forkserver",
            remedy="Open the dataset before the fork, or name its dataset file.",
        )  # fmt: skip


def _page(address: str, pages: Any) -> list[BucketEntry]:
    _check_process(address)
    with store_failures(address, lists=True):
        return [_one(meta) for meta in apart(lambda: next(pages, ()))]


def put(address: str, data: bytes, expected: str | None = None, *, lasting: bool = False) -> str:
    """Write a small object, whole, and return its version.

    Args:
        address: Where.
        data: Its bytes.
        expected: The version of what it replaces; "" where nothing may be there; None: whatever is there.
        lasting: Whether it is of a dataset, and no lock.

    Raises:
        FileExistsError: Something else is there.
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    at, store = parse_address(address), store_of(address)[0]
    kind = "version" if at.scheme == "gs" else "e_tag"
    mode = "overwrite" if expected is None else {kind: expected} if expected else "create"
    told = of_small(address, lasting=lasting)
    answer = _asked(address, lambda: store.put(at.key, data, mode=mode, use_multipart=False, **told))
    return answer[kind] or ""


def version_in(address: str, headers: Mapping[str, str]) -> str:
    """Return the version of an object, as `put` knows it, from the headers of an answer; empty: there is none.

    Google's store takes no ETag for a condition of a write.
    """
    return headers.get("x-goog-generation" if address.startswith("gs:") else "ETag", "")


def delete(folder: str, keys: Sequence[str]) -> None:
    """Remove objects of the bucket of `folder`; those that are gone already are no error.

    Raises:
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    store = store_of(folder)[0]
    for first in range(0, len(keys), _PAGE):
        some = list(keys[first : first + _PAGE])
        try:
            _asked(folder, partial(store.delete, some))
        except FileNotFoundError:
            for key in some:
                with suppress(FileNotFoundError):
                    _asked(folder, partial(store.delete, key))


def copy_in_bucket(address: str, where: str) -> None:
    """Have a store copy an object within its bucket.

    Raises:
        FileNotFoundError: It is not there.
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    store, source, key = store_of(where)[0], parse_address(address).key, parse_address(where).key
    _asked(where, lambda: store.copy(source, key))


def _one(meta: Any) -> BucketEntry:
    changed_ns = int(meta["last_modified"].timestamp() * 1e9)
    return BucketEntry(meta["path"], meta["size"], version_number(meta["e_tag"] or ""), changed_ns)


def version_number(etag: str) -> int:
    """Return an ETag as a number of 63 bits, the same from a listing and from an answer; 0 where there is none."""
    tag = etag.removeprefix("W/").strip('"')  # Azure's listing has no quotes
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "little") >> 1 if tag else 0


def _asked(address: str, ask: Callable[[], Any], *, lists: bool = False) -> Any:
    """Return what a call of obstore returns; it is made again where that may help."""
    _check_process(address)

    def once() -> Any:
        with store_failures(address, lists=lists):
            return apart(ask)

    return retried(shown(address), once)
