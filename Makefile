# Thin names for the commands; each does all the set-up that a fresh machine needs.
#   make demo   trains the pipelining tutorial on handwritten digits
#   make test   runs the test suite
#   make test TORCH=2.14.1  does so with another PyTorch, in an environment of its own
#   make wheel TORCH="2.13.0 2.14.1"  builds one wheel for those versions of PyTorch
#   make test-ops  asks PyTorch's operator databases, all of them
#   make test-tensorflow  compares operators, functions, loops and Keras's classes with TensorFlow, all of them
#   make test-wheel  builds a wheel from the sdist, installs it in an empty environment and runs it
#   make test-browser  draws the page of a report in a real browser, which must be installed
#   make fuzz SECONDS=600  trains random models beside the plain loop, changes files, kills processes
#   make sanitize  runs the tests of the engine under AddressSanitizer, UBSan and ThreadSanitizer
#   make check  format, lint and types
#   make check-all  check, test, test-wheel, test-ops and sanitize, which takes long
#   make site   builds the documentation into build/site, and checks its links
#   make docs   writes the tables of the documents from tests, docstrings and benchmarks/results
#   make bench  compares speed with plain loops and tuned peers, and records the figures

PYTHON ?= python3
# The version of PyTorch, or several for a wheel; each but this one has an environment of its own.
TORCH ?= 2.13.0
VENV := .venv$(if $(filter-out 2.13.0,$(lastword $(TORCH))),-$(lastword $(TORCH)))
TESTS ?= tests
JOBS ?= 2
SECONDS ?= 60
BIN := $(VENV)/bin
SOURCES := setup.py $(shell find csrc -name '*.cpp' -o -name '*.h' 2>/dev/null)

# Those that run the engine's code in many ways; sanitized code is several times slower. There the
# engine leaves memory to PyTorch, so that each use after release shows; its plans are not tested.
SANITIZED_TESTS := tests/unit/csrc tests/unit/data/test_slot_collate.py \
	tests/conformance/test_streaming_results.py tests/conformance/test_replica_exchanges.py \
	tests/conformance/test_control_flow.py tests/conformance/test_replica_grouping.py \
	tests/differential/test_sharded_activations.py tests/conformance/test_processes_bits.py
# Plans of memory, as said; threads of forked children, which ThreadSanitizer refuses, in MKL; and
# processes with little memory, of which the sanitizers take much.
NOT_SANITIZED := tests/unit/csrc/test_memory_planning.py tests/unit/csrc/test_first_calls.py \
	tests/unit/csrc/test_short_of_resources.py
# TensorFlow's oneDNN ends the process when an argument of a convolution is wrong.
export TF_ENABLE_ONEDNN_OPTS := 0
# PyTorch is not instrumented; its shared libraries keep their memory until the process ends. Who
# asks for more memory than there is gets an error, as without sanitizers.
export ASAN_OPTIONS := detect_leaks=0:allocator_may_return_null=1
export TSAN_OPTIONS := suppressions=$(CURDIR)/tests/tsan.supp ignore_noninstrumented_modules=1 \
	allocator_may_return_null=1

.PHONY: demo test test-ops test-tensorflow wheel wheel-of-one test-wheel test-wheel-with test-browser fuzz
.PHONY: sanitize sanitize-asan sanitize-tsan check docs site bench clean
# Two at once would install into one environment.
.NOTPARALLEL:

demo: $(VENV)/.built $(VENV)/.has-demo
	$(BIN)/python tutorials/pipelining/mnist_pipeline.py --epochs 10

# The tests start many processes: none compiles the package again where bytecode is kept. Some of the
# last tests take long, so that who has none left takes some of the others.
test: $(VENV)/.built $(VENV)/.has-test
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

test-ops: $(VENV)/.built $(VENV)/.has-test
	PYTHONPATH=tests $(BIN)/python -m opinfo --jobs $(JOBS)
	PYTHONPATH=tests $(BIN)/python -W ignore -m opinfo.memory_order

test-tensorflow: $(VENV)/.built $(VENV)/.has-test
	PYTHONPATH=tests $(BIN)/python -W ignore -m tensorflow_ops
	PYTHONPATH=tests $(BIN)/python -W ignore -m keras_samples
	PYTHONPATH=tests $(BIN)/python -W ignore -m keras_samples.answers
	PYTHONPATH=tests $(BIN)/python -W ignore -m tensorflow_ops.names
	PYTHONPATH=tests $(BIN)/python -W ignore -m tensorflow_ops.host
	PYTHONPATH=tests $(BIN)/python -W ignore -m tensorflow_loops

