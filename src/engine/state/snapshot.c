#include "engine/state/snapshot.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/run/drafter.h"
#include "engine/state/stores.h"

bool snapshot_has_old_form(const struct moeflux_model *m)
{
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++) {
        const struct arch_stores *s = model_stores(m, i);
        const struct arch_store *a = &s->of[0], *b = &s->of[1];
        if (s->n != 2 || a->kind != b->kind || a->type != b->type || a->stride > 1 || b->stride > 1)
            return false;
    }
    return true;
}

uint32_t snapshot_version(const struct moeflux_model *m)
{
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++)
        if (model_stores(m, i)->of[0].kind == ARCH_WINDOW)
            return 4;
    return snapshot_has_old_form(m) ? 3 : 4;
}

/* ---- the layout of the stores ---- */

/* Fills the words of versions 1 to 3, which have one shape for all layers with attention and one for the
 * others. In files of the original moeflux every interval-th layer has attention. */
static void old_words(const struct moeflux_model *m, uint32_t *words)
{
    const struct config *c = &m->dir.config;
    uint32_t rows = 0, fixed = 0;
    while (rows < c->n_layers && !stores_has_rows(model_stores(m, rows)))
        rows++;
    while (fixed < c->n_layers && stores_has_rows(model_stores(m, fixed)))
        fixed++;
    if (rows < c->n_layers) {
        const struct part_config *p = config_mixer(c, rows);
        const struct latent_config *l = p->kind == PART_LATENT ? &p->latent : NULL;
        words[SNAPSHOT_INTERVAL] = rows + 1;
        words[SNAPSHOT_HEADS] = l ? l->n_heads : p->gqa.n_kv_heads;
        words[SNAPSHOT_HEAD_DIM] = l ? l->nope_dim + l->rope_dim : p->gqa.head_dim;
        words[SNAPSHOT_LATENT] = l ? l->kv_lora_rank : 0;
        words[SNAPSHOT_ROPE] = l ? l->rope_dim : 0;
    }
    if (fixed < c->n_layers) {
        words[SNAPSHOT_WINDOW] = (uint32_t)arch_store_bytes(&model_stores(m, fixed)->of[0]);
        words[SNAPSHOT_RECURRENT] = (uint32_t)arch_store_bytes(&model_stores(m, fixed)->of[1]);
    }
}

/* Fills the words of version 4: the number of stores, and a hash of what they have apart from the type. */
static void new_words(const struct moeflux_model *m, uint32_t *words)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++)
        for (uint32_t k = 0; k < model_stores(m, i)->n; k++) {
            const struct arch_store *t = &model_stores(m, i)->of[k];
            const uint64_t layout[] = {hash, i, t->kind, t->width, t->stride, t->window};
            hash = XXH3_64bits(layout, sizeof layout);
            words[1]++;
        }
    memcpy(words + 2, &hash, sizeof hash);
}

struct snapshot snapshot_of_model(const struct moeflux_model *m, uint32_t version)
{
    struct snapshot h = {.version = version, .words = {[SNAPSHOT_LAYERS] = m->dir.config.n_layers}};
    if (version < 4)
        old_words(m, h.words);
    else
        new_words(m, h.words);
    return h;
}

uint32_t snapshot_first_row(const struct arch_store *t, const struct snapshot *h)
{
    return h->version < 4 ? 0 : stores_first_row(t, h->n_tokens);
}

enum kv_type snapshot_row_type(const struct arch_store *t, const struct snapshot *h)
{
    return h->version < 3 ? KV_TYPE_F32 : t->type;
}

void snapshot_copy_row(const struct arch_store *t, void *dst, enum kv_type to, const void *src,
                       enum kv_type from)
{
    uint32_t head = t->head ? t->head : 1;
    if (to == from) {
        memcpy(dst, src, arch_row_bytes(t, to));
        return;
    }
    assert(to == KV_TYPE_F32 || from == KV_TYPE_F32);
    for (uint64_t done = 0; done < t->width; done += head) {
        if (to == KV_TYPE_F32)
            for (uint32_t i = 0; i < head; i++)
                ((float *)dst)[i] = kv_row_get(from, src, head, i);
        else
            kv_row_put(to, src, head, dst);
        dst = (uint8_t *)dst + kv_row_bytes(to, head);
        src = (const uint8_t *)src + kv_row_bytes(from, head);
    }
}

