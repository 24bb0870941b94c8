# moeflux: `make`, `make check`, `make check-fast`, `make lint`, `make asan`, `make tsan`, `make fuzz-run`,
# `make validate`, `make install`.
# Sources are found by folder; a new file needs no change here. CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS are the user's: they
# are added to what is needed. WERROR=1, or CI=true: a warning is an error.

BUILD   ?= build
# Compiled kernels are in SHADERS/kernels: the builds with sanitizers take those of the plain one.
SHADERS ?= $(BUILD)
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
BASH_COMPLETIONS ?= $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS  ?= $(PREFIX)/share/zsh/site-functions
FISH_COMPLETIONS ?= $(PREFIX)/share/fish/vendor_completions.d
CC      ?= cc
GLSLC   ?= glslc
# Line numbers for backtraces; OPT="-O0 -g" for a debugger. Whole debug information takes a quarter of the time to build.
OPT     ?= -O2 -g1
SAN     ?=
WERROR  ?= $(filter-out 0 false,$(CI))

# Of Vulkan only the headers: the loader is opened at run time (src/vulkan/loader.h).
LIB_PACKAGES := jansson libpcre2-8 libutf8proc liburing libxxhash sleef
PACKAGES     := $(LIB_PACKAGES) libedit argtable2 libmicrohttpd
PKG_CFLAGS   := $(shell pkg-config --cflags vulkan $(PACKAGES))
PKG_LIBS     := $(shell pkg-config --libs $(PACKAGES))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        $(if $(filter-out 0,$(WERROR)),-Werror)

