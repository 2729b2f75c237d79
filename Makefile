# `make check` must be green before a commit; it runs with the packages of the extra `test`.
.PHONY: check lint types test test-all bench format

check: lint types test-all

lint:
	ruff format --check .
	ruff check .

types:
	mypy

# all but the slow tests: within two minutes on two cores
test:
	pytest -m "not slow"

# within five minutes
test-all:
	pytest

format:
	ruff format .
	ruff check --fix .

bench:
	@sed -n '/^| /p' benchmarks/README.md
