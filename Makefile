# `make` lists the targets. Needs Python >= 3.11 and make; Java 17 for the Java clients and Spark.
SHELL := /bin/bash
PORT ?= 9092
DATA ?= data
PYTHON ?= python3
RUN := .venv
DEV := .venv-dev
SPARK := .venv-spark
NEWEST := .venv-spark-newest
INSTALL := compose/install.sh
# Ends with one line under an older Python, whose packages would fail later and in many lines.
FITS := $(PYTHON) -c 'import sys; here = ".".join(map(str, sys.version_info[:3])); sys.exit(f"Python 3.11 or later is needed, and $(PYTHON) is {here}: pass another one, as PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
RULES := tests/test_house.py tests/test_spelling.py
# Compile the packages and tests once, not again in each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

BESIDE = $(if $(QUICK),--quick) $(if $(RUNS)$(QUICK),--runs $(or $(RUNS),1)) $(if $(PARTS),--parts $(PARTS)) $(if $(PAIR),--pair $(PAIR)) $(if $(MEGABYTES),--megabytes $(MEGABYTES))
FAST := not (process or zookeeper or spark or compat or cluster or proof or slow)

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 21

$(RUN)/.ready: compose/requirements-run.txt pyproject.toml $(INSTALL)
	@$(FITS)
	@$(INSTALL) $(RUN) compose/requirements-run.txt

$(DEV)/.ready: compose/requirements-dev.txt pyproject.toml $(INSTALL)
	@$(FITS)
	@$(INSTALL) $(DEV) compose/requirements-dev.txt

$(SPARK)/.ready: compose/requirements-spark.txt pyproject.toml $(INSTALL)
	@$(FITS)
	@$(INSTALL) $(SPARK) compose/requirements-spark.txt

$(NEWEST)/.ready: compose/requirements-spark-newest.txt pyproject.toml $(INSTALL)
	@$(FITS)
	@$(INSTALL) $(NEWEST) compose/requirements-spark-newest.txt

run: $(RUN)/.ready ## install and start the embedded gateway (PORT=, DATA=)
	@exec $(RUN)/bin/python -m gateway dev --port $(PORT) --data $(DATA)

spark: $(SPARK)/.ready ## install what the jobs on Spark need: .venv-spark

cluster: $(RUN)/.ready ## ZooKeeper, 4 bookies, 3 gateways, auditor as local processes (PORT=, DATA=)
	@exec $(RUN)/bin/python -m tests.peers.compose --port $(PORT) --data $(DATA)/cluster

check: $(DEV)/.ready ## ruff, pyright strict, import contracts, house rules, spelling; hints about words
	@$(MAKE) --no-print-directory -j2 check-types check-rules
	@$(DEV)/bin/python -m tests.plain_words

# Pyright keeps one processor busy, and for longest.
check-types: $(DEV)/.ready
	$(DEV)/bin/pyright

check-rules: $(DEV)/.ready
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/lint-imports
	$(DEV)/bin/python -m pytest -q -n 0 $(RULES)

# Compile the tests once. On a fresh machine each of the processes of `make test` would do it for itself.
compiled: $(DEV)/.ready
	@$(DEV)/bin/python -m pytest -q -n 0 --collect-only >/dev/null

test-fast: $(DEV)/.ready ## every test that needs no server: about five minutes on two cores
	$(DEV)/bin/python -m pytest -q -m "$(FAST)" -n 2 --dist worksteal

# The rules are those of `make check`.
test: $(RUN)/.ready $(DEV)/.ready ## every test of a commit but the rules of `check`; installs what it needs
	$(DEV)/bin/python -m pytest -q -m "not proof and not alone" -n 3 --dist loadfile $(RULES:%=--ignore=%)
	$(DEV)/bin/python -m pytest -q -m "not proof and alone" -n 2 --dist loadfile tests/cluster

peers: $(RUN)/.ready $(DEV)/.ready ## install what the tests of a commit speak to: Java, kcat, Kafka's jars and others
	@$(DEV)/bin/python -m tests.peers.install --commit

differential: $(RUN)/.ready $(DEV)/.ready ## records the answers of Apache Kafka 4.3, compares ours (KEY=, CASE=, SEED=)
	$(DEV)/bin/python -m tests.compat.differential $(if $(KEY),--key $(KEY)) $(if $(CASE),--case $(CASE))
ifeq ($(KEY)$(CASE),)
	$(DEV)/bin/python -m tests.compat.differential --cluster
	$(DEV)/bin/python -m tests.compat.differential.drawn --seed $(or $(SEED),1)
endif

proof: $(RUN)/.ready $(DEV)/.ready $(NEWEST)/.ready ## the long proofs; the last result is in docs/proof.md
	EXAMPLES=all $(DEV)/bin/python -m pytest -q -s -m proof
	EXAMPLES=all $(DEV)/bin/python -m pytest -q -m "drawn and not proof" -n 2 --dist loadfile

