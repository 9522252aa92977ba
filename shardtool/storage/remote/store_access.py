"""Find the endpoint, region and credentials of a bucket.

obstore finds credentials in the environment variables that each cloud's tools use. For AWS profiles and single
sign-on, boto3 finds the credentials if it is installed.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.messages import option_text
from shardtool.storage.remote import store_options
from shardtool.storage.remote.address import (
    SOURCE_MARKER,
    SOURCE_PREFIX,
    STORES,
    check_endpoint,
    display_address,
    parse_address,
)
from shardtool.storage.remote.failures import obstore_errors
from shardtool.storage.remote.network import NETWORK_VARIABLES, extra_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_SKIP_SIGNATURE_VARIABLES = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE", "az": "AZURE_SKIP_SIGNATURE"}
_AWS_CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE",
)  # fmt: skip


_ENDPOINT_VARIABLES = (store_options.ENDPOINT_VARIABLE, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEY_PAIR_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_IDENTITY_VARIABLES = (*_AWS_CREDENTIAL_VARIABLES, *_KEY_PAIR_VARIABLES[1:], "AWS_PROFILE")
_SOURCE_VARIABLES = (
    *_KEY_PAIR_VARIABLES, "AWS_PROFILE", "AWS_SKIP_SIGNATURE", *_REGION_VARIABLES, *_ENDPOINT_VARIABLES[1:],
)  # fmt: skip


# If one of these variables changes, `store_for` creates a new store.
_STORE_VARIABLES = (
    *_ENDPOINT_VARIABLES, *_IDENTITY_VARIABLES, *_REGION_VARIABLES,
    "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
    *_SKIP_SIGNATURE_VARIABLES.values(), store_options.ANONYMOUS_VARIABLE, "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", *store_options.STORE_OPTION_VARIABLES, *NETWORK_VARIABLES,
)  # fmt: skip


def use_endpoint(url: str) -> None:
    """Use the server at `url` for all stores, also in child processes."""
    check_endpoint(url, url)
    os.environ[store_options.ENDPOINT_VARIABLE] = url


def use_anonymous(enabled: bool = True) -> None:  # noqa: FBT001, FBT002 - the value of a command-line flag
    """Send requests without signature or credentials, also in child processes."""
    if enabled:
        os.environ[store_options.ANONYMOUS_VARIABLE] = "true"


def is_anonymous(scheme: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether requests to the stores of a scheme are unsigned."""
    variables = store_options.ANONYMOUS_VARIABLE, _SKIP_SIGNATURE_VARIABLES[scheme]
    return any(environment.get(name, "").lower() in ("1", "true") for name in variables)


def source_address_for(address: str, endpoint: str | None) -> str:
    """Return the address of a source, with a marker if the source has its own server or credentials.

    With a marker, the endpoint comes from `endpoint`, variables with the prefix `SHARDTOOL_SOURCE_` or an AWS profile.
    The credentials come from variables with this prefix or, if there are none, from variables without it.
    """
    prefixed = [name for name, value in os.environ.items() if name.startswith(SOURCE_PREFIX) and value]
    source_variables = {name.removeprefix(SOURCE_PREFIX) for name in prefixed}
    if unknown := source_variables.difference(_SOURCE_VARIABLES, ("ENDPOINT",)):
        expected = f"{SOURCE_PREFIX} before ENDPOINT, {', '.join(_SOURCE_VARIABLES)}"
        raise InvalidRequest(SOURCE_PREFIX + min(unknown), "unknown variable for a source", expected=expected)
    if source_variables & {*_KEY_PAIR_VARIABLES} and not source_variables.issuperset(_KEY_PAIR_VARIABLES[:2]):
        expected = " and ".join(SOURCE_PREFIX + name for name in _KEY_PAIR_VARIABLES[:2])
        raise InvalidRequest(f"keys of {SOURCE_PREFIX}*", "only one of the two keys is set", expected=expected)
    if server := endpoint or os.environ.get(f"{SOURCE_PREFIX}ENDPOINT", ""):
        check_endpoint(server, server)
    if endpoint and not address.startswith("s3://"):
        found = f"{option_text('source_endpoint')} works only with s3:// sources"
        raise InvalidRequest(display_address(address), found, remedy="Omit the option.")
    has_own_settings = address.startswith("s3://") and (server or source_variables)
    return f"s3://{SOURCE_MARKER}{quote(server, '')}@{address[len('s3://') :]}" if has_own_settings else address


