"""How a bucket is reached: its server, and who has the keys.

obstore finds keys by the usual environment variables of each cloud's own tools; profiles and single sign-on of AWS are
read by boto3 where it is installed.
"""

from __future__ import annotations

import functools
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.storage.remote import network
from shardtool.storage.remote.address import STORES, is_web, parse_address
from shardtool.storage.remote.failures import store_failures

if TYPE_CHECKING:
    from collections.abc import Iterator

_PORT = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = re.compile(rf"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::{_PORT})?")
ENDPOINT = "SHARDTOOL_ENDPOINT"  # an environment variable: so workers have it, too
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
         "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")  # fmt: skip

_DECIDING = (  # which server is asked, and who asks: what is set later is not to be missed
    *_KEYS, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
    "AWS_REGION", "AWS_DEFAULT_REGION", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE", "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
    *network.DECIDING,
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


def endpoint_of_all() -> str:
    """Return the server that `use_endpoint` names; empty: none."""
    return os.environ.get(ENDPOINT, "")


def store_of(scheme: str, bucket: str) -> tuple[Any, str | None]:
    """Return the store of a bucket, and its plain address where requests are not signed.

    Raises:
        InvalidRequest: It is of a scheme that is only read, or obstore is not installed.
    """
    if scheme not in STORES:
        where, expected = f"{scheme}://{bucket}", f"{'://, '.join(STORES)}:// or a folder"
        raise InvalidRequest(where, "a place that is only read", expected=expected)
    return _made(scheme, bucket, endpoint_of_all(), tuple(map(os.environ.get, _DECIDING)))


@functools.lru_cache(maxsize=256)
def _made(scheme: str, bucket: str, endpoint: str, _environment: tuple[str | None, ...]) -> tuple[Any, str | None]:
    try:
        from obstore import store
    except ImportError:
        raise not_installed("obstore") from None
    options: dict[str, Any] = {
        "client_options": {"allow_http": True, **network.of_obstore()},
        "retry_config": {"max_retries": 0},
    }
    with store_failures(f"{scheme}://{bucket}"):
        if scheme == "s3":
            session = _aws_session(bucket)
            endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
            if endpoint := endpoint or _aws_endpoint(session):
                _check_endpoint(endpoint, f"the endpoint {endpoint}")
                options["endpoint"] = endpoint
            if session is not None:
                from obstore.auth.boto3 import Boto3CredentialProvider

                options["credential_provider"] = Boto3CredentialProvider(session)
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            plain = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else f"https://{bucket}.s3.{region}.amazonaws.com"
            return store.S3Store(bucket, **options), plain if _is_set("AWS_SKIP_SIGNATURE") else None
        if scheme == "gs":
            if endpoint:
                options["config"] = {"base_url": endpoint}
            plain = f"{(endpoint or 'https://storage.googleapis.com').rstrip('/')}/{bucket}"
            return store.GCSStore(bucket, **options), plain if _is_set("GOOGLE_SKIP_SIGNATURE") else None
        if endpoint:
            options["endpoint"] = endpoint
        return store.AzureStore(bucket, **options), None


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true")


def _aws_session(bucket: str) -> Any:
    """Return boto3's session that finds keys, or None where obstore finds them by itself.

    Without keys at hand obstore asks the metadata service of the machine, also where the environment forbids that.
    """
    if any(os.environ.get(name) for name in _KEYS) and not os.environ.get("AWS_PROFILE"):
        _check_pair(bucket)
        return None
    try:
        import boto3
    except ImportError:
        if os.environ.get("AWS_PROFILE"):
            found, expected = "boto3 is not installed", "boto3, which reads profiles"
            raise InvalidRequest("AWS_PROFILE", found, expected=expected, remedy="pip install boto3") from None
    else:
        with _aws_failures():
            session = boto3.Session()
            if (keys := session.get_credentials()) is not None:
                keys.get_frozen_credentials()  # now, for what obstore says of a failure is not this
                return session
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise AccessRefused(
            f"s3://{bucket}", "no credentials", expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
            remedy="A public bucket is read with AWS_SKIP_SIGNATURE=true.",
        )  # fmt: skip
    return None


@contextmanager
def _aws_failures() -> Iterator[None]:
    """Say that boto3 cannot read a profile, or get its keys; what it says itself may hold secrets."""
    from botocore.exceptions import BotoCoreError, ClientError, ConfigParseError, ProfileNotFound

    profile = os.environ.get("AWS_PROFILE") or "default"
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
    from botocore.session import Session

    profile = (configured := Session()).get_scoped_config()
    services = configured.full_config.get("services", {}).get(profile.get("services", ""), {})
    return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url", ""))


def _check_pair(bucket: str) -> None:
    """Refuse half a pair of keys, for which obstore would ask the metadata service of the machine."""
    pair = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    given = [name for name in pair if os.environ.get(name)]
    if given == ["AWS_ACCESS_KEY_ID"] and not any(os.environ.get(name) for name in _KEYS[1:]):
        raise AccessRefused(f"s3://{bucket}", "AWS_ACCESS_KEY_ID alone", expected="AWS_SECRET_ACCESS_KEY beside it")


def not_installed(library: str) -> InvalidRequest:
    """Return the error that a library of the extra `remote` is missing."""
    return InvalidRequest(
        library, "not installed", expected="the libraries for remote files", remedy="pip install 'shardtool[remote]'"
    )
