# moeflux: `make`, `make check`, `make check-fast`, `make lint`, `make asan`, `make tsan`, `make validate`, `make install`.
# Sources are found by folder; a new file needs no change here. CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS are the user's: they
# are added to what is needed. WERROR=1, or CI=true: a warning is an error.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
CC      ?= cc
GLSLC   ?= glslc
OPT     ?= -O2 -g
SAN     ?=
WERROR  ?= $(filter-out 0 false,$(CI))

PACKAGES := vulkan jansson libpcre2-8 libutf8proc liburing libedit libxxhash argtable2
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES))
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        $(if $(filter-out 0,$(WERROR)),-Werror)

# Hardening, as far as the compiler knows it; the sanitizers have checks of their own. _FORTIFY_SOURCE needs optimisation,
# and the user's comes first.
known     = $(foreach f,$(1),$(shell $(CC) -Werror $(f) -x c -c -o /dev/null /dev/null 2>/dev/null && echo $(f)))
OPTIMISES := $(filter-out -O0,$(lastword $(filter -O%,$(OPT) $(CFLAGS))))
FORTIFY   := $(if $(OPTIMISES),$(if $(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
HARDEN    := $(if $(SAN),,$(FORTIFY) $(call known,-fstack-protector-strong -fstack-clash-protection -fcf-protection))

# Behind the user's flags: what the code is written in, and what keeps the bits of its results the same.
ALL_CFLAGS   := $(OPT) $(SAN) $(WARN) $(HARDEN) -fPIE -pthread $(CFLAGS) -std=c11 -ffp-contract=off
ALL_CPPFLAGS := -D_GNU_SOURCE -Isrc -Ikernels -I$(BUILD) $(PKG_CFLAGS) $(CPPFLAGS)
ALL_LDFLAGS  := $(SAN) -pie -pthread -Wl,-z,relro,-z,now $(LDFLAGS)
ALL_LDLIBS   := $(PKG_LIBS) -lm $(LDLIBS)

SRC      := $(wildcard src/*/*.c src/*/*/*.c)
OBJ      := $(SRC:%.c=$(BUILD)/%.o)
TESTS    := $(sort $(wildcard tests/test_*.c))
TEST_BIN := $(TESTS:tests/%.c=$(BUILD)/tests/%)
SAN_OBJ  := $(if $(findstring address,$(SAN)),$(BUILD)/tests/dlclose_shim.o)
TEST_LIB := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(TESTS) $(wildcard tests/fuzz_*.c tests/bench_*.c) $(wildcard tests/*_shim.c),$(wildcard tests/*.c)))

# kernels/X.comp is the kernel X, kernels/X/Y.comp the kernel X_Y.
KERNELS      := $(patsubst kernels/%.comp,%,$(sort $(wildcard kernels/*.comp kernels/*/*.comp)))
# Some are built again as NAME_VARIANT, with -DVARIANT in capitals: for software devices (kernels/memory.glsl, matvec.glsl,
# matmul.glsl), and for cooperative matrices.
VARIANTS     := wide coop
kernels_wide := attention linear matmul expert_up expert_down expert_up_many expert_down_many
kernels_coop := matmul expert_up_many expert_down_many attention_many
SPIRV        := $(patsubst %,$(BUILD)/kernels/%.inc,$(KERNELS) $(foreach v,$(VARIANTS),$(kernels_$(v):%=%_$(v))))

.PHONY: all tests check check-fast run-tests bench lint asan tsan validate install clean
.SECONDARY:
.DELETE_ON_ERROR:
.SECONDEXPANSION:
all: $(BUILD)/moeflux

$(BUILD)/moeflux: $(BUILD)/main.o $(OBJ) $(SAN_OBJ)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# One C initialiser of SPIR-V words a kernel; src/vulkan/pipeline.c includes the table of all of them.
variant = $(filter $(VARIANTS),$(lastword $(subst _, ,$(1))))
source  = kernels/$(patsubst %_$(call variant,$(1)),%,$(1)).comp
define  = $(addprefix -D,$(shell echo $(call variant,$(1)) | tr a-z A-Z))
$(SPIRV): $(BUILD)/kernels/%.inc: $$(call source,$$*) Makefile
	@mkdir -p $(@D)
	$(GLSLC) --target-env=vulkan1.3 -O $(call define,$*) -Ikernels -mfmt=c -MD -MF $(@:.inc=.d) -o $@ $<

# A shader's header that is gone makes the shaders that included it be built again.
kernels/%.glsl: ;
kernels/%.h: ;

$(BUILD)/kernels/table.inc: $(SPIRV) scripts/kernel-table
	scripts/kernel-table $(SPIRV) > $@

$(BUILD)/src/vulkan/pipeline.o: $(BUILD)/kernels/table.inc

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_LIB) $(OBJ) $(SAN_OBJ)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS) -lcmocka