def _source_environment(server: str) -> dict[str, str]:
    values = {name: value for name in _SOURCE_VARIABLES if (value := os.environ.get(SOURCE_PREFIX + name))}
    return _environment_with({**values, store_options.ENDPOINT_VARIABLE: server})


def _environment_with(values: Mapping[str, str]) -> dict[str, str]:
    s3 = (*_IDENTITY_VARIABLES, store_options.ANONYMOUS_VARIABLE)
    gs = (*_CREDENTIAL_KINDS["gs"], "GOOGLE_SKIP_SIGNATURE", store_options.ANONYMOUS_VARIABLE)
    az = (*AZURE_KEY_VARIABLES, *AZURE_TOKEN_VARIABLES, "AZURE_SKIP_SIGNATURE", store_options.ANONYMOUS_VARIABLE)
    # if `values` sets a variable of a group, inherit none of the group
    groups = [(_ENDPOINT_VARIABLES, ()), (_REGION_VARIABLES, ()), (s3, _REGION_VARIABLES), (gs, ()), (az, ())]
    hidden = {name for names, related in groups if values.keys() & {*names} for name in (*names, *related)}
    inherited = {name: os.environ[name] for name in _STORE_VARIABLES if name in os.environ and name not in hidden}
    return {**inherited, **values}


def environment_for(address: str) -> Mapping[str, str]:
    """Return the environment variables that configure access to an address. A marker in the address can change them."""
    parts = parse_address(address)
    if parts.marker.startswith(SOURCE_MARKER):
        return _source_environment(unquote(parts.marker.removeprefix(SOURCE_MARKER)))
    options = store_options.options_of(parts.marker, address)
    return os.environ if options is None else _environment_with(options)


def store_for(address: str) -> tuple[Any, str | None]:
    """Return obstore's store for a bucket, and the URL of the bucket. The URL is None if requests are signed."""
    parts = parse_address(address)
    if parts.scheme not in STORES:
        where, expected = f"{parts.scheme}://{parts.host}", f"{'://, '.join(STORES)}:// or a folder"
        raise InvalidRequest(where, f"{parts.scheme}:// locations are read-only", expected=expected)
    environment = environment_for(address)
    if parts.marker:
        return _make_store(parts.scheme, parts.host, tuple(environment.items()), has_own_settings=True)
    settings = tuple((name, os.environ[name]) for name in _STORE_VARIABLES if name in os.environ)
    return _make_store(parts.scheme, parts.host, settings)


AZURE_KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
AZURE_TOKEN_VARIABLES = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_CREDENTIAL_KINDS = {  # in order of precedence
    "s3": {
        "AWS_ACCESS_KEY_ID": "key", "AWS_WEB_IDENTITY_TOKEN_FILE": "web identity",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container",
    },
    "gs": dict.fromkeys(
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"), "service account"
    ) | {"GOOGLE_APPLICATION_CREDENTIALS": "application default"},
    "az": dict.fromkeys(AZURE_TOKEN_VARIABLES, "shared access signature")
    | dict.fromkeys(AZURE_KEY_VARIABLES, "account key")
    | {"AZURE_FEDERATED_TOKEN_FILE": "web identity", "AZURE_CLIENT_SECRET": "client secret"},
}  # fmt: skip


