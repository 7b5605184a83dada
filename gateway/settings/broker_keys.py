"""The broker configs of Kafka 4.3: those that can be altered at runtime, and the names of the rest.

Most of them have no effect here. Tools set and show them, so they are checked and stored as Kafka
does. Source: Kafka, DynamicBrokerConfig and AbstractKafkaConfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.topics.config_keys import ConfigKey, ConfigType
from gateway.topics.configs import TOPIC_KEYS

_NO_EFFECT = "No effect: this broker stores and shows the value."

# Name, type, smallest scope, default, least and greatest value, allowed values. A `-` stands for
# no value, "" for an empty default, and a word in capitals for a long one.
_TABLE = """
background.threads INT cluster 10 1 - -
compression.gzip.level INT cluster -1 -1 9 -
compression.lz4.level INT cluster 9 1 17 -
compression.type STRING cluster producer - - uncompressed|zstd|lz4|snappy|gzip|producer
compression.zstd.level INT cluster 3 -131072 22 -
config.providers LIST cluster "" - - -
cordoned.log.dirs LIST broker "" - - -
follower.fetch.last.tiered.offset.enable BOOLEAN cluster false - - -
follower.replication.throttled.rate LONG cluster 9223372036854775807 0 - -
group.consumer.assignment.interval.ms INT cluster 1000 0 - -
group.coordinator.cached.buffer.max.bytes INT cluster 1048588 524288 - -
group.share.assignment.interval.ms INT cluster 1000 0 - -
group.streams.assignment.interval.ms INT cluster 1000 0 - -
leader.replication.throttled.rate LONG cluster 9223372036854775807 0 - -
listener.security.protocol.map STRING broker MAP - - -
listeners LIST broker PLAINTEXT://:9092 - - -
log.cleaner.backoff.ms LONG cluster 15000 0 - -
log.cleaner.dedupe.buffer.size LONG cluster 134217728 - - -
log.cleaner.delete.retention.ms LONG cluster 86400000 0 - -
log.cleaner.io.buffer.load.factor DOUBLE cluster 0.9 - - -
log.cleaner.io.buffer.size INT cluster 524288 0 - -
log.cleaner.io.max.bytes.per.second DOUBLE cluster 1.7976931348623157E308 - - -
log.cleaner.max.compaction.lag.ms LONG cluster 9223372036854775807 1 - -
log.cleaner.min.cleanable.ratio DOUBLE cluster 0.5 0 1 -
log.cleaner.min.compaction.lag.ms LONG cluster 0 0 - -
log.cleaner.threads INT cluster 1 0 - -
log.cleanup.policy LIST cluster delete - - compact|delete
log.flush.interval.messages LONG cluster 9223372036854775807 1 - -
log.flush.interval.ms LONG cluster - - - -
log.index.interval.bytes INT cluster 4096 0 - -
log.index.size.max.bytes INT cluster 10485760 4 - -
log.local.retention.bytes LONG cluster -2 -2 - -
log.local.retention.ms LONG cluster -2 -2 - -
log.message.timestamp.after.max.ms LONG cluster 3600000 0 - -
log.message.timestamp.before.max.ms LONG cluster 9223372036854775807 0 - -
log.message.timestamp.type STRING cluster CreateTime - - CreateTime|LogAppendTime
log.preallocate BOOLEAN cluster false - - -
log.retention.bytes LONG cluster -1 - - -
log.retention.ms LONG cluster - - - -
log.roll.jitter.ms LONG cluster - - - -
log.roll.ms LONG cluster - - - -
log.segment.bytes INT cluster 1073741824 1048576 - -
log.segment.delete.delay.ms LONG cluster 60000 0 - -
max.connection.creation.rate INT cluster 2147483647 0 - -
max.connections INT cluster 2147483647 0 - -
max.connections.per.ip INT cluster 2147483647 0 - -
max.connections.per.ip.overrides STRING cluster "" - - -
message.max.bytes INT cluster 1048588 0 - -
metric.reporters LIST cluster REPORTER - - -
min.insync.replicas INT cluster 1 1 - -
num.io.threads INT cluster 8 1 - -
num.network.threads INT cluster 3 1 - -
num.recovery.threads.per.data.dir INT cluster 2 1 - -
num.replica.fetchers INT cluster 1 1 - -
principal.builder.class CLASS broker BUILDER - - -
producer.id.expiration.ms INT cluster 86400000 1 - -
remote.fetch.max.wait.ms INT cluster 500 1 - -
remote.list.offsets.request.timeout.ms LONG cluster 30000 1 - -
remote.log.index.file.cache.total.size.bytes LONG cluster 1073741824 1 - -
remote.log.manager.copier.thread.pool.size INT cluster 10 1 - -
remote.log.manager.copy.max.bytes.per.second LONG cluster 9223372036854775807 1 - -
remote.log.manager.expiration.thread.pool.size INT cluster 10 1 - -
remote.log.manager.fetch.max.bytes.per.second LONG cluster 9223372036854775807 1 - -
remote.log.manager.follower.thread.pool.size INT cluster 2 1 - -
remote.log.reader.threads INT cluster 10 1 - -
replica.alter.log.dirs.io.max.bytes.per.second LONG cluster 9223372036854775807 0 - -
sasl.enabled.mechanisms LIST broker GSSAPI - - -
sasl.jaas.config PASSWORD broker - - - -
sasl.kerberos.kinit.cmd STRING broker /usr/bin/kinit - - -
sasl.kerberos.min.time.before.relogin LONG broker 60000 - - -
sasl.kerberos.principal.to.local.rules LIST broker DEFAULT - - -
sasl.kerberos.service.name STRING broker - - - -
sasl.kerberos.ticket.renew.jitter DOUBLE broker 0.05 - - -
sasl.kerberos.ticket.renew.window.factor DOUBLE broker 0.8 - - -
sasl.login.refresh.buffer.seconds SHORT broker 300 - - -
sasl.login.refresh.min.period.seconds SHORT broker 60 - - -
sasl.login.refresh.window.factor DOUBLE broker 0.8 - - -
sasl.login.refresh.window.jitter DOUBLE broker 0.05 - - -
sasl.mechanism.inter.broker.protocol STRING broker GSSAPI - - -
share.coordinator.cached.buffer.max.bytes INT cluster 1048588 524288 - -
ssl.cipher.suites LIST broker "" - - -
ssl.client.auth STRING broker none - - required|requested|none
ssl.enabled.protocols LIST broker TLSv1.2,TLSv1.3 - - -
ssl.endpoint.identification.algorithm STRING broker https - - -
ssl.engine.factory.class CLASS broker - - - -
ssl.key.password PASSWORD broker - - - -
ssl.keymanager.algorithm STRING broker SunX509 - - -
ssl.keystore.certificate.chain PASSWORD broker - - - -
ssl.keystore.key PASSWORD broker - - - -
ssl.keystore.location STRING broker - - - -
ssl.keystore.password PASSWORD broker - - - -
ssl.keystore.type STRING broker JKS - - -
ssl.protocol STRING broker TLSv1.3 - - -
ssl.provider STRING broker - - - -
ssl.secure.random.implementation STRING broker - - - -
ssl.trustmanager.algorithm STRING broker PKIX - - -
ssl.truststore.certificates PASSWORD broker - - - -
ssl.truststore.location STRING broker - - - -
ssl.truststore.password PASSWORD broker - - - -
ssl.truststore.type STRING broker JKS - - -
transaction.partition.verification.enable BOOLEAN cluster true - - -
unclean.leader.election.enable BOOLEAN cluster false - - -
"""

_LONG_DEFAULTS = {
    "-": None,
    '""': "",
    "MAP": "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "BUILDER": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    "REPORTER": "org.apache.kafka.common.metrics.JmxReporter",
}

_STATIC = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
advertised.listeners alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name
auto.create.topics.enable auto.leader.rebalance.enable broker.heartbeat.interval.ms broker.id
broker.rack broker.session.timeout.ms client.quota.callback.class
connection.failed.authentication.delay.ms connections.max.idle.ms connections.max.reauth.ms
controlled.shutdown.enable controller.listener.names
controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
controller.quorum.append.linger.ms controller.quorum.auto.join.enable
controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms
create.topic.policy.class.name default.replication.factor
delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
delegation.token.max.lifetime.ms delegation.token.secret.key
delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners
fetch.max.bytes fetch.purgatory.purge.interval.requests group.consumer.assignors
group.consumer.heartbeat.interval.ms group.consumer.max.assignment.interval.ms
group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms
group.consumer.max.size group.consumer.migration.policy
group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms
group.consumer.session.timeout.ms group.coordinator.append.linger.ms
group.coordinator.background.threads group.coordinator.rebalance.protocols
group.coordinator.threads group.initial.rebalance.delay.ms group.max.session.timeout.ms
group.max.size group.min.session.timeout.ms group.share.assignors
group.share.delivery.count.limit group.share.heartbeat.interval.ms
group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
group.share.partition.max.record.locks group.share.persister.class.name
group.share.record.lock.duration.ms group.share.session.timeout.ms
group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
group.streams.max.session.timeout.ms group.streams.max.size group.streams.max.standby.replicas
group.streams.min.assignment.interval.ms group.streams.min.heartbeat.interval.ms
group.streams.min.session.timeout.ms group.streams.num.standby.replicas
group.streams.session.timeout.ms initial.broker.registration.timeout.ms
inter.broker.listener.name internal.metadata.delete.delay.millis
internal.metadata.log.segment.bytes internal.metadata.max.batch.size.in.bytes
kafka.metrics.polling.interval.secs kafka.metrics.reporters
leader.imbalance.check.interval.seconds log.cleaner.enable log.dir log.dir.failure.timeout.ms
log.dirs log.flush.offset.checkpoint.interval.ms log.flush.scheduler.interval.ms
log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms
log.retention.check.interval.ms log.retention.hours log.retention.minutes log.roll.hours
log.roll.jitter.hours max.incremental.fetch.session.cache.slots max.request.partition.size.limit
metadata.log.dir metadata.log.max.record.bytes.between.snapshots
metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.ms
metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
metrics.num.samples metrics.recording.level metrics.sample.window.ms node.id num.partitions
num.replica.alter.log.dirs.threads offset.metadata.max.bytes offsets.commit.timeout.ms
offsets.load.buffer.size offsets.retention.check.interval.ms offsets.retention.minutes
offsets.topic.compression.codec offsets.topic.num.partitions offsets.topic.replication.factor
offsets.topic.segment.bytes process.roles producer.id.expiration.check.interval.ms
producer.purgatory.purge.interval.requests queued.max.request.bytes queued.max.requests
quota.window.num quota.window.size.seconds remote.log.index.file.cache.ttl.ms
remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
remote.log.storage.system.enable replica.fetch.backoff.ms replica.fetch.max.bytes
replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism.controller.protocol sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class
sasl.server.max.receive.size security.inter.broker.protocol security.providers
server.max.startup.time.ms share.coordinator.append.linger.ms
share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
share.coordinator.threads share.coordinator.write.timeout.ms
share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms socket.listen.backlog.size socket.receive.buffer.bytes
socket.request.max.bytes socket.send.buffer.bytes ssl.allow.dn.changes ssl.allow.san.changes
ssl.principal.mapping.rules telemetry.max.bytes
transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
transaction.remove.expired.transaction.cleanup.interval.ms
transaction.state.log.load.buffer.size transaction.state.log.min.isr
transaction.state.log.num.partitions transaction.state.log.replication.factor
transaction.state.log.segment.bytes transaction.two.phase.commit.enable
transactional.id.expiration.ms unclean.leader.election.interval.ms unstable.api.versions.enable
unstable.feature.versions.enable
"""

