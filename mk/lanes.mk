# mk/lanes.mk - kernels on the interpreter (tests/lib/spirv): `make lanes`, `make lanes-full`.

# The loops over lanes are what takes the time.
LANES_OPT := -O3 -g1 $(if $(shell grep -m1 -o avx2 /proc/cpuinfo 2>/dev/null),-mavx2 -mfma -mf16c) -fno-strict-aliasing -fno-math-errno -fno-trapping-math
LANES_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/lib/spirv/*.c))
$(BUILD)/tests/lib/spirv/%.o: ALL_CFLAGS := $(ALL_CFLAGS) $(LANES_OPT)

# The interpreter comes before the archive, which has Vulkan's backend.
$(BUILD)/lanes/%: $(BUILD)/tests/unit/%.o $(LANES_OBJ) $(BUILD)/tests/all.a $(SAN_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(filter %.a,$^) $(ALL_LDLIBS) -lcmocka

-include $(LANES_OBJ:.o=.d)