/* Returns the bytes of the layers' part. */
static uint64_t body_bytes(const struct moeflux_model *m, const struct snapshot *h)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++) {
        const struct arch_stores *s = model_stores(m, i);
        bytes += stores_has_rows(s) ? sizeof(int32_t) : 0;
        for (uint32_t k = 0; k < s->n; k++) {
            const struct arch_store *t = &s->of[k];
            uint64_t rows = stores_n_rows(t, h->n_tokens) - snapshot_first_row(t, h);
            bytes += t->kind == ARCH_FIXED ? arch_store_bytes(t)
                                           : rows * arch_row_bytes(t, snapshot_row_type(t, h));
        }
    }
    return bytes;
}

static uint64_t checkpoint_bytes(const struct moeflux_model *m, uint32_t version)
{
    uint64_t bytes = sizeof(uint32_t);
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++)
        for (uint32_t k = 0; k < model_stores(m, i)->n; k++) {
            const struct arch_store *t = &model_stores(m, i)->of[k];
            bytes += t->kind == ARCH_FIXED ? arch_store_bytes(t) : 0;
            bytes += version < 4 ? 0 : stores_window_bytes(t);
        }
    return bytes;
}

uint32_t snapshot_header_bytes(uint32_t version)
{
    static const uint32_t bytes[] = {
        [1] = 32, [2] = 40, [3] = SNAPSHOT_MAX_HEADER, [4] = SNAPSHOT_MAX_HEADER};
    return version < sizeof bytes / sizeof *bytes ? bytes[version] : 0;
}

uint64_t snapshot_bytes(const struct moeflux_model *m, const struct snapshot *h)
{
    uint64_t bytes = snapshot_header_bytes(h->version) + body_bytes(m, h);
    if (h->version < 3)
        return bytes;
    return bytes + h->n_tokens * sizeof(int32_t) + h->n_checkpoints * checkpoint_bytes(m, h->version) +
           sizeof(uint64_t);
}

bool snapshot_has_length(const struct moeflux_model *m, const struct snapshot *h, uint64_t bytes)
{
    uint64_t want = snapshot_bytes(m, h);
    return h->has_drafter ? want <= bytes : want == bytes;
}

struct snapshot snapshot_of_drafter(const struct moeflux_model *m, const struct snapshot_drafter *d)
{
    return (struct snapshot){.version = 4, .kv = m->drafter->kv_type, .n_tokens = d->n_rows};
}

uint64_t snapshot_drafter_bytes(const struct moeflux_model *m, const struct snapshot_drafter *d)
{
    const struct snapshot h = snapshot_of_drafter(m, d);
    return sizeof *d + body_bytes(m->drafter, &h) + (uint64_t)d->n_waiting * drafter_width(m) * sizeof(float);
}

/* ---- the header ---- */

/* The fields of versions 3 and 4 after the words. */
struct tail {
    uint32_t kv, n_tokens, n_checkpoints, has_drafter;
    uint64_t fingerprint, bytes, check;
};
_Static_assert(sizeof(struct tail) == 40, "written as it stands");
enum { WORDS_BYTES = 40, CHECK_AT = SNAPSHOT_MAX_HEADER - 8 };

uint32_t snapshot_encode(const struct snapshot *h, uint8_t *out)
{
    const uint32_t head[2] = {SNAPSHOT_MAGIC, h->version};
    struct tail t = {.kv = (uint32_t)h->kv,
                     .n_tokens = h->n_tokens,
                     .n_checkpoints = h->n_checkpoints,
                     .has_drafter = h->has_drafter,
                     .fingerprint = h->fingerprint,
                     .bytes = h->bytes};
    memcpy(out, head, sizeof head);
    memcpy(out + sizeof head, h->words, sizeof h->words);
    memcpy(out + WORDS_BYTES, &t, sizeof t);
    t.check = XXH3_64bits(out, CHECK_AT);
    memcpy(out + WORDS_BYTES, &t, sizeof t);
    return snapshot_header_bytes(h->version);
}