def credentials_kind(address: str) -> str:
    """Describe the credentials for an address, and where they were found."""
    parts, (store, unsigned_url) = parse_address(address), store_for(address)
    environment = environment_for(address)
    options = store_options.options_of(parts.marker, address) or {}
    if unsigned_url is not None:
        return "none: requests are not signed"
    if keys := getattr(store.credential_provider, "credentials", None):
        return f"{keys.method} (profile {environment.get('AWS_PROFILE') or 'default'}, by boto3)"
    for name, kind in _CREDENTIAL_KINDS[parts.scheme].items():
        if environment.get(name):
            return f"{kind} ({'storage_options' if name in options else f'environment: {name}'})"
    gcloud = "application default credentials of gcloud, or " if parts.scheme == "gs" else ""
    return f"{gcloud}metadata service of this machine"


_OWN_CONFIG = ("account_name", "service_account", "service_account_key")


@functools.lru_cache(maxsize=256)
def _make_store(
    scheme: str, bucket: str, environment: tuple[tuple[str, str], ...], *, has_own_settings: bool = False
) -> tuple[Any, str | None]:
    env = dict(environment)
    endpoint = env.get(store_options.ENDPOINT_VARIABLE, "")
    try:
        from obstore import store
    except ImportError:
        raise not_installed_error("obstore") from None
    client: dict[str, Any] = {"allow_http": True}
    if certificates := extra_certificates():
        client["root_certificate"] = certificates
    options: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    options["config"] = store_options.client_config(scheme)
    anonymous = is_anonymous(scheme, env)
    if anonymous or has_own_settings:
        options["config"]["skip_signature"] = anonymous
    with obstore_errors(f"{scheme}://{bucket}"):
        if scheme == "s3":
            return _make_s3_store(bucket, env, options, anonymous=anonymous, has_own_settings=has_own_settings)
        if has_own_settings:
            variables = store_options.VARIABLES[scheme]
            settings = {name: env.get(variables[name]) for name in _OWN_CONFIG if name in variables}
            options["config"] |= {name: value for name, value in settings.items() if value}
        if scheme == "gs":
            if endpoint:
                options["config"]["base_url"] = endpoint
            bucket_url = f"{(endpoint or 'https://storage.googleapis.com').rstrip('/')}/{bucket}"
            return store.GCSStore(bucket, **options), bucket_url if anonymous else None
        if endpoint:
            options["endpoint"] = endpoint
        if has_own_settings and (credential := _azure_credential(env)):
            # obstore would prefer an account key in the environment to a token in `config`
            options["credential_provider"] = lambda: credential
        azure_store = store.AzureStore(bucket, **options)
        return azure_store, f"{azure_server(env)}/{bucket}" if anonymous else None


def _azure_credential(environment: Mapping[str, str]) -> dict[str, Any] | None:
    if token := first_variable(environment, AZURE_TOKEN_VARIABLES):
        return {"sas_token": token.lstrip("?"), "expires_at": None}
    key = first_variable(environment, AZURE_KEY_VARIABLES)
    return {"access_key": key, "expires_at": None} if key else None


def _make_s3_store(
    bucket: str, env: Mapping[str, str], options: dict[str, Any], *, anonymous: bool, has_own_settings: bool
) -> tuple[Any, str | None]:
    from obstore.store import S3Store

    session = None if anonymous else _aws_session(bucket, env)
    endpoint = next(filter(None, map(env.get, _ENDPOINT_VARIABLES)), "")
    if endpoint := endpoint or _aws_endpoint(session):
        check_endpoint(endpoint, f"the endpoint {endpoint}")
        options["endpoint"] = endpoint
    if session is not None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        options["credential_provider"] = Boto3CredentialProvider(session)
    region = next(filter(None, map(env.get, _REGION_VARIABLES)), _profile_settings(session).get("region", "us-east-1"))
    if has_own_settings:
        endpoint = options["endpoint"] = endpoint or f"https://s3.{region}.amazonaws.com"
        options["config"]["region"] = region
        if session is None and env.get("AWS_ACCESS_KEY_ID"):
            options["credential_provider"] = partial(key_pair, env)
    bucket_url = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else f"https://{bucket}.s3.{region}.amazonaws.com"
    return S3Store(bucket, **options), bucket_url if anonymous else None


