"""Cause and fix of exit codes and of HTTP errors, for docs/errors.md. The codes are in the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Words(NamedTuple):
    """What an error means to its reader. Both are without a full stop."""

    cause: str
    fix: str


EXITS: Final[Mapping[str, Words]] = {
    "EXIT_OK": Words("the command succeeded, or a server was stopped by SIGTERM", "-"),
    "EXIT_FAILED": Words(
        "the server refused, a check failed or found damage, a loss is not accepted yet, a job "
        "failed, or this server is no gateway of ours",
        "read the line on stderr; `gateway doctor` looks for what is wrong with the cluster",
    ),
    "EXIT_USAGE": Words(
        "a command, flag, argument or value is wrong, or a confirmation is missing",
        "the line names the word and the nearest one that exists; `--help` lists all",
    ),
    "EXIT_DIFFERS": Words(
        "`gateway job audit` found differences, or records that are lost",
        "read its report; `-o json` lists each difference",
    ),
    "EXIT_BAD_INPUT": Words(
        "`gateway topic produce`: a line of the input is no record. Those before it are written",
        "correct the line that is named, and go on behind the records that are written",
    ),
    "EXIT_UNREACHABLE": Words(
        "no server or no ZooKeeper answered, or the cluster has never had a bookie",
        "start it, or correct `--bootstrap`, `--zookeeper` or the profile",
    ),
    "EXIT_SOFTWARE": Words(
        "after an unexpected exception it would be unsafe for the server to continue",
        "restart the process, and report the line of the log with the traceback",
    ),
    "EXIT_DISK": Words(
        "a sync on the disk of a bookie failed, or a command could not write its result or file",
        "free or replace the disk, then start again",
    ),
    "EXIT_REFUSED": Words(
        "the principal of the command is not allowed to do this",
        "ask for the right, or use a profile of a principal that has it",
    ),
    "EXIT_CONFIG": Words(
        "a server or a command cannot start or connect as configured: a setting, a file, a port, "
        "a data directory or node id in use, a profile, or TLS and SASL that are not supported",
        "each fault has one line that names the setting; `--print-config` shows where values come "
        "from",
    ),
    "EXIT_INTERRUPTED": Words("Ctrl-C", "-"),
    "EXIT_CLOSED_PIPE": Words(
        "the program that read the stdout of the command has ended, as `head` does", "-"
    ),
    "EXIT_TERMINATED": Words(
        "SIGTERM ended a command that runs until it is stopped", "start it again"
    ),
}

_TRY_LATER = "try again"
_RELOAD = "reload the page, and send its form again"

HTTP: Final[Mapping[tuple[int, str], Words]] = {
    (400, "CEL_MISSING"): Words(
        "`where` needs the extra `cel`, which is not installed", "install it, or leave out `where`"
    ),
    (400, "INVALID_REQUEST"): Words(
        "this is no HTTP request, or a parameter or field is missing, unknown or cannot be read",
        "the message names it and what is accepted",
    ),
    (400, "NOT_CONFIRMED"): Words(
        "the field `confirm` lacks the name of what is changed", "send the name"
    ),
    (401, "AUTHENTICATION_FAILED"): Words(
        "the page has passwords, and the request has no right one",
        "send name and password by HTTP Basic; `gateway http-password` makes a line for the file",
    ),
    (403, "CROSS_SITE"): Words(
        "a change does not come from a page of this gateway",
        "open the page at its own address; behind a proxy, keep the headers `Host` and `Origin`",
    ),
    (403, "INVALID_TOKEN"): Words(
        "the form is not of this process, which may have started again", _RELOAD
    ),
    (403, "VALUES_HIDDEN"): Words(
        "the gateway hides keys, values and headers, so they cannot be searched for",
        "leave out the filter, or start the gateway without `--http-hide-values`",
    ),
    (404, "NOT_FOUND"): Words(
        "there is no such path, or this gateway has no such page",
        "compare with the paths of [http-api.md](http-api.md)",
    ),
    (404, "UNKNOWN_PROCESS"): Words(
        "the local cluster has no process of this name", "`gateway cluster status` lists them"
    ),
    (404, "UNKNOWN_TOPIC_OR_PARTITION"): Words(
        "there is no topic of this name", "`gateway topic list` lists them"
    ),
    (405, "METHOD_NOT_ALLOWED"): Words(
        "the path does not take this method", "read by GET; change by POST"
    ),
    (405, "READ_ONLY"): Words(
        "the page only reads", "start the gateway with `--http-write` to change things"
    ),
    (408, "REQUEST_TIMED_OUT"): Words("the request was not complete in time", _TRY_LATER),
    (413, "REQUEST_TOO_LARGE"): Words("the body is larger than 1 MiB", "send less"),
    (415, "UNSUPPORTED_MEDIA_TYPE"): Words(
        "the body of a change is no form", "send `application/x-www-form-urlencoded`"
    ),
    (421, "MISDIRECTED_REQUEST"): Words(
        "the `Host` of the request is no name of this gateway", "pass that name to `--http-name`"
    ),
    (431, "HEAD_TOO_LARGE"): Words(
        "the request line and headers are larger than 8 KiB",
        "send a shorter address or fewer cookies",
    ),
    (500, "UNKNOWN_SERVER_ERROR"): Words(
        "a bug of the page", "report it with the traceback in the log of the gateway"
    ),
    (503, "NO_METADATA"): Words(
        "the gateway does not know where the metadata of the ledgers is",
        "start ZooKeeper, or `gateway dev` with a ledger port",
    ),
    (503, "REQUEST_TIMED_OUT"): Words(
        "there was no answer in time", f"{_TRY_LATER}; `gateway slow` shows what takes long"
    ),
    (503, "TOO_MANY_CONNECTIONS"): Words(
        "the port has as many connections as it may have", "close some, or wait"
    ),
    (503, "TOO_MANY_SEARCHES"): Words("four searches of records are under way", _TRY_LATER),
    (503, "TOO_MANY_TAILS"): Words("eight tails are open", "close one"),
    (503, "UNAVAILABLE"): Words(
        "the gateway could not load the page", "its log has the reason; restart it"
    ),
    (503, "UNREACHABLE"): Words(
        "a gateway, ZooKeeper or the bookies did not answer",
        f"{_TRY_LATER}; `gateway cluster health` shows what is away",
    ),
}
