"""How to reach a bucket: endpoint, region and credentials.

obstore finds credentials in the usual environment variables of each cloud's tools. boto3, if installed, reads
profiles and single sign-on of AWS.
"""

from __future__ import annotations

import functools
import os
import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.messages import option_text
from shardtool.storage.remote.address import (
    SOURCE_MARKER,
    SOURCE_PREFIX,
    STORES,
    display_address,
    is_web,
    parse_address,
)
from shardtool.storage.remote.failures import obstore_errors
from shardtool.storage.remote.network import NETWORK_VARIABLES, extra_certificates
from shardtool.storage.remote.store_options import STORE_OPTION_VARIABLES, client_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_PORT_PATTERN = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"


_HOST_PATTERN = re.compile(rf"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::{_PORT_PATTERN})?")


ENDPOINT_VARIABLE, ANONYMOUS_VARIABLE = (
    "SHARDTOOL_ENDPOINT",
    "SHARDTOOL_ANONYMOUS",
)  # environment variables: so workers have them, too


_SKIP_SIGNATURE_VARIABLES = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE", "az": "AZURE_SKIP_SIGNATURE"}


_AWS_CREDENTIAL_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
         "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")  # fmt: skip


_ENDPOINT_VARIABLES = (ENDPOINT_VARIABLE, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


_KEY_PAIR_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)  # the third is not always there


_IDENTITY_VARIABLES = (*_AWS_CREDENTIAL_VARIABLES, *_KEY_PAIR_VARIABLES[1:], "AWS_PROFILE")


_SOURCE_VARIABLES = (
    *_KEY_PAIR_VARIABLES,
    "AWS_PROFILE",
    "AWS_SKIP_SIGNATURE",
    *_REGION_VARIABLES,
    *_ENDPOINT_VARIABLES[1:],
)  # that a source may have


_STORE_VARIABLES = (  # which server is asked, and who asks: what is set later is not to be missed
    *_ENDPOINT_VARIABLES, *_IDENTITY_VARIABLES, *_REGION_VARIABLES, "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS", *_SKIP_SIGNATURE_VARIABLES.values(), ANONYMOUS_VARIABLE, "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", *STORE_OPTION_VARIABLES, *NETWORK_VARIABLES,
)  # fmt: skip


def use_endpoint(url: str) -> None:
    """Have requests for `s3://`, `gs://` and `az://` go to another server, in this process and in those it starts.

    Args:
        url: Its address: `https://minio.example:9000`.

    Raises:
        InvalidRequest: It is none, or holds a user and a password.
    """
    _check_endpoint(url, url)
    os.environ[ENDPOINT_VARIABLE] = url


def _check_endpoint(url: str, where: str) -> None:
    at = parse_address(url) if is_web(url) else None
    if at is None or not _HOST_PATTERN.fullmatch(at.host) or at.query:
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
        os.environ[ANONYMOUS_VARIABLE] = "true"


def is_anonymous(scheme: str, environment: Mapping[str, str] = os.environ) -> bool:
    return any(
        environment.get(name, "").lower() in ("1", "true")
        for name in (ANONYMOUS_VARIABLE, _SKIP_SIGNATURE_VARIABLES[scheme])
    )


def source_address_for(address: str, endpoint: str | None) -> str:
    """Return the address by which something in S3 is read as a source's, where that has its own server or keys.

    Variables whose names begin with `SHARDTOOL_SOURCE_` take the place of those without. Once there is one, nothing
    else says which server is asked; and once one says who asks, none without it does.

    Args:
        address: Where it is.
        endpoint: Its server; None: what the environment says.

    Raises:
        InvalidRequest: The server is none, or for no address of S3; or a variable is not known, or makes half a key.
    """
    own = [
        name.removeprefix(SOURCE_PREFIX) for name in os.environ if name.startswith(SOURCE_PREFIX) and os.environ[name]
    ]
    if unknown := {*own}.difference(_SOURCE_VARIABLES, ("ENDPOINT",)):
        expected = f"{SOURCE_PREFIX} before ENDPOINT, {', '.join(_SOURCE_VARIABLES)}"
        raise InvalidRequest(SOURCE_PREFIX + min(unknown), "a variable that a source has not", expected=expected)
    if {*own}.intersection(_KEY_PAIR_VARIABLES) and not {*own}.issuperset(_KEY_PAIR_VARIABLES[:2]):
        expected = " and ".join(SOURCE_PREFIX + name for name in _KEY_PAIR_VARIABLES[:2])
        raise InvalidRequest(f"keys of {SOURCE_PREFIX}*", "half a pair", expected=expected)
    if server := endpoint or os.environ.get(f"{SOURCE_PREFIX}ENDPOINT", ""):
        _check_endpoint(server, server)
    if endpoint and not address.startswith("s3://"):
        found, expected = "not in S3, whose server was given", f"s3://, or no {option_text('source_endpoint')}"
        raise InvalidRequest(display_address(address), found, expected=expected)
    is_own = address.startswith("s3://") and (server or own)
    return f"s3://{SOURCE_MARKER}{quote(server, '')}@{address[len('s3://') :]}" if is_own else address


