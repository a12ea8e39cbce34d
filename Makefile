# GPT, the GPU Probe Toolchain. The first target that needs .venv sets it up. You need
# python3 (with venv), cc and make, but no GPU, root, C++ compiler or CUDA toolkit.

PYTHON ?= python3
PREFIX ?= /usr/local

comma := ,
VENV  := .venv
READY := $(VENV)/.ready

# The runtime is C code for the build machine, and needs only glibc 2.28 or later (runtime/portable.h). Functions that
# newer versions have in libc itself are linked from libpthread and libdl.
RUNTIME := gpt/_runtime

# The processor: the name of a folder in runtime/arch. The README.md there says how to add one.
ARCH := x86_64
arch_files = $(wildcard runtime/arch/$(ARCH)/$(1)/*.[cS])
CFLAGS ?= -O2 -g
RUNTIME_CFLAGS = -std=gnu11 -D_GNU_SOURCE -include runtime/portable.h -Wall -Wextra -Werror -fvisibility=hidden -Iruntime -Iruntime/arch/$(ARCH) $(CFLAGS)
OLD_LIBS = -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2
TENSORS = $(wildcard gpt/tensors/*.py)
LAYERS = $(wildcard gpt/layers/*.py)
HOOK_FILES = $(wildcard runtime/hook/*/*.[ch])
HEADERS = $(wildcard runtime/*.h runtime/abi/*.h runtime/arch/$(ARCH)/*.h) runtime/abi/records.h

C_FILES     = $(shell find runtime tests \( -name '*.[ch]' -o -name '*.cu' \) 2>/dev/null)
SHELL_FILES = .ci/run gpt/packaging/install.sh $(shell grep -lE '^\#!.*(sh|bash)$$' bin/*) $(shell find tests -name '*.sh')
MAN_PAGES   = $(wildcard man/man[1-8]/*.[1-8])

# The tests and the demo run the executables of this checkout.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Report a missing compiler before anything is downloaded: $(call need_cc,TARGET)
need_cc = @[ "$$(uname -sm)" != "Linux x86_64" ] || printf '\043include <stdio.h>\n' | $(CC) -E - >/dev/null 2>&1 || \
    { echo "$(1): error: '$(CC)' does not compile C (Debian: apt-get install gcc libc6-dev)" >&2; exit 1; }

.PHONY: help setup runtime snippets demo test test-full test-part soak check check-ruff check-types check-c check-shell check-man check-english
.PHONY: bench derive-check fuzz tally test-gpu install uninstall clean distclean

help: ## this list (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) runtime snippets ## make .venv: the package (editable), its tests' tools, NVIDIA's compiler wheels

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "setup: error: $(PYTHON) must be Python 3.11 or later (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "setup: error: $(PYTHON) has no venv (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(call need_cc,setup)
	@echo "setup: $(VENV), about 1 GB with NVIDIA's tools; once, a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[cuda,dask,dev,parquet,perfetto,plot]' \
	    --config-settings editable_mode=compat
	@$(VENV)/bin/python -m compileall -q gpt # as pip does where it installs: else PYTHONDONTWRITEBYTECODE=1 costs 0.1 s a run
	@touch $@

# Generate C declarations from the record types in Python.
runtime/abi/records.h: runtime/mkrecords.py $(wildcard gpt/stream/re*.py) $(wildcard gpt/formats/closed.*)
	@$(PYTHON) $< >$@.part
	@mv $@.part $@

# Rename the simulated driver's functions: #define cuInit sim_cuInit
runtime/sim/renamed.h: runtime/abi/driver.h
	@{ echo '// clang-format off'; \
	    sed -nE -e 's/^[XP]\((\w+), (\w*), .*/#define \1\2 sim_\1\2/p' $<; \
	    sed -nE -e 's/^P\((\w+), (\w*), \w+, (\w+), .*/#define \1\2\3 sim_\1\2\3/p' $<; } >$@.part
	@mv $@.part $@

