# Every target makes its own virtual environment first; nothing outside this folder is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of processes: each would compile all sources anew where nobody may write what they compile to.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test suite thorough quick fuzz bench sanitize memcheck docs lint style types clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# What is quickly checked comes first; types are checked on one core beside the tests' first minutes.
test: $(STAMP) style
	$(MAKE) --no-print-directory --jobs 2 types suite

suite: $(STAMP)
	$(BIN)/python -m compileall -q core plugins contrib tests
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

# Tables of many cases whole, which `make test` takes one case in three of, or fewer, and the slowest property tests with
# all of their examples, of which `make test` draws half.
thorough: $(STAMP)
	$(BIN)/python -m pytest -n 2 --thorough -m thorough tests

# One test in so many, chosen by the hash of its name (tests/conftest.py).
quick: $(STAMP)
	$(BIN)/python -m pytest -n 2 --sample $(or $(SAMPLE),150) tests

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0) --workers 2 --out fuzz.jsonl
	for way in placed graph_compilers sections aot_eager; do \
		$(BIN)/python -m tests.fuzz.run --compiler turret_$$way --programs $(or $(PROGRAMS),2000) --batch 5 \
			--seed $(or $(SEED),0) --workers 2 --out fuzz_$$way.jsonl || exit; done
	$(BIN)/python -m tests.fuzz.relations --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0) --workers 2 \
		--out relations.jsonl
	$(BIN)/python -m tests.fuzz.functions --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0) --workers 2 \
		--out functions.jsonl
	$(BIN)/python -m tests.fuzz.gradients --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0) --workers 2 \
		--out gradients.jsonl
	$(BIN)/python -m tests.fuzz.graph_calls --programs $(or $(PROGRAMS),20000) --seed $(or $(SEED),0) --workers 2 \
		--out graph_calls.jsonl

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.bench
	$(BIN)/python -m tests.benchmarks.cold

# The native parts under AddressSanitizer and UndefinedBehaviorSanitizer, with the kernels that their tests compile.
SANITIZED := g++ -g -fsanitize=address,undefined -fno-omit-frame-pointer
sanitize: $(STAMP)
	CXX="$(SANITIZED)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so):$$(g++ -print-file-name=libubsan.so)" \
		$(BIN)/python -m pytest tests/core/plan/launch tests/core/frames/test_entry_points.py \
		tests/core/frames/test_frame_hook.py tests/core/frames/test_guard_tree.py \
		tests/core/frames/test_guard_tree_staleness.py tests/core/storage/test_extension.py

# On a machine with a GPU and the CUDA toolkit: checks of kernels and of recorded graphs under compute-sanitizer.
memcheck: $(STAMP)
	$(BIN)/python -m tests.gpu.memcheck

# Warnings are errors: dead links and anchors, pages out of the navigation, names that the reference does not find.
docs: $(STAMP)
	$(BIN)/python docs/site/architecture.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

lint: style types

style: $(STAMP)
	$(BIN)/ruff check core plugins contrib tests examples docs/site
	$(BIN)/ruff format --check core plugins contrib tests examples docs/site
	! $(BIN)/vulture core plugins contrib tests examples | grep -E '^(core|plugins|contrib)/.* unused (function|method|class|property) '
	PYTHONPATH=.tree $(BIN)/lint-imports

types: $(STAMP)
	MYPYPATH=.tree $(BIN)/mypy

# torch comes first and alone, pinned: a range would bring the newest build with its CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test,models,docs]"
	$(BIN)/turret build || echo "native parts that were not built now are built at their first use"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
