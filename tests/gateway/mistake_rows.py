"""The mistakes of users: what they type, the exact lines that they get, and the exit code.

To add one, add a row to the part of `TABLE` that fits, and run `python -m
tests.gateway.forty_mistakes`, which writes the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

VARIES = "..."  # in what is printed: any text of one line, such as a port or a path
LONG_NAME = "shipments-of-last-year-by-country"  # a topic
SERVER = "{server}"  # in a command: the address of the server of the row


class Where(Enum):
    """Where a command runs, and where its output goes. The value ends its line in the document."""

    here = ""
    process = " "  # as `here`, but in a process of its own
    terminal = "   # a terminal of 40 columns"
    closed_pipe = " | true"
    full = " > /dev/full"
    interrupted = "   # and Ctrl-C"


class Server(Enum):
    """The server that a command finds."""

    shared = "a gateway"
    http = "a web server"
    silent = "a server that stands still"
    cut = "a server that stops in the middle of an answer"


class Mistake(NamedTuple):
    """One mistake. `err` and `out` are all that the command prints; see `VARIES`."""

    title: str
    command: str  # the words after `gateway`, as for a shell
    code: int
    err: str = ""
    out: str = ""
    stdin: str = ""
    env: Mapping[str, str] = {}
    profiles: str = ""  # the text of the file of profiles
    mode: int = 0o600  # of that file
    where: Where = Where.here
    server: Server = Server.shared


EXISTS = "already exists; pass --if-not-exists to leave it as it is"
NO_SERVER = "start one with `gateway dev`, or name it with --bootstrap host:port"
NOTHING = "wrote 0 records to inbox\n"
TIMES = "2026-05-01T12:00:00 (UTC) or 2026-05-01T12:00:00+02:00"
PROTECTED = '[profiles.prod]\nbootstrap = "127.0.0.1:9092"\nprotected = true\n'
CREATE = "topic create orders"

COMMANDS = (
    Mistake(
        "A command with a wrong letter",
        "topik",
        2,
        "gateway: no command topik: did you mean topic or top?; see `gateway --help`",
    ),
    Mistake(
        "Half a command",
        "serv",
        2,
        "gateway: no command serv: did you mean serve or user?; see `gateway --help`",
    ),
    Mistake(
        "A command of a group with a wrong letter",
        "topic creat orders",
        2,
        "gateway: no command creat: did you mean create?; see `gateway topic --help`",
    ),
    Mistake(
        "A flag with a wrong letter",
        "dev --prot 1",
        2,
        "gateway: no option --prot: did you mean --port?; see `gateway dev --help`",
    ),
    Mistake(
        "A flag with a letter left out",
        "topic create --partitons 3 x",
        2,
        "gateway: no option --partitons: did you mean --partitions?; "
        "see `gateway topic create --help`",
    ),
    Mistake(
        "No topic",
        "topic create",
        2,
        "gateway: TOPIC... is missing (Names of the topics); see `gateway topic create --help`",
    ),
    Mistake(
        "A flag without its value",
        "topic list --output",
        2,
        "gateway: --output needs a value; see `gateway topic list --help`",
    ),
    Mistake(
        "A value for a flag that takes none",
        "topic list --no-header=1",
        2,
        "gateway: --no-header takes no value; see `gateway topic list --help`",
    ),
    Mistake(
        "A form of output that does not exist",
        "topic list -o xml",
        2,
        "gateway: --output xml: must be table, wide, json, jsonl or csv",
    ),
    Mistake(
        "A column with a letter left out",
        "topic list --columns nme",
        2,
        "gateway: --columns nme: there is no column 'nme': did you mean name?",
    ),
    Mistake(
        "A wrong flag of a script that reads JSON",
        "topic list -o json --sort sise",
        2,
        '{"error": "--sort sise: must be name, size or rate", "code": "USAGE"}',
    ),
    Mistake(
        "A wrong value in a variable",
        "bookie list",
        2,
        "gateway: GATEWAY_BOOKIE_TRANSPORT udp: must be tcp or grpc",
        env={"GATEWAY_BOOKIE_TRANSPORT": "udp"},
    ),
)

SERVERS = (
    Mistake(
        "A port that no port can be",
        "dev --port 99999",
        78,
        "gateway: --port 99999: must be a whole number between 0 and 65535",
    ),
    Mistake(
        "A port that is in use",
        f"dev --port {SERVER}",
        78,
        "gateway: --port ...: in use on 127.0.0.1; pass another --port",
        where=Where.process,
    ),
    Mistake(
        "A data directory below a file",
        "dev --data /dev/null/data",
        78,
        "gateway: --data /dev/null/data: /dev/null is not a directory",
    ),
    Mistake(
        "A number of bookies that keeps no copies apart",
        "dev --bookies 2",
        78,
        "gateway: --bookies 2: must be 1 or 3",
    ),
    Mistake(
        "No bookies at all",
        "cluster up --bookies 0",
        2,
        "gateway: --bookies 0: must be a whole number between 1 and 9",
    ),
    Mistake(
        "More copies than Kafka can count",
        "topic create many --replication-factor 40000",
        2,
        "gateway: --replication-factor 40000: must be a whole number between 1 and 32767; "
        "leave the option out for the server's default",
    ),
    Mistake(
        "A file of settings that is not there",
        "dev --config /nowhere/gateway.toml",
        78,
        "gateway: --config /nowhere/gateway.toml: No such file or directory",
    ),
    Mistake(
        "A cluster without ZooKeeper",
        "serve",
        78,
        "gateway: --zookeeper is missing (ZooKeeper servers); pass it, or set GATEWAY_ZOOKEEPER",
    ),
)

CONNECTIONS = (
    Mistake(
        "No server",
        "topic list -b 127.0.0.1:1",
        69,
        f"gateway: no server at 127.0.0.1:1: Connection refused; {NO_SERVER}",
    ),
    Mistake(
        "No server, for a script",
        "topic list -b 127.0.0.1:1 -o json",
        69,
        f'{{"error": "no server at 127.0.0.1:1: Connection refused; {NO_SERVER}", '
        '"code": "UNREACHABLE"}',
    ),
    Mistake(
        "A host without a port",
        "topic list -b gateway-1",
        2,
        "gateway: --bootstrap: 'gateway-1' is not host:port, for example 127.0.0.1:9092",
    ),
    Mistake(
        "A URL in place of a host",
        "topic list -b http://gateway:9092",
        2,
        "gateway: --bootstrap: 'http://gateway:9092' is not host:port, for example 127.0.0.1:9092",
    ),
    Mistake(
        "A host without a port, in a variable",
        "topic list",
        2,
        "gateway: GATEWAY_BOOTSTRAP: 'gateway-1' is not host:port, for example 127.0.0.1:9092",
        env={"GATEWAY_BOOTSTRAP": "gateway-1"},
    ),
    Mistake(
        "The port of a web server",
        f"topic list -b {SERVER}",
        69,
        f"gateway: ... does not speak Kafka's protocol; {NO_SERVER}",
        server=Server.http,
    ),
    Mistake(
        "A server that stops in the middle of an answer",
        f"topic consume t --retry 300ms -b {SERVER}",
        69,
        "gateway: ... closed the connection; try again, and look into its log",
        server=Server.cut,
    ),
    Mistake(
        "A server that stands still",
        f"topic list -b {SERVER}",
        130,
        where=Where.interrupted,
        server=Server.silent,
    ),
    Mistake(
        "SASL without a mechanism",
        "topic list",
        78,
        "gateway: security.protocol=SASL_SSL: sasl.mechanism=: must be PLAIN, SCRAM-SHA-256, "
        "SCRAM-SHA-512, OAUTHBEARER; nothing was sent",
        env={"GATEWAY_SECURITY_PROTOCOL": "SASL_SSL"},
    ),
    Mistake(
        "Servers of ZooKeeper without a port",
        "bookie list -z zookeeper-1",
        2,
        "gateway: --zookeeper zookeeper-1: must be host:port, or several separated by commas, "
        "with an optional /chroot",
    ),
)

PROFILES = (
    Mistake(
        "A malformed profile",
        "topic list",
        78,
        "gateway: ...config.toml line 1: expected ']' at the end of a table declaration",
        profiles='[profiles.prod\nbootstrap = "127.0.0.1:9092"\n',
    ),
    Mistake(
        "An unknown key in a profile",
        "topic list",
        78,
        "gateway: ...config.toml line 2: unknown key bootstrp: did you mean bootstrap?",
        profiles='[profiles.prod]\nbootstrp = "127.0.0.1:9092"\n',
    ),
    Mistake(
        "A password that other users may read",
        "topic list",
        78,
        "gateway: ...config.toml holds a secret (sasl.password of profile prod) that others may "
        "read; run chmod 600 ...config.toml",
        profiles='[profiles.prod.sasl]\n"sasl.password" = "secret"\n',
        mode=0o644,
    ),
    Mistake(
        "A profile that does not exist",
        "topic list --profile prot",
        2,
        "gateway: --profile prot: there is no such profile: did you mean prod?; "
        "`gateway profile list` lists all",
        profiles=PROTECTED,
    ),
    Mistake(
        "A change on a protected profile, by a script",
        "topic delete orders --yes --profile prod",
        2,
        "gateway: this permanently deletes topic orders and all its data, on the protected profile "
        "prod; add --yes-on prod to do it",
        profiles=PROTECTED,
    ),
)

TOPICS = (
    Mistake(
        "A topic that exists",
        "topic create orders -o json",
        1,
        f'{{"error": "Topic \'orders\' {EXISTS}", "code": "TOPIC_ALREADY_EXISTS"}}',
    ),
    Mistake(
        "A topic that does not exist",
        "topic describe ordres",
        1,
        "gateway: Topic 'ordres' does not exist; see `gateway topic list`",
    ),
    Mistake(
        "A name that Kafka does not allow",
        "topic create 'my orders'",
        1,
        "gateway: Topic name is invalid: 'my orders' contains one or more characters other than "
        "ASCII alphanumerics, '.', '_' and '-'",
    ),
    Mistake(
        "A deletion by a script, without --yes",
        "topic delete orders",
        2,
        "gateway: this permanently deletes topic orders and all its data; add --yes to do it",
    ),
    Mistake(
        "The deletion of a topic that does not exist",
        "topic delete ordres --yes",
        1,
        "gateway: Topic 'ordres' does not exist; see `gateway topic list`",
    ),
    Mistake(
        "A number of partitions in words",
        "topic add-partitions orders three",
        2,
        "gateway: COUNT three: must be a whole number between 1 and 2147483647",
    ),
    Mistake(
        "A setting with a letter too many",
        "topic config set orders retention.mss=1",
        1,
        "gateway: topic orders has no setting 'retention.mss': did you mean retention.ms or "
        "retention.bytes?",
    ),
    Mistake(
        "A setting without a value",
        "topic create many --config retention.ms",
        2,
        "gateway: --config 'retention.ms' is not key=value, for example retention.ms=3600000",
    ),
    Mistake(
        "A value of another type",
        "topic create many --config retention.ms=soon",
        1,
        "gateway: Invalid value soon for configuration retention.ms: Not a number of type LONG",
    ),
    Mistake(
        "A group that does not exist",
        "group describe readers",
        1,
        "gateway: Consumer group 'readers' does not exist; see `gateway group list`",
    ),
    Mistake(
        "A time that is none",
        "group restore readers --at noon",
        2,
        f"gateway: --at: 'noon' is not a time, for example {TIMES}, or how long ago, for example "
        "2h",
    ),
    Mistake(
        "A record that is not written yet",
        "explain orders 0 5000",
        1,
        "gateway: not written yet: ends at 3",
    ),
)

READING = (
    Mistake(
        "A topic that does not exist, among few",
        "topic consume ordres",
        1,
        f"gateway: topic 'ordres' does not exist; there are inbox, orders, {LONG_NAME}",
    ),
    Mistake(
        "A place that is none",
        "topic consume orders --from yesterday",
        2,
        "gateway: --from yesterday: must be start, end, an offset such as 42, -10, +10, "
        "@2026-05-01T12:00, @1777636800000 or @-1h",
    ),
    Mistake(
        "A time that no calendar has",
        "topic consume orders --from @2026-13-01",
        2,
        f"gateway: --from @2026-13-01: '2026-13-01' is not a time, for example {TIMES}",
    ),
    Mistake(
        "An offset beyond the end",
        "topic consume orders --from 500",
        1,
        "gateway: orders/0: offset 500 is past the end, 3 (the log begins at 0)",
    ),
    Mistake(
        "A partition that does not exist",
        "topic consume orders -p 9",
        1,
        "gateway: orders has no partition 9; there is only 0",
    ),
    Mistake(
        "A partition that does not exist, for a script",
        "topic consume orders -p 9 -o jsonl",
        1,
        '{"error": "orders has no partition 9; there is only 0", '
        '"code": "UNKNOWN_TOPIC_OR_PARTITION"}',
    ),
    Mistake(
        "An unknown letter of a format",
        "topic consume orders -f '%q'",
        2,
        "gateway: --format %q: %q is unknown; known are %t %p %o %k %s %T %h %S %K %%",
    ),
    Mistake(
        "An expression that ends too early",
        "topic consume orders --where 'value.total >'",
        2,
        "gateway: --where: column 14: mismatched input '<EOF>'",
    ),
    Mistake(
        "A variable of an expression that there is not",
        "topic consume orders --where 'valeu.total > 3'",
        2,
        "gateway: --where: column 1: no variable valeu; there are topic, partition, offset, "
        "timestamp, time, key, key_size, value, value_size, headers",
    ),
    Mistake(
        "An option of Kafka's console consumer",
        "topic consume orders --from-beginning",
        2,
        "gateway: no option --from-beginning: here it is --from start; "
        "see `gateway topic consume --help`",
    ),
    Mistake(
        "A regular expression that never closes",
        "topic consume orders --grep '('",
        2,
        "gateway: --grep (: is no regular expression of RE2: missing ): (",
    ),
    Mistake(
        "A pattern of topics that never closes",
        "topic consume '/(/'",
        2,
        "gateway: TOPIC /(/: is no regular expression of RE2: missing ): (",
    ),
    Mistake(
        "Ctrl-C while waiting for records",
        "topic consume orders --follow",
        130,
        "read 3 records of orders",
        "first\n\x1b[31mred\nlast\n",
        where=Where.interrupted,
    ),
    Mistake(
        "A reader that has ended",
        "topic list",
        141,
        where=Where.closed_pipe,
    ),
    Mistake(
        "A reader of the help that has ended",
        "--help",
        141,
        where=Where.closed_pipe,
    ),
    Mistake(
        "A full disk",
        "topic list",
        74,
        "gateway: cannot write: No space left on device",
        where=Where.full,
    ),
    Mistake(
        "Escapes of a terminal in a record",
        "topic consume orders",
        0,
        out="first\n\\x1b[31mred\nlast\n",
        where=Where.terminal,
    ),
    Mistake(
        "A narrow terminal without colour",
        "topic list",
        0,
        out="NAME                 PARTITIONS INTERNAL\n"
        "inbox                1          false\n"
        "orders               1          false\n"
        "shipments-of-last-y… 1          false\n",
        env={"NO_COLOR": "1"},
        where=Where.terminal,
    ),
)

WRITING = (
    Mistake(
        "A line that is not JSON",
        "topic produce inbox -i jsonl",
        65,
        "gateway: line 2 column 10: not JSON: Expecting value",
        "wrote 1 record to inbox\n",
        stdin='{"value": "a"}\n{"value":\n',
    ),
    Mistake(
        "Broken base64",
        "topic produce inbox -i jsonl",
        65,
        "gateway: line 1: `value` is not base64",
        NOTHING,
        stdin='{"value": "!!", "value_encoding": "base64"}\n',
    ),
    Mistake(
        "A key of JSON with a letter left out",
        "topic produce inbox -i jsonl",
        65,
        "gateway: line 1: no key 'valu' in a record; known are topic, partition, offset, "
        "timestamp, timestamp_type, key, value, headers, key_encoding, value_encoding",
        NOTHING,
        stdin='{"valu": "a"}\n',
    ),
    Mistake(
        "A line without a key",
        "topic produce inbox -K :",
        65,
        "gateway: line 1: no ':' between a key and a value",
        NOTHING,
        stdin="no key\n",
    ),
    Mistake(
        "A quote of CSV that never closes",
        "topic produce inbox -i csv",
        65,
        "gateway: line 2: a quote is never closed",
        NOTHING,
        stdin='value\n"a\n',
    ),
    Mistake(
        "A time in words",
        "topic produce inbox --timestamp tomorrow",
        2,
        f"gateway: --timestamp tomorrow: 'tomorrow' is not a time, for example {TIMES}",
    ),
    Mistake(
        "A partition to write that does not exist",
        "topic produce inbox -p 7",
        1,
        "gateway: inbox has no partition 7; it has 1, numbered from 0",
        stdin="a\n",
    ),
    Mistake(
        "A file that is not there",
        "topic produce inbox records.txt",
        2,
        "gateway: records.txt: No such file or directory",
    ),
    Mistake(
        "A name that is no name of a topic",
        "topic produce my/orders",
        1,
        "gateway: my/orders: is no name of a topic: use ASCII letters, digits, '.', '_' and '-'",
        stdin="a\n",
    ),
)

TABLE: Mapping[str, tuple[Mistake, ...]] = {
    "Commands and flags": COMMANDS,
    "Starting a server": SERVERS,
    "Connecting": CONNECTIONS,
    "Profiles": PROFILES,
    "Topics and groups": TOPICS,
    "Reading records": READING,
    "Writing records": WRITING,
}
