# One-line targets; CI and people call the same ones. Everything installs itself into $(VENV).
VENV ?= .venv
PYTHON ?= python3
PY := $(VENV)/bin/python
PREPARE = $(PYTHON) tools/prepare.py
PYTEST_ARGS ?=

.PHONY: help demo demo-inprocess recording test quick pythons check unit docs diagrams trainers test-trainers bench cluster etcd fresh soak soak-inprocess soak-hosts soak-fuzz any-order harmless harmless-memory gpu gpu-stand-in sim test-torch release-check minimal-root clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-18s %s\n", $$1, $$2 }'

# Every time: a tenth of a second, in which a moved or broken environment is found and made again.
$(VENV)/.ready: FORCE
	@command -v $(PYTHON) > /dev/null || { echo "holdfast: there is no $(PYTHON): apt-get install python3-venv (Debian, Ubuntu)" >&2; exit 1; }
	@$(PREPARE) $(VENV)
FORCE:

demo: $(VENV)/.ready  ## train a small GPT: a rank raises, one is killed, one hangs; finish with the same weights
	@$(PY) examples/demo.py

recording: $(VENV)/.ready  ## run the demo, and draw docs/_static/demo.svg from what it prints
	@$(PY) -m docs.recording docs/_static/demo.svg $(PY) examples/demo.py

demo-inprocess: $(VENV)/.ready  ## the same training restarted in place: an exception, a kill, two hangs
	@$(PY) examples/demo_inprocess.py

test: check unit  ## everything CI runs: check, then all tests

quick: check  ## for daily work: check, then the tests that start no jobs, but for the slow ones; about two minutes
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow" tests/simulation tests/unit $(PYTEST_ARGS)

unit: $(VENV)/.ready  ## the tests alone (PYTEST_ARGS="-k name")
	$(PY) -m tests $(PYTEST_ARGS)

pythons:  ## the tests with other Pythons (PYTHONS="python3.10 python3.13"); each installs torch
	@for python in $(PYTHONS); do \
		$(MAKE) --no-print-directory VENV=.venv-$$(basename $$python) PYTHON=$$python unit || exit; \
	done

check: $(VENV)/.ready  ## lint, format, types, direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: $(VENV)/.ready  ## the documentation site, in build/site; a warning or a broken link is an error
	@$(PY) -m sphinx -q -W --keep-going docs build/site
	@echo "holdfast: open build/site/index.html"

diagrams: $(VENV)/.ready  ## draw the state diagrams of docs/ from the machines
	@$(PY) -m tests.state_diagrams

TORCH_VENV = .venv-torch-$(TORCH)
TORCH_TESTS = $(sort $(shell grep -rlw torch tests/unit tests/integration tests/real --include='test_*.py')) tests/unit/inplace tests/unit/inprocess tests/promises

test-torch:  ## the tests that need torch, with another version of it: TORCH=2.9.1 (in .venv-torch-2.9.1)
	@test -n "$(TORCH)" || { echo "holdfast: which version? make test-torch TORCH=2.9.1"; exit 2; }
	@$(PREPARE) $(TORCH_VENV) torch==$(TORCH)
	@$(TORCH_VENV)/bin/python -m pytest $(PYTEST_ARGS) $(TORCH_TESTS)

TRAINERS = transformers accelerate lightning pytorch_lightning datasets

trainers:  ## restarts of transformers, Lightning, accelerate and FSDP2 jobs beside torchrun's, in .venv-trainers
	@$(PREPARE) .venv-trainers $(TRAINERS)
	@OMP_NUM_THREADS=1 .venv-trainers/bin/python -m bench trainers

test-trainers:  ## the callbacks in real trainings of Lightning, transformers and accelerate, in .venv-trainers
	@$(PREPARE) .venv-trainers $(TRAINERS)
	@.venv-trainers/bin/python -m pytest -o faulthandler_timeout=0 tests/real/test_lightning.py tests/real/test_hugging_face.py tests/unit/test_compat_surface.py tests/promises/test_lightning.py $(PYTEST_ARGS)

cluster: $(VENV)/.ready  ## examples/deploy/slurm.sbatch under a Slurm of three nodes here: faults, signals, requeues (needs root, slurm-wlm)
	@$(PY) -m tests.cluster $(PYTEST_ARGS)

etcd: $(VENV)/.ready  ## launchers that meet over a real etcd, which fails and comes back (needs etcd-server)
	@command -v etcd > /dev/null || { echo "no etcd here: apt-get install etcd-server (3.4 or 3.5, for its v2 protocol)"; exit 1; }
	@test -d .etcd/etcd || $(PY) -m pip install --quiet --disable-pip-version-check --target .etcd python-etcd
	@PYTHONPATH=$(CURDIR)/.etcd$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m pytest -o timeout=300 -o faulthandler_timeout=0 tests/real/test_etcd.py $(PYTEST_ARGS)

bench: $(VENV)/.ready  ## measure against torchrun and a socket heartbeat; JSON in bench/results
	@$(PY) -m bench