def _environment_for(server: str) -> dict[str, str]:
    """Return what says how S3 is reached, and by whom, where `source_address_for` is read, whose server may be known."""
    own = {name: value for name in _SOURCE_VARIABLES if (value := os.environ.get(SOURCE_PREFIX + name))}
    others = {*_ENDPOINT_VARIABLES, *(_REGION_VARIABLES if {*own}.intersection(_REGION_VARIABLES) else ())}
    others |= (
        {*_IDENTITY_VARIABLES, *_REGION_VARIABLES, ANONYMOUS_VARIABLE}
        if {*own}.intersection(_IDENTITY_VARIABLES)
        else set()
    )
    kept = {name: os.environ[name] for name in _STORE_VARIABLES if name in os.environ and name not in others}
    return {**kept, **own, ENDPOINT_VARIABLE: server}


def store_for(address: str) -> tuple[Any, str | None]:
    """Return the store of the bucket that an address names, and its plain address where requests are not signed.

    Raises:
        InvalidRequest: It is of a scheme that is only read, or obstore is not installed.
    """
    at = parse_address(address)
    if at.scheme not in STORES:
        where, expected = f"{at.scheme}://{at.host}", f"{'://, '.join(STORES)}:// or a folder"
        raise InvalidRequest(where, "a place that is only read", expected=expected)
    who, _, bucket = at.host.rpartition("@")
    if who.startswith(SOURCE_MARKER):
        return _make_store(
            at.scheme, bucket, tuple(_environment_for(unquote(who[len(SOURCE_MARKER) :])).items()), from_source=True
        )
    return _make_store(
        at.scheme, at.host, tuple((name, os.environ[name]) for name in _STORE_VARIABLES if name in os.environ)
    )


AZURE_KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")


AZURE_TOKEN_VARIABLES = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")


_CREDENTIAL_KINDS = {  # environment variables that have credentials, in the order in which they are looked at, and what these are
    "s3": {
        "AWS_ACCESS_KEY_ID": "key", "AWS_WEB_IDENTITY_TOKEN_FILE": "web identity",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container",
    },
    "gs": dict.fromkeys(
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"), "service account"
    ) | {"GOOGLE_APPLICATION_CREDENTIALS": "application default"},
    "az": dict.fromkeys(AZURE_TOKEN_VARIABLES, "shared access signature") | dict.fromkeys(AZURE_KEY_VARIABLES, "key of the account") | {
        "AZURE_FEDERATED_TOKEN_FILE": "web identity", "AZURE_CLIENT_SECRET": "client secret",
    },
}  # fmt: skip


def credentials_kind(address: str) -> str:
    """Return which credentials requests to a store have, and where these come from; never a secret.

    Raises:
        AccessRefused: There are none.
        InvalidRequest: As `store_for`.
    """
    scheme, (store, plain) = parse_address(address).scheme, store_for(address)
    if plain is not None:
        return "none: requests are not signed"
    if provider := getattr(store, "credential_provider", None):
        return f"{provider.credentials.method} (profile {os.environ.get('AWS_PROFILE') or 'default'}, by boto3)"
    found = (
        f"{kind} (environment: {name})" for name, kind in _CREDENTIAL_KINDS[scheme].items() if os.environ.get(name)
    )
    return next(found, f"{'application default of gcloud, or ' * (scheme == 'gs')}metadata service of this machine")


@functools.lru_cache(maxsize=256)
def _make_store(
    scheme: str, bucket: str, environment: tuple[tuple[str, str], ...], *, from_source: bool = False
) -> tuple[Any, str | None]:
    env = dict(environment)
    endpoint = env.get(ENDPOINT_VARIABLE, "")
    try:
        from obstore import store
    except ImportError:
        raise not_installed_error("obstore") from None
    client: dict[str, Any] = {"allow_http": True}  # obstore goes by the variables of proxies itself
    if more := extra_certificates():
        client["root_certificate"] = more
    options: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    options["config"] = client_config(scheme)
    anonymous = is_anonymous(scheme, env)
    if anonymous:
        options["config"]["skip_signature"] = True
    with obstore_errors(f"{scheme}://{bucket}"):
        if scheme == "s3":
            return _make_s3_store(bucket, env, options, anonymous=anonymous, from_source=from_source)
        if scheme == "gs":
            if endpoint:
                options["config"]["base_url"] = endpoint
            plain = f"{(endpoint or 'https://storage.googleapis.com').rstrip('/')}/{bucket}"
            return store.GCSStore(bucket, **options), plain if anonymous else None
        if endpoint:
            options["endpoint"] = endpoint
        made = store.AzureStore(bucket, **options)  # which says what lacks, as the account
        return made, f"{azure_server()}/{bucket}" if anonymous else None


