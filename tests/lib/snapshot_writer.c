#include "snapshot_writer.h"

#include <string.h>

#include "check.h"
#include "fuzz.h"
#include "small_model.h"

static void write_u32(struct str *out, uint32_t value)
{
    const char bytes[4] = {(char)(value & 255), (char)(value >> 8 & 255), (char)(value >> 16 & 255),
                           (char)(value >> 24)};
    str_add(out, bytes, 4);
}

/* Between -1 and 1. */
static void write_floats(struct str *out, struct fuzz *random, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float value = (float)fuzz_below(random, 1 << 20) / (float)(1 << 19) - 1;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        write_u32(out, bits);
    }
}

void snapshot_write(struct str *out, uint32_t version, int32_t n, const int32_t *n_of)
{
    struct fuzz random = {99};
    str_clear(out);
    write_u32(out, 0x4D464C58);
    write_u32(out, version);
    write_u32(out, SMALL_LAYERS);
    write_u32(out, 2); /* every second layer has attention */
    write_u32(out, SMALL_KV_HEADS);
    write_u32(out, SMALL_HEAD_DIM);
    write_u32(out, SMALL_WINDOW * 4);
    write_u32(out, SMALL_S * 4);
    if (version >= 2) {
        write_u32(out, 0);
        write_u32(out, 0);
    }
    for (int32_t layer = 0; layer < SMALL_LAYERS; layer++) {
        if (layer % 2 == 0) {
            write_floats(out, &random, SMALL_WINDOW);
            write_floats(out, &random, SMALL_S);
            continue;
        }
        int32_t here = n_of ? n_of[layer / 2] : n;
        write_u32(out, (uint32_t)here);
        write_floats(out, &random, here * SMALL_KV_HEADS * SMALL_HEAD_DIM);
        write_floats(out, &random, here * SMALL_KV_HEADS * SMALL_HEAD_DIM);
    }
    assert_true(str_ok(out));
}
