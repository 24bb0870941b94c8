# Tests: `make check`, `make check-fast`, `make asan`, `make flood`, `make tsan`, `make validate`, `make fuzz-run`, `make lint`,
# `make bench`.
# The head of a test names its suites (scripts/run-tests): a new test needs no change here.

TESTS    := $(sort $(wildcard tests/unit/test_*.c tests/model/test_*.c))
binaries  = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(1)))
TEST_BIN := $(call binaries,$(TESTS))
suite     = $(call binaries,$(shell grep -lE 'suites:.* $(1)( |$$)' $(TESTS)))
BENCH    := $(wildcard tests/bench/bench_*.c)
ISA_TEST := $(wildcard tests/*/*_isa.c)
TEST_LIB := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(ISA_TEST) $(BENCH) %_shim.c tests/lib/vulkan_layer.c,$(wildcard tests/lib/*.c tests/bench/*.c))) \
            $(foreach isa,$(ISAS),$(call isa_obj,$(isa),$(ISA_TEST)))
# Libraries for LD_PRELOAD: a disk that fails, a program that is slow to listen; and a Vulkan layer.
SHIMS    := $(BUILD)/tests/fault_shim.so $(BUILD)/tests/late_shim.so $(BUILD)/tests/vulkan_layer.so

# The fuzzers' targets (tests/fuzz/target.h), which test_fuzz_seeds runs too.
FUZZ_OBJ     := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/entry.c %/seeds_main.c,$(wildcard tests/fuzz/*.c)))
FUZZ_TARGETS := $(shell sed -n 's/^void target_\([a-z]*\)(const uint8_t .data, size_t n);.*/\1/p' tests/fuzz/target.h)
FUZZERS      := $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)

.PHONY: tests check check-fast run-tests bench lint asan flood tsan fuzz fuzzers fuzz-run validate
$(BUILD)/tests/%.o: ALL_CPPFLAGS += -Itests/lib -Itests/bench -Itests

# A test program links what it needs of everything, from a thin archive: whole programs would take a tenth of the build's
# time to link, and a gigabyte.
$(BUILD)/tests/all.a: $(TEST_LIB) $(OBJ)
	rm -f $@
	$(AR) rcsT $@ $^

LINK = $(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS) -lcmocka
test_objects := $(TESTS:%.c=$(BUILD)/%.o)
$(TEST_BIN): $(BUILD)/tests/%: $$(filter $(BUILD)/tests/unit/%.o $(BUILD)/tests/model/%.o,$$(test_objects)) $(BUILD)/tests/all.a $(SAN_OBJ)
	$(LINK)
$(BUILD)/tests/bench_%: $(BUILD)/tests/bench/bench_%.o $(BUILD)/tests/all.a $(SAN_OBJ)
	$(LINK)
$(BUILD)/tests/test_fuzz_seeds: $(FUZZ_OBJ)

# tests/model/test_token_loop.c counts the program's own allocations.
COUNTED := malloc calloc realloc aligned_alloc posix_memalign mmap
$(BUILD)/tests/test_token_loop: ALL_LDFLAGS += $(COUNTED:%=-Wl,--wrap=%)

# Programs that compile for hardware that is not there (tests/lib/offline.h).
OFFLINE := vk_find_of_instance vk_find_of_device pipeline_set_open
$(BUILD)/tests/test_pipelines $(BUILD)/tests/bench_pipelines: ALL_LDFLAGS += $(OFFLINE:%=-Wl,--wrap=%)

$(SHIMS): $(BUILD)/tests/%.so: tests/lib/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -shared -fPIC -o $@ $<

$(BUILD)/tests/vulkan_layer.so: $(BUILD)/tests/moeflux_test.json
$(BUILD)/tests/moeflux_test.json: tests/lib/moeflux_test.json
	@mkdir -p $(@D)
	cp $< $@

# Models of random numbers, their outputs and long lists of cases are packed.
PACKED := $(basename $(shell find tests/models tests/data -name '*.xz'))
$(PACKED): %: %.xz
	xz -dc $< >$@.$$$$ && mv $@.$$$$ $@

tests run-tests validate fuzzers lanes-full: $(PACKED)
tests: $(TEST_BIN) $(SHIMS)
bench: $(call binaries,$(BENCH))

# SUITE or ONLY: a suite, or names of tests; all when both are empty.
ONLY_BIN = $(foreach name,$(ONLY),$(filter $(BUILD)/tests/$(firstword $(subst -, ,$(name))),$(TEST_BIN)))
check: run-tests
run-tests: $(BUILD)/moeflux $(LIBS) $(SHIMS) $(if $(SUITE),$(call suite,$(SUITE)),$(if $(ONLY),$(ONLY_BIN),$(TEST_BIN)))
	scripts/run-tests $(BUILD) $(or $(SUITE),$(ONLY))