proof-ledger: $(DEV)/.ready ## the ledger tier under faults: seeds, all states, mistakes (SEEDS=)
	$(DEV)/bin/python -m tests.sim.proof_ledger --seeds $(or $(SEEDS),20000)

proof-reading: $(DEV)/.ready ## readers and losses under faults: seeds, small worlds, mistakes (SEEDS=)
	$(DEV)/bin/python -m tests.sim.proof_reading --seeds $(or $(SEEDS),20000)

proof-transactions: $(DEV)/.ready ## clusters with transactions under faults: seeds, mistakes (SEEDS=)
	$(DEV)/bin/python -m tests.sim.proof_transactions --seeds $(or $(SEEDS),2000) --workers 2
	$(DEV)/bin/python -m tests.sim.proof_transactions --compacted --seeds $(or $(SEEDS),1000) --workers 2
	$(DEV)/bin/python -m tests.sim.proof_transactions --mistakes

proof-groups: $(DEV)/.ready ## clusters that coordinate a group of both protocols under faults: seeds, mistakes (SEEDS=)
	$(DEV)/bin/python -m tests.sim.proof_groups 1 $(or $(SEEDS),1000)
	$(DEV)/bin/python -m tests.sim.groups_mistakes

proof-transactions-processes: $(RUN)/.ready $(DEV)/.ready ## copy jobs in transactions, every process killed (SECONDS=, RECORDS=, SEED=, KILLS=)
	$(DEV)/bin/python -m tests.cluster.transacting --seconds $(or $(SECONDS),120) \
		--records $(or $(RECORDS),20000) --seed $(or $(SEED),0) --kills $(or $(KILLS),30)

proof-failover: $(RUN)/.ready $(DEV)/.ready ## owners killed under load, nothing lost or doubled (ROUNDS=, SERVERS=)
	$(DEV)/bin/python -m tests.cluster.failover --rounds $(or $(ROUNDS),20) --servers $(or $(SERVERS),0)

proof-losses: $(RUN)/.ready $(DEV)/.ready ## copies and owners lost under load, losses accepted (ROUNDS=, SEED=)
	$(DEV)/bin/python -m tests.cluster.losses --rounds $(or $(ROUNDS),5) --seed $(or $(SEED),0)

proof-upgrade: $(RUN)/.ready $(DEV)/.ready ## a rolling upgrade from 8966dba with a forced close in it (SEED=)
	$(DEV)/bin/python -m tests.cluster.upgrade --seed $(or $(SEED),0)

proof-spark: $(RUN)/.ready $(DEV)/.ready ## archive, replay, audit of the flights under kill -9 (KILLS=, STORE=, CLUSTER=1, FLIGHTS=, SEED=)
	$(DEV)/bin/python -m tests.pipelines.proof --kills $(or $(KILLS),10) --store $(or $(STORE),local) \
		$(if $(CLUSTER),--cluster) --flights $(or $(FLIGHTS),0) $(if $(SEED),--seed $(SEED))

