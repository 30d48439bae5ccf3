# `make train` is all a newcomer needs. PYTHON chooses the interpreter, VENV the place of the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Compiled programs are kept for all checkouts, where the command line keeps them.
export JAX_COMPILATION_CACHE_DIR ?= $(HOME)/.cache/boonta/jax

# More words for pytest.
PYTEST ?=
RUN = $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: train test test-fast test-all faults check format clean

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	touch $@

train: $(VENV)/.installed
	$(BIN)/boonta train

test: $(VENV)/.installed-dev
	$(RUN) -m "not full" --durations 20 --durations-min 3 $(PYTEST)

test-fast: $(VENV)/.installed-dev
	$(RUN) -m "not full and not slow" $(PYTEST)

test-all: $(VENV)/.installed-dev
	BOONTA_TEST_OPTIMIZED=1 $(RUN) --durations 40 --durations-min 10 $(PYTEST)

# Plants the faults of tests/planted_faults.toml one by one; each must make a test fail.
faults: $(VENV)/.installed-dev
	$(BIN)/python -m tests.planted_faults

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest tests/test_layout.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache runs
