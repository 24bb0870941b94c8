/* What libFuzzer calls: the target that the program was built for. */
#include "fuzz/target.h"

#ifndef FUZZ_TARGET
#define FUZZ_TARGET target_config
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    FUZZ_TARGET(data, n);
    return 0;
}
