# `make check` is what must be green before a commit; it runs with the packages of the extra `test`.
.PHONY: check lint types test bench format

check: lint types test

lint:
	ruff format --check .
	ruff check .

types:
	mypy

test:
	pytest

format:
	ruff format .
	ruff check --fix .

bench:
	@sed -n '/^| /p' benchmarks/README.md
