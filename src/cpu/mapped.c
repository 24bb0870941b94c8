#include "cpu/mapped.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
/* glibc has MADV_POPULATE_READ from 2.35 on. */
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "cpu/nodes.h"

/* What a signal handler can reach: the addresses of all mappings. A place is free while its begin is 0. */
enum { MOST_RANGES = 4096 };
static struct {
    _Atomic(uintptr_t) begin, end;
} ranges[MOST_RANGES];
static _Atomic(uint64_t) n_repaired;

/* Marks the range of a mapping in a free place of the table; without one, a fault ends the program. */
static void note(const struct mapped *m)
{
    uintptr_t begin = (uintptr_t)m->at;
    for (size_t i = 0; i < MOST_RANGES; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&ranges[i].begin, &none, begin))
            continue;
        atomic_store(&ranges[i].end, begin + m->bytes);
        return;
    }
}

static void forget(const struct mapped *m)
{
    for (size_t i = 0; i < MOST_RANGES; i++)
        if (atomic_load(&ranges[i].begin) == (uintptr_t)m->at) {
            atomic_store(&ranges[i].end, 0);
            atomic_store(&ranges[i].begin, 0);
            return;
        }
}

int mapped_open(struct mapped *m, int fd, const char *path, uint64_t bytes, struct moeflux_err *e)
{
    *m = (struct mapped){.bytes = bytes, .page = (uint64_t)sysconf(_SC_PAGESIZE), .fd = fd, .path = path};
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return err_errno(e, ERR_UNSUPPORTED, "%s cannot be mapped", path);
    m->at = at;
    note(m);
    /* Without it, only a signal could tell a fault in a truncated file from a good page. */
    if (madvise(at, 1, MADV_POPULATE_READ) < 0 && errno == EINVAL) {
        mapped_close(m);
        return err_set(e, ERR_UNSUPPORTED, "the system is older than Linux 5.14");
    }
    return 0;
}

void mapped_close(struct mapped *m)
{
    if (m->at) {
        forget(m);
        munmap(m->at, m->bytes);
    }
    *m = (struct mapped){0};
}

int64_t mapped_there(const struct mapped *m, uint64_t off, uint64_t n)
{
    struct stat st;
    if (fstat(m->fd, &st) < 0)
        return -errno;
    uint64_t size = (uint64_t)st.st_size;
    return (int64_t)(size > off ? size_min(n, size - off) : 0);
}

/* Returns the whole pages that contain bytes [off, off + n). */
static uint8_t *pages_of(const struct mapped *m, uint64_t off, uint64_t n, size_t *span)
{
    *span = (size_t)(n + off % m->page);
    return m->at + off - off % m->page;
}

int64_t mapped_fetch(const struct mapped *m, uint64_t off, uint64_t n)
{
    size_t span;
    int64_t there = mapped_there(m, off, n);
    if (there <= 0)
        return there;
    uint8_t *page = pages_of(m, off, (uint64_t)there, &span);
    /* One read for the whole range; page faults would read ahead in the system's small steps. */
    madvise(page, span, MADV_WILLNEED);
    if (madvise(page, span, MADV_POPULATE_READ) < 0)
        return errno == EFAULT ? -EIO : -errno;
    /* If the file was truncated, the rest of its last page reads as zeros, without a fault. */
    return mapped_there(m, off, (uint64_t)there);
}

void mapped_fetch_by_node(const struct mapped *m, uint64_t off, uint64_t n, const struct node_shares *s)
{
    if (!s || !nodes_may_place())
        return;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t begin = node_shares_cut(s, n, s->at[i].begin), end = node_shares_cut(s, n, s->at[i].end);
        nodes_prefer(s->at[i].id);
        if (begin < end)
            mapped_fetch(m, off + begin, end - begin);
    }
    nodes_prefer_own();
}

void mapped_drop(const struct mapped *m, uint64_t off, uint64_t n)
{
    size_t span;
    uint8_t *page = pages_of(m, off, n, &span);
    madvise(page, span, MADV_DONTNEED);
}

bool mapped_repair(const void *address)
{
    uintptr_t at = (uintptr_t)address, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    bool is_ours = false;
    for (size_t i = 0; i < MOST_RANGES && !is_ours; i++)
        is_ours = at >= atomic_load(&ranges[i].begin) && at < atomic_load(&ranges[i].end);
    if (!is_ours)
        return false;
    uint8_t *start = (uint8_t *)(uintptr_t)address - at % page;
    void *zeros = mmap(start, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED)
        return false;
    atomic_fetch_add(&n_repaired, 1);
    return true;
}

uint64_t mapped_n_repaired(void)
{
    return atomic_load(&n_repaired);
}
