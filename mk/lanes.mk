# mk/lanes.mk - kernels on the interpreter (tests/lib/spirv): `make lanes`, `make lanes-full`.

# The loops over lanes are what takes the time.
LANES_OPT := -O3 $(if $(shell grep -m1 -o avx2 /proc/cpuinfo 2>/dev/null),$(AVX2)) \
             -fno-strict-aliasing -fno-math-errno -fno-trapping-math
LANES_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/lib/spirv/*.c))
$(LANES_OBJ): ALL_CFLAGS := $(ALL_CFLAGS) $(if $(SAN),,$(LANES_OPT))

# The interpreter comes before the archive, which has Vulkan's backend. The whole program is for tests: it is never
# installed. LANES_MODELS: tests of whole models.
LANES_MODELS := $(patsubst %,$(BUILD)/lanes/%,test_qwen4 test_golden)
LANES_BIN := $(BUILD)/lanes/lanes $(BUILD)/lanes/moeflux $(LANES_MODELS)
$(LANES_MODELS): $(BUILD)/lanes/%: $(BUILD)/tests/model/%.o
$(BUILD)/lanes/lanes: $(BUILD)/tests/lanes/lanes.o
$(BUILD)/lanes/moeflux: $(BUILD)/main.o
$(LANES_BIN): $(LANES_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(LINK)

# The names of all kernels, for its table.
$(BUILD)/lanes/names.inc: $(SHADERS)/kernels/names
	@mkdir -p $(@D)
	tr ' ' '\n' < $< | sed 's|/|_|g; s|.*|    "&",|' > $@
$(BUILD)/tests/lanes/lanes.o: $(BUILD)/lanes/names.inc

# Kernels with planted faults, and the same ones mended.
FAULTS := $(wildcard tests/lanes/faults/*.comp)
$(BUILD)/lanes/faults/faults.inc: $(FAULTS) tests/lanes/faults/fault.glsl mk/lanes.mk
	@mkdir -p $(@D)
	for file in $(FAULTS); do \
	    name=$$(basename $$file .comp) && \
	    echo "KERNEL($$name)" && $(GLSLC) --target-env=vulkan1.3 -O -mfmt=c -o - $$file && echo ";" && \
	    echo "KERNEL($${name}_mended)" && $(GLSLC) --target-env=vulkan1.3 -O -DMENDED -mfmt=c -o - $$file && echo ";" || exit; \
	done > $@
$(BUILD)/tests/unit/test_lanes.o: $(BUILD)/lanes/faults/faults.inc
$(BUILD)/tests/test_lanes: $(LANES_OBJ)

.PHONY: lanes lanes-full
lanes: $(BUILD)/lanes/lanes
	$(BUILD)/lanes/lanes

# All shapes, whole models, and a trained model.
lanes-full: $(LANES_BIN)
	answer=$$($(BUILD)/lanes/moeflux -m tests/models/tiny --device interpreted-64 --temp 0 --no-think \
	    -p 'What is 47 + 38?'); \
	    [ "$$answer" = 85 ] || { echo "the tiny model answers $$answer"; exit 1; }
	MOEFLUX_DEVICE=interpreted-64 $(BUILD)/lanes/test_qwen4
	MOEFLUX_DEVICE=interpreted-64 MOEFLUX_TESTS=qwen_odd_agrees $(BUILD)/lanes/test_golden
	$(BUILD)/lanes/lanes full

-include $(LANES_OBJ:.o=.d) $(BUILD)/tests/lanes/lanes.d
