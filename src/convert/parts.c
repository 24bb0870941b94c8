#include "convert/parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "convert/experts.h"

/* --- opening --- */

/* Makes `path` absolute. The directory itself may be missing, but not its parent. */
static char *absolute(const char *path, struct moeflux_err *e)
{
    char *text = mem_text(path, e), *parent = NULL, *real = NULL, *out = NULL;
    size_t n = text ? strlen(text) : 0;
    while (n > 1 && text[n - 1] == '/')
        text[--n] = '\0';
    parent = text ? file_parent(text, e) : NULL;
    real = parent ? realpath(parent, NULL) : NULL;
    const char *slash = text ? strrchr(text, '/') : NULL;
    if (real)
        out = file_join(strcmp(real, "/") ? real : "", slash ? slash + 1 : text, e);
    else if (parent)
        err_errno(e, ERR_IO, "%s", parent);
    free(text);
    free(parent);
    free(real);
    return out;
}

/* Fills paths[0] with DST's path and the others with those of the list; *n counts them. */
static int find_paths(const char *dst, const char *list, char *paths[SPREAD_MAX_PARTS], uint32_t *n,
                      struct moeflux_err *e)
{
    char *text = mem_text(list, e);
    int rc = text && (paths[0] = absolute(dst, e)) ? 0 : ERR_IO;
    *n = 1;
    for (char *name = text, *next; rc == 0 && name; name = next) {
        next = strchr(name, ',');
        if (next)
            *next++ = '\0';
        if (!*name)
            rc = err_set(e, ERR_USAGE, "`spread`: an empty path in \"%s\"", list);
        else if (*n == SPREAD_MAX_PARTS)
            rc = err_set(e, ERR_USAGE, "`spread`: more than %d directories", SPREAD_MAX_PARTS - 1);
        else if (!(paths[*n] = absolute(name, e)))
            rc = ERR_IO;
        for (uint32_t i = 0; rc == 0 && i < *n; i++)
            if (!strcmp(paths[i], paths[*n]))
                rc = err_set(e, ERR_USAGE, "`spread`: %s is named twice", paths[i]);
        *n += rc == 0;
    }
    free(text);
    return rc;
}

/* Returns the identity of a part's state: different for each part, and for other directories of parts. */
static uint64_t part_identity(uint64_t identity, char *const *paths, uint32_t n, uint32_t part)
{
    for (uint32_t i = 1; i < n; i++)
        identity = XXH3_64bits_withSeed(paths[i], strlen(paths[i]), identity);
    return XXH3_64bits_withSeed(&part, sizeof part, identity);
}

/* Returns the stripe of all layers; 0: their experts differ in size. */
static uint64_t common_stripe(const struct convert_plan *plan, uint32_t n_parts)
{
    const struct config *c = &plan->src.config;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (config_has_experts(c, i) && plan->experts[i].bytes != plan->max_expert_bytes)
            return 0;
    return spread_of(plan->max_expert_bytes, n_parts).stripe;
}

static int open_spread(struct convert_parts *p, const struct convert_plan *plan, const char *dst,
                       const char *list, struct moeflux_err *e)
{
    char *paths[SPREAD_MAX_PARTS] = {NULL};
    uint32_t n;
    int rc = find_paths(dst, list, paths, &n, e);
    if (rc == 0)
        p->spread = (struct spread){n, common_stripe(plan, n)};
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = convert_target_open(&p->targets[i], i ? paths[i] : dst, i > 0,
                                 part_identity(plan->identity, paths, n, i), e);
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        free(paths[i]);
    return rc;
}

void convert_parts_init(struct convert_parts *p)
{
    *p = (struct convert_parts){.spread.n_parts = 1};
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        p->targets[i].state_fd = -1;
}

int convert_parts_open(struct convert_parts *p, const struct convert_plan *plan, const char *dst,
                       const char *spread, struct moeflux_err *e)
{
    p->plan = plan;
    return spread ? open_spread(p, plan, dst, spread, e)
                  : convert_target_open(&p->targets[0], dst, false, plan->identity, e);
}