# Topic configs whose broker config can be altered under another name than their synonym has, which
# is the one that has the default.
_ALTERED_AS = {
    "flush.ms": "log.flush.interval.ms",
    "retention.ms": "log.retention.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}

# The names of one setting, the most precise one first.
_SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_CLEANER = {
    "log.cleaner.backoff.ms": "How long the log cleaner waits if no topic is due.",
    "log.cleaner.dedupe.buffer.size": "The memory for keys of the log cleaner, 32 bytes for each.",
    "log.cleaner.io.max.bytes.per.second": "The limit of reads and writes of the log cleaner.",
}
_GROUPS = {
    "group.consumer.assignment.interval.ms": "The time between two assignments of a group.",
}
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")
_OF_MECHANISMS = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
_OF_ALL_LISTENERS = ("max.connections", "max.connection.creation.rate", "num.network.threads")


def _keys() -> Mapping[str, ConfigKey]:
    about = {broker: TOPIC_KEYS[topic].about for topic, broker in TOPIC_DEFAULTS.items()}
    about |= _CLEANER | _GROUPS
    found: dict[str, ConfigKey] = {}
    for line in _TABLE.split("\n"):
        if not line:
            continue
        name, type_, _, default, low, high, allowed = line.split(" ")
        found[name] = ConfigKey(
            name=name,
            type=ConfigType[type_],
            default=_LONG_DEFAULTS.get(default, default),
            about=about.get(name, _NO_EFFECT),
            at_least=None if low == "-" else int(low),
            at_most=None if high == "-" else int(high),
            one_of=() if allowed == "-" else tuple(allowed.split("|")),
        )
    return found


TOPIC_DEFAULTS: Final[Mapping[str, str]] = {
    name: _ALTERED_AS.get(name, key.synonyms[0][0])
    for name, key in TOPIC_KEYS.items()
    if key.synonyms
}
"""The broker config for the default of each topic config that has one."""

BROKER_KEYS: Final = _keys()
"""The configs that can be altered at runtime, by name."""

STATIC_NAMES: Final = frozenset(_STATIC.split())
"""The configs of Kafka that only a restart changes."""

SECURITY_NAMES: Final = frozenset(
    name for name in BROKER_KEYS if name.startswith(("ssl.keystore.", "ssl.truststore."))
) | {"ssl.key.password"}
"""Configs that can be altered only for a single listener, under its prefix."""

_PER_BROKER = frozenset(
    name for name, _, scope, *_ in map(str.split, _TABLE.split("\n")[1:-1]) if scope == "broker"
)


def base_name(name: str) -> str:
    """Return the name without the prefix of a listener, if it has one."""
    found = _LISTENER.fullmatch(name)
    return name if found is None else found[1]


def is_per_broker(name: str) -> bool:
    """Return whether the config has no default for the whole cluster."""
    base = base_name(name)
    return name in _PER_BROKER or (base != name and base not in _OF_ALL_LISTENERS)


def synonyms(name: str) -> tuple[str, ...]:
    """Return the names of one setting, in the order in which a broker looks for a value."""
    for names in _SYNONYMS:
        if name in names:
            return names
    if name == _FLUSH[0]:
        return _FLUSH
    base = base_name(name)
    if base == name:
        return (name,)
    return name, next((each for each in _OF_MECHANISMS if base.endswith(each)), base)


def key_of(name: str) -> ConfigKey | None:
    """Return the key of a config, also under the prefix of a listener. None for unknown ones."""
    return next((BROKER_KEYS[each] for each in synonyms(name) if each in BROKER_KEYS), None)
