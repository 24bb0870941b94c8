/* The records of exec_dispatch_each: memory that the host writes while it records a batch and the device
 * reads when it runs it. */
#include <string.h>

#include "args.h"
#include "exec/backend.h"
#include "exec/kernel.h"

/* Each batch takes the next part. A part is taken again after so many batches, when its own is finished: a
 * stream has fewer in flight, and every second may be dropped (vulkan/stream.h). */
enum { PARTS = 8 };

int exec_reserve_records(struct exec *x, uint64_t bytes, struct moeflux_err *e)
{
    if (x->records.part_bytes || exec_get_caps(x).is_host)
        return 0;
    int rc = exec_buffer_new(x, &x->records.room, EXEC_INPUT, PARTS * bytes, e);
    x->records.part_bytes = rc == 0 ? bytes : 0;
    return rc;
}

void exec_begin_records(struct exec *x)
{
    x->records.part = (x->records.part + 1) % PARTS;
    x->records.used = 0;
}

void exec_dispatch_records(struct exec *x, const struct kernel *k, const void *records, uint32_t record_bytes,
                           uint32_t n, uint32_t gx, uint32_t gy, uint32_t gz)
{
    struct exec_records *r = &x->records;
    uint64_t bytes = (uint64_t)n * record_bytes, at = r->part * r->part_bytes + r->used;
    if (x->fault.code)
        return;
    if (r->used + bytes > r->part_bytes) {
        err_set(&x->fault, ERR_DEVICE, "a batch has more than %llu bytes of records",
                (unsigned long long)r->part_bytes);
        return;
    }
    memcpy(r->room.host + at, records, bytes);
    r->used += bytes;
    exec_dispatch(x, k, &(struct each_args){.records = r->room.address + at}, gx, gy, gz);
}

void exec_dispatch_each(struct exec *x, const struct kernel *k, const void *records, uint32_t record_bytes,
                        uint32_t n, uint32_t gx, uint32_t gy)
{
    exec_dispatch_records(x, k, records, record_bytes, n, gx, gy, n);
}
