# What users without a compiler get, in $(BUILD)/release: a tarball and a Python wheel for each of ARCHS, and the Debian
# packages. scripts/try-release runs the program in other distributions.

ARCHS ?= x86_64
.PHONY: release tarball
tarball: $(SHADERS)/kernels/table.inc $(COMPLETIONS)
	mkdir -p $(BUILD)/release
	for arch in $(ARCHS); do scripts/release $$arch $(BUILD)/release $(BUILD) || exit; done

release: tarball
	$(MAKE) deb
	cp $(BUILD)/deb/*.deb $(BUILD)/release
