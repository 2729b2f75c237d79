# `make check` must be green before a commit; it runs with the packages of the extra `test`.
.PHONY: check lint types test tests stress docs bench format

QUICK = not process and not slow and not environment and not gpu and not stress

# two processes of pytest, each with temporary folders and locks of its own
PYTEST = pytest -n 2 --dist worksteal

# the tests start hundreds of processes: each would compile all of autotune anew
export PYTHONDONTWRITEBYTECODE =

check: lint
	$(MAKE) --no-print-directory --keep-going -j2 --output-sync=target types tests

lint:
	ruff format --check .
	ruff check .

types:
	mypy

# the quick level: tests that start no process
test:
	$(PYTEST) -m "$(QUICK)"

# and those with processes, and the slow ones: with lint and types 5 minutes on two cores
tests:
	$(PYTEST) -m "not stress"

# hostile files, kills, full disks, faults, ONNX's own tests and all benchmarks: 15 minutes on two cores
stress:
	$(PYTEST) -m stress

# the outputs in README and the tutorial are still what the commands print; FILES holds the tutorial's model.
# `make docs WRITE=--write` records them anew, and draws the terminal of the README
FILES = .
WRITE =
docs:
	python docs/record.py --files $(FILES) $(WRITE)

format:
	ruff format .
	ruff check --fix .

bench:
	@sed -n '/^| /p' benchmarks/README.md