# Hardening, as far as the compiler knows it; the sanitizers have checks of their own. _FORTIFY_SOURCE needs optimisation,
# and the user's comes first.
known     = $(foreach f,$(1),$(shell $(CC) -Werror $(f) -x c -c -o /dev/null /dev/null 2>/dev/null && echo $(f)))
OPTIMISES := $(filter-out -O0,$(lastword $(filter -O%,$(OPT) $(CFLAGS))))
FORTIFY   := $(if $(OPTIMISES),$(if $(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
comma     := ,
HARDEN    := $(if $(SAN),,$(FORTIFY) $(call known,-fstack-protector-strong -fstack-clash-protection -fcf-protection))

# Behind the user's flags: what the code is written in, and what keeps the bits of its results the same.
ALL_CFLAGS   := $(OPT) $(SAN) $(WARN) $(HARDEN) -fPIC -fvisibility=hidden -pthread $(CFLAGS) -std=c11 -ffp-contract=off
ALL_CPPFLAGS := -D_GNU_SOURCE -Isrc -Ikernels -I$(BUILD) $(PKG_CFLAGS) $(CPPFLAGS)
ALL_LDFLAGS  := $(SAN) $(if $(findstring address,$(SAN)),-Wl$(comma)--export-dynamic-symbol=dlclose) -pie -pthread -Wl,-z,relro,-z,now $(LDFLAGS)
ALL_LDLIBS   := $(PKG_LIBS) -lm -ldl $(LDLIBS)

# X_isa.c is compiled once for each instruction set of the processor's family (src/cpu/isa.h). With -O2 gcc 12 keeps the tiles
# of the products in memory; in the portable set, which is slow anyway, -O3 unrolls loops over single lanes for minutes.
MACHINE           := $(shell $(CC) -dumpmachine)
AVX2              := -mavx2 -mfma -mf16c
ISA_FLAGS_avx2    := $(AVX2)
ISA_FLAGS_avx512  := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
ISA_FLAGS_avx512vbmi := $(ISA_FLAGS_avx512) -mavx512vbmi
ISA_FLAGS_amx     := $(ISA_FLAGS_avx512vbmi)
ISA_FLAGS_dotprod := -march=armv8.2-a+dotprod
ISA_OPT           := $(OPT:-O2=-O3)
ISA_OPT_portable  := $(ISA_OPT:-O3=-O2)
# The sets share their source: undefined behaviour, whose checks take half of the compiler's time, is looked for in one of them.
ISA_UNCHECKED      = $(if $(SAN),$(if $(filter-out portable,$(1)),-fno-sanitize=undefined))
ISAS     := portable $(if $(findstring x86_64,$(MACHINE)),avx2 avx512 amx) $(if $(findstring aarch64,$(MACHINE)),neon dotprod)
ISA_SRC  := $(sort $(shell find src -name '*_isa.c'))
# amx shares what it can with avx512: compiling that takes a tenth of the build's time. gemm_fixed is its alone.
ISA_SRC_amx  := $(addprefix src/cpu/,gemm_isa.c gemm_fixed_isa.c widen_isa.c table_isa.c)
isa_src       = $(or $(ISA_SRC_$(1)),$(filter-out src/cpu/gemm_fixed_isa.c,$(ISA_SRC)))
ISA_TEST := $(wildcard tests/*/*_isa.c)

SRC      := $(filter-out $(ISA_SRC),$(sort $(shell find src -name '*.c')))
OBJ      := $(SRC:%.c=$(BUILD)/%.o) $(foreach isa,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(isa).o,$(call isa_src,$(isa)))) \
            $(if $(filter avx512,$(ISAS)),$(BUILD)/src/cpu/gemv_isa.avx512vbmi.o)
TESTS    := $(sort $(wildcard tests/unit/test_*.c tests/model/test_*.c))
TEST_BIN := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(TESTS)))
SAN_OBJ  := $(if $(findstring address,$(SAN)),$(BUILD)/tests/lib/dlclose_shim.o)
TEST_LIB := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(ISA_TEST) $(wildcard tests/*/*_shim.c tests/bench/bench_*.c),$(wildcard tests/lib/*.c tests/bench/*.c))) \
            $(foreach isa,$(ISAS),$(ISA_TEST:%.c=$(BUILD)/%.$(isa).o))

# kernels/X.comp is the kernel X, kernels/X/Y.comp the kernel X_Y.
KERNELS      := $(patsubst kernels/%.comp,%,$(sort $(wildcard kernels/*.comp kernels/*/*.comp)))
# There for cooperative matrices alone; for one format alone.
coop_only    := matrices/probe attention/latent_scores attention/latent_values
format_only  := linear/decode_long
# Some are built again as NAME_VARIANT: for cooperative matrices (coop; fragcoop: in registers), for devices that keep float16 denormals, for matrices of one format, which a driver compiles in a third of the
# time, for matrices of one other format than those four, and for experts in such a format beside a shared one of
# 4 bits.
VARIANTS     := coop fragcoop denorm q4 q8 bf16 f32 other othercoop otherdenorm withq4 withq4denorm
defines_coop   := -DCOOP
defines_fragcoop := -DFRAG -DCOOP
defines_denorm := -DDENORM
defines_q4     := -DONLY_FORMAT=FORMAT_Q4
defines_q8     := -DONLY_FORMAT=FORMAT_Q8
defines_bf16   := -DONLY_FORMAT=FORMAT_BF16
defines_f32    := -DONLY_FORMAT=FORMAT_F32
defines_other  := -DOTHER
defines_othercoop := -DOTHER -DCOOP
defines_otherdenorm := -DOTHER -DDENORM
defines_withq4      := -DOTHER -DWITH_Q4
defines_withq4denorm := -DOTHER -DWITH_Q4 -DDENORM
tiles        := linear/prefill experts/prefill_up experts/prefill_down
kernels_coop := $(tiles) attention/prefill $(coop_only)
kernels_fragcoop := $(tiles) attention/latent_scores attention/latent_values
products       := linear/decode linear/decode_token experts/decode_up experts/decode_down
long_products  := linear/decode_long experts/decode_down_long
kernels_denorm := $(products) $(long_products) mla/values
kernels_q4   := $(products) $(long_products)
kernels_q8   := $(kernels_q4)
kernels_bf16 := linear/decode linear/decode_token linear/decode_long
kernels_f32  := $(kernels_bf16)
kernels_other := $(products) $(tiles) linear/plain linear/prefill_split embed matvec_transposed/groups matvec_transposed/plain mla/transpose_keys
kernels_othercoop := $(tiles)
kernels_otherdenorm := $(products)
kernels_withq4 := experts/decode_up experts/decode_down
kernels_withq4denorm := $(kernels_withq4)
SPIRV        := $(patsubst %,$(SHADERS)/kernels/%.inc,$(filter-out $(coop_only) $(format_only),$(KERNELS)) $(foreach v,$(VARIANTS),$(kernels_$(v):%=%_$(v))))

# The fuzzers' targets (tests/fuzz/target.h), which test_fuzz_seeds runs too.
FUZZ_OBJ     := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/entry.c %/seeds_main.c,$(wildcard tests/fuzz/*.c)))
FUZZ_TARGETS := $(shell sed -n 's/^void target_\([a-z]*\)(const uint8_t .data, size_t n);.*/\1/p' tests/fuzz/target.h)
FUZZERS      := $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)

.PHONY: FORCE all lib tests check check-fast run-tests bench lint asan tsan fuzz fuzzers fuzz-run validate install deb clean
.SECONDARY:
.DELETE_ON_ERROR:
.SECONDEXPANSION:
all: $(BUILD)/moeflux

$(BUILD)/moeflux: $(BUILD)/main.o $(OBJ) $(SAN_OBJ)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS)

