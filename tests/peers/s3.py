"""A real S3 server: S3Proxy over a directory, on a loopback port.

It checks signatures (version 4). A conditional PUT ends in a hard link, so of two writers of one
new key the server refuses one. An object is a file of the directory.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import http.client
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from tests.peers import install
from tests.peers.processes import ServerProcess

VERSION = "4.1.0"
COORDINATES = (("org.gaul", "s3proxy", VERSION, "jar-with-dependencies"),)
SUMS = {
    f"s3proxy-{VERSION}-jar-with-dependencies.jar": (
        "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
    )
}
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx192m")
KEY, SECRET, REGION = "tester", "secret of the tester", "us-east-1"
BUCKET = "bucket"


def s3proxy_jar() -> Path:
    (found,) = install.maven_jars(f"s3proxy-{VERSION}", COORDINATES, SUMS).glob("*.jar")
    return found


class S3Server(ServerProcess):
    """One server with one bucket; its objects outlive stop, kill and restart.

    Unless `signed`, it checks no signatures.
    """

    name = "S3Proxy"
    start_s_max = 300.0

    def __init__(self, data: Path, *, bucket: str = BUCKET, signed: bool = True) -> None:
        super().__init__(data)
        self.bucket = bucket
        self.signed = signed

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def path(self, name: str) -> str:
        """Return the path of a directory in the bucket, as S3A reads it."""
        return f"s3a://{self.bucket}/{name}"

    def local(self, name: str) -> Path:
        """Return the file or directory in which the server keeps `name`."""
        return self.data / self.bucket / name

    def prepare(self) -> None:
        (self.data / self.bucket).mkdir(parents=True, exist_ok=True)
        properties = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v4" if self.signed else "none",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            "jclouds.provider": "filesystem",
            "jclouds.filesystem.basedir": str(self.data),
        }
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        self._properties.write_text(text)

    def argv(self) -> list[str]:
        words = ["-jar", str(s3proxy_jar()), "--properties", str(self._properties)]
        return [install.java(), *JVM, *words]

    def serves(self) -> bool:
        try:
            return self.request("HEAD", f"/{self.bucket}")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one signed request; return its status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)
        try:
            signed = _signed(method, path, f"127.0.0.1:{self.port}", body)
            connection.request(method, path, body, {**(headers or {}), **signed})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def hadoop(self, endpoint: str = "") -> dict[str, str]:
        """Return the settings with which Hadoop reaches the bucket, perhaps by another endpoint."""
        settings = {
            "endpoint": endpoint or self.endpoint,
            "endpoint.region": REGION,
            "access.key": KEY,
            "secret.key": SECRET,
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        return {f"fs.s3a.bucket.{self.bucket}.{key}": value for key, value in settings.items()}

    @property
    def _properties(self) -> Path:
        return self.data.with_name(f"{self.data.name}.properties")


def _signed(method: str, path: str, host: str, body: bytes) -> dict[str, str]:
    """Return the headers of a request signed with version 4 of Amazon's signatures."""
    now = datetime.datetime.now(datetime.UTC)
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    canonical = "\n".join([method, quote(path), "", *lines, "", names, digest])
    scope = f"{day}/{REGION}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashed])
    key = functools.reduce(_hmac, [day, REGION, "s3", "aws4_request"], f"AWS4{SECRET}".encode())
    credential = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}"
    return {
        "x-amz-content-sha256": digest,
        "x-amz-date": moment,
        "Authorization": f"{credential}, SignedHeaders={names}, Signature={_hmac(key, text).hex()}",
    }


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
