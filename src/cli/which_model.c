#include "cli/which_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/gguf.h"
#include "base/str.h"
#include "cli/hub.h"
#include "cli/options/closest.h"
#include "model/spread.h"

static bool begins_with(int fd, const char *beginning)
{
    char start[64];
    size_t n = strlen(beginning);
    return fd >= 0 && n <= sizeof start && pread(fd, start, n, 0) == (ssize_t)n &&
           memcmp(start, beginning, n) == 0;
}

/* A configuration alone is enough to plan with. */
static int check_file(const char *path, bool takes_config, struct moeflux_err *e)
{
    char *parent = file_parent(path, NULL);
    bool is_part = str_ends_with(path, ".safetensors") || (str_ends_with(path, ".json") && !takes_config);
    int rc = 0;
    if (parent && !gguf_is_file(path) && is_part)
        rc = err_set(e, ERR_FORMAT, "%s: a file of a model: name its directory, %s", path, parent);
    free(parent);
    return rc;
}

/* What a directory has. */
struct contents {
    bool manifest, config, safetensors, pytorch;
    bool converted;    /* files that only moeflux convert writes */
    bool part;         /* a part of a model's experts: it gets its own error later, and --verify takes it */
    char pointer[256]; /* the name of a file that git-lfs has not fetched; "": none */
    char gguf[256];    /* the first GGUF file by name, not one of vision; "": none */
    char inner[300];   /* a directory in it that has a config.json; "": none */
};

/* Looks for a model one level deeper: a clone or a download in a directory made for it, or `snapshots` of the
 * Hugging Face cache (again: looks into that). */
static void look_into(struct contents *c, int dir, const char *name, bool again)
{
    char path[300];
    snprintf(path, sizeof path, "%s/config.json", name);
    if (name[0] == '.' || c->inner[0])
        return;
    if (faccessat(dir, path, R_OK, 0) == 0)
        snprintf(c->inner, sizeof c->inner, "%s", name);
    if (!again || strcmp(name, "snapshots") != 0)
        return;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *x; d && (x = readdir(d));) {
        snprintf(path, sizeof path, "%s/%.255s", name, x->d_name);
        if (x->d_name[0] != '.')
            look_into(c, dir, path, false);
    }
    if (d)
        closedir(d);
}

static void look_at(struct contents *c, int dir, const char *name)
{
    bool weights = str_ends_with(name, ".safetensors");
    c->manifest |= strcmp(name, "model_weights.json") == 0;
    c->config |= strcmp(name, "config.json") == 0;
    c->converted |= strcmp(name, "model_weights.bin") == 0 || strcmp(name, "packed_experts") == 0;
    c->part |= strcmp(name, SPREAD_PART_FILE) == 0;
    c->safetensors |= weights;
    if (str_ends_with(name, ".gguf") && strncmp(name, "mmproj", 6) != 0 &&
        (!c->gguf[0] || strcmp(name, c->gguf) < 0))
        snprintf(c->gguf, sizeof c->gguf, "%s", name);
    c->pytorch |= str_ends_with(name, ".bin") || str_ends_with(name, ".pt") || str_ends_with(name, ".pth");
    if (!weights && !str_ends_with(name, ".json"))
        return;
    int fd = openat(dir, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (begins_with(fd, "version https://git-lfs.github.com/spec/"))
        snprintf(c->pointer, sizeof c->pointer, "%s", name);
    if (fd >= 0)
        close(fd);
}

static int check_dir(const char *path, struct moeflux_err *e)
{
    struct contents c = {0};
    DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));) {
        look_at(&c, dirfd(d), x->d_name);
        look_into(&c, dirfd(d), x->d_name, true);
    }
    if (!d)
        return 0;
    closedir(d);
    if (c.pointer[0])
        return err_set(e, ERR_FORMAT,
                       "%s: %s is a pointer of git-lfs and not the file: \"git lfs pull\" in the directory "
                       "fetches it",
                       path, c.pointer);
    if (c.manifest || c.part || (c.safetensors && c.config))
        return 0;
    if (c.safetensors && !c.converted)
        return err_set(
            e, ERR_FORMAT,
            "%s: safetensors files without a config.json: a model needs its repository's .json files "
            "too",
            path);
    if (c.gguf[0])
        return err_set(e, ERR_UNSUPPORTED, "%s: a directory of GGUF files: name the file, for example %s/%s",
                       path, path, c.gguf);
    if (c.converted)
        return err_set(
            e, ERR_FORMAT,
            "%s: model_weights.json is missing: the rest of a directory that moeflux convert wrote "
            "is there",
            path);
    if (c.pytorch)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: only PyTorch's files (.bin, .pt), which moeflux does not read: take a repository of "
            "the model with safetensors files",
            path);
    if (c.config)
        return 0;
    if (c.inner[0])
        return err_set(e, ERR_FORMAT, "%s: no model is in it, but perhaps in %s/%s", path, path, c.inner);
    return err_set(
        e, ERR_FORMAT,
        "%s: no model: neither model_weights.json nor config.json is there (a model's directory has "
        "config.json, tokenizer.json and safetensors files)",
        path);
}

int which_model_check(const char *path, bool takes_config, struct moeflux_err *e)
{
    if (file_is_dir(path))
        return check_dir(path, e);
    return file_exists(path) ? check_file(path, takes_config, e) : 0;
}

int which_model_require(const char *path, struct moeflux_err *e)
{
    if (file_exists(path))
        return 0;
    return err_set(e, ERR_IO,
                   "%s: No such file or directory (a model is a directory, a GGUF file, or the ORG/NAME that "
                   "\"moeflux get ORG/NAME\" has fetched)",
                   path);
}

int which_model_refuse_word(const char *word, bool is_first, struct moeflux_err *e)
{
    static const char *const verbs[] = {"convert", "inspect", "serve", "get", "completion"};
    const size_t n = sizeof verbs / sizeof *verbs;
    struct closest closest = closest_begin(word);
    struct moeflux_err why;
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, verbs[i]) == 0)
            return err_set(e, ERR_USAGE, "%s: the command goes first: moeflux %s ...", word, word);
    if (strpbrk(word, " \t\n"))
        return err_set(e, ERR_USAGE, "unexpected argument \"%.60s\": a prompt goes after -p", word);
    if (!is_first)
        return err_set(e, ERR_USAGE, "unexpected argument \"%s\" (--help shows the usage)", word);
    if (file_is_dir(word))
        return err_set(e, ERR_USAGE, "unexpected argument \"%s\": a model's directory goes after -m (-m %s)",
                       word, word);
    if (gguf_is_file(word))
        return err_set(e, ERR_USAGE, "unexpected argument \"%s\": a GGUF file goes after -m (-m %s)", word,
                       word);
    if (which_model_check(word, false, &why))
        return err_set(e, ERR_USAGE, "%s", why.text);
    if (hub_is_name(word) && !str_ends_with(word, ".gguf"))
        return err_set(e, ERR_USAGE, "unexpected argument \"%s\": a repository's name goes after -m (-m %s)",
                       word, word);
    for (size_t i = 0; i < n; i++)
        closest_try(&closest, verbs[i], strlen(verbs[i]));
    if (closest.best)
        return err_set(e, ERR_USAGE, "unexpected argument \"%s\": did you mean %s?", word, closest.best);
    return err_set(e, ERR_USAGE, "unexpected argument \"%s\" (--help shows the usage)", word);
}
