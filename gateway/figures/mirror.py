"""The figures of the whole cluster at this gateway: its own share, and those of all other gateways.

    Share of this process ─┐
    gateway 2: topics, groups ─┼─▶ HeldShare each ─▶ merged rows ─▶ tables with sorted indexes
    gateway 3: (silent)        ─┘

While the mirror is asked, it asks every other gateway each second for the rows that changed. A
gateway that leaves the cluster is forgotten; one that does not answer is silent. About 0.7 KB is
held for each partition and 1.6 KB for each group: 38 MB for 30,000 partitions and 10,000 groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from gateway.cluster.port import ClusterMember, StreamKey
from gateway.figures.held import GROUPS, TOPICS, HeldShare, Silence, groups_from, parts_from
from gateway.figures.merged import (
    GROUP_ORDERS,
    TOPIC_ORDERS,
    GroupFigures,
    HeldPartition,
    TopicFigures,
    group_figures,
    merge_group,
    merge_partitions,
    topic_figures,
)
from gateway.figures.peer_questions import NoAnswer, other_members, questions_of
from gateway.figures.rows import READ_ONLY, group_bytes, part_bytes
from gateway.figures.slices import Refreshed, Slices
from gateway.figures.tables import Table

if TYPE_CHECKING:
    from gateway.figures.peer_questions import Ask
    from gateway.figures.share import Share
    from gateway.figures.versions import VersionedRows
    from gateway.handlers.api import Context
    from gateway.topics.catalog import Topic

Row = TypeVar("Row")

SILENT_S: Final = 3.0
"""How long a silent gateway is not asked, so that the figures of the others do not wait for it."""

_OWN_WAIT_S: Final = 2.0  # for the first sample of this process
_OWN_BYTES: Final = 16 * 1024  # of rows that are taken from this process in one step
_ANSWERS_MAX: Final = 10_000  # of one gateway to one question: an end, if it never ends


class MemberState(NamedTuple):
    """One gateway of the cluster, with what it leads. None is unknown."""

    member: ClusterMember
    partitions: int | None
    groups: int | None
    silence: Silence | None


class Mirror:
    """Tables of all topics and groups. They are asked for and kept up to date by `tables`."""

    def __init__(self, ctx: Context, share: Share, ask: Ask | None = None) -> None:
        self._ctx = ctx
        self._share = share
        self._ask = ask or questions_of(ctx).ask
        self._own = HeldShare(ctx.cluster.node_id)
        # The other live gateways and what they sent. A gateway that began anew is another member.
        self._held: dict[ClusterMember, HeldShare] = {}
        self.topics: Table[TopicFigures] = Table(TOPIC_ORDERS)
        self.groups: Table[GroupFigures] = Table(GROUP_ORDERS)
        # The read-only groups again: the queries of Spark.
        self.queries: Table[GroupFigures] = Table(GROUP_ORDERS)
        # The partitions of each topic that some gateway sent.
        self._partitions: dict[str, dict[int, HeldPartition]] = {}
        # The groups that have an offset in a topic.
        self._groups_of: dict[str, set[str]] = {}
        # The topics of the catalog as last read.
        self._listed: list[Topic] | None = None
        self._known: dict[str, Topic] = {}
        # Names whose figures are due.
        self._due_topics: set[str] = set()
        self._due_groups: set[str] = set()
        # Names whose last merge an error ended.
        self._tried: set[str] = set()
        # Names whose figures were computed, but are not in all indexes yet: after an error the next
        # refresh goes on with them.
        self._unindexed_topics: set[str] = set()
        self._unindexed_groups: set[str] = set()
        self._hurried = True  # until the first tables are complete
        self._refreshed = Refreshed("the figures of all gateways", self._refresh)

    async def fresh(self) -> Mirror:
        """Return this mirror with figures of the last seconds, which go on while it is asked."""
        await self._refreshed.get()
        return self

    async def close(self) -> None:
        await self._refreshed.close()

    # -- what pages show ------------------------------------------------------------------------

    def topic(self, name: str) -> TopicFigures | None:
        return self.topics.rows.get(name)

    def group(self, name: str) -> GroupFigures | None:
        return self.groups.rows.get(name)

    def partitions(self, topic: str) -> dict[int, HeldPartition]:
        """Return the partitions of a topic of which some gateway sent figures."""
        return self._partitions.get(topic, {})

    def members(self) -> list[MemberState]:
        """Return all live gateways by node id."""
        now_s = asyncio.get_running_loop().time()
        found: list[MemberState] = []
        for member in self._ctx.cluster.members():
            if member.node_id == self._own.node_id:
                found.append(self._state(member, self._own, now_s))
                continue
            held = self._held.get(member._replace(leaving=False))
            found.append(
                MemberState(member, None, None, Silence("not asked yet", None))
                if held is None
                else self._state(member, held, now_s)
            )
        return found

    def silent(self) -> dict[int, Silence]:
        """Return the gateways that do not answer, by node id."""
        return {
            each.member.node_id: each.silence for each in self.members() if each.silence is not None
        }

    def _state(self, member: ClusterMember, held: HeldShare, now_s: float) -> MemberState:
        silence = None
        if held.silent is not None:
            age_s = None if held.answered_s is None else round(now_s - held.answered_s, 1)
            silence = Silence(held.silent, age_s)
        if held.answered_s is None:
            return MemberState(member, None, None, silence)
        return MemberState(member, held.partition_count, len(held.groups), silence)

    # -- asking ---------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        slices = Slices(hurried=self._hurried)
        members = other_members(self._ctx)
        for member in [each for each in self._held if each not in members]:
            self._forget(self._held.pop(member))
        for member in members:
            self._held.setdefault(member, HeldShare(member.node_id))
        await asyncio.gather(
            self._take_own(slices), *(self._update(each, self._held[each]) for each in members)
        )
        await questions_of(self._ctx).keep_only(members)
        await self._take_catalog(slices)
        await self._merge(slices)
        await self.topics.index_again(slices, self._unindexed_topics)
        self._unindexed_topics.clear()
        await self.groups.index_again(slices, self._unindexed_groups)
        await self.queries.index_again(slices, self._unindexed_groups)
        self._unindexed_groups.clear()
        self._hurried = False

    def _forget(self, held: HeldShare) -> None:
        self._due_topics.update(held.topics)
        self._due_groups.update(held.groups)

    async def _take_own(self, slices: Slices) -> None:
        own, share = self._own, self._share
        await share.fresh(_OWN_WAIT_S if self._hurried else 0.5)
        if share.sampled_s is None:
            own.silent = "its first sample is not complete"
            return
        own.silent, own.answered_s = None, share.sampled_s
        await self._take_table(
            TOPICS, share.topics, part_bytes, own.take_parts, self._due_topics, slices
        )
        await self._take_table(
            GROUPS, share.groups, group_bytes, own.take_groups, self._due_groups, slices
        )

    async def _take_table(
        self,
        what: str,
        table: VersionedRows[Any, Row],
        bytes_of: Callable[[Row], int],
        take: Callable[[list[Row], list[Any]], Iterable[str]],
        due: set[str],
        slices: Slices,
    ) -> None:
        """Take what changed in a table of this process, in pieces. Its names are due."""
        own, more = self._own, True
        while more:
            found = table.changes(own.versions[what], bytes_of, _OWN_BYTES)
            due.update(own.forget(what) if found.whole else ())
            due.update(take(found.rows, found.gone))
            own.versions[what], more = found.version, found.more
            if slices.spent(len(found.rows) + len(found.gone)):
                await slices.rest()

    async def _update(self, member: ClusterMember, held: HeldShare) -> None:
        """Take what changed at one gateway. Without an answer it is silent."""
        loop = asyncio.get_running_loop()
        was_silent = held.silent is not None
        if was_silent and loop.time() < held.again_s:
            return
        try:
            for what in (TOPICS, GROUPS):
                await self._update_one(what, member, held)
        except NoAnswer as error:
            held.silent = str(error)
        except (KeyError, TypeError, ValueError) as error:
            held.silent = f"its answer cannot be read: {type(error).__name__}"
        else:
            held.silent = None
            held.answered_s = loop.time()
        held.again_s = loop.time() + SILENT_S
        if was_silent != (held.silent is not None):
            self._forget(held)  # its rows are merged again: they are now silent, or no longer
            self._due_topics.update(self._incomplete())

    def _incomplete(self) -> Iterator[str]:
        for name, row in self.topics.rows.items():
            if row.known_partitions < row.partitions:
                yield name

    async def _update_one(self, what: str, member: ClusterMember, held: HeldShare) -> None:
        for _ in range(_ANSWERS_MAX):
            body = {"ask": what, "after": held.versions[what], "process": held.process}
            answer = await self._ask(member, body)
            process = str(answer["process"])
            if process != held.process:  # the first answer, or it began anew
                self._forget(held)
                held.forget(TOPICS)
                held.forget(GROUPS)
                held.process, held.versions = process, {TOPICS: 0, GROUPS: 0}
                if not answer["whole"]:
                    continue
            self._take(what, held, answer)
            held.versions[what] = int(answer["version"])
            await asyncio.sleep(0)
            if not answer["more"]:
                return

    def _take(self, what: str, held: HeldShare, answer: dict[str, Any]) -> None:
        due = self._due_topics if what == TOPICS else self._due_groups
        if answer["whole"] and held.versions[what]:
            due.update(held.forget(what))
        if what == TOPICS:
            due.update(held.take_parts(parts_from(answer["rows"]), answer["gone"]))
        else:
            due.update(held.take_groups(groups_from(answer["rows"]), answer["gone"]))

    # -- merging --------------------------------------------------------------------------------

    async def _take_catalog(self, slices: Slices) -> None:
        """Note topics that were created, changed or deleted since the last time."""
        listed = self._ctx.catalog.all()
        if listed is self._listed:
            return
        names: set[str] = set()
        for topic in listed:
            names.add(topic.name)
            if self._known.get(topic.name) is not topic:
                self._known[topic.name] = topic
                self._due_topics.add(topic.name)
            await slices.pause()
        for name in [name for name in self._known if name not in names]:
            del self._known[name]
            self._due_topics.add(name)
            await slices.pause()
        self._listed = listed

    async def _merge(self, slices: Slices) -> None:
        """Compute what is due: topics, then the groups that read them."""
        shares = [self._own, *self._held.values()]
        silent = any(each.silent is not None for each in shares)
        for name in _each_due(self._due_topics, self._tried):
            self._unindexed_topics.add(name)
            self._merge_topic(name, shares, silent=silent)
            self._due_groups.update(self._groups_of.get(name, ()))
            await slices.pause()
        for name in _each_due(self._due_groups, self._tried):
            self._unindexed_groups.add(name)
            self._merge_group(name, shares)
            await slices.pause()

    def _merge_topic(self, name: str, shares: list[HeldShare], *, silent: bool) -> None:
        topic = self._known.get(name)
        if topic is None:
            self.topics.rows.pop(name, None)
            self._partitions.pop(name, None)
            return
        cluster, topic_id = self._ctx.cluster, topic.topic_id
        held = merge_partitions(
            name, shares, lambda index: cluster.leader(StreamKey(topic_id, index)).node_id
        )
        self._partitions[name] = held
        self.topics.rows[name] = topic_figures(
            name,
            topic.partitions,
            held,
            internal=topic.is_internal,
            has_streams=topic.has_streams,
            silent=silent,
        )

    def _merge_group(self, name: str, shares: list[HeldShare]) -> None:
        before = self.groups.rows.get(name)
        held = merge_group(name, shares)
        topics = frozenset(() if held is None else held.row.positions or ())
        for topic in () if before is None else before.topics:
            if topic not in topics:
                self._forget_reader(topic, name)
        self.queries.rows.pop(name, None)
        if held is None:
            self.groups.rows.pop(name, None)
            return
        for topic in topics:
            self._groups_of.setdefault(topic, set()).add(name)
        figures = self.groups.rows[name] = group_figures(held, self.partitions)
        if figures.type == READ_ONLY:
            self.queries.rows[name] = figures

    def _forget_reader(self, topic: str, group: str) -> None:
        readers = self._groups_of.get(topic)
        if readers is not None:
            readers.discard(group)
            if not readers:
                del self._groups_of[topic]

    def positions(self, group: str) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the offsets of a group by topic as the gateways sent them. Empty if unknown."""
        held = merge_group(group, [self._own, *self._held.values()])
        return {} if held is None else dict(held.row.positions or {})


def _each_due(due: set[str], tried: set[str]) -> Iterator[str]:
    """Yield what is due, and take it from the set once it is merged.

    A name whose merge ends with an error stays due for one more refresh. After a second error it is
    left out, so that the others go on.
    """
    for name in list(due):
        if name in tried:
            due.discard(name)
        tried.add(name)
        yield name
        due.discard(name)
        tried.discard(name)
