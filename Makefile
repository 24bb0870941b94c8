# moeflux: `make`, `make install`, `make deb`, `make release`; what tests it stands in mk/tests.mk.
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

# Of Vulkan and libcurl the headers only: they are opened at run time (src/vulkan/loader.h, src/hub/libcurl.h).
LIB_PACKAGES := jansson libpcre2-8 libutf8proc liburing libxxhash sleef
PACKAGES     := $(LIB_PACKAGES) libedit argtable2 libmicrohttpd nettle
PKG_CFLAGS   := $(shell pkg-config --cflags vulkan libcurl $(PACKAGES))
PKG_LIBS     := $(shell pkg-config --libs $(PACKAGES))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        $(if $(filter-out 0,$(WERROR)),-Werror)

# Hardening that the compiler knows; the sanitizers have checks of their own. _FORTIFY_SOURCE needs optimisation, and the
# user's comes first.
known     = $(foreach f,$(1),$(shell $(CC) -Werror $(f) -x c -c -o /dev/null /dev/null 2>/dev/null && echo $(f)))
OPTIMISES := $(filter-out -O0,$(lastword $(filter -O%,$(OPT) $(CFLAGS))))
FORTIFY   := $(if $(OPTIMISES),$(if $(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
comma     := ,
HARDEN    := $(if $(SAN),,$(FORTIFY) $(call known,-fstack-protector-strong -fstack-clash-protection -fcf-protection))

# The last flags cannot be overridden by the user's: the language, and what keeps the bits of results the same.
ALL_CFLAGS   := $(OPT) $(SAN) $(WARN) $(HARDEN) -fPIC -fvisibility=hidden -pthread $(CFLAGS) -std=c11 -ffp-contract=off
ALL_CPPFLAGS := -D_GNU_SOURCE -Isrc -Ikernels -I$(BUILD) $(PKG_CFLAGS) $(CPPFLAGS)
ALL_LDFLAGS  := $(SAN) $(if $(findstring address,$(SAN)),-Wl$(comma)--export-dynamic-symbol=dlclose) -pie -pthread \
                -Wl,-z,relro,-z,now $(LDFLAGS)
ALL_LDLIBS   := $(PKG_LIBS) -lm -ldl $(LDLIBS)

# X_isa.c is compiled once for each instruction set of the processor's family (src/cpu/isa.h). With -O2 gcc 12 keeps the tiles
# of the products in memory; in the portable set, which is slow anyway, -O3 unrolls loops over single lanes for minutes.
MACHINE          := $(shell $(CC) -dumpmachine)
AVX2             := -mavx2 -mfma -mf16c
FLAGS_avx2       := $(AVX2)
FLAGS_avx512     := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
FLAGS_avx512vbmi := $(FLAGS_avx512) -mavx512vbmi
FLAGS_amx        := $(FLAGS_avx512vbmi)
FLAGS_dotprod    := -march=armv8.2-a+dotprod
ISA_OPT          := $(OPT:-O2=-O3)
OPT_portable     := $(ISA_OPT:-O3=-O2)
# The sets share their source: undefined behaviour is looked for in one of them, since it takes half of the compiler's time.
UNCHECKED         = $(if $(SAN),$(if $(filter-out portable,$(1)),-fno-sanitize=undefined))
ISAS    := portable $(if $(findstring x86_64,$(MACHINE)),avx2 avx512 amx) $(if $(findstring aarch64,$(MACHINE)),neon dotprod)
ISA_SRC := $(sort $(shell find src -name '*_isa.c'))
# amx takes from avx512 what both have, which saves a tenth of the build's time; gemm_fixed exists for amx alone, gemm_int16 for
# avx512.
ISA_SRC_amx    := $(addprefix src/cpu/,gemm_isa.c gemm_fixed_isa.c widen_isa.c table_isa.c)
ISA_SRC_avx512 := $(filter-out src/cpu/gemm_fixed_isa.c,$(ISA_SRC))
isa_src  = $(or $(ISA_SRC_$(1)),$(filter-out src/cpu/gemm_int16_isa.c,$(ISA_SRC_avx512)))
isa_obj  = $(patsubst %.c,$(BUILD)/%.$(1).o,$(2))

SRC := $(filter-out $(ISA_SRC),$(sort $(shell find src -name '*.c')))
OBJ := $(SRC:%.c=$(BUILD)/%.o) $(foreach isa,$(ISAS),$(call isa_obj,$(isa),$(call isa_src,$(isa)))) \
       $(if $(filter avx512,$(ISAS)),$(BUILD)/src/cpu/gemv_isa.avx512vbmi.o)
SAN_OBJ := $(if $(findstring address,$(SAN)),$(BUILD)/tests/lib/dlclose_shim.o)

# kernels/X.comp is the kernel X, kernels/X/Y.comp the kernel X_Y; scripts/kernels knows their variants.
KERNELS := $(shell scripts/kernels list)
SPIRV   := $(KERNELS:%=$(SHADERS)/kernels/%.inc)

.PHONY: FORCE all lib install deb clean
.SECONDARY:
.DELETE_ON_ERROR:
.SECONDEXPANSION:
all: $(BUILD)/moeflux

$(BUILD)/moeflux: $(BUILD)/main.o $(OBJ) $(SAN_OBJ)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ALL_LDLIBS)

# A change of this file makes all objects again: its flags are part of them.
$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

define ISA_RULE
$(BUILD)/%_isa.$(1).o: %_isa.c Makefile
	@mkdir -p $$(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(or $(OPT_$(1)),$(ISA_OPT)) $(call UNCHECKED,$(1)) $(FLAGS_$(1)) \
	    -DCPU_ISA=$(1) -DCPU_ISA_$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS) avx512vbmi,$(eval $(call ISA_RULE,$(isa))))

# The library is everything that needs no terminal, no server, and does not only measure. Only what moeflux.h and
# moeflux_chat.h declare is visible from outside, in the static library too: its one object has no other global names, so that a
# program may have functions of the same name.
LIB_OBJ := $(filter-out $(addprefix $(BUILD)/src/,cli/% api/% server/% hub/% engine/lab/% selftest/% convert/% experts/replay.o),$(OBJ))
SONAME  := libmoeflux.so.0
LIBS    := $(BUILD)/libmoeflux.a $(BUILD)/$(SONAME)
lib: $(LIBS)

$(BUILD)/libmoeflux.a: $(LIB_OBJ)
	$(CC) -r -nostdlib -o $(@:.a=.o) $^
	objcopy --localize-hidden $(@:.a=.o)
	rm -f $@
	$(AR) rcs $@ $(@:.a=.o)

$(BUILD)/$(SONAME): $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,$(SONAME) -Wl,-z,defs,-z,relro,-z,now $(SAN) -pthread $(LDFLAGS) -o $@ $^ \
	    $(shell pkg-config --libs $(LIB_PACKAGES)) -lm -ldl

# One C initialiser of SPIR-V words a variant; src/vulkan/pipeline.c includes the table of all of them.
stem   = $(patsubst %_$(lastword $(subst _, ,$(1))),%,$(1))
source = $(firstword $(wildcard kernels/$(1).comp kernels/$(call stem,$(1)).comp))
$(SPIRV): $(SHADERS)/kernels/%.inc: $$(call source,$$*) scripts/kernels
	@mkdir -p $(@D)
	flags=$$(scripts/kernels flags $*) && \
	$(GLSLC) --target-env=vulkan1.3 -O $$flags -Ikernels -mfmt=c -MD -MF $(@:.inc=.d) -o $@ $<

# A shader's header that is gone makes the shaders that included it be built again.
kernels/%.glsl: ;
kernels/%.h: ;

# $(call when_changed,TEXT): writes TEXT to the target if it holds something else.
when_changed = @mkdir -p $(@D); echo '$(1)' >$@.new; if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
$(SHADERS)/kernels/names: FORCE
	$(call when_changed,$(KERNELS))
$(SHADERS)/kernels/table.inc: $(SPIRV) $(SHADERS)/kernels/names scripts/kernels
	scripts/kernels table $(SPIRV) > $@

$(BUILD)/src/vulkan/pipeline.o: $(SHADERS)/kernels/table.inc
$(BUILD)/src/vulkan/pipeline.o: ALL_CPPFLAGS := -I$(SHADERS) $(ALL_CPPFLAGS)

# --bench names the build by the commit, where there is one.
BUILD_ID = $(VERSION)$(patsubst %, (%),$(shell git rev-parse --short=9 HEAD 2>/dev/null))
$(BUILD)/build_id.h: FORCE
	$(call when_changed,#define MOEFLUX_BUILD "$(BUILD_ID)")
$(BUILD)/main.o: $(BUILD)/build_id.h

# The chat page as the bytes of an array. index.html names the files that it consists of.
PAGE := src/server/page
$(BUILD)/page.html: $(wildcard $(PAGE)/*)
	@mkdir -p $(@D)
	awk '/^\/\* [a-z]+\.(css|js) \*\/$$/ { file = "$(PAGE)/" $$2; while ((getline line < file) > 0) print line; next } \
	    { print }' $(PAGE)/index.html > $@
$(BUILD)/page.inc: $(BUILD)/page.html
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@
$(BUILD)/src/server/page.o: $(BUILD)/page.inc

# The program makes them from its table of flags.
COMPLETIONS := $(addprefix $(BUILD)/completion/,bash zsh fish)
$(COMPLETIONS): $(BUILD)/completion/%: $(BUILD)/moeflux
	@mkdir -p $(@D)
	$(BUILD)/moeflux completion $* > $@

VERSION = $(shell sed -n 's/^\#define MOEFLUX_VERSION "\(.*\)"/\1/p' src/moeflux.h)
install: $(BUILD)/moeflux $(LIBS) $(COMPLETIONS)
	install -D -m 755 $(BUILD)/moeflux $(DESTDIR)$(PREFIX)/bin/moeflux
	for page in man/*.[157]; do install -D -m 644 $$page -t $(DESTDIR)$(PREFIX)/share/man/man$${page##*.} || exit; done
	install -D -m 644 $(BUILD)/completion/bash $(DESTDIR)$(BASH_COMPLETIONS)/moeflux
	install -D -m 644 $(BUILD)/completion/zsh $(DESTDIR)$(ZSH_COMPLETIONS)/_moeflux
	install -D -m 644 $(BUILD)/completion/fish $(DESTDIR)$(FISH_COMPLETIONS)/moeflux.fish
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include src/moeflux.h src/moeflux_chat.h
	install -D -m 644 -t $(DESTDIR)$(LIBDIR) $(LIBS)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libmoeflux.so
	install -d -m 755 $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@PACKAGES@|$(LIB_PACKAGES)|' \
	    moeflux.pc.in | install -m 644 /dev/stdin $(DESTDIR)$(LIBDIR)/pkgconfig/moeflux.pc

# Packages for Debian, in $(BUILD)/deb, made of a copy of what git knows. The kernels are taken from here: they are the same
# words wherever they are built. SHADERS= builds them there, too.
deb: $(if $(SHADERS),$(SHADERS)/kernels/table.inc)
	scripts/setup deb
	rm -rf $(BUILD)/deb
	mkdir -p $(BUILD)/deb/moeflux-$(VERSION)
	git ls-files -z main.c src kernels scripts mk man examples debian tests/models/tiny Makefile moeflux.pc.in README.md LICENSE | \
	    xargs -0 cp -p --parents -t $(BUILD)/deb/moeflux-$(VERSION)
	cd $(BUILD)/deb/moeflux-$(VERSION) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u BUILD \
	    $(if $(SHADERS),SHADERS=$(abspath $(SHADERS))) dpkg-buildpackage -b -uc -us -j$(shell nproc)

clean:
	rm -rf build build-asan build-flood build-tsan build-fuzz

include mk/tests.mk mk/lanes.mk mk/release.mk
-include $(OBJ:.o=.d) $(BUILD)/main.d $(SPIRV:.inc=.d)