runtime: $(addprefix $(RUNTIME)/,gpt-hook libgpthook.so libgptreplace.so libgptcache.so sim/libcuda.so.1 sim/libcuda.so sim/libcudart.so.13 sim/libcudart.so host/abi.h) $(TENSORS:gpt/%=$(RUNTIME)/python/gpt/%) $(LAYERS:gpt/%=$(RUNTIME)/%) ## build what is in C: gpt-hook, its libraries, the simulated device

# A copy of gpt.tensors alone, which --tensors puts on a program's PYTHONPATH.
$(RUNTIME)/python/%: %
	@mkdir -p $(@D)
	@cp $< $@

# gpt.layers alone, with a sitecustomize: --layers.
$(RUNTIME)/layers/%.py: gpt/layers/%.py
	@mkdir -p $(@D)
	@cp $< $@

# The files that weave and assemble kernels. Their digest is part of the cache key, so results of other versions aren't used.
WEAVER = $(sort $(wildcard runtime/host/*.h) runtime/arch/$(ARCH)/arch_math.h $(shell find gpt/probe gpt/ptx gpt/asm gpt/sass gpt/formats gpt/stages -name '*.py' -o -name '*.lark' -o -path '*/tables/*.txt'))

$(RUNTIME)/gpt-hook: $(call arch_files,launcher) $(wildcard runtime/launcher/*.[ch] runtime/follow/*.[ch] runtime/common/*.[ch]) $(filter %.h,$(HOOK_FILES)) $(HEADERS) gpt/__init__.py $(WEAVER)
	@echo "cc $@"
	@mkdir -p $(@D)
	@$(CC) $(RUNTIME_CFLAGS) -DGPT_PACKAGE_VERSION='"$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpt/__init__.py)"' \
	    -DGPT_WEAVER='"$(shell cat $(WEAVER) | sha256sum | cut -c -32)"' \
	    $(filter-out %/ask.c %/run_pipeline.c %/request.c,$(filter %.c,$^)) $(OLD_LIBS) \
	    $(if $(call arch_files,launcher),-Wl$(comma)--wrap=__libc_start_main) -o $@

snippets: $(RUNTIME)/snippets ## compile the code of the built-in probes, so that gpt-sass-probe needs no ptxas for them

$(RUNTIME)/snippets: $(filter gpt/probe/% gpt/ptx/% gpt/sass/%,$(WEAVER)) $(wildcard probes/*.toml) gpt/packaging/snippets.py | $(READY)
	@echo "ptxas $@"
	@mkdir -p $(@D)
	@$(VENV)/bin/python -m gpt.packaging.snippets $@

VERSIONS = $(wildcard runtime/arch/$(ARCH)/hook/versions.map)

# The hook's objects are kept by compiler and flags, so that a change compiles only the files that it affects.
HOOK_FLAGS = $(RUNTIME_CFLAGS) -DGPT_OWN_DLFCN -fPIC
OBJECTS := build/objects/$(ARCH)-$(firstword $(shell printf %s '$(subst ','\'',$(CC) $(HOOK_FLAGS))' | cksum))
HOOK_OBJECTS = $(patsubst %,$(OBJECTS)/%.o,$(filter %.c,$(HOOK_FILES)) $(call arch_files,hook))

$(OBJECTS)/%.o: % runtime/abi/records.h
	@mkdir -p $(@D)
	@$(CC) $(HOOK_FLAGS) -MMD -MP -c $< -o $@

-include $(HOOK_OBJECTS:.o=.d)

.PHONY: hook-objects
hook-objects: $(HOOK_OBJECTS) # for tests that link the hook with more
	@echo $^

$(RUNTIME)/libgpthook.so: $(HOOK_OBJECTS) $(VERSIONS)
	@echo "cc $@"
	@mkdir -p $(@D)
	@$(CC) $(HOOK_FLAGS) -shared -Wl,-z,defs,-z,now -Wl,-Bsymbolic-functions \
	    $(VERSIONS:%=-Wl$(comma)--version-script=%) $(HOOK_OBJECTS) $(OLD_LIBS) -o $@

$(RUNTIME)/libgptreplace.so: $(wildcard runtime/replace/*.[ch]) runtime/build_id.h $(HEADERS)
	@echo "cc $@"
	@mkdir -p $(@D)
	@$(CC) $(RUNTIME_CFLAGS) -fPIC -shared -Wl,-z,defs,-z,now $(filter %.c,$^) -o $@

# The cache, for Python.
CACHE = $(addprefix runtime/common/,cache.c descriptors.c own.c private.c sha256.c fd_passing.c records.c)

$(RUNTIME)/libgptcache.so: runtime/cache/cache.c $(CACHE) $(wildcard runtime/common/*.h) $(HEADERS)
	@echo "cc $@"
	@mkdir -p $(@D)
	@$(CC) $(RUNTIME_CFLAGS) -fPIC -shared -Wl,-z,defs,-z,now $(filter %.c,$^) $(OLD_LIBS) -o $@

# The files that turn PTX into host code. Their digest is part of the cache key, so results of other versions aren't used.
HOST = $(wildcard runtime/host/*.h) runtime/arch/$(ARCH)/arch_math.h
GENERATOR = $(sort $(HOST) $(wildcard gpt/asm/host/*.py gpt/ptx/*))

$(RUNTIME)/sim/libcuda.so.1: $(call arch_files,sim) $(wildcard runtime/sim/*.c) $(wildcard runtime/sim/*.h) runtime/sim/renamed.h $(GENERATOR) \
    $(wildcard runtime/common/*.[ch]) $(HEADERS)
	@echo "cc $@"
	@mkdir -p $(@D)
	@$(CC) $(RUNTIME_CFLAGS) -fPIC -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs,-z,now,-z,nodelete -Wl,-Bsymbolic \
	    -DGPT_GENERATOR='"$(shell cat $(filter %.h %.py %.lark,$(GENERATOR)) | sha256sum | cut -c -32)"' \
	    $(filter runtime/sim/%.c runtime/arch/%,$(filter %.c %.S,$^)) $(OLD_LIBS) -o $@

# For programs that load the driver as libcuda.so, the name in its development package. It's no symbolic link, because
# a wheel would then contain the driver twice.
$(RUNTIME)/sim/libcuda.so: $(RUNTIME)/sim/libcuda.so.1
	@echo "cc $@"
	@$(CC) -shared -nostdlib -x c /dev/null -Wl,-soname,libcuda-by-name.so -Wl,--no-as-needed -x none $< -Wl,-rpath,'$$ORIGIN' -o $@

# `nvcc -cudart shared -L.../sim` links to this linker script, which makes the program load libcudart.so.13.
$(RUNTIME)/sim/libcudart.so: $(RUNTIME)/sim/libcudart.so.13
	@echo 'INPUT(libcudart.so.13)' >$@

$(RUNTIME)/sim/libcudart.so.13: $(wildcard runtime/cudart/*) $(HEADERS)
	@echo "cc $@"
	@mkdir -p $(@D)
	@$(CC) $(RUNTIME_CFLAGS) -fPIC -shared -Wl,-soname,libcudart.so.13 -Wl,-z,defs,-z,now,-z,nodelete -Wl,-Bsymbolic \
	    -Wl,--version-script=runtime/cudart/versions.map $(filter %.c,$^) $(OLD_LIBS) -o $@

# Headers that gpt-asm compiles with.
$(RUNTIME)/host/abi.h: $(HOST)
	@mkdir -p $(@D)
	@cp $^ $(@D)

demo: $(READY) runtime snippets ## run a program on the simulated device, slim its CUDA library to what it used, run it again
	$(call need_cc,demo)
	@sh tests/demo/demo.sh

# Allow bytecode files. Without them, each stage that a test starts compiles its imports, and pytest rewrites all test files.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest -q
WORKERS = -n $$(($$(nproc) + 1)) --dist worksteal

# In a fresh clone, each pytest worker would compile all test files.
.PHONY: test-files
test-files: $(READY) runtime
	@[ -d tests/__pycache__ ] || ls -d tests/*/ tests/test_*.py | xargs -P 2 -n 14 $(PYTEST) --collect-only >/dev/null 2>&1 || :

test: test-files snippets ## run the tests (ARGS="-k fatbin" for some)
	@echo "test: pytest"
	@$(PYTEST) $(WORKERS) -m "not full and not soak" $(ARGS)

test-full: test-files snippets ## the tests that `make test` leaves out: real libraries, corpora, every layout
	@echo "test-full: pytest"
	@TEST_FULL=1 $(PYTEST) $(WORKERS) -m "(full or hypothesis) and not soak" $(ARGS)

test-part: test-files snippets ## an eighth of test-full, which one depends on the commit, and all of what the commit changed: CI
	@TEST_PART=$$(git rev-list --count HEAD) $(MAKE) --no-print-directory test-full

soak: $(READY) runtime ## stress of the hook (killed under load, many processes, threads, programs and functions); three minutes
	@echo "soak: pytest"
	@$(PYTEST) -m soak $(ARGS) tests/runtime

check: check-ruff check-types check-c check-shell check-man check-english ## format, lint and types of everything (-k: all faults)

check-ruff: $(READY)
	@echo "check: ruff"
	@$(VENV)/bin/ruff check --quiet --output-format concise
	@$(VENV)/bin/ruff format --check --quiet || { echo "check: unformatted: run 'ruff format'" >&2; exit 1; }

check-types: $(READY)
	@echo "check: mypy"
	@$(VENV)/bin/mypy --no-error-summary

check-c: $(READY)
	@echo "check: clang-format"
	@$(if $(C_FILES),$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES))

check-shell: $(READY)
	@echo "check: shellcheck"
	@$(VENV)/bin/shellcheck $(SHELL_FILES)

# No wheel contains a checker for man pages. Without mandoc, a developer gets a warning, and CI fails.
check-man:
	@echo "check: man pages"
	@if command -v mandoc >/dev/null; then \
	    $(if $(MAN_PAGES),mandoc -T lint -W warning $(MAN_PAGES),true); \
	else \
	    echo "check: warning: no mandoc, man pages unchecked (Debian: apt-get install mandoc)" >&2; \
	    test -z "$$CI"; \
	fi

check-english: $(READY)
	@echo "check: English"
	@$(VENV)/bin/python -m tests.style.english

bench: $(READY) runtime ## measure against cuobjdump and ptxas on real libraries, a hooked call and launch, a trace of ten million calls, timelines (HTA=PYTHON)
	@$(VENV)/bin/python -m tests.bench.run $(ARGS)
	@$(VENV)/bin/python -m tests.bench.hook
	@$(VENV)/bin/python -m tests.bench.latency
	@$(VENV)/bin/python -m tests.bench.analyze
	@$(VENV)/bin/python -m tests.bench.memory
	@$(VENV)/bin/python -m tests.bench.timeline $(if $(HTA),--python $(HTA))
	@$(VENV)/bin/python -m tests.bench.weave

fuzz: $(READY) runtime ## hostile input for every reader, on all cores (MINUTES=60, ARGS="--seed 1 elf c-follow")
	@$(VENV)/bin/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(ARGS)

derive-check: $(READY) ## derive the instruction tables anew and compare (ARGS=sm_90 for one; without --check, python -m gpt.sass.derive writes them)
	@$(VENV)/bin/python -m gpt.sass.derive --check $(ARGS)

tally: $(READY) ## every probe in every kernel of the corpora; hours, resumes (ARGS="-j 2 --minutes 30" for a sample)
	@$(VENV)/bin/python -m tests.tally $(ARGS)

test-gpu: $(READY) ## the tests that need an NVIDIA GPU and its driver
	@sh tests/gpu/run.sh

# Pass paths through the environment, so that the shell doesn't split names with blanks.
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall: export EXTRAS := $(EXTRAS)
install uninstall: export PYTHON := $(PYTHON)

install: ## install to PREFIX (/usr/local): its own Python environment (EXTRAS=plot,perfetto,parquet,dask), executables, man pages
	$(call need_cc,install)
	@sh gpt/packaging/install.sh install

uninstall: ## remove what install put under PREFIX
	@sh gpt/packaging/install.sh uninstall

clean: ## remove what was built, keep .venv
	@rm -rf build dist $(RUNTIME) runtime/abi/records.h runtime/sim/renamed.h *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find gpt tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	@rm -rf $(VENV)
