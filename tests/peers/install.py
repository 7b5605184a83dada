"""Installs what the tests speak to: Maven jars, Spark's Kafka connector, kcat, Chromium, Java.

Everything lands under `.cache/`; a second call finds it there. What cannot be had raises
PeerMissing with the one line that says what did not run.
`python -m tests.peers.install` fetches all of it at once. `--commit` leaves out what only the
proofs need.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gateway.pipelines.shared.session import S3_EXCLUDED, packages, s3_packages

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
KAFKA_VERSION = "4.3.0"
ZOOKEEPER_VERSION = "3.9.3"
LOG_COORDINATE = ("org.slf4j", "slf4j-simple", "1.7.36")
KAFKA_COORDINATES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    LOG_COORDINATE,
)
# ZooKeeper's pom leaves to its distribution what a server also needs: metrics and snappy.
ZOOKEEPER_COORDINATES = (
    ("org.apache.zookeeper", "zookeeper", ZOOKEEPER_VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    LOG_COORDINATE,
)
BOOKKEEPER_VERSION = "4.17.2"
# Its pom leaves the same two out; log4j it brings itself.
BOOKKEEPER_COORDINATES = (
    ("org.apache.bookkeeper", "bookkeeper-server", BOOKKEEPER_VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.2.25"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.7"),
)
# A compiler that runs where only a Java runtime is installed.
COMPILER_VERSION = "3.33.0"
COMPILER_COORDINATES = (("org.eclipse.jdt", "ecj", COMPILER_VERSION),)
JAVA_MAJOR_MIN = 17
AXE_VERSION = "4.14.1"
FRANZ_GO_VERSION = "v1.22.2"
INSTALL_S_MAX = 600


class PeerMissing(RuntimeError):
    """A peer could not be installed; the text names what therefore did not run."""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Only one process installs at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _announce(what: str) -> None:
    """Print one line, because a download may take minutes."""
    print(f"installing {what} ...", file=sys.stderr, flush=True)


def _run(argv: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        argv,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=INSTALL_S_MAX,
    )
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise PeerMissing(f"`{' '.join(argv[:3])} ...` ended with {done.returncode}: {tail}")


def _debian(program: str, package: str) -> str:
    """Return the path of `program`, from Debian's `package` when it is not there yet."""
    found = shutil.which(program)
    if found:
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise PeerMissing(f"{program} did not run: install the package {package} (not root here)")
    with _alone():
        _announce(package)
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        try:
            _run(install, quiet)
        except PeerMissing:  # stale or empty package lists
            _run(["apt-get", "update", "-qq"], quiet)
            _run(install, quiet)
    found = shutil.which(program)
    if not found:
        raise PeerMissing(f"{program} did not run: {package} does not hold it")
    return found


@functools.cache
def java() -> str:
    """Return the path of a Java runtime of at least version 17."""
    path = _debian("java", "openjdk-17-jre-headless")
    shown = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(\d+)', shown.stderr)
    if not version or int(version[1]) < JAVA_MAJOR_MIN:
        raise PeerMissing(f"Java {JAVA_MAJOR_MIN} did not run: {shown.stderr.splitlines()[:1]}")
    return path


def kcat() -> str:
    return _debian("kcat", "kcat")


def strace() -> str:
    return _debian("strace", "strace")


@functools.cache
def prometheus(program: str) -> str:
    """Return the path of `prometheus` or `promtool`, of Debian's package as it is unpacked.

    The package is not installed: it would start a server.
    """
    place = CACHE / "prometheus"
    path = place / "usr/bin" / program
    with _alone():
        if path.exists():
            return str(path)
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise PeerMissing(f"{program} did not run: this is no Debian")
        _announce("prometheus")
        place.mkdir(parents=True, exist_ok=True)
        download = ["sh", "-c", f"cd {place} && apt-get download -qq prometheus"]
        try:
            _run(download)
        except PeerMissing:  # stale or empty package lists
            _run(["apt-get", "update", "-qq"])
            _run(download)
        (package,) = place.glob("prometheus_*.deb")
        _run(["dpkg-deb", "-x", str(package), str(place)])
        package.unlink()
    return str(path)


def promtool() -> str:
    return prometheus("promtool")


def chromium() -> str:
    """Return the path of Chromium without windows, which playwright drives."""
    return _debian("chromium-headless-shell", "chromium-headless-shell")