# One wheel, made from the sdist, with an engine for each version of TORCH.
wheel:
	rm -rf build/wheel build/dist
	for version in $(TORCH); do $(MAKE) wheel-of-one TORCH=$$version || exit 1; done
	cp -r build/wheel/dist build/dist

# Adds the engine for a version to those that were built before.
wheel-of-one: $(VENV)/.has-build
	test -d build/wheel || { $(BIN)/python setup.py -q sdist --dist-dir build/wheel && \
		tar -xzf build/wheel/*.tar.gz -C build/wheel --strip-components 1; }
	cd build/wheel && PATH="$(CURDIR)/$(BIN):$$PATH" $(CURDIR)/$(BIN)/python setup.py -q \
		build_ext --inplace bdist_wheel

test-wheel: wheel
	for version in $(TORCH); do $(MAKE) test-wheel-with TORCH=$$version || exit 1; done

test-wheel-with: $(VENV)/.has-test
	$(BIN)/python -m pytest tests/packaging --wheel build/dist/*.whl

test-browser: $(VENV)/.built $(VENV)/.has-test $(VENV)/.has-browser
	$(BIN)/python -m pytest tests/browser

fuzz: $(VENV)/.built $(VENV)/.has-test
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz --jobs $(JOBS) --seconds $(SECONDS)

sanitize: sanitize-asan sanitize-tsan

sanitize-asan: KIND := address,undefined
sanitize-tsan: KIND := thread
sanitize-asan sanitize-tsan: sanitize-%: $(VENV)/.has-build $(VENV)/.has-test
	SANITIZE=$(KIND) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python setup.py -q build \
		--build-lib build/$* --build-temp build/$*-objects
	export LD_PRELOAD="$$(gcc -print-file-name=lib$*.so) $$(gcc -print-file-name=libstdc++.so.6)"; \
	export OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/build/$*:tests PYTHONSAFEPATH=1; \
	$(BIN)/pytest -n $(JOBS) $(SANITIZED_TESTS) $(NOT_SANITIZED:%=--ignore %) && \
	$(BIN)/python -W ignore -m fuzz --seconds $(SECONDS) --kinds files

check: $(VENV)/.built $(VENV)/.has-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips --violations --target=3.10- poptorch_emu tools setup.py
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(SOURCES))

# Everything there is to check: before a release, and after a change of the engine, the tracer or
# the version of PyTorch. One after the other, whatever -j says: two of them build.
.PHONY: check-all
check-all:
	for target in check test test-wheel test-ops sanitize; do $(MAKE) $$target || exit 1; done

docs: $(VENV)/.built $(VENV)/.has-test
	$(BIN)/python tools/features.py
	$(BIN)/python tools/performance.py
	$(BIN)/python tools/fidelity.py
	$(BIN)/python tools/zoo.py

# Warnings are errors, all of which are shown.
site: $(VENV)/.built $(VENV)/.has-docs
	$(BIN)/sphinx-build -q -E -n -W --keep-going -d build/site-doctrees -c docs . build/site
	$(BIN)/python tools/site_laboratory.py build/site/docs/laboratory.html
	$(BIN)/python tools/check_site.py build/site

bench: $(VENV)/.built $(VENV)/.has-test $(VENV)/.has-bench
	$(BIN)/python benchmarks/speed.py --csv benchmarks/results/speed.csv

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The dependencies of the package and the extra of this name, of pyproject.toml.
$(VENV)/.has-%: pyproject.toml tools/requirements.py | $(BIN)/python
	@echo "Installing PyTorch and what '$*' needs into $(VENV), unless it is there."
	$(BIN)/python tools/requirements.py $* > $@.txt
	$(BIN)/pip install torch==$(TORCH) -r $@.txt
	@touch $@

$(VENV)/.built: $(VENV)/.has-build $(SOURCES)
	@echo "Compiling the engine where its code has changed: about a minute on two cores."
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --no-build-isolation --no-deps -e .
	@touch $@

clean:
	rm -rf .venv* build *.egg-info poptorch_emu/_C*.so