def key_pair(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the S3 key pair in environment variables, under the names that obstore expects."""
    key, secret, token = map(environment.get, _KEY_PAIR_VARIABLES)
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _aws_session(bucket: str, environment: Mapping[str, str]) -> Any:
    """Return a boto3 session with credentials, or None if obstore must find the credentials.

    If AWS_EC2_METADATA_DISABLED is true and there are no credentials, raise an error, because obstore ignores this
    variable and would send requests to the metadata service.
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
                # Fetch the credentials now, so `_aws_errors` converts the errors.
                keys.get_frozen_credentials()
                return session
    has_credentials = any(map(environment.get, _AWS_CREDENTIAL_VARIABLES))
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" and not has_credentials:
        raise AccessRefused(
            f"s3://{bucket}", "no credentials", expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
            remedy=f"For a public bucket, set {store_options.ANONYMOUS_VARIABLE}=true.",
        )  # fmt: skip
    return None


@contextmanager
def _aws_errors(profile: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, ConfigParseError, ProfileNotFound

    remedy = "Run `aws sts get-caller-identity` with this profile to see the problem."
    try:
        yield
    except ProfileNotFound:
        found, expected = "no such profile", "a profile in ~/.aws/config, or in the file in AWS_CONFIG_FILE"
        raise InvalidRequest(f"AWS_PROFILE={profile}", found, expected=expected) from None
    except (ConfigParseError, UnicodeDecodeError):
        where = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
        found = "not an AWS configuration file"
        raise AccessRefused(where, found, expected="profile sections", remedy=remedy) from None
    except (BotoCoreError, ClientError, OSError, ValueError) as error:
        found = f"cannot get credentials ({type(error).__name__})"
        raise AccessRefused(f"the AWS profile {profile}", found, remedy=remedy) from None


def _aws_endpoint(session: Any) -> str:
    if session is None or os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    profile = _profile_settings(session)
    services = session._session.full_config.get("services", {}).get(profile.get("services", ""), {})  # noqa: SLF001
    return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url", ""))


def _profile_settings(session: Any) -> Mapping[str, Any]:
    return {} if session is None else session._session.get_scoped_config()  # noqa: SLF001 - boto3 has no public function for this


def _check_key_pair(bucket: str, environment: Mapping[str, str]) -> None:
    """Raise an error if only the key id is set, because obstore would ask the metadata service for credentials."""
    present = [name for name in _KEY_PAIR_VARIABLES[:2] if environment.get(name)]
    if present == ["AWS_ACCESS_KEY_ID"] and not any(environment.get(name) for name in _AWS_CREDENTIAL_VARIABLES[1:]):
        found = "only AWS_ACCESS_KEY_ID is set"
        raise AccessRefused(f"s3://{bucket}", found, expected="AWS_SECRET_ACCESS_KEY as well")


def not_installed_error(library: str) -> InvalidRequest:
    """Return the error for a missing library."""
    remedy = "Run `pip install 'shardtool[remote]'`."
    return InvalidRequest(library, "not installed", expected="the libraries for stores", remedy=remedy)


AZURE_ACCOUNT_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_AZURE_ENDPOINT_VARIABLES = (store_options.ENDPOINT_VARIABLE, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def azure_server(environment: Mapping[str, str]) -> str:
    """Return the URL of Azure's server for the storage account."""
    default = f"https://{first_variable(environment, AZURE_ACCOUNT_VARIABLES)}.blob.core.windows.net"
    return (first_variable(environment, _AZURE_ENDPOINT_VARIABLES) or default).rstrip("/")


def first_variable(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of the first variable that is set, or ""."""
    return next((value for name in names if (value := environment.get(name))), "")