def axe() -> Path:
    """Return the script of axe-core, which judges the accessibility of a page in a browser."""
    return node_module("axe-core", AXE_VERSION) / "node_modules" / "axe-core" / "axe.min.js"


def systemd_analyze() -> str:
    return _debian("systemd-analyze", "systemd")


def shell(name: str) -> str:
    """Return the path of a shell whose package has its name, such as zsh."""
    return _debian(name, name)


def faketime() -> str:
    """Return the library of faketime, which a process loads by LD_PRELOAD."""
    _debian("faketime", "faketime")
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        raise PeerMissing("libfaketime did not run: the package faketime does not hold it")
    return str(found[0])


Coordinate = tuple[str, ...]
"""Group, artifact and version of something in Maven's repository, and perhaps its classifier.

With a classifier, only that file is fetched, without dependencies.
"""


def _pom(coordinates: Sequence[Coordinate]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{_classified(*classifier)}</dependency>"
        for group, artifact, version, *classifier in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tests</groupId><artifactId>peers</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


def _classified(classifier: str = "") -> str:
    if not classifier:
        return ""
    alone = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    return f"<classifier>{classifier}</classifier><exclusions>{alone}</exclusions>"


def maven_jars(
    name: str, coordinates: Sequence[Coordinate], sums: Mapping[str, str] | None = None
) -> Path:
    """Return `.cache/peers/<name>` with the jars that `coordinates` need to run.

    The first coordinate is the one without which nothing was gained. If there are `sums`, the jars
    must be exactly these, each with its SHA-256.
    """

    def copy_jars(maven: list[str], work: Path) -> Path:
        (work / "pom.xml").write_text(_pom(coordinates))
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        place = ["-f", str(work / "pom.xml"), f"-DoutputDirectory={work / 'jars'}"]
        _run([*maven, *copy, *place])
        artifact = coordinates[0][1]
        if not list((work / "jars").glob(f"{artifact}-*.jar")):
            raise PeerMissing(f"{name} did not run: Maven copied no {artifact} jar")
        if sums is not None:
            _check_sums(name, (work / "jars").glob("*.jar"), sums)
        return work / "jars"

    return _from_maven(name, copy_jars)


def read_sums(path: Path) -> dict[str, str]:
    """Read the SHA-256 of each jar from a file that sha256sum wrote."""
    rows = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {name: digest for digest, name in rows}


def _check_sums(name: str, files: Iterable[Path], sums: Mapping[str, str]) -> None:
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
    other = sorted(each for each in {*found, *sums} if found.get(each) != sums.get(each))
    if other:
        raise PeerMissing(f"{name} did not run: these files are not those that are pinned: {other}")


def maven_archive(name: str, artifact: str, sums: Mapping[str, str]) -> Path:
    """Return `.cache/peers/<name>` with the content of a tar archive from Maven's repository.

    `artifact` is group:artifact:version:type:classifier. The file is fetched alone, so neither its
    pom nor a parent of that must be there. It must be the one of `sums`, with its SHA-256.
    """

    def extract(maven: list[str], work: Path) -> Path:
        place = f"-DoutputDirectory={work / 'files'}"
        _run([*maven, "dependency:copy", f"-Dartifact={artifact}", place])
        _check_sums(name, (work / "files").iterdir(), sums)
        (file,) = (work / "files").iterdir()
        with tarfile.open(file) as archive:
            archive.extractall(work / "content", filter="data")
        return work / "content"

    return _from_maven(name, extract)


def _from_maven(name: str, fill: Callable[[list[str], Path], Path]) -> Path:
    """Return `.cache/peers/<name>`. If it does not exist, `fill` makes its content first.

    `fill` takes the command of Maven and an empty directory to work in. It returns the directory
    that becomes `.cache/peers/<name>`.
    """
    found = CACHE / "peers" / name
    if found.is_dir():
        return found
    maven = _debian("mvn", "maven")
    with _alone():
        if found.is_dir():
            return found
        _announce(name)
        work = CACHE / "peers" / "maven"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        # A repository of its own: poms without jars in ~/.m2 would make Spark's Ivy fail.
        repository = f"-Dmaven.repo.local={CACHE / 'm2'}"
        fill([maven, "-q", "-B", repository], work).rename(found)
    return found


def kafka_jars() -> Path:
    """Return the directory with Apache Kafka's broker and tools, resolved by Maven."""
    return maven_jars(f"kafka-{KAFKA_VERSION}", KAFKA_COORDINATES)


def zookeeper_jars() -> Path:
    """Return the directory with Apache ZooKeeper's server, resolved by Maven."""
    return maven_jars(f"zookeeper-{ZOOKEEPER_VERSION}", ZOOKEEPER_COORDINATES)


def bookkeeper_jars() -> Path:
    """Return the directory with Apache BookKeeper's server and client, resolved by Maven."""
    return maven_jars(f"bookkeeper-{BOOKKEEPER_VERSION}", BOOKKEEPER_COORDINATES)


def bookkeeper_classes(source: Path) -> str:
    """Return a class path with Apache BookKeeper and the class compiled from `source`."""
    return compiled(source, sorted(bookkeeper_jars().glob("*.jar")))


def compiled(source: Path, jars: Sequence[Path]) -> str:
    """Return a class path with `jars` and the class compiled from `source`.

    Compiled once for each text of the source, by a compiler that Maven brings.
    """
    needed = ":".join(map(str, jars))
    compiler = maven_jars(f"ecj-{COMPILER_VERSION}", COMPILER_COORDINATES)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = CACHE / "peers" / "classes" / f"{source.stem}-{digest}"
    if not classes.is_dir():
        with _alone():
            draft = classes.with_name(f"{classes.name}.{os.getpid()}")
            compile_it = [java(), "-jar", str(next(compiler.glob("ecj-*.jar"))), "-17", "-nowarn"]
            _run([*compile_it, "-cp", needed, "-d", str(draft), str(source)])
            if not classes.is_dir():
                draft.rename(classes)
    return f"{classes}:{needed}"


def kafka_classpath() -> str:
    return f"{kafka_jars()}/*"


def spark_jars() -> list[Path]:
    """Return the jars of the connectors for Kafka, Iceberg and S3, resolved by Spark's Ivy once.

    The very packages that the jobs name.
    """
    return _ivy_jars("spark", _spark_packages(), S3_EXCLUDED)


def spark_jars_with(name: str, more: Sequence[str], sums: Mapping[str, str]) -> list[Path]:
    """Return the jars of the jobs' connectors for Kafka and Iceberg, and those of `more` packages.

    The jars of `more` must be exactly those of `sums`, each with its SHA-256.
    """
    known = {each.name for each in spark_jars()}

    def check(jars: Iterable[Path]) -> None:
        _check_sums(name, (each for each in jars if each.name not in known), sums)

    return _ivy_jars(name, [*packages(), *more], check=check)


def _spark_packages() -> list[str]:
    """Return the packages of the jobs. S3's are left out of a Spark without one of Iceberg.

    The tests of stores and catalogs do not run there.
    """
    found = packages()
    return [*found, *s3_packages()] if any("iceberg" in each for each in found) else found


def _ivy_jars(
    name: str,
    wanted: Sequence[str],
    excluded: str = "",
    check: Callable[[Iterable[Path]], None] | None = None,
) -> list[Path]:
    """Return the jars that these packages need, resolved by Spark's Ivy once."""
    java()
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:16]
    directory = CACHE / "ivy" / f"{name}-{digest}"
    if not (directory / ".ready").exists():
        with _alone():
            _resolve(directory, wanted, excluded)
            if check is not None:
                check((directory / "jars").glob("*.jar"))
            (directory / ".ready").touch()
    return sorted((directory / "jars").glob("*.jar"))