void convert_parts_close(struct convert_parts *p)
{
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        convert_target_close(&p->targets[i]);
}

/* --- room --- */

static int find_file_system(const struct convert_target *t, char **dir, dev_t *device, struct moeflux_err *e)
{
    struct stat st;
    *dir = file_parent(t->final, e);
    if (!*dir)
        return ERR_MEMORY;
    if (stat(*dir, &st) < 0)
        return err_errno(e, ERR_IO, "%s", *dir);
    *device = st.st_dev;
    return 0;
}

static int check_free(const struct convert_target *t, const char *dir, uint64_t need, struct moeflux_err *e)
{
    struct statvfs v;
    uint64_t room;
    if (statvfs(dir, &v) < 0)
        return err_errno(e, ERR_IO, "%s", dir);
    if (!size_mul(v.f_bavail, v.f_frsize, &room) || room >= need)
        return 0;
    return err_set(e, ERR_NO_FIT,
                   "%s: %.3f GB (%" PRIu64 " bytes) are needed, the disk has %.3f GB (%" PRIu64 ") free",
                   t->final, (double)need / 1e9, need, (double)room / 1e9, room);
}

int convert_parts_check_room(const struct convert_parts *p, const uint64_t *need, struct moeflux_err *e)
{
    char *dirs[SPREAD_MAX_PARTS] = {NULL};
    dev_t devices[SPREAD_MAX_PARTS];
    uint32_t n = p->spread.n_parts;
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = find_file_system(&p->targets[i], &dirs[i], &devices[i], e);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        uint64_t together = 0;
        for (uint32_t k = 0; k < n; k++)
            together += devices[k] == devices[i] ? need[k] : 0;
        rc = check_free(&p->targets[i], dirs[i], together, e);
    }
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        free(dirs[i]);
    return rc;
}

/* --- writing --- */

struct spread convert_parts_spread(const struct convert_parts *p, uint32_t layer)
{
    return spread_of_layer(&p->spread, p->plan->experts[layer].bytes);
}

uint64_t convert_parts_layer_bytes(const struct convert_parts *p, uint32_t layer)
{
    return convert_parts_spread(p, layer).stripe * p->plan->src.config.n_experts;
}

int convert_parts_begin(struct convert_parts *p, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < p->spread.n_parts && rc == 0; i++)
        rc = convert_target_begin(&p->targets[i], e);
    return rc;
}

bool convert_parts_have(const struct convert_parts *p, uint32_t layer)
{
    char name[CONVERT_NAME];
    bool all = true;
    convert_experts_name(layer, name);
    for (uint32_t i = 0; i < p->spread.n_parts && all; i++)
        all = convert_target_find(&p->targets[i], name, convert_parts_layer_bytes(p, layer)) != NULL;
    return all;
}

uint64_t convert_parts_id(const struct convert_parts *p)
{
    const struct config *c = &p->plan->src.config;
    XXH64_hash_t id = XXH3_64bits(&p->spread.stripe, sizeof p->spread.stripe);
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        for (uint32_t i = 0; i < p->spread.n_parts && config_has_experts(c, layer); i++) {
            char name[CONVERT_NAME];
            convert_experts_name(layer, name);
            const struct convert_sum *s =
                convert_target_find(&p->targets[i], name, convert_parts_layer_bytes(p, layer));
            if (s)
                id = XXH3_64bits_withSeed(&s->xxh3, sizeof s->xxh3, id);
        }
    return id;
}

int convert_parts_commit(struct convert_parts *p, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = p->spread.n_parts; i-- > 0 && rc == 0;) {
        rc = convert_target_rename(&p->targets[i], e);
        /* The other directories' names are synced before the model's directory is renamed. */
        if (rc == 0 && i > 0)
            rc = convert_target_sync_name(&p->targets[i], e);
    }
    for (uint32_t i = p->spread.n_parts; i-- > 0 && rc == 0;)
        rc = convert_target_end(&p->targets[i], e);
    return rc;
}
