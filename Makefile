# `make demo` and `make test` are where to begin, `make quick` is for every few minutes of work, `make docs` builds the site.
# All set up what they need in .venv first.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# The package index to take torch from, if not pip's own (docs/get-started/install.md).
TORCH_INDEX ?=
export OMP_NUM_THREADS := 1

.PHONY: audit demo demo-sites five check quick test test-long soak mutants docs package test-browser test-sites test-ray screenshot bench bench-scale bench-ray bench-peers bench-beside clean

# pip's output goes to $(VENV)/install.log and is shown only if a step fails.
$(VENV)/ready: pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) sh scripts/install.sh $(VENV) dev
	@touch $@

# Anew each time; `comity demo` itself goes on after an interruption.
demo: $(VENV)/ready
	@rm -rf demo
	@$(BIN)/comity demo --out demo

# The five methods beside SOLO and FedAvg, three seeds: seven to eight minutes on two quiet cores of an AMD EPYC.
five: $(VENV)/ready
	@sh examples/five.sh $(BIN)/comity

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

# The tests marked quick, within a minute. Naming the places spares looking for tests elsewhere.
QUICK := tests/core tests/docs tests/algorithms tests/golden tests/cli/test_contracts.py tests/cli/test_version.py \
	tests/test_lint.py tests/test_mutants.py tests/engines/test_parity.py tests/engines/test_stacked.py

quick: check
	$(BIN)/pytest -n 2 --dist loadscope -m "quick and not slow and not long" $(QUICK)

test: check
	$(BIN)/pytest -n 2 --dist loadscope -m "not long"

# Every method in every setting, where `make test` has some of them.
test-long: $(VENV)/ready
	$(BIN)/pytest -n 2 --dist loadscope -m long

# A server and four sites on this machine, one of which is killed on the way and returns: about five minutes.
demo-sites: $(VENV)/sites-ready
	@$(BIN)/python examples/demo_sites.py

# What takes too long for every test run, and looks for faults at random: kills, damage, messages, signals, values, commands. Each
# says what it did and ends with an error if it found anything (docs/concepts/reliability.md).
soak: $(VENV)/ready
	$(BIN)/python tests/soak/kills.py --kills 200
	$(BIN)/python benchmarks/damage.py
	$(BIN)/python tests/wire/fuzz.py --count 100000
	$(BIN)/python tests/soak/interrupts.py --moments 50
	$(BIN)/python tests/soak/options.py --prepare
	$(BIN)/python tests/soak/commands.py --count 500

# Breaks important lines one at a time, and fails if no test notices (benchmarks/mutant_list.py): about six minutes.
mutants: $(VENV)/ready
	$(BIN)/python benchmarks/mutants.py --jobs 2

# The site's tools, beside the others but only when wanted.
$(VENV)/docs-ready: $(VENV)/ready
	@sh scripts/install.sh $(VENV) dev,docs
	@touch $@

# The site, from docs/ and the docstrings, into build/site; needs no network once its tools are there. Not --quiet: it would
# keep warnings from --strict.
docs: $(VENV)/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/site/check.py build/site

# The source distribution and the wheel in dist/, what PyPI would refuse of them, and the wheel in an empty environment, which
# installs all dependencies once more (RELEASING.md).
package: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python scripts/try_wheel.py

# The report's page in Chromium; apart, since not everyone has one.
test-browser: $(VENV)/ready
	@sh tests/browser/prepare.sh $(BIN)
	COMITY_BROWSER=1 $(BIN)/pytest tests/browser

# NVIDIA FLARE, beside the others but only when wanted.
$(VENV)/sites-ready: $(VENV)/ready
	@sh scripts/install.sh $(VENV) dev,sites
	@touch $@

# A real server and real sites on this machine, with faults: some minutes.
test-sites: $(VENV)/sites-ready
	COMITY_SITES=1 $(BIN)/pytest tests/deploy/flare tests/deploy/test_sites_restarts.py

# Ray, beside the others but only when wanted.
$(VENV)/ray-ready: $(VENV)/ready
	@sh scripts/install.sh $(VENV) dev,ray
	@touch $@

# Runs on a Ray cluster of two nodes, both this machine, and on a Ray of their own: about four minutes.
test-ray: $(VENV)/ray-ready
	COMITY_RAY=1 $(BIN)/pytest tests/engines/ray

# The table in docs/how-to/audit.md: four methods on digits keep their messages, and are attacked by them. About a minute.
audit: $(VENV)/ready
	$(BIN)/comity compare fedavg adcol relay fed-sps --record-messages --parties 5 --partition iid --rounds 10 --seed 1 --no-report --out audited
	$(BIN)/comity audit audited

# The README's picture, of the demo's page.
screenshot: $(VENV)/ready
	@test -f demo/report.html || { echo 'There is no demo/report.html to take a picture of: make demo first.' >&2; exit 1; }
	@sh tests/browser/prepare.sh $(BIN)
	$(BIN)/python tests/browser/screenshot.py demo/report.html docs/images/report.png

bench: $(VENV)/ready
	cd benchmarks && ../$(BIN)/python machine.py && ../$(BIN)/python overhead.py && ../$(BIN)/python methods.py
	cd benchmarks && ../$(BIN)/python scale.py personal && ../$(BIN)/python checkpoints.py

# Seconds and memory from ten parties to ten thousand, and the picture in docs/results/performance.md; then a cohort of 1,000 of
# up to a hundred thousand.
bench-scale: $(VENV)/ready
	COMITY_TIMING=1 $(BIN)/pytest -m long tests/runs/test_growth.py
	cd benchmarks && ../$(BIN)/python scale.py parties --plot ../docs/results/scale.svg
	cd benchmarks && ../$(BIN)/python scale.py cohort

# Ray beside the process engine, and with up to a hundred thousand parties: about a quarter of an hour.
bench-ray: $(VENV)/ray-ready
	cd benchmarks && ../$(BIN)/python clusters.py against && ../$(BIN)/python clusters.py parties

# Whole rounds beside other frameworks, which are installed in benchmarks/.venvs (4 GB): about half an hour.
bench-peers: $(VENV)/ready
	cd benchmarks && ../$(BIN)/python peers.py

# Methods beside other libraries' on one split, which takes a while; `make bench-beside PFLLIB=../PFLlib HTFLLIB=../HtFLlib`.
bench-beside: $(VENV)/ready
	$(BIN)/python benchmarks/beside.py $(if $(PFLLIB),--pfllib $(PFLLIB)) $(if $(HTFLLIB),--htfllib $(HTFLLIB))

clean:
	rm -rf $(VENV) benchmarks/.venvs audited demo demo-sites build dist
