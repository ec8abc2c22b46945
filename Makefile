# `make demo` and `make test` are all that a fresh machine needs; each sets up what is missing.
.PHONY: demo test check format test-slow test-vllm soak sanitize setup model

setup:
	@scripts/setup.sh

model: setup
	@.venv/bin/python -m relevo.launch.demo_model >/dev/null

demo: model
	@.venv/bin/relevo demo

test: model
	.venv/bin/python -m pytest

test-slow: model
	.venv/bin/python -m pytest -m slow

test-vllm: model
	@scripts/setup-vllm.sh
	.venv-vllm/bin/python -m pytest -m vllm tests/vllm

sanitize: setup
	@scripts/sanitize.sh

soak: model
	.venv/bin/python -m pytest -m slow tests/integration/test_soak.py

check: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	clang-format --dry-run --Werror $$(find native -name '*.h' -o -name '*.cpp')

format: setup
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	clang-format -i $$(find native -name '*.h' -o -name '*.cpp')
