/* Each kernel of a model on AMD's compiler: RADV's device without hardware (tests/lib/offline.h), with
 * subgroups of 32 and 64 lanes. Debian 12's Mesa takes minutes for all pipelines of a model:
 * scripts/bench-pipelines.
 *
 * suites: check drivers */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "check.h"
#include "offline.h"
#include "vulkan/device.h"

static const char *const manifests[] = {"/usr/share/vulkan/icd.d/radeon_icd.x86_64.json",
                                        "/usr/share/vulkan/icd.d/radeon_icd.json"};

/* Makes RADV the only driver, with the device of an RDNA2 chip. */
static bool has_radv(void)
{
    for (size_t i = 0; i < sizeof manifests / sizeof *manifests; i++)
        if (access(manifests[i], R_OK) == 0) {
            setenv("VK_DRIVER_FILES", manifests[i], 1);
            setenv("VK_ICD_FILENAMES", manifests[i], 1);
            unsetenv("VK_LOADER_DRIVERS_DISABLE");
            setenv("RADV_FORCE_FAMILY", "navi21", 1);
            return true;
        }
    printf("SKIP test_pipelines: RADV is not installed\n");
    return false;
}

static bool is_decode(const struct offline_pipeline *p)
{
    return p->n_runs[OFFLINE_DECODE] || p->n_runs[OFFLINE_BATCH] || strstr(p->kernel, "decode");
}

static void compile(uint32_t lanes)
{
    struct offline_pipeline *all = NULL;
    size_t n = 0, n_decode = 0;
    char device[256];
    struct moeflux_err e = {0};
    const struct offline_request q = {
        .dir = "tests/models/qwen3-plain/mlx", .lanes = lanes, .is_brief = true, .chunk = 64, .context = 256};
    check_ok(offline_compile(&q, &all, &n, device, &e), &e);
    assert_non_null(strstr(device, "NAVI21"));
    assert_true(n > 20);
    for (size_t i = 0; i < n; i++) {
        const struct offline_pipeline *p = &all[i];
        bool is_bad = p->registers <= 0 || (is_decode(p) && (p->spills || p->scratch_bytes));
        if (is_bad || p->lanes != lanes)
            fail_msg("%s %s: %lld lanes, %lld registers, %lld spilled, %lld bytes of scratch", p->kernel,
                     p->constants, (long long)p->lanes, (long long)p->registers, (long long)p->spills,
                     (long long)p->scratch_bytes);
        n_decode += is_decode(p);
    }
    assert_true(n_decode > 5);
    free(all);
}

static void decode_kernels_of_64_lanes_compile_without_spills(void **state)
{
    (void)state;
    compile(64);
}

static void decode_kernels_of_32_lanes_compile_without_spills(void **state)
{
    (void)state;
    compile(32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_kernels_of_64_lanes_compile_without_spills),
        cmocka_unit_test(decode_kernels_of_32_lanes_compile_without_spills),
    };
    return has_radv() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
