PY := .venv/bin/python
# A set of strings must iterate alike on every run. (A comment after the value
# would leave spaces in it, and Python refuses to start.)
export PYTHONHASHSEED := 0
ROUNDS ?= 2

# Upgraded before it is used: the one that Python brings may be too old for --group.
PIP := $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt

# A file stays on one worker, so that what its tests share is made once; the slow files come first.
SPREAD := --dist loadfile --no-loadscope-reorder --torture-rounds=$(ROUNDS)
# After the others, not among them: a Spark loads the machine so much that they would wait for it.
SPARK_TESTS := $(PY) -m pytest -rs -m 'spark and not interop' -n 2 $(SPREAD) tests/spark

.PHONY: help setup run test spark check sizes torture fmt bench interop package docs clean
help:      ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
setup: .venv/ready  ## make .venv with everything a developer needs
.venv/ready: pyproject.toml constraints.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Headrace needs Python 3.11 or newer; python3 is $$(python3 --version)"; exit 1; }
	@echo "Setting up .venv, once; this takes a minute or two."
	@echo "1/3  a Python environment"
	@test -x $(PY) || python3 -m venv .venv
	@echo "2/3  a recent pip"
	@$(PIP) --upgrade pip
	@echo "3/3  Headrace with what its tests and Spark need (PySpark alone is over 400 MB)"
	@$(PIP) --build-constraint constraints.txt -e '.[pipeline]' --group dev
	@touch $@
run: setup ## a node, a stock client, a Spark job if Java is there, and then yours to use
	$(PY) -m headrace demo
test: setup ## everything that needs PyPI and Java alone, two rounds of each torture
	@# One worker more than cores: there is always a test that waits.
	$(PY) -m pytest -m 'not interop and not spark' -n 3 $(SPREAD)
	$(SPARK_TESTS)
spark: setup ## of these, the Spark source and sink on a real Spark (needs Java 17 or newer)
	$(SPARK_TESTS)
check: setup ## the gate, under a minute: style, types, layers, units
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest --hypothesis-profile=gate -m 'not slow and not torture' -n 2 \
		tests/unit tests/test_*.py
sizes: setup ## Report classes, files and functions that are larger than we aim for
	$(PY) scripts/sizes.py
torture: setup ## kills, restarts and floods, all rounds
	$(PY) -m pytest -m torture --torture-rounds=20 -v
fmt: setup ## rewrite the code into shape
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
bench: setup ## every figure we claim, Apache Kafka beside us (needs Maven, Java and a C compiler)
	$(PY) -m bench all
interop: setup ## Apache Kafka's own programs, Spark's jar and a schema registry beside us (needs Maven and Java)
	$(PY) -m pytest -m interop
docs: setup ## the generated pages
	$(PY) scripts/generate_configuration_page.py
	$(PY) scripts/generate_compatibility_page.py
	$(PY) scripts/generate_cli_page.py
package: setup ## wheel and source package into dist/
	PIP_CONSTRAINT=constraints.txt $(PY) -m build
clean:     ## what can be made again
	rm -rf .venv build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
