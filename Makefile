# `make check` must be green before a commit; it runs with the packages of the extra `test`.
PARTS = plain process-a-f process-g-z
SLOW_PARTS = slow-benchmarks slow-others
.PHONY: check lint types test test-all $(PARTS) $(SLOW_PARTS) bench format

# two runs of pytest at a time, each with temporary folders of its own: one keeps one core busy
PARALLEL = $(MAKE) --no-print-directory --keep-going -j2 --output-sync=target

check: lint types test-all

lint:
	ruff format --check .
	ruff check .

types:
	mypy

# all but the slow tests: within two minutes on two cores
test:
	$(PARALLEL) $(PARTS)

# within five minutes
test-all:
	$(PARALLEL) $(SLOW_PARTS) $(PARTS)

plain:
	pytest -m "not slow and not process"

process-a-f:
	pytest -m "not slow and process" tests/test_[a-f]*.py

process-g-z:
	pytest -m "not slow and process" tests/test_[g-z]*.py

slow-benchmarks:
	pytest -m slow tests/test_benchmarks.py

slow-others:
	pytest -m slow --ignore tests/test_benchmarks.py

format:
	ruff format .
	ruff check --fix .

bench:
	@sed -n '/^| /p' benchmarks/README.md