proof-spark-newest: $(RUN)/.ready $(DEV)/.ready $(NEWEST)/.ready ## tests of pipelines on the newest PySpark, but for Iceberg and S3
	PYTHONPATH=$$($(NEWEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		$(DEV)/bin/python -m pytest -q -n 0 -m "not proof" -k "not iceberg and not s3 and not catalogs" tests/pipelines

proof-hostile: $(RUN)/.ready $(DEV)/.ready ## random hostile requests beside honest clients (MINUTES=)
	$(DEV)/bin/python -m tests.hostile.crowd --minutes $(or $(MINUTES),10)

proof-hostile-logins: $(RUN)/.ready $(DEV)/.ready ## hostile frames before a login beside honest clients (FRAMES=, SEED=)
	$(DEV)/bin/python -m tests.hostile.logins --frames $(or $(FRAMES),1000000) $(if $(SEED),--seed $(SEED))

docs: $(DEV)/.ready ## the documents as a site: build/site (SOURCE=, where the code is published)
	@$(DEV)/bin/python -m tests.site.build $(if $(SOURCE),--source $(SOURCE))

screenshots: $(RUN)/.ready $(DEV)/.ready ## pictures of each page and of commands in docs/images, from a real gateway (NAMES=)
	$(DEV)/bin/python -m tests.browser.screenshots $(NAMES)

demo: $(RUN)/.ready $(DEV)/.ready ## 336,776 flights through producer, group and Spark, compared
	$(DEV)/bin/python -m tests.demo

bench: $(RUN)/.ready $(DEV)/.ready ## against Apache Kafka 4.3, one after the other; ratios
	$(DEV)/bin/python -m tests.bench --write $(if $(BEFORE),--before $(BEFORE))

bench-transactions: $(RUN)/.ready $(DEV)/.ready ## transactions against Apache Kafka 4.3; ratios (QUICK=1 PARTS=produce,commits RUNS=1)
	$(DEV)/bin/python -m tests.bench.transactions $(BESIDE)

bench-compaction: $(RUN)/.ready $(DEV)/.ready ## cleaning of compacted topics against Apache Kafka 4.3; ratios (QUICK=1 PARTS=none-1024 RUNS=1)
	$(DEV)/bin/python -m tests.bench.compaction $(BESIDE)

bench-ledger: $(RUN)/.ready $(DEV)/.ready ## bookies against Apache BookKeeper 4.17; ratios
	$(DEV)/bin/python -m tests.bench.ledger_tier --write $(if $(BEFORE),--before $(BEFORE))

bench-cluster: $(RUN)/.ready $(DEV)/.ready ## a whole cluster against three Apache Kafka 4.3 brokers; ratios (ONLY=written RUNS=1 QUICK=1 BEFORE=DIR)
	$(DEV)/bin/python -m tests.bench.cluster $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) \
		$(if $(QUICK),--quick) $(if $(BEFORE),--before $(BEFORE)) $(if $(ONLY)$(RUNS)$(QUICK)$(BEFORE),,--write)

bench-wire: $(DEV)/.ready ## CPU of an add between client and bookie: our frames over TCP / gRPC; ratios
	$(DEV)/bin/python -m tests.bench.wire_add

bench-subscriptions: $(RUN)/.ready $(DEV)/.ready ## commits per second, in log segments and in znodes; ratio
	$(DEV)/bin/python -m tests.bench.subscriptions

bench-spark: $(RUN)/.ready $(DEV)/.ready ## 10 million records in one partition, read by Spark; ratios
	$(DEV)/bin/python -m tests.bench.spark

bench-spark-memory: $(RUN)/.ready $(DEV)/.ready ## smallest Java heap of archive, replay, audit at ten times the records; ratios
	$(DEV)/bin/python -m tests.bench.spark_growth

bench-direct-plan: $(RUN)/.ready $(DEV)/.ready ## what a look at 100 to 10,000 partitions costs a query of Spark
	$(DEV)/bin/python -m tests.bench.direct_plan

bench-scale: $(RUN)/.ready $(DEV)/.ready ## 1,000 to 100,000 groups, 100 to 10,000 partitions: growth
	$(DEV)/bin/python -m tests.bench.scale $(if $(BEFORE),--before $(BEFORE))

bench-neighbours: $(RUN)/.ready $(DEV)/.ready ## what one client costs the others, beside Apache Kafka 4.3
	$(DEV)/bin/python -m tests.bench.neighbours $(if $(BEFORE),--before $(BEFORE))

bench-reading: $(RUN)/.ready $(DEV)/.ready ## what a slow bookie costs readers, and its detection the others; ratios
	$(DEV)/bin/python -m tests.bench.reading $(if $(BEFORE),--before $(BEFORE))

bench-archive: $(DEV)/.ready ## what 30 days of commits cost an archive: opening, checkpoints, metadata.json
	$(DEV)/bin/python -m tests.bench.archive_growth

bench-cli: $(RUN)/.ready $(DEV)/.ready ## how long people wait: commands, a gateway for a test, printed records; ratios (BEFORE=DIR)
	$(DEV)/bin/python -m tests.bench.cli $(if $(RUNS),--runs $(RUNS)) $(if $(BEFORE),--before $(BEFORE))

bench-page: $(RUN)/.ready $(DEV)/.ready ## the web page with 100 and 10,000 topics and groups, and what it costs producers (RUNS=1 QUICK=1)
	$(DEV)/bin/python -m tests.bench.page $(if $(RUNS),--runs $(RUNS)) $(if $(QUICK),--quick)

bench-security: $(RUN)/.ready $(DEV)/.ready ## quotas, TLS, logins and ACLs beside Apache Kafka 4.3 (RUNS=1 ROWS=quota)
	$(DEV)/bin/python -m tests.bench.security $(if $(RUNS),--runs $(RUNS)) $(if $(ROWS),--rows $(ROWS))

bench-groups: $(RUN)/.ready $(DEV)/.ready ## groups of 1,000 members of both protocols beside Apache Kafka 4.3 (RUNS=1 ROWS=classic)
	$(DEV)/bin/python -m tests.bench.groups $(if $(RUNS),--runs $(RUNS)) $(if $(ROWS),--rows $(ROWS),--write)

bench-start: $(RUN)/.ready $(DEV)/.ready ## how long commands take to start, beside python -c pass, and gateway dev --secure (BEFORE=DIR)
	$(DEV)/bin/python -m tests.bench.start
	$(DEV)/bin/python -m tests.bench.secure_start $(if $(BEFORE),--before $(BEFORE))

.PHONY: help run cluster check check-types check-rules compiled test-fast test peers differential proof proof-ledger proof-reading proof-transactions proof-groups proof-transactions-processes proof-failover proof-losses proof-upgrade \
	proof-spark proof-spark-newest proof-hostile proof-hostile-logins docs screenshots demo spark bench \
	bench-transactions bench-compaction bench-cluster bench-ledger bench-subscriptions bench-spark bench-direct-plan bench-spark-memory bench-scale bench-neighbours bench-reading bench-archive bench-security bench-groups bench-page bench-start bench-cli bench-wire
