#include "model/spread.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#define MAX_FILE_BYTES ((uint64_t)64 << 10)
/* No expert is as large; a sum of offsets cannot overflow. */
#define MAX_STRIPE ((uint64_t)1 << 40)

/* --- pieces --- */

struct spread spread_of(uint64_t expert_bytes, uint32_t n_parts)
{
    if (n_parts == 1)
        return (struct spread){1, expert_bytes};
    return (struct spread){n_parts, size_round_up((expert_bytes + n_parts - 1) / n_parts, SPREAD_ALIGN)};
}

struct spread spread_of_layer(const struct spread *s, uint64_t expert_bytes)
{
    return s->stripe ? *s : spread_of(expert_bytes, s->n_parts);
}

uint32_t spread_n_pieces(const struct spread *s, uint64_t expert_bytes)
{
    return (uint32_t)((expert_bytes + s->stripe - 1) / s->stripe);
}

struct spread_piece spread_piece(const struct spread *s, uint64_t expert_bytes, uint32_t expert,
                                 uint32_t piece)
{
    uint64_t at = piece * s->stripe;
    return (struct spread_piece){.part = (expert + piece) % s->n_parts,
                                 .off = expert * s->stripe,
                                 .at = at,
                                 .bytes = size_min(s->stripe, expert_bytes - at)};
}

/* --- spread.json --- */

static int read_id(struct json_view *v, uint64_t *id)
{
    const char *text = json_view_text_or(v, "id", "");
    if (v->rc == 0 && (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: id is %s, expected 16 hexadecimal digits", v->where,
                        quote_bytes(text, strlen(text)).text);
    if (v->rc == 0)
        *id = strtoull(text, NULL, 16);
    return v->rc;
}

static char *resolve(const char *file, const char *path, struct moeflux_err *e)
{
    if (path[0] == '/')
        return mem_text(path, e);
    char *dir = file_parent(file, e), *joined = dir ? file_join(dir, path, e) : NULL;
    free(dir);
    return joined;
}

static int read_paths(struct spread_dirs *d, struct json_view *v)
{
    const json_t *parts = json_view_array(v, "parts");
    size_t n = json_array_size(parts);
    if (v->rc == 0 && (n == 0 || n >= SPREAD_MAX_PARTS))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: parts has %zu paths, expected 1 to %d", v->where, n,
                        SPREAD_MAX_PARTS - 1);
    for (size_t i = 0; v->rc == 0 && i < n; i++) {
        const char *path = json_string_value(json_array_get(parts, i));
        if (!path || !path[0])
            v->rc = err_set(v->e, ERR_FORMAT, "%s: parts[%zu] is no path", v->where, i);
        else if (!(d->paths[i + 1] = resolve(d->file, path, v->e)))
            v->rc = ERR_MEMORY;
    }
    d->spread.n_parts = (uint32_t)n + 1;
    return v->rc;
}

static int read_stripe(struct spread_dirs *d, struct json_view *v)
{
    if (!json_view_get(v, "stripe"))
        return v->rc;
    d->spread.stripe = json_view_u64(v, "stripe", SPREAD_ALIGN, MAX_STRIPE);
    if (v->rc == 0 && d->spread.stripe % SPREAD_ALIGN != 0)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: stripe is %" PRIu64 ", expected a multiple of %d", v->where,
                        d->spread.stripe, SPREAD_ALIGN);
    return v->rc;
}

static int read_file(struct spread_dirs *d, struct moeflux_err *e)
{
    json_t *root = NULL;
    int rc = json_read_file(d->file, MAX_FILE_BYTES, JSON_MAX_SMALL, &root, e);
    struct json_view v = json_view_of(root, d->file, e);
    if (rc == 0)
        rc = read_id(&v, &d->id);
    if (rc == 0)
        rc = read_stripe(d, &v);
    if (rc == 0)
        rc = read_paths(d, &v);
    json_decref(root);
    return rc;
}

int spread_read(struct spread_dirs *d, const char *dir, struct moeflux_err *e)
{
    *d = (struct spread_dirs){.spread.n_parts = 1};
    char *file = file_join(dir, SPREAD_FILE, e);
    if (!file)
        return ERR_MEMORY;
    if (!file_exists(file)) {
        free(file);
        return 0;
    }
    d->file = file;
    int rc = read_file(d, e);
    if (rc < 0)
        spread_free(d);
    return rc;
}

void spread_free(struct spread_dirs *d)
{
    free(d->file);
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        free(d->paths[i]);
    *d = (struct spread_dirs){.spread.n_parts = 1};
}

/* --- parts --- */

static int check_part(const struct spread_dirs *d, uint32_t part, struct json_view *v)
{
    uint64_t id = 0;
    int rc = read_id(v, &id);
    uint32_t found = json_view_u32(v, "part", 1, SPREAD_MAX_PARTS - 1),
             n = json_view_u32(v, "parts", 2, SPREAD_MAX_PARTS);
    if (rc < 0 || v->rc < 0)
        return rc < 0 ? rc : v->rc;
    if (id != d->id || n != d->spread.n_parts)
        return err_set(v->e, ERR_FORMAT,
                       "%s: a part of another model (id %016" PRIx64 ", expected %016" PRIx64
                       "); correct the path of part %u in %s",
                       v->where, id, d->id, part, d->file);
    if (found != part)
        return err_set(v->e, ERR_FORMAT,
                       "%s: part %u, expected part %u; correct the order of the paths in %s", v->where, found,
                       part, d->file);
    return 0;
}

int spread_check_part(const struct spread_dirs *d, uint32_t part, struct moeflux_err *e)
{
    json_t *root = NULL;
    char *file = file_join(d->paths[part], SPREAD_PART_FILE, e);
    if (!file)
        return ERR_MEMORY;
    int rc =
        file_exists(file)
            ? json_read_file(file, MAX_FILE_BYTES, JSON_MAX_SMALL, &root, e)
            : err_set(e, ERR_IO,
                      "%s: part %u of the experts is not there; mount its disk, or correct its path in %s",
                      d->paths[part], part, d->file);
    struct json_view v = json_view_of(root, file, e);
    if (rc == 0)
        rc = check_part(d, part, &v);
    json_decref(root);
    free(file);
    return rc;
}