soak: soak-fuzz  ## garbage for every endpoint, 200 random faults on a tiny job (FAULTS=n SEED=n), 3000 process tables (TABLES=n), hosts with broken names, a run with 20 faults told
	@$(PY) -m tests.soak --faults $(or $(FAULTS),200) $(if $(SEED),--seed $(SEED))
	@HOLDFAST_FRESH=1 HOLDFAST_OWNERSHIP_EXAMPLES=$(or $(TABLES),3000) $(PY) -m pytest -q tests/unit/base/test_ownership.py --timeout=3600
	@HOLDFAST_ALL_HOSTS=1 $(PY) -m pytest -q tests/real/test_hosts.py
	@HOLDFAST_FRESH=1 HOLDFAST_REPORT_FAULTS=20 HOLDFAST_LEDGER_EXAMPLES=5000 $(PY) -m pytest -q --timeout=900 tests/real/test_report.py tests/real/test_chaos.py tests/unit/events/test_ledger.py tests/unit/tools/test_trace.py

any-order: $(VENV)/.ready  ## tests of real processes, with events in random order and random pauses on both sides (PYTEST_ARGS="tests/real/test_launcher.py")
	@$(PY) -m tests.any_order $(PYTEST_ARGS)

harmless:  ## 100 healthy scenarios of three kinds of scripts under torchrun and ft_launcher, 60 planted hangs; hours (SCENARIOS="*lock*" KINDS=plain JOBS=2 ARGS=--list; ARGS="--pause 900": with the real floor)
	@$(PREPARE) .venv-trainers $(TRAINERS)
	@.venv-trainers/bin/python -m tests.harmless --scenarios '$(or $(SCENARIOS),*)' --kinds $(or $(KINDS),plain,lightning,trainer) --jobs $(or $(JOBS),2) $(ARGS)

harmless-memory: $(VENV)/.ready  ## a rank of 4.5 GB beside parked interpreters in a control group of 4.7 GB, then 50 random histories (HISTORIES=n SEED=n; needs root)
	@$(PY) -m tests.harmless.memory --histories $(or $(HISTORIES),50) $(if $(SEED),--seed $(SEED))

fresh: $(VENV)/.ready  ## the tests of machines and of the simulator, with seeds and examples that nobody has drawn (TIMES=n)
	@for n in $$(seq $(or $(TIMES),1)); do \
		HOLDFAST_FRESH=1 $(PY) -m pytest -q -n 2 --dist worksteal tests/simulation tests/unit $(PYTEST_ARGS) || exit; \
	done

soak-fuzz: $(VENV)/.ready  ## 10,000 pieces of garbage for every endpoint and store (EXAMPLES=n)
	@HOLDFAST_FRESH=1 HOLDFAST_FUZZ_EXAMPLES=$(or $(EXAMPLES),10000) $(PY) -m pytest -o timeout=0 -o faulthandler_timeout=0 tests/integration -k "garbage or fuzz"

soak-inprocess: $(VENV)/.ready  ## 300 random faults in one call of a restartable function (FAULTS=n SEED=n), 300 with atomic sections, 100,000 interrupts
	@$(PY) -m tests.interrupt_stress --interrupts $(or $(INTERRUPTS),100000)
	@$(PY) -m tests.atomic_soak --faults $(or $(FAULTS),300) $(if $(SEED),--seed $(SEED))
	@$(PY) -m tests.inprocess_soak --faults $(or $(FAULTS),300) $(if $(SEED),--seed $(SEED))

soak-hosts: $(VENV)/.ready  ## 1000 stalls of launchers, hosts that sleep, links that break, one way too, 20 random rounds with gloo; 45 minutes (PARTS="stalls freezes links random" SEED=n JOBS=6; needs root)
	@$(PY) -m tests.host_soak $(PARTS) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS))

# A host with a GPU often has torch and no network: `make gpu PYTHON=python3` installs nothing.
ifeq ($(origin PYTHON),file)
GPU_PY := $(PY)
GPU_NEEDS := $(VENV)/.ready
else
GPU_PY := $(PYTHON)
GPU_NEEDS :=
endif
GPU_ENV = PYTHONPATH=src$(if $(PYTHONPATH),:$(PYTHONPATH)) PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 HOLDFAST_GPU_BUDGET_S=$(or $(BUDGET),540) HOLDFAST_GPU_RESULTS=$(RESULTS)
GPU_SUITE = $(GPU_PY) -m pytest -c tests/gpu/gpu.ini --rootdir=. -p no:cacheprovider tests/gpu $(PYTEST_ARGS)

gpu: $(GPU_NEEDS)  ## what only a GPU can show, in ten minutes; JSON in bench/results (PYTHON=python3 BUDGET=540 RESULTS=dir)
	@$(GPU_ENV) HOLDFAST_GPU=cuda $(GPU_SUITE)

gpu-stand-in: $(GPU_NEEDS)  ## the same scenarios with a stand-in for the GPU on the CPU
	@$(GPU_ENV) HOLDFAST_GPU=stand-in $(GPU_SUITE)

sim: $(VENV)/.ready  ## 1000 simulated jobs and 1000 calls with faults, fresh seeds (SEEDS=n NODES=n; SEED=n replays one)
	@$(PY) -m tests.simulation.simulate --nodes $(or $(NODES),8) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))
	@$(PY) -m tests.simulation.simulate --inprocess --nodes $(or $(NODES),8) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))

release-check: $(VENV)/.ready  ## build wheels and sdists and use them elsewhere: names, demo, types, tests; kept in dist/
	@$(PY) tools/release_check.py $(STEPS)

minimal-root: $(VENV)/.ready  ## the set-up in Debian roots that lack make, venv, pip, a network (needs root, mmdebstrap)
	@$(PY) -m tests.minimal_root $(PYTEST_ARGS)

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) .etcd .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs
