# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs first: scripts/setup does nothing when nothing changed.

PYTHON = .venv/bin/python
C_SOURCES = $(wildcard ioutil_ext/*/*.[ch] tests/ioutil/*.c tests/ioutil/stress/*.[ch] tests/fuzz/targets/*.[ch] benchmarks/*.[ch] tests/lab/*.c tests/support/*.c)

LAB = $(addprefix lab-,$(or $(ONLY),storage bare debian13 newer_peers systemd packages rpm container schemathesis ansible operator ceph ceph_service krbd proxies hostile clients backup))

# What `make check` runs: requests, files below them, and what needs no daemon.
CHECKED = $(addprefix tests/,test_cli.py checks client/local config conformance docs frontends/http image lanes lifecycle nbdproto net operations \
	runtime storage transfers urls) \
	$(addprefix tests/functional/test_,who_serves.py get.py put.py patch.py extents.py ticket_life.py) \
	$(addprefix tests/frontends/nbd/test_,begin.py requests.py tls.py) \
	$(addprefix tests/ioutil/test_,engine.py policy.py tables.py transfers.py)

# With worksteal they all end at the same time. Most of the time of a test is that of a wait: on two processors, three
# processes leave half of the machine idle, and six do not. Tests that measure time come first, one at a time.
# REFUSE=io_setup:EAGAIN: the kernel refuses system calls, to the tests and to all that they start.
PYTEST = $(if $(REFUSE),$(PYTHON) -m tests.support.refusing $(REFUSE)) $(PYTHON) -m pytest --numprocesses 6 --dist worksteal

# Each daemon under test would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo run check test test-ui coverage differential soak soak-qcow2 campaign-client test-links lab test-oldest lint format sanitize fuzz bench bench-client bench-compressed bench-nbd bench-seeds bench-engines bench-durable bench-verify bench-scrape bench-handshakes bench-beside packages clean

help: ## Show this list (default)
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

setup: ## System packages, .venv and the C extension
	@scripts/setup

demo: setup ## Upload and download a real disk image through a daemon of its own (IMAGE=path: that image)
	@$(PYTHON) scripts/demo

run: setup ## Run the daemon in the foreground with a sample image and show the curl lines to try
	@$(PYTHON) scripts/run

check: lint ## Check style and types, and run the first cases of chosen tests: a minute, before each commit
	$(PYTEST) -q --first-cases $(CHECKED)

test: setup ## Run all tests in six processes (ARGS="-k name": some of them; UI=1: those of the page for browsers, too; AGAIN=1: those that fail once more; REFUSE=io_setup:EAGAIN: without asynchronous I/O)
	$(if $(UI),@scripts/setup-ui)
	$(if $(UI),IMAGEIO_TEST_UI=1) $(PYTEST) $(if $(AGAIN),--reruns 1 --rerun-show-tracebacks) $(ARGS)

test-ui: setup ## Run the tests of the page for browsers in a real Chromium, three minutes (ARGS="-k name": some of them)
	@scripts/setup-ui
	IMAGEIO_TEST_UI=1 $(PYTEST) tests/ui $(ARGS)

coverage: setup ## Run all tests and show what they reach of Python and C, half an hour (ARGS=path: some of them)
	@scripts/coverage $(ARGS)

differential: setup ## Compare answers and images with an earlier build of this project (BEFORE=its work tree), 10 minutes
	IMAGEIO_TEST_BEFORE=$(abspath $(BEFORE)) $(PYTHON) -m pytest tests/differential $(ARGS)

soak: setup ## Campaigns of minutes: memory under load, the order of changes, storage against a model, long fuzzing, the images API in all ways on all storage
	IMAGEIO_TEST_LONG=1 $(PYTHON) -m pytest tests/soak tests/fuzz tests/client/transfer/test_faults.py tests/client/transfer/test_interrupts.py tests/ioutil/test_model.py tests/storage/test_durable_model.py $(ARGS)
	IMAGEIO_TEST_LONG=1 $(PYTEST) tests/functional $(ARGS)

soak-qcow2: setup ## qcow2: 12 million operations against a model and qemu, 44,000 losses of power, 1,000 kills, hours (ROUNDS=10: a part)
	IMAGEIO_TEST_LONG=1 IMAGEIO_TEST_ROUNDS=$(or $(ROUNDS),250) $(PYTEST) tests/qcow2/test_model.py tests/qcow2/test_crash.py tests/qcow2/test_concurrent.py tests/qcow2/test_hostile.py tests/soak/qcow2 $(ARGS)

campaign-client: setup ## Interrupted uploads and downloads and updates of random images, half an hour (ARGS="-k downloads": some of them)
	IMAGEIO_TEST_LONG=1 $(PYTHON) -m pytest tests/soak/test_resume.py tests/soak/test_downloads.py tests/client/transfer/test_update.py -k "interrupted or killed or random" -q -rP $(ARGS)

test-links: setup ## Transfers over slow, long and lossy links, and how fast they are: four minutes of a machine that does nothing else
	IMAGEIO_TEST_LONG=1 $(PYTHON) -m pytest tests/client/test_links.py -s $(ARGS)

lab: setup ## Check on other systems and storage, as root, half an hour or more (ONLY=systemd: one of them; tests/lab/README.md)
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync $(LAB)

lab-%:
	@echo "== $*"; bash -c "time tests/lab/$*"

test-oldest: ## Run all tests with the lowest versions of the dependencies that pyproject.toml allows
	@scripts/setup --oldest
	.venv-oldest/bin/python -m pytest $(ARGS)

lint: setup ## Check style, types, C format and the direction of imports and includes
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/clang-format --dry-run -Werror $(C_SOURCES)
	.venv/bin/lint-imports
	$(PYTHON) scripts/c_layers.py

format: setup ## Format Python and C sources
	.venv/bin/ruff check --fix-only
	.venv/bin/ruff format
	.venv/bin/clang-format -i $(C_SOURCES)

sanitize: setup ## Stress the C engine under the address, undefined-behaviour and thread sanitizers
	tests/ioutil/stress/run

fuzz: setup ## Fuzz the C that reads what peers send, guided by coverage, an hour on two cores (SECONDS=600: less)
	tests/fuzz/run $(or $(SECONDS),3600)

bench: setup ## Measure beside ovirt-imageio, 30 minutes (QUICK=1: 3 minutes; ONLY=regex: some cases; ONLY=qcow2)
	@benchmarks/setup
ifneq ($(ONLY),qcow2)
	@$(PYTHON) -m benchmarks.transfer $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)") $(ARGS)
endif
ifneq ($(filter $(or $(ONLY),$(QUICK),qcow2),qcow2),)
	@$(PYTHON) -m benchmarks.qcow2 $(if $(filter qcow2,$(ONLY)),$(ARGS))
endif

bench-client: setup ## Measure imageio-client beside ovirt-imageio's, nbdcopy, qemu-img and dd, 30 minutes (QUICK=1: 5 minutes; ONLY=fragmented)
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.client $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-compressed: setup ## Measure uploads over 1 Gbit/s and 100 Mbit/s, compressed and not, beside ovirt-imageio's, rsync and qemu-img, as root, 5 minutes (QUICK=1: 1 minute)
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.compressed $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-nbd: setup ## Measure NBD beside qemu-nbd and nbdkit, 12 minutes (QUICK=1: 2 minutes; ONLY=regex: some cases)
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.nbd $(if $(QUICK),--quick) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-seeds: setup ## Measure zeros and qcow2 beside qemu-nbd, nbdkit and ovirt-imageio, five experiments, 30 minutes (QUICK=1: 3 minutes; ONLY=2: one)
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.seeds $(if $(QUICK),--quick) $(if $(ONLY),--only "^$(ONLY)") $(ARGS)

bench-engines: setup ## Measure ranges beside a server that connects anew, NBD through the HTTPS port, maps of bitmaps, 5 minutes (ONLY=map: some)
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.engines $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-durable: setup ## Measure what the record of durable ranges costs (ONLY=regex: some cases), 10 minutes
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.durable $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-verify: setup ## Measure checksums beside ovirt-imageio's, and verified uploads (ONLY=regex: some rows), 5 minutes
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.verify $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-scrape: setup ## Measure what a scrape of the metrics each second costs (ONLY=regex: some cases), 6 minutes
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.scrape $(if $(ONLY),--only "$(ONLY)") $(ARGS)

bench-handshakes: setup ## Measure how long requests wait while strangers shake hands, 1 minute (BEFORE=the work tree of an earlier build)
	@$(PYTHON) -m benchmarks.handshakes $(if $(BEFORE),--before "$(BEFORE)") $(ARGS)

bench-beside: setup ## Measure beside an earlier build of this project (BEFORE=its work tree; ONLY=regex: some cases), 25 minutes
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.beside $(if $(ONLY),--only "$(ONLY)") $(ARGS) $(BEFORE)

packages: ## Build wheel, sdist, .deb and SBOM of this version into dist/ (ONLY=deb: this alone; ONLY="rpm container": these)
	@scripts/packages $(ONLY)

clean: ## Remove everything that was built
	rm -rf .venv .venv-oldest .cache build dist *.egg-info ioutil_ext/_ioutil.c ioutil_ext/_ioutil.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