# After a change of this file too: its flags are part of the objects.
$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

define ISA_RULE
$(BUILD)/%_isa.$(1).o: %_isa.c Makefile
	@mkdir -p $$(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(or $(ISA_OPT_$(1)),$(ISA_OPT)) $(call ISA_UNCHECKED,$(1)) $(ISA_FLAGS_$(1)) -DCPU_ISA=$(1) -DCPU_ISA_$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS) avx512vbmi,$(eval $(call ISA_RULE,$(isa))))

# The library is everything that needs no terminal. Only what moeflux.h declares is visible from outside, in the static
# library too: its one object has no other global names, so that a program may have functions of the same name.
LIB_OBJ := $(filter-out $(BUILD)/src/cli/% $(BUILD)/src/generate/% $(BUILD)/src/api/% $(BUILD)/src/server/%,$(OBJ))
SONAME  := libmoeflux.so.0
LIBS    := $(BUILD)/libmoeflux.a $(BUILD)/$(SONAME)
lib: $(LIBS)

$(BUILD)/libmoeflux.a: $(LIB_OBJ)
	$(CC) -r -nostdlib -o $(@:.a=.o) $^
	objcopy --localize-hidden $(@:.a=.o)
	rm -f $@
	$(AR) rcs $@ $(@:.a=.o)

$(BUILD)/$(SONAME): $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,$(SONAME) -Wl,-z,defs,-z,relro,-z,now $(SAN) -pthread $(LDFLAGS) -o $@ $^ $(shell pkg-config --libs $(LIB_PACKAGES)) -lm -ldl

# One C initialiser of SPIR-V words a kernel; src/vulkan/pipeline.c includes the table of all of them.
variant = $(filter $(VARIANTS),$(lastword $(subst _, ,$(1))))
source  = kernels/$(patsubst %_$(call variant,$(1)),%,$(1)).comp
$(SPIRV): $(SHADERS)/kernels/%.inc: $$(call source,$$*) Makefile
	@mkdir -p $(@D)
	$(GLSLC) --target-env=vulkan1.3 -O $(defines_$(call variant,$*)) -Ikernels -mfmt=c -MD -MF $(@:.inc=.d) -o $@ $<

# A shader's header that is gone makes the shaders that included it be built again.
kernels/%.glsl: ;
kernels/%.h: ;

# Written when there are others than before.
$(SHADERS)/kernels/names: FORCE
	@mkdir -p $(@D)
	@echo '$(SPIRV:$(SHADERS)/kernels/%.inc=%)' > $@.new; \
	if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(SHADERS)/kernels/table.inc: $(SPIRV) $(SHADERS)/kernels/names scripts/kernel-table
	scripts/kernel-table $(SPIRV) > $@