def _make_s3_store(
    bucket: str, env: Mapping[str, str], options: dict[str, Any], *, anonymous: bool, from_source: bool
) -> tuple[Any, str | None]:
    from obstore.store import S3Store

    session = None if anonymous else _aws_session(bucket, env)
    endpoint = next(filter(None, map(env.get, _ENDPOINT_VARIABLES)), "")
    if endpoint := endpoint or _aws_endpoint(session):
        _check_endpoint(endpoint, f"the endpoint {endpoint}")
        options["endpoint"] = endpoint
    if session is not None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        options["credential_provider"] = Boto3CredentialProvider(session)
    region = next(filter(None, map(env.get, _REGION_VARIABLES)), _profile_settings(session).get("region", "us-east-1"))
    if from_source:  # nothing of the environment that obstore reads itself is about it
        endpoint = options["endpoint"] = endpoint or f"https://s3.{region}.amazonaws.com"
        options["config"] |= {"region": region, "skip_signature": anonymous}
        if session is None and env.get("AWS_ACCESS_KEY_ID"):
            options["credential_provider"] = partial(key_pair, env)
    plain = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else f"https://{bucket}.s3.{region}.amazonaws.com"
    return S3Store(bucket, **options), plain if anonymous else None


def key_pair(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return keys that stand in the environment, as obstore asks for them."""
    key, secret, token = map(environment.get, _KEY_PAIR_VARIABLES)
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _aws_session(bucket: str, environment: Mapping[str, str]) -> Any:
    """Return boto3's session that finds keys, or None where obstore finds them by itself.

    Without keys at hand obstore asks the metadata service of the machine, also where the environment forbids that.
    """
    profile = environment.get("AWS_PROFILE")
    if environment.get("AWS_ACCESS_KEY_ID") and not profile:
        _check_key_pair(bucket, environment)
        return None
    try:
        import boto3
    except ImportError:
        if profile:
            found, expected = "boto3 is not installed", "boto3, which reads profiles"
            raise InvalidRequest("AWS_PROFILE", found, expected=expected, remedy="pip install boto3") from None
    else:
        with _aws_errors(profile or "default"):
            session = boto3.Session(profile_name=None if profile == os.environ.get("AWS_PROFILE") else profile)
            if (keys := session.get_credentials()) is not None:
                keys.get_frozen_credentials()  # now, for what obstore says of a failure is not this
                return session
    asked = any(map(environment.get, _AWS_CREDENTIAL_VARIABLES))  # obstore gets them by itself
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" and not asked:
        raise AccessRefused(
            f"s3://{bucket}", "no credentials", expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
            remedy=f"A public bucket is read with {ANONYMOUS_VARIABLE}=true.",
        )  # fmt: skip
    return None


@contextmanager
def _aws_errors(profile: str) -> Iterator[None]:
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
    profile = _profile_settings(session)
    services = session._session.full_config.get("services", {}).get(profile.get("services", ""), {})  # noqa: SLF001
    return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url", ""))


def _profile_settings(session: Any) -> Mapping[str, Any]:
    """Return what a profile says."""
    return {} if session is None else session._session.get_scoped_config()  # noqa: SLF001 - boto3 hands it on nowhere


def _check_key_pair(bucket: str, environment: Mapping[str, str]) -> None:
    """Refuse half a pair of keys, for which obstore would ask the metadata service of the machine."""
    given = [name for name in _KEY_PAIR_VARIABLES[:2] if environment.get(name)]
    if given == ["AWS_ACCESS_KEY_ID"] and not any(environment.get(name) for name in _AWS_CREDENTIAL_VARIABLES[1:]):
        raise AccessRefused(f"s3://{bucket}", "AWS_ACCESS_KEY_ID alone", expected="AWS_SECRET_ACCESS_KEY beside it")


def not_installed_error(library: str) -> InvalidRequest:
    """Return the error that a library of the extra `remote` is missing."""
    return InvalidRequest(
        library, "not installed", expected="the libraries for remote files", remedy="pip install 'shardtool[remote]'"
    )


AZURE_ACCOUNT_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")


_AZURE_ENDPOINT_VARIABLES = (ENDPOINT_VARIABLE, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def azure_server() -> str:
    """Return the address of Azure's server, with the account."""
    return (
        first_variable(_AZURE_ENDPOINT_VARIABLES)
        or f"https://{first_variable(AZURE_ACCOUNT_VARIABLES)}.blob.core.windows.net"
    ).rstrip("/")


def first_variable(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")
