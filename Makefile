# demo, test, check and bench each install what they need into .venv first, once per change of pyproject.toml.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

TORCH := torch==2.13.0
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
HAS_GPU := $(wildcard /proc/driver/nvidia/version)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-gpu test-faults check bench clean

demo: $(READY)
	$(BIN)/python -m ndif_web.cli.demo $(if $(MODEL),--model "$(MODEL)")

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-faults: $(READY)
	NDIF_FAULT_MOMENTS=$${NDIF_FAULT_MOMENTS:-20} $(BIN)/python -m pytest -s tests/faults $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

bench: $(READY)
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Without a GPU the CPU build of torch is 200 MB instead of 3 GB; its own index has it, and where that index cannot be
# reached the configured one is asked. With a GPU the default build is the right one, and comes with the rest.
$(READY): pyproject.toml
	@echo "Installing into $(VENV): some minutes, once."
	$(PYTHON) -m venv $(VENV)
ifeq ($(HAS_GPU),)
	$(BIN)/pip install --quiet --timeout 5 --retries 0 --index-url $(TORCH_CPU_INDEX) $(TORCH) \
		|| $(BIN)/pip install --quiet $(TORCH)
endif
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@