def _resolve(directory: Path, wanted: Sequence[str], excluded: str) -> None:
    if (directory / ".ready").exists():
        return
    _announce("Spark's connectors")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    script = (
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        f".config('spark.jars.packages', {','.join(wanted)!r})"
        f".config('spark.jars.excludes', {excluded!r})"
        f".config('spark.jars.ivy', {str(directory)!r}).getOrCreate().stop()\n"
    )
    # Ivy also looks into $HOME/.m2; a home of its own keeps that out.
    _run([sys.executable, "-c", script], {"SPARK_SUBMIT_OPTS": f"-Duser.home={directory}"})
    for name in (coordinate.split(":")[1] for coordinate in wanted):
        if not list((directory / "jars").glob(f"*{name}*.jar")):
            raise PeerMissing(f"Spark did not run: {name} did not resolve")


def node_module(name: str, version: str) -> Path:
    """Return a directory in which Node.js finds the module `name`."""
    found = CACHE / "peers" / f"{name}-{version}"
    if not found.is_dir():
        npm = _program("npm", name)
        with _alone():
            _announce(name)
            draft = found.with_name(f"{found.name}.{os.getpid()}")
            draft.mkdir(parents=True)
            quiet = ["--no-audit", "--no-fund", "--ignore-scripts"]
            _run([npm, "install", *quiet, "--prefix", str(draft), f"{name}@{version}"])
            if not found.is_dir():
                draft.rename(found)
    return found