$(BUILD)/src/vulkan/pipeline.o: $(SHADERS)/kernels/table.inc
$(BUILD)/src/vulkan/pipeline.o: ALL_CPPFLAGS := -I$(SHADERS) $(ALL_CPPFLAGS)

# What --bench names the build by: the commit, where there is one. Written when it is another one.
$(BUILD)/build_id.h: FORCE
	@mkdir -p $(@D)
	@id=$$(git rev-parse --short=9 HEAD 2>/dev/null); \
	echo "#define MOEFLUX_BUILD \"$(VERSION)$${id:+ ($$id)}\"" > $@.new; \
	if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BUILD)/main.o: $(BUILD)/build_id.h

# The chat page as the bytes of an array.
$(BUILD)/page.inc: src/server/page.html
	@mkdir -p $(@D)
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@

$(BUILD)/src/server/page.o: $(BUILD)/page.inc

# Made by the program itself from its table of flags.
COMPLETIONS := $(BUILD)/completion/bash $(BUILD)/completion/zsh $(BUILD)/completion/fish
$(COMPLETIONS): $(BUILD)/completion/%: $(BUILD)/moeflux
	@mkdir -p $(@D)
	$(BUILD)/moeflux completion $* > $@

# A test program has what it needs of everything: of whole ones linking would take a tenth of the build's time, and a gigabyte.
$(BUILD)/tests/all.a: $(TEST_LIB) $(OBJ)
	rm -f $@
	$(AR) rcsT $@ $^

$(TEST_BIN): $(BUILD)/tests/%: $$(filter $(BUILD)/tests/unit/%.o $(BUILD)/tests/model/%.o,$(TESTS:%.c=$(BUILD)/%.o)) $(BUILD)/tests/all.a $(SAN_OBJ)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS) -lcmocka

$(BUILD)/tests/bench_%: $(BUILD)/tests/bench/bench_%.o $(BUILD)/tests/all.a $(SAN_OBJ)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS) -lcmocka

$(BUILD)/tests/test_fuzz_seeds: $(FUZZ_OBJ)
$(BUILD)/tests/%.o: ALL_CPPFLAGS += -Itests/lib -Itests/bench -Itests

# tests/model/test_token_loop.c counts the program's own allocations.
COUNTED := malloc calloc realloc aligned_alloc posix_memalign mmap
$(BUILD)/tests/test_token_loop: ALL_LDFLAGS += $(COUNTED:%=-Wl,--wrap=%)

# Systems that fail or are slow, for tests/cli/terminal.py and tests/cli/faults.py; dlclose_shim.c is linked.
SHIMS := $(BUILD)/tests/fault_shim.so $(BUILD)/tests/late_shim.so
$(SHIMS): $(BUILD)/tests/%.so: tests/lib/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -shared -fPIC -o $@ $<

tests: $(TEST_BIN) $(SHIMS)

check: run-tests

