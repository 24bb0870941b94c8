# moeflux: `make`, `make check`, `make lint`, `make asan`, `make tsan`, `make validate`, `make install`.
# Sources are found by folder; a new file needs no change here.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
CC      ?= cc
GLSLC   ?= glslc
OPT     ?= -O2 -g
SAN     ?=

PACKAGES := vulkan jansson libpcre2-8 libutf8proc liburing libedit libxxhash argtable2 sleef
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES))
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS   := -std=c11 -D_GNU_SOURCE $(OPT) $(SAN) $(WARN) -MMD -MP -pthread -ffp-contract=off
CPPFLAGS := -Isrc -Ikernels -I$(BUILD) $(PKG_CFLAGS)
LDFLAGS  := $(SAN) -pthread
LDLIBS   := $(PKG_LIBS) -lm
MACHINE  := $(shell $(CC) -dumpmachine)

AVX2     := -mavx2 -mfma -mf16c
ISA_FLAGS_avx2    := $(AVX2)
ISA_FLAGS_avx512  := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
ISA_FLAGS_dotprod := -march=armv8.2-a+dotprod
# With -O2 gcc 12 keeps the tiles of the products in memory.
ISA_OPT           := $(OPT:-O2=-O3)

# X_isa.c is compiled once for each instruction set of the processor family (src/cpu/isa.h).
ISA_SRC  := $(wildcard src/*/*_isa.c)
ISA_TEST := $(wildcard tests/*_isa.c)
ISAS     := portable $(if $(findstring x86_64,$(MACHINE)),avx2 avx512) $(if $(findstring aarch64,$(MACHINE)),neon dotprod)
SRC      := $(filter-out src/main.c $(ISA_SRC),$(wildcard src/*/*.c))
OBJ      := $(SRC:%.c=$(BUILD)/%.o) $(foreach isa,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/%.$(isa).o))
KERNELS  := $(sort $(wildcard kernels/*.comp))
# Built a second time for software devices (kernels/memory.glsl, matvec.glsl, matmul.glsl).
WIDE     := attention linear matmul expert_up expert_down expert_up_many expert_down_many
# And in the one for cooperative matrices.
COOP     := matmul expert_up_many expert_down_many attention_many
SPIRV    := $(KERNELS:kernels/%.comp=$(BUILD)/kernels/%.inc) $(WIDE:%=$(BUILD)/kernels/%_wide.inc) \
            $(COOP:%=$(BUILD)/kernels/%_coop.inc)
TESTS    := $(sort $(wildcard tests/test_*.c))
TEST_BIN := $(TESTS:tests/%.c=$(BUILD)/tests/%)
SAN_OBJ  := $(if $(SAN),$(BUILD)/tests/dlclose_shim.o)
TEST_LIB := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(TESTS) $(ISA_TEST) $(wildcard tests/fuzz_*.c tests/bench_*.c) $(wildcard tests/*_shim.c),$(wildcard tests/*.c))) \
            $(foreach isa,$(ISAS),$(ISA_TEST:%.c=$(BUILD)/%.$(isa).o))

.PHONY: all tests check run-tests bench lint asan tsan validate install clean
.SECONDARY:
all: $(BUILD)/moeflux

$(BUILD)/moeflux: $(BUILD)/src/main.o $(OBJ) $(SAN_OBJ)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

define ISA_RULE
$(BUILD)/%_isa.$(1).o: %_isa.c
	@mkdir -p $$(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(ISA_OPT) $(ISA_FLAGS_$(1)) -DCPU_ISA=$(1) -DCPU_ISA_$(1) -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))

# One C initialiser of SPIR-V words a kernel; src/vulkan/pipeline.c includes the table of all of them.
$(BUILD)/kernels/%.inc: kernels/%.comp $(wildcard kernels/*.glsl) kernels/args.h
	@mkdir -p $(@D)
	$(GLSLC) --target-env=vulkan1.3 -O -Ikernels -mfmt=c -o $@ $<

$(BUILD)/kernels/%_wide.inc: kernels/%.comp $(wildcard kernels/*.glsl) kernels/args.h
	@mkdir -p $(@D)
	$(GLSLC) --target-env=vulkan1.3 -O -DWIDE -Ikernels -mfmt=c -o $@ $<

$(BUILD)/kernels/%_coop.inc: kernels/%.comp $(wildcard kernels/*.glsl) kernels/args.h
	@mkdir -p $(@D)
	$(GLSLC) --target-env=vulkan1.3 -O -DCOOP -Ikernels -mfmt=c -o $@ $<

$(BUILD)/kernels/table.inc: $(SPIRV) scripts/kernel-table
	scripts/kernel-table $(SPIRV) > $@.tmp
	mv $@.tmp $@

$(BUILD)/src/vulkan/pipeline.o: $(BUILD)/kernels/table.inc

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_LIB) $(OBJ) $(SAN_OBJ)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

# tests/test_token_loop.c counts the program's own allocations.
COUNTED := malloc calloc realloc aligned_alloc posix_memalign mmap
$(BUILD)/tests/test_token_loop: LDFLAGS += $(COUNTED:%=-Wl,--wrap=%)

# Systems that fail or are slow, for tests/terminal.py and tests/faults.py; dlclose_shim.c is linked.
SHIMS := $(BUILD)/tests/fault_shim.so $(BUILD)/tests/late_shim.so
$(SHIMS): $(BUILD)/tests/%.so: tests/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -shared -fPIC -o $@ $<

tests: $(TEST_BIN) $(SHIMS)

check: run-tests

run-tests: $(BUILD)/moeflux $(TEST_BIN) $(SHIMS)
	scripts/run-tests $(BUILD) $(ONLY)

# Measuring programs; tests/bench_X.c says what each measures and how it is called.
bench: $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench_*.c))

# The tests with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer. Their reports go to files, so that a
# test which expects a failing command does not take a report for the failure: see scripts/run-tests. Of
# test_golden the models with the odd shapes are enough here: the long prompts of the other run the same code, as
# do those of cli_skills and the large matrices of test_cogito. The driver frees some 100 MB of small pieces where it makes
# pipelines: a quarantine smaller than the 256 MB of the default saves a seventh of each start.
ASAN_CHECKS := strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
asan: export ASAN_OPTIONS = $(ASAN_CHECKS):quarantine_size_mb=32
asan: export UBSAN_OPTIONS = print_stacktrace=1
asan: export MOEFLUX_TESTS = *odd*
asan: export MOEFLUX_ROUNDS = 60
asan: ONLY = $(filter-out test_cogito cli_skills,$(notdir $(basename $(TESTS) $(wildcard tests/cli_*.sh))))
asan:
	$(MAKE) BUILD=build-asan OPT="-O1 -g" ONLY="$(ONLY)" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" run-tests

# The threads of a computation under ThreadSanitizer.
tsan:
	$(MAKE) BUILD=build-tsan OPT="-O1 -g" SAN=-fsanitize=thread build-tsan/tests/test_team
	build-tsan/tests/test_team

# The tests that use the GPU, under the Vulkan validation layers.
validate: $(BUILD)/moeflux $(TEST_BIN) $(SHIMS)
	scripts/validate $(BUILD)

# clang-tidy compiles the sources, so the generated one has to be there.
lint: $(if $(KERNELS),$(BUILD)/kernels/table.inc)
	CPPFLAGS="$(CPPFLAGS)" scripts/lint

install: $(BUILD)/moeflux
	install -D -m 755 $(BUILD)/moeflux $(DESTDIR)$(PREFIX)/bin/moeflux
	install -D -m 644 man/moeflux.1 $(DESTDIR)$(PREFIX)/share/man/man1/moeflux.1

clean:
	rm -rf build build-asan build-tsan

-include $(OBJ:.o=.d) $(BUILD)/src/main.d $(TEST_BIN:=.d) $(TEST_LIB:.o=.d) $(SAN_OBJ:.o=.d) $(patsubst %.c,$(BUILD)/%.d,$(wildcard tests/bench_*.c))
