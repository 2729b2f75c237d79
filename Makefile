# `make check` must be green before a commit; it runs with the packages of the extra `test`.
.PHONY: check lint types test test-all test-slow test-plain test-process bench format

# two runs of pytest at a time: one keeps one core busy
PARALLEL = $(MAKE) --no-print-directory -j2 --output-sync=target

check: lint types test-all

lint:
	ruff format --check .
	ruff check .

types:
	mypy

# all but the slow tests: within two minutes on two cores
test:
	$(PARALLEL) test-plain test-process

# within five minutes
test-all:
	$(PARALLEL) test-slow test-plain test-process

test-slow:
	pytest -m slow

test-plain:
	pytest -m "not slow and not process"

test-process:
	pytest -m "not slow and process"

format:
	ruff format .
	ruff check --fix .

bench:
	@sed -n '/^| /p' benchmarks/README.md
