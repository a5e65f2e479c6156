"""Settings: each an option of `oncelog serve`, an ONCELOG_… variable, and a key of a config file (sources.py).

The table in docs/settings.md is checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_serializer, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from oncelog.http.credentials import secret_in, shown
from oncelog_service.atomic.limits import AtomicLimits
from oncelog_service.bounds import cdap
from oncelog_service.counting.counts import MOST_TOPICS
from oncelog_service.log.limits import Limits
from oncelog_service.logs import Form
from oncelog_service.sources import HasOrigins, Origin, Sources
from oncelog_service.storage.open import default_store, store_opener
from oncelog_service.storage.open import shown as shown_store
from oncelog_service.transactions.limits import TransactionLimits

DEFAULT_DATA = "oncelog-data"
DEFAULT_TRANSACTIONS_DATA = "oncelog-transactions"
SECRETS = ("token", "transactions_token", "store")
"""Settings that may hold a secret: each may lie in a file, and no text shows it."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that are this machine, and that no other reaches."""
MOST_NAMES = 100_000_000
"""What no machine's memory has room for, of any kind of name."""


class Settings(HasOrigins):
    """How a service runs."""

    model_config = SettingsConfigDict(
        env_prefix="ONCELOG_",
        extra="forbid",  # a key of the file that is written wrongly must not be taken for one that is not there
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # passwords and tokens
    )

    only_transactions: ClassVar[bool] = False
    """Whether it answers for transactions only, as `oncelog tx-serve` does."""

    config: Path | None = None
    """File in TOML with settings, named as in the variables but in small letters and without `ONCELOG_`. Read again on SIGHUP."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=7070, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    store: str = Field(default_factory=lambda: default_store(Path(DEFAULT_DATA)))
    """Where the data lies: leveldb:///absolute/path, leveldb://relative/path, sqlite:///absolute/path,
    postgresql+psycopg://user:password@host:port/database, memory://. Default: ./oncelog-data, as what
    lies there, else on LevelDB, or on SQLite where plyvel is not installed."""
    allowed_hosts: str | None = None
    """Further names by which clients ask for it, a proxy's or a container's, with commas between: `logs.example.org,logs`."""
    store_file: Path | None = None
    """File that holds that URL, where its password is to stand in no list of processes; `store` goes before it."""
    token: str | None = Field(default=None, min_length=1)
    """Bearer token that may do everything. With one, or with tokens in the store, every request needs one; to listen on more than
    this machine there must be one. Read again on SIGHUP, and so is its file."""
    token_file: Path | None = None
    """File that holds this token; `token` goes before it."""
    jwt_issuer: str | None = Field(default=None, min_length=1)
    """Who signs tokens that are taken beside ours (`iss` of a JWT), exactly as it names itself; needs the extra `jwt`. With
    one every request needs a token, on this machine too."""
    jwt_audience: str | None = Field(default=None, min_length=1)
    """Whom these tokens must be meant for (`aud`)."""
    jwt_keys: str | None = Field(default=None, min_length=1)
    """File or https URL of the issuer's public keys (JWKS). Read again and again, in the background."""
    jwt_grants_claim: str = Field(default="oncelog_grants", min_length=1)
    """Claim of these tokens that lists grants."""
    audit_log: Path | None = None
    """File that keeps who asked for what administrative thing, from where, and what came of it: one JSON line each. Without one
    these lines go to the log, as `oncelog.audit`."""
    deduplication: bool = True
    """What holds for topics where neither topic nor namespace says."""
    check_expected_offsets: bool = False
    """Whether topics that do not say so themselves (`check.expected.offsets`) check what a publish expects; it costs an index of
    message keys in memory."""
    cache_bytes: int = Field(default=64 * 2**20, ge=0)
    """Recent messages held in memory, over all topics."""
    max_request_bytes: int = Field(default=8 * 2**20, ge=1_024)
    """Largest request body."""
    max_inflight_bytes: int = Field(default=128 * 2**20, ge=1_024)
    """Request bodies held at the same time; beyond it requests are refused as overloaded."""
    max_unread_bytes: int = Field(default=16 * 2**20, ge=2**16)
    """Answers that were written and are not read, all together; beyond it the slowest reader ends."""
    max_connections: int = Field(default=4_096, ge=1)
    """Connections at the same time, fewer where no more files may be open; beyond it one that is idle gives way, or the new one
    is refused."""
    max_connections_per_address: int = Field(default=1_024, ge=1)
    """The same from one client address, of IPv6 from one /64 network; a proxy in front of all clients is one address."""
    max_requests_per_principal: int = Field(default=1_024, ge=1)
    """Requests of one principal under way at the same time; where nobody has a token, or all the same one, of one address."""
    max_messages: int = Field(default=10_000, ge=1)
    """Most messages in one publish request."""
    default_poll_messages: int = Field(default=1_000, ge=1)
    """Messages of a poll without a limit."""
    max_poll_messages: int = Field(default=100_000, ge=1)
    """Hard maximum of a poll's limit."""
    max_poll_bytes: int = Field(default=8 * 2**20, ge=1_024)
    """A poll ends after the message that reaches this."""
    max_wait_ms: int = Field(default=60_000, ge=100)
    """Longest wait of a poll, or of another request that waits; a longer one is cut to it."""
    snapshot_messages: int = Field(default=1_000, ge=1)
    """A snapshot of a topic is wanted after so many messages."""
    snapshot_seconds: float = Field(default=120.0, gt=0)
    """… or after so many seconds with at least one."""
    retention_seconds: float = Field(default=30.0, gt=0)
    """Pause between two rounds that delete what has expired."""
    tls_certificate: str | None = None
    """File in PEM with the certificate that clients are shown, and those between it and its CA. With one the service speaks
    TLS, and nothing else; without one what it sends and takes can be read on its way. Read again when it changes, and on SIGHUP;
    so are the next two."""
    tls_key: str | None = None
    """File with its key, not encrypted; without one the key is in the same file."""
    tls_client_ca: str | None = None
    """File with the CAs of clients, which are then asked for a certificate; what it may do is granted to `cert:` and its name.
    Whoever has none needs a token, on this machine too."""
    backup_root: Path | None = None
    """Directory below which `oncelog backup` may have the running service write backups; without one it makes none."""
    advertised_url: str | None = None
    """Where clients, and the other services over the same store, find this one; without it the address it listens on. With https,
    and no certificate here, a proxy in front speaks TLS."""
    lease_seconds: float = Field(default=3.0, ge=0.5, le=3_600)
    """A service over a shared store that is not heard of for so long is taken for dead, and others serve its topics."""
    transactions_url: str | None = None
    """URL of a transaction service that runs alone (`oncelog tx-serve`); without one it runs in this process."""
    transactions_token: str | None = Field(default=None, min_length=1)
    """Bearer token for that service; without one `token` is sent. Read again on SIGHUP, and so is its file."""
    transactions_token_file: Path | None = None
    """File that holds this token; `transactions_token` goes before it."""
    transaction_timeout_seconds: float = Field(default=30.0, gt=0)
    """A short transaction that does not say otherwise times out after this."""
    max_transaction_timeout_seconds: float = Field(default=3_600.0, gt=0)
    """Longest time-out that a short transaction may ask for."""
    max_transaction_lifetime_seconds: float = Field(default=90_000.0, gt=0)
    """Every transaction has ended after this."""
    foreign_write_pointers: bool = False
    """Whether another transaction service is in use, too: then messages are taken under write pointers that ours never handed
    out, unless their number says that they are older than a transaction may become, or could be one of ours."""
    cdap_clients: bool = False
    """Whether CDAP's own clients are served, who need some things that the TMS page does not say. Implies
    `foreign_write_pointers`, which cannot be off beside it, and that publishes in the TMS media type may have 100,000 messages
    and 16 MiB."""
    assigned_producer_seconds: float = Field(default=90_000.0, gt=0)
    """A name that the service assigned to a producer without one ends when it was not used for so long."""
    atomic_timeout_seconds: float = Field(default=60.0, gt=0)
    """An atomic commit that does not say otherwise is aborted when it is not committed by then."""
    max_atomic_timeout_seconds: float = Field(default=86_400.0, gt=0)
    """Longest time-out that an atomic commit may ask for."""
    journal_partitions: int = Field(default=4, ge=1, le=1_024)
    """Groups of atomic commits are spread over so many parts of the journal; a change holds once every transaction has ended."""
    min_free_bytes: int = Field(default=256 * 2**20, ge=0)
    """Below so much free space on the disk of a store in files nothing more is taken in; 0 for none."""
    max_principal_messages_per_second: int | None = Field(default=None, ge=1)
    """Messages a second that each principal may send, repeats too; none: as many as come."""
    max_principal_bytes_per_second: int | None = Field(default=None, ge=1)
    """… and bytes of payloads, keys and properties."""
    max_transactions_per_principal: int = Field(default=1_000, ge=1)
    """Transactions, with their checkpoints, that one principal may have in progress at the same time, and as many atomic commits;
    without tokens they are not counted."""
    max_invalid_transactions_per_principal: int = Field(default=1_000, ge=1)
    """Transactions, with their checkpoints, of one principal that may be in the list of invalid ones before it begins no more."""
    max_group_producers_per_principal: int = Field(default=10_000, ge=1)
    """Names of producers in groups of atomic commits that one principal may have taken."""
    invalid_transaction_seconds: float | None = Field(default=None, ge=0)
    """So long after it can have lived an invalid transaction leaves the list by itself, once its topics have rolled it back; 0:
    when it is pruned. By default a day, and 0 where CDAP's clients are served: what they keep elsewhere is hidden by the list."""
    max_change_set_bytes_per_principal: int = Field(default=32 * 2**20, ge=16 * 2**20)
    """Memory for keys that one principal's transactions have changed, kept while an older short transaction is in progress.
    Beyond it the oldest are dropped."""
    max_change_set_bytes: int = Field(default=128 * 2**20, ge=16 * 2**20)
    """… and those of all."""
    max_topics_per_namespace: int | None = Field(default=None, ge=1)
    """Topics that a namespace may have. By default 100,000 where this process has the store for itself, and as many as are made
    where several share it: to count together holds each new one up."""
    max_producers_per_topic: int = Field(default=200_000, ge=1, le=MOST_NAMES)
    """Names of producers that a topic may have, opened or published under, assigned ones too: 0.8 kB of memory each."""
    max_keys_per_topic: int = Field(default=1_000_000, ge=1, le=MOST_NAMES)
    """Keys of messages that a topic may have which checks what a publish expects: 0.4 kB of memory each."""
    max_subscriptions_per_topic: int = Field(default=10_000, ge=1, le=MOST_NAMES)
    """Subscriptions that a topic may have: 0.5 kB of memory each."""
    quick_writes: bool = False
    """Whether small writes to LevelDB are made without a thread while the disk is quick: less work, and less waiting, for each
    message. While a disk hangs in one, nothing is answered, probes neither."""
    drain_seconds: float = Field(default=0.0, ge=0, le=3_600)
    """After SIGTERM it says that it is not ready, and answers on for so long, each answer the last one of its connection, before
    it takes no more: as long as a load balancer may take to notice. A second SIGTERM cuts it short. Read again
    on SIGHUP."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged: this and what is worse. Read again on SIGHUP."""
    log_format: Form = "text"
    """Lines of the log, for people or as JSON. Read again on SIGHUP."""
    log_requests: bool = False
    """Whether each request leaves a line. Read again on SIGHUP."""
    slow_request_seconds: float = Field(default=5.0, ge=0)
    """A request that takes longer leaves a line that says so, not counted what it may wait for messages; 0: none does. Read again
    on SIGHUP."""
    telemetry: bool = False
    """Whether it sends a span for each request, and its metrics, to OpenTelemetry, as the variables `OTEL_…` say; needs the extra
    `otel`."""
    alarm_held_seconds: float = Field(default=60.0, gt=0)
    """A topic that a transaction holds back for so long is an alarm."""
    alarm_lag_messages: int = Field(default=1_000, ge=1)
    """A subscription with so many messages before it …"""
    alarm_lag_seconds: float = Field(default=300.0, gt=0)
    """… whose oldest is so old is an alarm."""
    metrics_topics: int = Field(default=MOST_TOPICS, ge=0, le=10_000)
    """Topics that the metrics show each by itself, those with most traffic; and as many subscriptions, those farthest behind."""
    header_timeout_seconds: float = Field(default=10.0, gt=0)
    """A connection must have sent a whole request head in this time."""
    body_timeout_seconds: float = Field(default=30.0, gt=0)
    """… and its body in this time."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: object, **__: object
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Called by pydantic. Raises BadConfigFile."""
        return (Sources(settings_cls, init_settings(), SECRETS),)

    @classmethod
    def origins(cls, given: Mapping[str, Any]) -> dict[str, Origin]:
        """Where the value of each setting comes from, with these options. Raises BadConfigFile."""
        return Sources(cls, given, SECRETS).origins()

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: object, about: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[about.field_name or ""].annotation is not bool:
            raise ValueError("Input should be a number or a text, no truth value")  # which Python takes for 0 or 1
        return value

    @model_validator(mode="before")
    @classmethod
    def _from_files(cls, given: dict[str, Any]) -> dict[str, Any]:
        read = {}
        for name in SECRETS:
            path = given.get(f"{name}_file")
            if path and given.get(name) is None:
                read[name] = secret_in(path, f"{name}_file")
        return {**given, **read}

    @field_validator(*SECRETS, mode="before")
    @classmethod
    def _without_line_end(cls, secret: object) -> object:
        return secret.rstrip("\r\n") if isinstance(secret, str) else secret

    @field_serializer("token", "transactions_token")
    def _hidden(self, secret: str | None) -> str | None:
        return None if secret is None else "…"

    @field_serializer("store")
    def _store_shown(self, url: str) -> str:
        return shown_store(url)

    @field_serializer("transactions_url")
    def _url_shown(self, url: str | None) -> str | None:
        return None if url is None else shown(url)

    @field_serializer("jwt_keys")
    def _keys_shown(self, keys: str | None) -> str | None:
        return keys if keys is None or "://" not in keys else shown(keys)

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        yield from self.model_dump().items()

    @field_validator("store")
    @classmethod
    def _known_store(cls, url: str) -> str:
        store_opener(url)
        return url

    @field_validator("tls_key", "tls_client_ca")
    @classmethod
    def _beside_a_certificate(cls, path: str | None, others: ValidationInfo) -> str | None:
        if path is not None and others.data.get("tls_certificate") is None:
            raise ValueError("it is of use only beside a certificate: --tls-certificate or ONCELOG_TLS_CERTIFICATE")
        return path

    @field_validator("transactions_url", "advertised_url")
    @classmethod
    def _known_url(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", url):
            raise ValueError(f"not the URL of a service: {shown(url)!r}; it looks like http://127.0.0.1:7071")
        return url

    @field_validator("advertised_url")
    @classmethod
    def _no_secret_advertised(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).username is not None:
            raise ValueError("it is told to everybody, so it has no user and password")
        return url

    @model_validator(mode="after")
    def _whole_issuer(self) -> Self:
        named = (self.jwt_issuer, self.jwt_audience, self.jwt_keys)
        if any(named) and not all(named):
            raise ValueError("an issuer of tokens needs all of --jwt-issuer, --jwt-audience and --jwt-keys")
        if self.jwt_keys is not None and "://" in self.jwt_keys:
            url = urlsplit(self.jwt_keys)
            if not (url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK)) or not url.hostname:
                raise ValueError("--jwt-keys is a file or an https URL: whoever can change the answer on its way makes tokens")
        if self.jwt_issuer is not None and (find_spec("jwt") is None or find_spec("cryptography") is None):
            raise ValueError("signed tokens need an extra: pip install 'oncelog[jwt]'")
        return self

    @model_validator(mode="after")
    def _pointers_of_cdap(self) -> Self:
        if self.cdap_clients and "foreign_write_pointers" in self.model_fields_set and not self.foreign_write_pointers:
            raise ValueError(
                "clients of CDAP come with write pointers of their own: --cdap-clients goes with --foreign-write-pointers on, "
                "which may be left out, and not with off"
            )
        return self

    @field_validator("telemetry")
    @classmethod
    def _traceable(cls, telemetry: bool) -> bool:
        if telemetry and (find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None):
            raise ValueError("spans and metrics over OTLP need an extra: pip install 'oncelog[otel]'")
        return telemetry

    @field_validator("allowed_hosts")
    @classmethod
    def _host_names(cls, named: str | None) -> str | None:
        for each in (named or "").split(","):
            if each.strip() and not re.fullmatch(
                r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-][A-Za-z0-9._-]*)(:[0-9]{1,5})?", each.strip()
            ):
                raise ValueError(f"not the name of a host: {each.strip()!r}; it looks like logs.example.org or logs:8080")
        return named

    @property
    def exposed_file(self) -> Path | None:
        """The config file, where a secret stands in it and others on this machine may read it."""
        if self.config is None or not self.config.stat().st_mode & 0o077:
            return None
        told = Sources(type(self), {"config": self.config}, SECRETS).in_file()
        in_urls = shown_store(str(told.get("store"))) != str(told.get("store")) or "@" in str(told.get("transactions_url"))
        return self.config if in_urls or "token" in told or "transactions_token" in told else None

    def url_of(self, host: str, port: int) -> str:
        """Returns the URL of the service at an address that it listens on."""
        return f"http{'' if self.tls_certificate is None else 's'}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def is_local(self) -> bool:
        """Tells whether this machine alone reaches the service."""
        return self.host in LOOPBACK

    @property
    def speaks_tls(self) -> bool:
        """Tells whether clients come under TLS: the service's own, or that of a proxy, since they are told to come by https."""
        return self.tls_certificate is not None or (self.advertised_url or "").startswith("https:")

    @property
    def is_locked(self) -> bool:
        """Tells whether nobody is let in without a credential, also while there is none."""
        return not self.is_local or self.tls_client_ca is not None or self.jwt_issuer is not None

    @property
    def _invalid_kept_ms(self) -> int:
        """0: until they are pruned."""
        if self.invalid_transaction_seconds is None:
            return 0 if self.cdap_clients else 86_400_000
        return round(self.invalid_transaction_seconds * 1000)

    @property
    def transaction_limits(self) -> TransactionLimits:
        """How long transactions may take."""
        longest_ms = round(self.max_transaction_timeout_seconds * 1000)
        return TransactionLimits(
            default_timeout_ms=min(round(self.transaction_timeout_seconds * 1000), longest_ms),
            max_timeout_ms=longest_ms,
            max_lifetime_ms=round(self.max_transaction_lifetime_seconds * 1000),
            max_of_one=self.max_transactions_per_principal,
            max_invalid_of_one=self.max_invalid_transactions_per_principal,
            invalid_kept_ms=self._invalid_kept_ms,
            max_kept_of_one=self.max_change_set_bytes_per_principal,
            max_kept=self.max_change_set_bytes,
        )

    @property
    def atomic_limits(self) -> AtomicLimits:
        """How long atomic commits may take."""
        longest_ms = round(self.max_atomic_timeout_seconds * 1000)
        return AtomicLimits(
            partitions=self.journal_partitions,
            default_timeout_ms=min(round(self.atomic_timeout_seconds * 1000), longest_ms),
            max_timeout_ms=longest_ms,
            max_messages=self.max_messages,
            max_of_one=self.max_transactions_per_principal,
            max_names_of_one=self.max_group_producers_per_principal,
        )

    @property
    def limits(self) -> Limits:
        """What one call on a topic may ask for."""
        return Limits(
            max_messages=self.max_messages,
            max_bare_messages=max(self.max_messages, cdap.MESSAGES) if self.cdap_clients else None,
            default_poll_messages=self.default_poll_messages,
            max_poll_messages=self.max_poll_messages,
            max_poll_bytes=self.max_poll_bytes,
            max_wait_ms=self.max_wait_ms,
            snapshot_messages=self.snapshot_messages,
            snapshot_seconds=self.snapshot_seconds,
            max_transaction_lifetime_ms=round(self.max_transaction_lifetime_seconds * 1000),
            foreign_write_pointers=self.foreign_write_pointers or self.cdap_clients,
            cdap_clients=self.cdap_clients,
            assigned_producer_ms=round(self.assigned_producer_seconds * 1000),
            max_topics=self.max_topics_per_namespace,
            max_producers=self.max_producers_per_topic,
            max_keys=self.max_keys_per_topic,
            max_subscriptions=self.max_subscriptions_per_topic,
            deduplication=self.deduplication,
            check_expected_offsets=self.check_expected_offsets,
        )


def open_file(path: Path) -> str:
    """What is said of a file of settings with secrets that others may read."""
    return f"secrets stand in {path}, and others on this machine may read it; close it: chmod go= {path}"


class TransactionServiceSettings(Settings):
    """How a transaction service runs alone: the same settings, and other defaults, so that both can run on one machine."""

    only_transactions: ClassVar[bool] = True

    port: int = Field(default=7071, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    store: str = Field(default_factory=lambda: default_store(Path(DEFAULT_TRANSACTIONS_DATA)))
    """Where the data lies: leveldb:///absolute/path, leveldb://relative/path, sqlite:///absolute/path,
    postgresql+psycopg://user:password@host:port/database, memory://. Default: ./oncelog-transactions, as
    what lies there, else on LevelDB, or on SQLite where plyvel is not installed."""