# tests/test_token_loop.c counts the program's own allocations.
COUNTED := malloc calloc realloc aligned_alloc posix_memalign mmap
$(BUILD)/tests/test_token_loop: ALL_LDFLAGS += $(COUNTED:%=-Wl,--wrap=%)

# Systems that fail or are slow, for tests/terminal.py and tests/faults.py; dlclose_shim.c is linked.
SHIMS := $(BUILD)/tests/fault_shim.so $(BUILD)/tests/late_shim.so
$(SHIMS): $(BUILD)/tests/%.so: tests/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -shared -fPIC -o $@ $<

tests: $(TEST_BIN) $(SHIMS)

check: run-tests

# ONLY: names of tests (scripts/run-tests), test_X and cli_X; all when it is empty.
NAMES := $(notdir $(basename $(TESTS) $(wildcard tests/cli_*.sh)))
run-tests: $(BUILD)/moeflux $(if $(ONLY),$(filter $(ONLY:%=$(BUILD)/tests/%),$(TEST_BIN)),$(TEST_BIN)) $(SHIMS)
	scripts/run-tests $(BUILD) $(ONLY)

# What can be run after each change: half a minute on two cores. Of test_golden the models on the reference.
SLOW := cli_batch cli_deepseek cli_faults cli_run cli_selftest cli_sessions cli_skills cli_threads test_cogito test_engine \
        test_ops test_prompts test_state test_state_random test_streaming test_token_loop
check-fast: export MOEFLUX_TESTS = *reference*
check-fast:
	$(MAKE) ONLY="$(filter-out $(SLOW),$(NAMES))" run-tests

# Measuring programs; tests/bench_X.c says what each measures and how it is called.
bench: $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench_*.c))

# The tests with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer. Their reports go to files, so that a
# test which expects a failing command does not take a report for the failure: see scripts/run-tests. Of test_golden the
# models with the odd shapes are enough here: the long prompts of the other run the same code, as do those of cli_skills
# and the large matrices of test_cogito and cli_selftest. The driver frees some 100 MB of small pieces where it makes
# pipelines: a quarantine smaller than the 256 MB of the default saves a seventh of each start.
ASAN_CHECKS := strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
asan: export ASAN_OPTIONS = $(ASAN_CHECKS):quarantine_size_mb=32
asan: export UBSAN_OPTIONS = print_stacktrace=1
asan: export MOEFLUX_TESTS = *odd*
asan: export MOEFLUX_ROUNDS = 60
asan: ONLY = $(filter-out test_cogito cli_skills cli_selftest,$(NAMES))
asan:
	$(MAKE) BUILD=build-asan OPT="-O1 -g" ONLY="$(ONLY)" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" run-tests

# What has threads (readers and their rings, the pool, the experts' supply, batches) with ThreadSanitizer, on the
# reference: a driver has threads of its own. Its address space is not made for more than 28 random bits.
tsan: export TSAN_OPTIONS = second_deadlock_stack=1
tsan: export MOEFLUX_DEVICE = reference
tsan: export MOEFLUX_TESTS = qwen_odd*
tsan: NO_RANDOM = $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits)" -le 28 ] || echo setarch -R)
tsan:
	$(NO_RANDOM) $(MAKE) BUILD=build-tsan SAN=-fsanitize=thread \
	    ONLY="test_reader test_convert test_fp8 test_streaming cli_threads" run-tests

# The tests that use the GPU, under the Vulkan validation layers.
validate: $(BUILD)/moeflux $(TEST_BIN) $(SHIMS)
	scripts/validate $(BUILD)

# clang-tidy compiles the sources, so the generated one has to be there.
lint: $(if $(KERNELS),$(BUILD)/kernels/table.inc)
	CPPFLAGS="$(ALL_CPPFLAGS)" scripts/lint

install: $(BUILD)/moeflux
	install -D -m 755 $(BUILD)/moeflux $(DESTDIR)$(PREFIX)/bin/moeflux
	install -D -m 644 man/moeflux.1 $(DESTDIR)$(PREFIX)/share/man/man1/moeflux.1

clean:
	rm -rf build build-asan build-tsan

-include $(OBJ:.o=.d) $(BUILD)/main.d $(TEST_BIN:=.d) $(TEST_LIB:.o=.d) $(SAN_OBJ:.o=.d) $(SPIRV:.inc=.d) \
         $(patsubst %.c,$(BUILD)/%.d,$(wildcard tests/bench_*.c))