static int decode_tail(struct snapshot *h, const uint8_t *in, const char *path, uint64_t bytes,
                       struct moeflux_err *e)
{
    struct tail t;
    memcpy(&t, in + WORDS_BYTES, sizeof t);
    if (t.check != XXH3_64bits(in, CHECK_AT))
        return err_set(e, ERR_FORMAT, "%s: the header's checksum is wrong, the file is damaged", path);
    if (t.bytes != bytes)
        return err_set(e, ERR_FORMAT, "%s: %llu bytes, expected %llu", path, (unsigned long long)bytes,
                       (unsigned long long)t.bytes);
    if (t.kv > KV_TYPE_Q8_0)
        return err_set(e, ERR_FORMAT, "%s: rows of type %u, expected 0 to 2", path, t.kv);
    if (t.has_drafter > 1)
        return err_set(e, ERR_FORMAT, "%s: parts of %u drafters, expected 0 or 1", path, t.has_drafter);
    h->kv = (enum kv_type)t.kv;
    h->has_drafter = t.has_drafter;
    h->n_tokens = t.n_tokens;
    h->n_checkpoints = t.n_checkpoints;
    h->fingerprint = t.fingerprint;
    h->bytes = t.bytes;
    return 0;
}

int snapshot_read_header(struct snapshot *h, int fd, const char *path, uint64_t bytes, struct moeflux_err *e)
{
    uint8_t in[SNAPSHOT_MAX_HEADER] = {0};
    uint32_t head[2], want;
    *h = (struct snapshot){.bytes = bytes};
    int rc = file_read_at(fd, path, in, size_min(bytes, sizeof in), 0, e);
    if (rc < 0)
        return rc;
    memcpy(head, in, sizeof head);
    if (bytes < sizeof head || head[0] != SNAPSHOT_MAGIC)
        return err_set(e, ERR_FORMAT, "%s: not a snapshot of a state (no MFLX at its start)", path);
    want = snapshot_header_bytes(head[1]);
    if (want == 0)
        return err_set(e, ERR_FORMAT, "%s: a snapshot of version %u, expected 1 to 4", path, head[1]);
    if (bytes < want)
        return err_set(e, ERR_FORMAT, "%s: cut after %llu bytes, the header alone has %u", path,
                       (unsigned long long)bytes, want);
    h->version = head[1];
    memcpy(h->words, in + sizeof head, sizeof h->words);
    if (h->version == 1)
        h->words[SNAPSHOT_LATENT] = h->words[SNAPSHOT_ROPE] = 0;
    return h->version >= 3 ? decode_tail(h, in, path, bytes, e) : 0;
}

int snapshot_check_words(const struct snapshot *h, const struct moeflux_model *m, const char *path,
                         struct moeflux_err *e)
{
    static const char *const names[SNAPSHOT_WORDS] = {[SNAPSHOT_LAYERS] = "number of layers",
                                                      [SNAPSHOT_INTERVAL] = "interval of full attention",
                                                      [SNAPSHOT_HEADS] = "number of key heads",
                                                      [SNAPSHOT_HEAD_DIM] = "head size",
                                                      [SNAPSHOT_WINDOW] = "bytes of a convolution window",
                                                      [SNAPSHOT_RECURRENT] = "bytes of a recurrent state",
                                                      [SNAPSHOT_LATENT] = "rank of the latents",
                                                      [SNAPSHOT_ROPE] = "size of the rotary keys"};
    const struct snapshot want = snapshot_of_model(m, h->version);
    if (h->version < 4 && !snapshot_has_old_form(m))
        return err_set(e, ERR_FORMAT, "%s: version %u, which has other rows than this model's layers keep",
                       path, h->version);
    if (h->version >= 4 && memcmp(h->words, want.words, sizeof want.words) != 0)
        return err_set(e, ERR_FORMAT, "%s: a state of another model: its layers keep other rows", path);
    for (uint32_t i = 0; i < SNAPSHOT_WORDS; i++)
        if (h->words[i] != want.words[i])
            return err_set(e, ERR_FORMAT, "%s: a state of another model: its %s is %u, this model's %u", path,
                           names[i], h->words[i], want.words[i]);
    return 0;
}

int moeflux_read_state_info(const char *path, struct moeflux_state_info *out, struct moeflux_err *e)
{
    int null = err_need(e, "path", path, "place of the result", out);
    if (null)
        return null;
    struct snapshot h;
    uint64_t bytes;
    *out = (struct moeflux_state_info){0};
    int fd = file_open_read(path, &bytes, e);
    if (fd < 0)
        return fd;
    int rc = snapshot_read_header(&h, fd, path, bytes, e);
    close(fd);
    if (rc == 0)
        *out = (struct moeflux_state_info){.version = h.version,
                                           .n_layers = h.words[SNAPSHOT_LAYERS],
                                           .has_tokens = h.version >= 3,
                                           .n_tokens = h.n_tokens,
                                           .n_checkpoints = h.n_checkpoints,
                                           .fingerprint = h.fingerprint,
                                           .bytes = bytes};
    return rc;
}