# ONLY: names of tests (scripts/run-tests), test_X, test_X-HOW and cli_X; all when it is empty.
BOTH  := $(shell sed -n "s/^both=['\"]\([$$]both \)*\([^'\"]*\)['\"]/\2/p" scripts/run-tests)
NAMES := $(notdir $(basename $(TESTS) $(patsubst tests/cli/%,cli_%,$(wildcard tests/cli/*.sh)))) $(BOTH:%=%-cpu)
ONLY_BIN = $(foreach name,$(ONLY),$(BUILD)/tests/$(firstword $(subst -, ,$(name))))
run-tests: $(BUILD)/moeflux $(LIBS) $(if $(ONLY),$(filter $(ONLY_BIN),$(TEST_BIN)),$(TEST_BIN)) $(SHIMS)
	scripts/run-tests $(BUILD) $(ONLY)

# What can be run after each change: half a minute on two cores. Of test_golden the models on the reference.
SLOW := cli_batch cli_deepseek cli_faults cli_grammar cli_qwen3 cli_run cli_selftest cli_serve cli_sessions cli_skills cli_threads \
        test_cogito test_engine test_golden test_ops test_prompts test_prompts-cpu test_state test_state_random \
        test_streaming test_streaming-cpu test_token_loop test_token_loop-cpu
check-fast: export MOEFLUX_TESTS = *reference*
check-fast:
	$(MAKE) ONLY="$(filter-out $(SLOW),$(NAMES))" run-tests

# Measuring programs; tests/bench_X.c says what each measures and how it is called.
bench: $(patsubst tests/bench/%.c,$(BUILD)/tests/%,$(wildcard tests/bench/bench_*.c))

# The tests with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer. Their reports go to files, so that a
# test which expects a failing command does not take a report for the failure: see scripts/run-tests. Of test_golden the
# models with the odd shapes are enough here: the long prompts of the other run the same code, as do those of cli_skills
# and the large matrices of test_cogito and cli_selftest; cli_build and cli_library run make and compilers; cli_threads is
# for tsan; test_sample and test_ops are about kernels, which no sanitizer sees (test_ops_cpu stays). What runs on the CPU
# as well runs there alone, but for test_streaming: the driver's compiler takes eight times as long here, and what others
# do with a device, test_streaming, test_step and test_shelf do too. The driver frees some 100 MB of small pieces where it
# makes pipelines: a quarantine smaller than the 256 MB of the default saves a seventh of each start.
ASAN_CHECKS := strict_string_checks=1:allocator_may_return_null=1
asan: export ASAN_OPTIONS = $(ASAN_CHECKS):quarantine_size_mb=32
asan: export UBSAN_OPTIONS = print_stacktrace=1
asan: export MOEFLUX_TESTS = *odd*
asan: export MOEFLUX_ROUNDS = 60
asan: ONLY = $(filter-out test_cogito test_sample test_ops test_plan test_small_card test_split $(filter-out test_streaming,$(BOTH)) \
               cli_build cli_skills cli_selftest cli_library cli_threads,$(NAMES))
asan:
	$(MAKE) BUILD=build-asan SHADERS=build OPT="-O1 -g1" ONLY="$(ONLY)" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" run-tests

# What has threads (the team, readers and their rings, the pool, the experts' supply, batches) with ThreadSanitizer, on the
# reference: a driver has threads of its own. Its address space is not made for more than 28 random bits.
tsan: export TSAN_OPTIONS = second_deadlock_stack=1
tsan: export MOEFLUX_DEVICE = reference
tsan: export MOEFLUX_TESTS = qwen_odd*
tsan: NO_RANDOM = $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits)" -le 28 ] || echo setarch -R)
tsan:
	$(NO_RANDOM) $(MAKE) BUILD=build-tsan SHADERS=build OPT="-O1 -g1" SAN=-fsanitize=thread \
	    ONLY="test_team test_nodes test_reader test_convert test_fp8 test_streaming test_spread test_server test_side_by_side cli_threads" run-tests

# The fuzzers: libFuzzer's, so built with clang, with AddressSanitizer and UndefinedBehaviorSanitizer; but for the code of the
# instruction sets, which takes clang minutes so and computes numbers: the build for `make asan` has it.
FUZZ_CC := clang
fuzz:
	$(MAKE) BUILD=build-fuzz SHADERS=build CC="$(FUZZ_CC)" OPT="-O1 -g1" WERROR= \
	    ISA_OPT="-O1 -fno-sanitize=all -Wno-unused-command-line-argument" \
	    SAN="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined -fno-omit-frame-pointer \
	         -fsanitize-coverage-ignorelist=tests/fuzz/uncovered.txt" fuzzers

fuzzers: $(FUZZERS) $(BUILD)/fuzz/seeds

$(FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/entry.c $(FUZZ_OBJ) $(TEST_LIB) $(OBJ) $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) -Itests/lib -Itests -DFUZZ_TARGET=target_$* $(ALL_CFLAGS) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(ALL_LDLIBS) -lcmocka

$(BUILD)/fuzz/seeds: $(BUILD)/tests/fuzz/seeds_main.o $(FUZZ_OBJ) $(TEST_LIB) $(OBJ) $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS) -lcmocka

# Several at once: each for SECONDS, or RUNS inputs if that is less. ONLY=NAME...: these.
SECONDS ?= 5
RUNS    ?=
fuzz-run: fuzz
	scripts/fuzz build-fuzz $(if $(SECONDS),seconds=$(SECONDS)) $(if $(RUNS),runs=$(RUNS)) $(or $(ONLY),$(FUZZ_TARGETS))

# The tests that use the GPU, under the Vulkan validation layers.
validate: $(BUILD)/moeflux $(TEST_BIN) $(SHIMS)
	scripts/validate $(BUILD)

# clang-tidy compiles the sources, so the generated ones have to be there.
lint: $(if $(KERNELS),$(SHADERS)/kernels/table.inc) $(BUILD)/build_id.h $(BUILD)/page.inc
	CPPFLAGS="$(ALL_CPPFLAGS)" scripts/lint

VERSION = $(shell sed -n 's/^\#define MOEFLUX_VERSION "\(.*\)"/\1/p' src/moeflux.h)
install: $(BUILD)/moeflux $(LIBS) $(COMPLETIONS)
	install -D -m 755 $(BUILD)/moeflux $(DESTDIR)$(PREFIX)/bin/moeflux
	for page in man/*.[157]; do install -D -m 644 $$page -t $(DESTDIR)$(PREFIX)/share/man/man$${page##*.} || exit; done
	install -D -m 644 $(BUILD)/completion/bash $(DESTDIR)$(BASH_COMPLETIONS)/moeflux
	install -D -m 644 $(BUILD)/completion/zsh $(DESTDIR)$(ZSH_COMPLETIONS)/_moeflux
	install -D -m 644 $(BUILD)/completion/fish $(DESTDIR)$(FISH_COMPLETIONS)/moeflux.fish
	install -D -m 644 src/moeflux.h $(DESTDIR)$(PREFIX)/include/moeflux.h
	install -D -m 644 $(BUILD)/libmoeflux.a $(DESTDIR)$(LIBDIR)/libmoeflux.a
	install -D -m 644 $(BUILD)/$(SONAME) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libmoeflux.so
	mkdir -p $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@PACKAGES@|$(LIB_PACKAGES)|' \
	    moeflux.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/moeflux.pc

# Packages for Debian, in $(BUILD)/deb, made of a copy of what git knows. The kernels are taken from here: they are the same
# words wherever they are built. SHADERS= builds them there, too.
deb: $(if $(SHADERS),$(SHADERS)/kernels/table.inc)
	rm -rf $(BUILD)/deb
	mkdir -p $(BUILD)/deb/moeflux-$(VERSION)
	git ls-files -z main.c src kernels scripts man examples debian tests/models/tiny Makefile moeflux.pc.in README.md LICENSE | \
	    xargs -0 cp -p --parents -t $(BUILD)/deb/moeflux-$(VERSION)
	cd $(BUILD)/deb/moeflux-$(VERSION) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u BUILD \
	    $(if $(SHADERS),SHADERS=$(abspath $(SHADERS))) dpkg-buildpackage -b -uc -us -j$(shell nproc)

clean:
	rm -rf build build-asan build-tsan build-fuzz

include mk/lanes.mk

-include $(OBJ:.o=.d) $(BUILD)/main.d $(TESTS:%.c=$(BUILD)/%.d) $(TEST_LIB:.o=.d) $(FUZZ_OBJ:.o=.d) $(BUILD)/tests/fuzz/seeds_main.d $(SAN_OBJ:.o=.d) $(SPIRV:.inc=.d) \
         $(patsubst %.c,$(BUILD)/%.d,$(wildcard tests/bench/bench_*.c))
