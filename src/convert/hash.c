#include "convert/hash.h"

#include <stdlib.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "convert/work.h"

enum { READ_BYTES = 4 << 20 };

int convert_hash_file(int fd, const char *path, uint64_t bytes, struct convert_work *w, uint64_t *xxh3,
                      struct moeflux_err *e)
{
    XXH3_state_t *state = XXH3_createState();
    uint8_t *buf = mem_new(READ_BYTES, 1, e);
    int rc = buf ? 0 : ERR_MEMORY;
    if (!state)
        rc = err_set(e, ERR_MEMORY, "out of memory for a checksum");
    else
        XXH3_64bits_reset(state);
    for (uint64_t at = 0; rc == 0 && at < bytes; at += READ_BYTES) {
        uint64_t n = size_min(READ_BYTES, bytes - at);
        rc = file_read_at(fd, path, buf, n, at, e);
        if (rc == 0)
            XXH3_64bits_update(state, buf, n);
        if (rc == 0 && w) {
            convert_work_advance(w, n, n, 0);
            rc = convert_work_ok(w) ? 0 : convert_work_result(w, e);
        }
    }
    if (rc == 0)
        *xxh3 = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(buf);
    return rc;
}
