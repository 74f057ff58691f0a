# Two commands do everything from a bare checkout: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard torch_edl/wire/*.proto)
# Compiled modules are kept: the tests start some hundred processes, which would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install install-all quickstart test tests-but-storms test-kubernetes lint proto proto-check storm bench bench-cluster clean

help:  ## Lists the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

install: $(or $(wildcard $(VENV)/.installed),$(VENV)/.installed-examples)  ## Makes a virtual environment that runs the examples

install-all: $(VENV)/.installed  ## Adds all extras and what the tests need

$(VENV)/.installed-examples: EXTRAS := examples
$(VENV)/.installed-examples: SIZE := 1.4 GB
$(VENV)/.installed: EXTRAS := examples,tensorboard,prometheus,gpu,opentelemetry,mlflow,wandb,etcd,sql,kafka,maxcompute,kubernetes,s3,gcs,http,avro,completion,benchmarks,tensorflow,test,dev
$(VENV)/.installed: SIZE := 4 GB

$(VENV)/.installed $(VENV)/.installed-examples: constraints.txt setup.cfg setup.py pyproject.toml $(wildcard torch_edl/csrc/*)
	@echo "Installing torch-edl[$(EXTRAS)] in $(VENV): $(SIZE), some minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/refuse_cuda.py -c constraints.txt torch
	@quiet=--quiet; if [ -t 1 ]; then quiet=; fi; PIP_CONSTRAINT=$(CURDIR)/constraints.txt \
	  $(BIN)/pip install $$quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

quickstart: install  ## Trains handwritten digits on 2 servers and 2 workers, and evaluates
	$(BIN)/python examples/mnist/prepare.py quickstart/data
	$(BIN)/torch-edl run examples/mnist/model.py --data 'quickstart/data/train-*.recordio' \
	  --eval-data quickstart/data/test.recordio --ps 2 --workers 2 --epochs 10 \
	  --output quickstart/model
	$(BIN)/torch-edl evaluate examples/mnist/model.py --from quickstart/model \
	  --data quickstart/data/test.recordio

test: install-all  ## All tests but the storms, and lint beside them
	@$(MAKE) --no-print-directory --jobs 2 lint tests-but-storms

tests-but-storms: install-all
	$(BIN)/python -m pytest -m 'not slow' -n 3 --dist loadfile --no-loadscope-reorder

lint: install-all proto-check  ## ruff, mypy --strict, the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-kubernetes: install-all  ## Jobs on a cluster: KUBECONFIG=FILE IMAGE=NAME, or the tests' own one
	EDL_TEST_KUBECONFIG=$(KUBECONFIG) EDL_TEST_IMAGE=$(IMAGE) \
	  $(BIN)/python -m pytest tests/cluster/test_jobs*.py

storm: install-all  ## The long fault storms
	$(BIN)/python -m pytest -m slow

bench: install-all  ## The benchmarks, each one JSON line a point
	$(BIN)/python benchmarks/ps_push_pull.py
	$(BIN)/python benchmarks/deepfm.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/failures.py
	$(BIN)/python benchmarks/replace.py
	$(BIN)/python benchmarks/failover.py
	$(BIN)/python benchmarks/master_restart.py
	$(BIN)/python benchmarks/scale_ps.py
	$(BIN)/python benchmarks/resize.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/encryption.py
	$(BIN)/python benchmarks/sceptics.py --only exchange,rows,durability,servers,observers,staleness
	$(BIN)/python benchmarks/snapshot_stall.py
	$(BIN)/python -m benchmarks.preprocessing
	$(BIN)/python -m benchmarks.convergence
	$(BIN)/python -m benchmarks.sources_databases
	$(BIN)/python -m benchmarks.sources

bench-cluster: install-all  ## The published experiments on a simulated cluster, with pictures
	$(BIN)/python -m benchmarks.cluster.two_jobs
	$(BIN)/python -m benchmarks.cluster.beside_nginx
	$(BIN)/python -m benchmarks.cluster.many_workers

proto: install-all  ## Generates torch_edl/wire/*_pb2.py from the schemas
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)

proto-check: install-all
	@rm -rf build/proto && mkdir -p build/proto
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=build/proto --pyi_out=build/proto $(PROTOS)
	@for f in build/proto/torch_edl/wire/*; do \
	  cmp -s $$f torch_edl/wire/$$(basename $$f) || \
	  { echo "torch_edl/wire/$$(basename $$f) is stale: run 'make proto' and commit it"; exit 1; }; \
	done

clean:  ## Removes what the other targets made
	rm -rf $(VENV) build quickstart *.egg-info torch_edl/*.so
