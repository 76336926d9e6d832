# `make demo` and `make test` need only Python 3.11+, make and git; everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test units test-all browser lint types models faults mutants sbom bench site package lock clean

demo: $(INSTALLED)
	$(BIN)/vitlet train

# Tests in two processes, beside the linters.
test: $(INSTALLED)
	$(MAKE) --no-print-directory -j2 units lint types

units: $(INSTALLED)
	$(BIN)/python -m pytest -m "not heavy" -n 2 --dist loadgroup

# What takes longer, or needs more: torchrun's agents, restarts, compilation, other people's trainers and trackers.
# A process for each file, two at a time: some libraries leave threads behind that a later fork would not survive.
HEAVY := $(shell grep -rl --include="test_*.py" "mark.heavy" tests)
test-all: $(INSTALLED)-all browser
	printf '%s\n' $(HEAVY) | xargs -P 2 -n 1 $(BIN)/python -m pytest -m heavy

# Debian's, for the tests of pages; without root they are skipped, and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	      chromium chromium-driver; \
	  else echo "no chromium and chromedriver here, and no root to install them: tests in a browser are skipped"; fi; }

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# Every timm name once; resumable; writes benchmarks/results/models.csv
models: $(INSTALLED)
	$(BIN)/python benchmarks/models.py

# Real runs of every kind, killed and disturbed at random moments, writes benchmarks/results/faults.md; then damaged
# files for every reader
faults: $(INSTALLED)
	$(BIN)/python benchmarks/fault_matrix.py --kills 60 --output benchmarks/results/faults.md
	VITLET_FUZZ=20000 $(BIN)/python -m pytest tests/data/test_fuzz.py

# Faults put into the code on purpose; resumable; writes benchmarks/results/mutants.md
mutants: $(INSTALLED)
	$(BIN)/python benchmarks/mutants.py --sample 6 --seed 1 --output benchmarks/results/mutants.md

# Software bill of materials, CycloneDX
sbom: $(INSTALLED)
	$(BIN)/python benchmarks/sbom.py requirements.lock build/sbom.json

bench: $(INSTALLED)
	$(BIN)/python benchmarks/drloc.py
	$(BIN)/python benchmarks/relvit.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/small_layers.py --output benchmarks/results/small_layers.md
	$(BIN)/python benchmarks/small_models.py

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $(INSTALLED)

$(INSTALLED)-all: $(INSTALLED) requirements-all.lock
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements-all.lock
	touch $(INSTALLED)-all

# The documentation as a site, in build/site; a broken link is an error.
site: $(INSTALLED)-all
	$(BIN)/python -m mkdocs build --strict

# Wheel and sdist in dist/; the demo from the wheel alone, in a clean environment
package: $(INSTALLED)
	rm -rf dist build/clean
	$(BIN)/uv build --quiet --out-dir dist .
	$(BIN)/uv venv --quiet --python $(BIN)/python build/clean
	$(BIN)/uv pip install --quiet --python build/clean/bin/python dist/*.whl
	build/clean/bin/vitlet train

lock:
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --generate-hashes --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra wandb --extra mlflow --extra trackio --extra ray --extra tune \
	  --extra site --extra trainers \
	  --extra browser --extra notebook --extra onnx --extra openvino --universal \
	  --generate-hashes --output-file requirements-all.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
