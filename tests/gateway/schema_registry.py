"""A schema registry with the part of Confluent's HTTP API that the commands use."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SchemaRegistry:
    """Schemas by id and subject. `answers` replaces answers: status, bytes, headers by path."""

    def __init__(self):
        self.schemas: dict[int, str] = {}
        self.subjects: dict[str, int] = {}
        self.answers: dict[str, tuple] = {}
        self.asked: list[str] = []
        self.authorizations: set[str | None] = set()
        self.url = ""

    def add(self, subject, schema):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        known = [number for number, each in self.schemas.items() if each == text]
        number = known[0] if known else len(self.schemas) + 1
        self.schemas[number] = text
        self.subjects[subject] = number
        return number

    def answer(self, method, path, body):
        if path in self.answers:
            return self.answers[path]
        found = re.fullmatch(r"/schemas/ids/(\d+)", path)
        if found and int(found[1]) in self.schemas:
            return 200, as_bytes({"schema": self.schemas[int(found[1])]}), {}
        found = re.fullmatch(r"/subjects/([^/]+)/versions(/latest)?", path)
        if found and method == "POST":
            return 200, as_bytes({"id": self.add(found[1], json.loads(body)["schema"])}), {}
        if found and found[1] in self.subjects:
            number = self.subjects[found[1]]
            return 200, as_bytes({"id": number, "schema": self.schemas[number]}), {}
        return 404, as_bytes({"error_code": 40403, "message": "not found"}), {}


def as_bytes(answer):
    return json.dumps(answer).encode()


@contextmanager
def serving():
    """A registry that is served on a port of its own."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            registry.asked.append(self.path)
            registry.authorizations.add(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, answer, headers = registry.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
