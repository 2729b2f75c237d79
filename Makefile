# `make check` must be green before a commit; it runs with the packages of the extra `test`.
.PHONY: check lint types test test-all bench format

# two processes of pytest, each with temporary folders and locks of its own
PYTEST = pytest -n 2 --dist worksteal

# the tests start hundreds of processes: each would compile all of autotune anew
export PYTHONDONTWRITEBYTECODE =

check: lint
	$(MAKE) --no-print-directory --keep-going -j2 --output-sync=target types test-all

lint:
	ruff format --check .
	ruff check .

types:
	mypy

# all but the slow tests: within two minutes on two cores
test:
	$(PYTEST) -m "not slow"

# all tests: nine minutes on two threads of one core
test-all:
	$(PYTEST)

format:
	ruff format .
	ruff check --fix .

bench:
	@sed -n '/^| /p' benchmarks/README.md
