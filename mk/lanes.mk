# mk/lanes.mk - kernels on the interpreter (tests/lib/spirv): `make lanes`, `make lanes-full`.

# The loops over lanes are what takes the time.
LANES_OPT := -O3 -g1 $(if $(shell grep -m1 -o avx2 /proc/cpuinfo 2>/dev/null),-mavx2 -mfma -mf16c) -fno-strict-aliasing -fno-math-errno -fno-trapping-math
LANES_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/lib/spirv/*.c))
$(BUILD)/tests/lib/spirv/%.o: ALL_CFLAGS := $(ALL_CFLAGS) $(LANES_OPT)

# The interpreter comes before the archive, which has Vulkan's backend.
$(BUILD)/lanes/%: $(BUILD)/tests/unit/%.o $(LANES_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS) -lcmocka

$(BUILD)/lanes/lanes: $(BUILD)/tests/lanes/lanes.o $(LANES_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS)

# The names of all kernels, for its table.
$(BUILD)/lanes/names.inc: $(SHADERS)/kernels/names
	@mkdir -p $(@D)
	tr ' ' '\n' < $< | sed 's|/|_|g; s|.*|    "&",|' > $@

$(BUILD)/tests/lanes/lanes.o: $(BUILD)/lanes/names.inc

.PHONY: lanes lanes-full
lanes: $(BUILD)/lanes/lanes
	$(BUILD)/lanes/lanes

# All shapes, and a trained model.
lanes-full: $(BUILD)/lanes/lanes $(BUILD)/lanes/moeflux
	answer=$$($(BUILD)/lanes/moeflux -m tests/models/tiny --device interpreted-64 --temp 0 --no-think -p 'What is 47 + 38?'); \
	    [ "$$answer" = 85 ] || { echo "the tiny model answers $$answer"; exit 1; }
	$(BUILD)/lanes/lanes full

# The whole program on it: for tests alone, and never installed.
$(BUILD)/lanes/moeflux: $(BUILD)/main.o $(LANES_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS)

-include $(LANES_OBJ:.o=.d) $(BUILD)/tests/lanes/lanes.d
