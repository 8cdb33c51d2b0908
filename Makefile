PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Compiled files are kept, so that the second run starts sooner, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# Tests keep the order that tests/conftest.py gives them. Of three processes one mostly waits for Ray, so that two cores are busy.
TESTS := $(BIN)/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder
# A test at full size may take longer than the limit of the others.
LONG := $(BIN)/python -m pytest -q --timeout 3600
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# By all cores, where pip has one. Some packages have templates of files, which do not compile.
COMPILE := $(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib || true

.PHONY: diurnal nights help run test outside everything lowest check types fast bench bench-learning gpu-check bench-peers bench-population bench-scale bench-audit bench-wheel canary faults peers reproduce trust gboard predict fits laws fuzz docs clean

help:  ## What there is to make
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "%-18s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: .venv/.runs  ## Simulate the quickstart scenario at full size, audit it, write its report
	$(BIN)/fedray run scenarios/quickstart.toml --place backend=ray

test: .venv/.tests  ## Every test of fedray itself
	$(TESTS) -m "not outside"

outside: .venv/.tests  ## Tests of fedray in other hands: image, wheel, notebooks, browsers, other frameworks, submitted jobs, benchmarks
	$(TESTS) -m outside $$(grep -rl "mark\.outside" tests --include "test_*.py")

everything: .venv/.tests  ## Both at once, as in CI: a process that waits leaves its core to the others
	$(TESTS)

lowest: .venv/.tests  ## The lowest versions of dependencies that pyproject.toml allows: import, audit, runs; also in `outside`
	$(LONG) tests/architecture/test_lowest.py

check: .venv/.tests  ## Format, lint, types, import contracts, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory --jobs 2 --output-sync types fast

types:
	$(BIN)/basedpyright

fast:
	$(TESTS) -m "not slow and not ray and not outside"

bench: .venv/.tests  ## Benchmarks, printed; nothing is asserted
	$(BIN)/python tests/benchmarks/bench_quickstart.py
	$(BIN)/python tests/benchmarks/bench_mechanisms.py

bench-learning: .venv/.tests  ## What training costs beside the devices' work: time, bytes through the driver, memory; uneven devices (twenty minutes)
	$(BIN)/python tests/benchmarks/bench_learning.py
	$(BIN)/python tests/benchmarks/bench_uneven.py

gpu-check: .venv/.tests  ## Is all well on this GPU? Speed, same bits, errors, as a table (five minutes; needs torch's CUDA build, no Ray)
	$(BIN)/python tests/benchmarks/bench_gpu.py

bench-population: .venv/.tests  ## Sizes, shards, the published pt-BR run, alternatives (half an hour)
	$(BIN)/python tests/benchmarks/bench_population.py

bench-scale: .venv/.tests  ## What a cluster buys: shares of driver and nodes, messages, predictions (half an hour, 8 GB of memory)
	$(BIN)/python tests/benchmarks/bench_scale.py

faults: .venv/.cluster  ## Every fault at three moments: killed actors, nodes and drivers, full disks, interruptions; jobs on a cluster; runs in a bucket at ten
	FEDRAY_ALL_MOMENTS=1 $(LONG) tests/simulation/test_faults.py tests/simulation/test_cluster.py tests/trace/test_stored.py tests/deploy

canary: .venv/.tests  ## Canaries: coverage and planted bugs, 100 seeds each; bounds of epsilon and answers to questions, 200; false alarms, 1,000 runs; 1,000 audits and 150 sampled epsilons, bracketed
	FEDRAY_ALL_SEEDS=1 $(LONG) tests/studies/test_canary.py tests/studies/test_canary_kinds.py \
	  tests/studies/test_canary_bounds.py tests/studies/test_model_audit.py tests/audit/test_one_run.py \
	  tests/audit/test_distribution.py tests/mechanisms/test_composition.py \
	  tests/mechanisms/test_questions.py tests/mechanisms/test_questions_exact.py

fits: .venv/.tests  ## Habits fitted to 50 logs: how often the 95 % intervals hold the truth; FLASH's phones (ten minutes)
	FEDRAY_ALL_SEEDS=1 $(LONG) tests/studies/test_habits.py tests/scenarios/test_flash.py

laws: .venv/.tests  ## The laws of runs, policies and samplers, and that en-GB has its published figures, at full size (a quarter of an hour)
	FEDRAY_ALL_SEEDS=1 FEDRAY_FULL_SIZE=1 $(LONG) tests/simulation/test_laws.py \
	  tests/simulation/test_policies.py tests/audit/test_enforced.py tests/audit/test_sampler.py tests/statistical/test_samplers_agree.py tests/reproduction/test_en_gb.py

fuzz: .venv/.tests  ## 100,000 damaged and hostile inputs, and 5,000 valid ones at the edges, which are run (an hour)
	$(BIN)/python tests/fuzz/fuzz.py --cases 100000
	$(BIN)/python tests/fuzz/fuzz.py --cases 5000 --valid
	$(BIN)/python tests/fuzz/hostile.py

bench-audit: .venv/.tests  ## Import and audit of large logs, sweeps of 200 cells (twenty minutes, 10 GB of disk)
	$(BIN)/python tests/benchmarks/bench_audit.py

bench-wheel: .venv/.tests  ## Sizes and start-up times of an installation, for the core and each extra (ten minutes, 6 GB)
	$(BIN)/python tests/benchmarks/bench_wheel.py

predict: .venv/.runs  ## The published runs of Gboard, predicted from others (a quarter of an hour)
	$(BIN)/fedray reproduce gboard-predict --out runs/gboard-predicted

diurnal: .venv/.tests  ## A day of the en-US population beside published ones, and its picture in docs/ (seconds)
	$(BIN)/python tests/reproduction/diurnal.py docs/diurnal.png

nights: .venv/.tests  ## Three weeks of a deployment off its estimate, judged every night, and its picture in docs/ (two minutes)
	$(BIN)/python tests/reproduction/nights.py docs/nights.png

gboard: .venv/.runs  ## The published runs of Gboard, simulated at full size (a quarter of an hour)
	$(BIN)/fedray reproduce gboard

peers: .venv/.tests  ## Our optimised mechanisms against jax-privacy's, 30 settings (half an hour)
	$(BIN)/python tests/benchmarks/compare_optima.py

bench-peers: .venv/.tests  ## Federated averaging by fedray, Flower and pfl, device updates per CPU second (an hour, 4 GB)
	$(BIN)/python tests/benchmarks/peers/bench_peers.py

reproduce: .venv/.runs  ## Published losses of mechanisms beside ours (six minutes)
	$(BIN)/fedray reproduce blt --out runs/blt

trust: .venv/.runs  ## One model under every kind of trust, at epsilon 4 (a few minutes)
	$(BIN)/fedray reproduce trust --out runs/trust

docs: .venv/.docs  ## The documentation, in site/: reference from the code, links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## Remove what was made, runs excepted
	rm -rf .venv build dist site *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.runs: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[all]'
	@$(COMPILE)
	touch $@

.venv/.tests: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev]'
	@$(COMPILE)
	touch $@ .venv/.runs

.venv/.cluster: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev,cluster]'
	@$(COMPILE)
	touch $@ .venv/.runs .venv/.tests

.venv/.docs: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[docs]'
	@$(COMPILE)
	touch $@
