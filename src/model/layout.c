#include "model/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "model/spread.h"

/* Finds a file in the first of two places that has it; *out stays NULL if neither has. */
static int first_of(const char *dir, const char *a, const char *b, char **out, struct moeflux_err *e)
{
    const char *const places[] = {a, b};
    for (int i = 0; i < 2; i++) {
        char *path = file_join(dir, places[i], e);
        if (!path)
            return ERR_MEMORY;
        if (file_exists(path)) {
            *out = path;
            return 0;
        }
        free(path);
    }
    return 0;
}

static int check_dir(const char *dir, struct moeflux_err *e)
{
    struct stat st;
    if (stat(dir, &st) < 0)
        return err_errno(e, ERR_IO, "%s", dir);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a model directory or a GGUF file", dir);
    if (access(dir, R_OK | X_OK) < 0)
        return err_errno(e, ERR_IO, "%s", dir);
    return 0;
}

static int check_found(const struct layout *l, const char *dir, bool is_part, struct moeflux_err *e)
{
    if (!l->manifest && !l->config && is_part)
        return err_set(e, ERR_IO,
                       "%s: a part of a model's experts; the model is the directory whose " SPREAD_FILE
                       " names it",
                       dir);
    if (!l->manifest && !l->config)
        return err_set(e, ERR_IO, "%s: no model: neither model_weights.json nor config.json is there", dir);
    if (l->packed && !l->weights)
        return err_set(e, ERR_IO, "%s: model_weights.json is there, but model_weights.bin is not", dir);
    if (l->packed && !l->experts)
        return err_set(e, ERR_IO, "%s: model_weights.json is there, but packed_experts is not", dir);
    return 0;
}

int layout_find(struct layout *l, const char *dir, struct moeflux_err *e)
{
    *l = (struct layout){0};
    int rc = check_dir(dir, e);
    if (rc < 0)
        return rc;
    const struct {
        const char *a, *b;
        char **out;
    } parts[] = {
        {"config.json", "mlx/config.json", &l->config},
        {"generation_config.json", "mlx/generation_config.json", &l->generation_config},
        {"tokenizer.json", "mlx/tokenizer.json", &l->tokenizer},
        {"tiktoken.model", "mlx/tiktoken.model", &l->tokenizer},
        {"model_weights.json", "artifacts/model_weights.json", &l->manifest},
        {"model_weights.bin", "artifacts/model_weights.bin", &l->weights},
        {"packed_experts", "root/packed_experts", &l->experts},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts && rc == 0; i++)
        if (!*parts[i].out)
            rc = first_of(dir, parts[i].a, parts[i].b, parts[i].out, e);
    l->packed = l->manifest != NULL;
    char *part = NULL;
    if (rc == 0)
        rc = first_of(dir, SPREAD_PART_FILE, SPREAD_PART_FILE, &part, e);
    if (rc == 0)
        rc = check_found(l, dir, part != NULL, e);
    free(part);
    if (rc < 0)
        layout_free(l);
    return rc;
}

void layout_free(struct layout *l)
{
    free(l->config);
    free(l->generation_config);
    free(l->tokenizer);
    free(l->manifest);
    free(l->weights);
    free(l->experts);
    *l = (struct layout){0};
}
