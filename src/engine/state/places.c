#include "engine/state/places.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/model.h"
#include "engine/state/snapshot.h"
#include "engine/state/stores.h"

static int check(const struct snapshot *h, struct moeflux_model *m, const char *path, struct moeflux_err *e)
{
    uint64_t own;
    int rc = moeflux_model_fingerprint(m, &own, e);
    if (rc < 0)
        return rc;
    if (h->version < 3 || h->fingerprint != own)
        return err_set(e, ERR_FORMAT, "%s: a state of another model or version", path);
    rc = snapshot_check_words(h, m, path, e);
    if (!rc && !snapshot_has_length(m, h, h->bytes))
        rc = err_set(e, ERR_FORMAT, "%s: %llu bytes, expected %llu", path, (unsigned long long)h->bytes,
                     (unsigned long long)snapshot_bytes(m, h));
    return rc;
}

static int read_places(struct places *p, int fd, const struct snapshot *h, struct moeflux_model *m,
                       const char *path, struct moeflux_err *e)
{
    struct snapshot without = *h;
    without.n_checkpoints = 0;
    /* The checkpoints are after the layers. A drafter's rows may follow, and a checksum ends the file. */
    uint64_t at = snapshot_bytes(m, &without) - sizeof(uint64_t);
    /* Version 3 has checkpoints without their windows, which are not loaded. */
    uint32_t n = h->version >= snapshot_version(m) ? h->n_checkpoints : 0;
    uint64_t all = snapshot_bytes(m, h) - snapshot_bytes(m, &without);
    uint64_t each = h->n_checkpoints ? all / h->n_checkpoints : 0;
    p->ids = mem_new(h->n_tokens, sizeof *p->ids, e);
    p->checkpoints = mem_new(n, sizeof *p->checkpoints, e);
    if (!p->ids || !p->checkpoints)
        return ERR_MEMORY;
    int rc = file_read_at(fd, path, p->ids, h->n_tokens * sizeof *p->ids, snapshot_header_bytes(3), e);
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = file_read_at(fd, path, &p->checkpoints[i], sizeof *p->checkpoints, at + i * each, e);
    p->n_tokens = h->n_tokens;
    p->n_checkpoints = n;
    p->kv = h->kv;
    p->bytes = h->bytes;
    p->at_checkpoints = m->recurrent_state_bytes > 0 || stores_first_in_windows(m, h->n_tokens) > 0;
    return rc;
}

int places_read(struct places *p, struct moeflux_model *m, const char *path, struct moeflux_err *e)
{
    struct snapshot h;
    uint64_t bytes;
    *p = (struct places){0};
    int fd = file_open_read(path, &bytes, e);
    if (fd < 0)
        return fd;
    int rc = snapshot_read_header(&h, fd, path, bytes, e);
    if (!rc)
        rc = check(&h, m, path, e);
    if (!rc)
        rc = read_places(p, fd, &h, m, path, e);
    close(fd);
    if (rc)
        places_free(p);
    return rc;
}

void places_free(struct places *p)
{
    free(p->ids);
    free(p->checkpoints);
    *p = (struct places){0};
}

uint32_t places_reach(const struct places *p, uint32_t pos)
{
    uint32_t at = 0;
    if (!p->at_checkpoints || pos == p->n_tokens)
        return pos;
    for (uint32_t i = 0; i < p->n_checkpoints && p->checkpoints[i] <= pos; i++)
        at = p->checkpoints[i];
    return at;
}