# After each change: half a minute on two cores. Of test_golden the models on the reference.
check-fast: export MOEFLUX_TESTS = *reference*
check-fast:
	$(MAKE) SUITE=fast run-tests

# AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer. Of test_golden the models with odd shapes: the long prompts
# of the other run the same code. Kernels are not in `asan`: no sanitizer sees them. The driver frees 100 MB of small pieces
# where it makes pipelines: a smaller quarantine than the 256 MB of the default saves a seventh of each start.
ASAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
asan flood: export ASAN_OPTIONS := $(if $(ASAN_OPTIONS),$(ASAN_OPTIONS):)strict_string_checks=1:allocator_may_return_null=1:quarantine_size_mb=32
asan flood: export UBSAN_OPTIONS = print_stacktrace=1
asan: export MOEFLUX_TESTS = *odd*
asan: export MOEFLUX_ROUNDS = 60
asan:
	$(MAKE) BUILD=build-asan SHADERS=build OPT="-O1 -g1" SUITE=$(or $(SUITE),asan) SAN="$(ASAN)" run-tests
# The server under ten thousand requests. The instruction sets' code, which `asan` has, computes numbers only, and takes hours
# with a sanitizer: here it is as fast as in the program.
flood:
	$(MAKE) BUILD=build-flood SHADERS=build OPT="-O1 -g1" ISA_OPT="-O3 -fno-sanitize=all" ONLY=cli_flood SAN="$(ASAN)" run-tests

# What has threads, with ThreadSanitizer, on the reference: a driver has threads of its own. Its address space is not made for
# more than 28 random bits.
tsan: export TSAN_OPTIONS = second_deadlock_stack=1:suppressions=tests/lib/tsan.supp
tsan: export MOEFLUX_DEVICE = reference
tsan: export MOEFLUX_TESTS = qwen_odd*
tsan: NO_RANDOM = $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits)" -le 28 ] || echo setarch -R)
tsan:
	$(NO_RANDOM) $(MAKE) BUILD=build-tsan SHADERS=build OPT="-O1 -g1" SAN=-fsanitize=thread SUITE=$(or $(SUITE),tsan) run-tests

# libFuzzer's, so built with clang, with AddressSanitizer and UndefinedBehaviorSanitizer; not the code of the instruction
# sets, which takes clang minutes so and only computes numbers: `make asan` has it.
FUZZ_CC := clang
fuzz:
	$(MAKE) BUILD=build-fuzz SHADERS=build CC="$(FUZZ_CC)" OPT="-O1 -g1" WERROR= \
	    ISA_OPT="-O1 -fno-sanitize=all -Wno-unused-command-line-argument" \
	    SAN="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined -fno-omit-frame-pointer \
	         -fsanitize-coverage-ignorelist=tests/fuzz/uncovered.txt" fuzzers
fuzzers: $(FUZZERS) $(BUILD)/fuzz/seeds
$(FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/entry.c $(FUZZ_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) -Itests/lib -Itests -DFUZZ_TARGET=target_$* $(ALL_CFLAGS) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ \
	    $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS) -lcmocka
$(BUILD)/fuzz/seeds: $(BUILD)/tests/fuzz/seeds_main.o $(FUZZ_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(LINK)

# Several at once: each for SECONDS, or RUNS inputs if that is less. ONLY=NAME...: these.
SECONDS ?= 5
RUNS    ?=
fuzz-run: fuzz
	scripts/fuzz build-fuzz $(if $(SECONDS),seconds=$(SECONDS)) $(if $(RUNS),runs=$(RUNS)) $(or $(ONLY),$(FUZZ_TARGETS))

# The tests that use the GPU, under the Vulkan validation layers.
validate: $(BUILD)/moeflux $(TEST_BIN) $(SHIMS)
	scripts/validate $(BUILD)

# clang-tidy compiles the sources, so the generated ones have to be there.
lint: $(SHADERS)/kernels/table.inc $(BUILD)/build_id.h $(BUILD)/page.inc \
      $(BUILD)/lanes/names.inc $(BUILD)/lanes/faults/faults.inc
	CPPFLAGS="$(ALL_CPPFLAGS)" scripts/lint

-include $(test_objects:.o=.d) $(TEST_LIB:.o=.d) $(FUZZ_OBJ:.o=.d) $(BUILD)/tests/fuzz/seeds_main.d $(SAN_OBJ:.o=.d) \
         $(BENCH:%.c=$(BUILD)/%.d)
