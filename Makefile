PY := .venv/bin/python
# A set of strings must iterate in the same order in every run. (A comment after the value would add
# spaces to it, and Python would refuse to start.)
export PYTHONHASHSEED := 0
ROUNDS ?= 2
SEEDS ?= 1-200
MINUTES ?= 10

# Upgraded before use: the pip that comes with Python may be too old for --group.
PIP := $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt

# All tests of a file run on one worker, so that their fixtures are created once. Slow files first.
SPREAD := --dist loadfile --no-loadscope-reorder --torture-rounds=$(ROUNDS)
# After the other tests: Spark uses so much of the machine that the others would wait for it.
SPARK_TESTS := $(PY) -m pytest -rs -m 'spark and not interop' -n 2 $(SPREAD) tests/spark

.PHONY: help setup run test spark check sizes sim torture soak fmt bench interop package docs clean
help:      ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
setup: .venv/ready  ## Create .venv with everything a developer needs
.venv/ready: pyproject.toml constraints.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Headrace requires Python 3.11 or newer; python3 is $$(python3 --version)"; exit 1; }
	@echo "Creating .venv. This happens once and takes a minute or two."
	@echo "1/3  Python environment"
	@test -x $(PY) || python3 -m venv .venv
	@echo "2/3  pip"
	@$(PIP) --upgrade pip
	@echo "3/3  Headrace with the packages for tests and Spark (PySpark alone is over 400 MB)"
	@$(PIP) --build-constraint constraints.txt -e '.[pipeline,report]' --group dev
	@touch $@
run: setup ## Run the pipeline of a website: a node, a day of events, five Spark jobs, a report
	$(PY) -m headrace demo pipeline
test: setup ## Run all tests that need only PyPI and Java, with two rounds of each torture test
	@# One worker more than cores, because some test is always waiting. Four take as long.
	$(PY) -m pytest -m 'not interop and not spark' -n 3 $(SPREAD)
	$(SPARK_TESTS)
spark: setup ## Run only the tests of the Spark source and sink (requires Java 17 or newer)
	$(SPARK_TESTS)
check: setup ## Check style, types, layers and unit tests, in under a minute
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest --hypothesis-profile=gate -m 'not slow and not torture' -n 2 \
		tests/unit tests/test_*.py
sizes: setup ## Report classes, files and functions that are larger than we aim for
	$(PY) scripts/sizes.py
sim: setup ## Simulate clusters under faults: SEEDS=1-200, SIM='--help' for more options
	$(PY) -m tests.sim.run $(SEEDS) --jobs 2 $(SIM)
torture: setup ## Run all rounds of the torture tests: kills, restarts, floods
	$(PY) -m pytest -m torture --torture-rounds=20 -v
soak: setup ## Run a cluster under load and faults for MINUTES; memory and open files stay flat
	$(PY) -m tests.torture.soak $(MINUTES)
fmt: setup ## Format the code
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
bench: setup ## Measure every figure, next to Apache Kafka (requires Maven, Java and a C compiler)
	$(PY) -m bench all
interop: setup ## Test with Apache Kafka's programs, Spark's jar and a schema registry (requires Maven and Java)
	$(PY) -m pytest -m interop
docs: setup ## Generate the pages in docs/ that are written by scripts
	$(PY) scripts/generate_configuration_page.py
	$(PY) scripts/generate_compatibility_page.py
	$(PY) scripts/generate_cli_page.py
package: setup ## Build wheel and source package in dist/
	PIP_CONSTRAINT=constraints.txt $(PY) -m build
clean:     ## Delete everything that can be created again
	rm -rf .venv build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
