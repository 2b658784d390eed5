# Two commands: `make demo` and `make test`. Both set up what they need in .venv first.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
export OMP_NUM_THREADS := 1

.PHONY: demo five test check bench clean

# torch first and pinned: any other request for it pulls gigabytes of GPU packages.
$(VENV)/ready: pyproject.toml constraints.txt
	@echo 'Setting up $(VENV) (once; a minute or two) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check "torch==2.13.0"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(VENV)/ready
	@sh examples/demo.sh $(BIN)/comity

# The five methods beside SOLO and FedAvg, three seeds: about ten minutes.
five: $(VENV)/ready
	@sh examples/five.sh $(BIN)/comity

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -n 2 --dist loadscope

bench: $(VENV)/ready
	cd benchmarks && ../$(BIN)/python overhead.py && ../$(BIN)/python checkpoints.py

clean:
	rm -rf $(VENV) demo build dist