def kgo_tests() -> Path:
    """Return the directory of franz-go's package kgo, with its own tests built as `kgo.test`."""
    found = CACHE / "peers" / f"franz-go-{FRANZ_GO_VERSION}"

    def fill(go: str, draft: Path) -> None:
        module = f"github.com/twmb/franz-go@{FRANZ_GO_VERSION}"
        shown = subprocess.run(
            [go, "mod", "download", "-json", module],
            cwd=CACHE,
            env={**os.environ, "GOFLAGS": "-mod=mod"},
            capture_output=True,
            text=True,
            timeout=INSTALL_S_MAX,
        )
        if shown.returncode != 0:
            raise PeerMissing(f"franz-go did not run: {shown.stdout[-200:]}")
        # Go's own copy is read-only.
        shutil.copytree(json.loads(shown.stdout)["Dir"], draft, copy_function=shutil.copyfile)
        for each in (draft, *draft.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        _run([go, "-C", str(draft / "pkg" / "kgo"), "test", "-c", "-o", "kgo.test", "."])

    _built_by_go("franz-go", found, fill)
    return found / "pkg" / "kgo"


def go_clients() -> str:
    """Return the program of tests/peers/go/: franz-go, sarama and kafka-go, as they are published.

    It is built once for each text of its sources. `go.sum` pins what Go's module proxy serves.
    """
    source = ROOT / "tests" / "peers" / "go"
    texts = sorted([*source.glob("*.go"), *source.glob("go.*")])
    digest = hashlib.sha256(b"\0".join(each.read_bytes() for each in texts)).hexdigest()[:16]
    found = CACHE / "peers" / "go" / digest

    def fill(go: str, draft: Path) -> None:
        _run([go, "-C", str(source), "build", "-mod=readonly", "-o", str(draft / "peers"), "."])

    _built_by_go("the clients of Go", found, fill)
    return str(found / "peers")


def _built_by_go(name: str, found: Path, fill: Callable[[str, Path], None]) -> None:
    """Make the directory `found` unless it exists. `fill` takes Go's command and a new path."""
    if found.is_dir():
        return
    go = _program("go", name)
    with _alone():
        if found.is_dir():
            return
        _announce(name)
        draft = found.with_name(f"{found.name}.{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.parent.mkdir(parents=True, exist_ok=True)
        fill(go, draft)
        draft.rename(found)


def _program(name: str, needed_by: str) -> str:
    found = shutil.which(name)
    if not found:
        raise PeerMissing(f"{needed_by} did not run: install {name}")
    return found


def newest_spark_python() -> str:
    """Return the interpreter of the environment with the newest PySpark that the tests run."""
    path = ROOT / ".venv-spark-newest" / "bin" / "python"
    if not path.exists():
        raise PeerMissing("the newest Spark did not run: `make .venv-spark-newest/.ready`")
    return str(path)


def gateway_python() -> str:
    """Return the interpreter of the run environment, as `make run` uses it."""
    path = ROOT / ".venv" / "bin" / "python"
    if not path.exists():
        raise PeerMissing("the gateway did not run: `make .venv/.ready` has not been done")
    return str(path)


def main() -> int:
    """Fetch everything; one line each; ends with 1 when something is missing.

    With `--commit`, fetch what `make test` needs, but not what only the proofs need.
    """
    missing = 0
    of_commit = sys.argv[1:] == ["--commit"]
    # Imported here, because they name their jars and import this module.
    from tests.peers import iceberg_rest, recipes, registry, s3

    servers = (kafka_jars, zookeeper_jars, bookkeeper_jars, s3.s3proxy_jar, iceberg_rest.rest_jars)
    browser = (chromium, axe)
    of_proofs = (registry.registry_jar, recipes.recipe_jars, kgo_tests, go_clients)
    of_proofs = () if of_commit else of_proofs
    for what in (java, *servers, kcat, strace, promtool, *browser, spark_jars, *of_proofs):
        try:
            what()
            print(f"{what.__name__}: ready")
        except PeerMissing as problem:
            missing = 1
            print(f"{what.__name__}: {problem}")
    return missing


if __name__ == "__main__":
    sys.exit(main())
