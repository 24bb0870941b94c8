#include "hub/listing.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

/* Longer names have no room in a path. Sizes over 2^53 are not exact in all JSON. */
enum { MAX_NAME = 1024, MAX_PART = 255 };
#define MAX_BYTES ((json_int_t)1 << 53)

bool listing_is_safe(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > MAX_NAME)
        return false;
    for (const char *at = name;; at++) {
        size_t len = strcspn(at, "/");
        if (len == 0 || len > MAX_PART || (len == 1 && at[0] == '.') ||
            (len == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        for (size_t i = 0; i < len; i++)
            if ((unsigned char)at[i] < ' ' || at[i] == 127 || at[i] == '\\')
                return false;
        at += len;
        if (!*at)
            return true;
    }
}

bool listing_is_hex(const char *text, size_t n)
{
    return text && strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static int fail(const char *where, const char *name, const char *what, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: the server's list of files: \"%.200s\": %s", where, name, what);
}

/* Reads an item of `siblings`. */
static int read_file(struct listing_file *f, const json_t *item, const char *where, struct moeflux_err *e)
{
    const char *name = json_string_value(json_object_get(item, "rfilename"));
    const json_t *lfs = json_object_get(item, "lfs");
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : item, "size");
    const char *digest = json_is_object(lfs) ? json_string_value(json_object_get(lfs, "sha256"))
                                             : json_string_value(json_object_get(item, "blobId"));
    if (!name)
        return fail(where, "", "rfilename is missing", e);
    if (!listing_is_safe(name))
        return fail(where, name, "expected a relative path without \"..\"", e);
    if (!json_is_integer(size) || json_integer_value(size) < 0 || json_integer_value(size) > MAX_BYTES)
        return fail(where, name, "size is missing or no size", e);
    f->kind = json_is_object(lfs) ? DIGEST_SHA256 : DIGEST_GIT;
    if (!listing_is_hex(digest, digest_text_length(f->kind)))
        return fail(
            where, name,
            json_is_object(lfs) ? "lfs.sha256 is missing or no SHA-256" : "blobId is missing or no SHA-1", e);
    memcpy(f->digest, digest, strlen(digest) + 1);
    f->bytes = (uint64_t)json_integer_value(size);
    f->name = mem_text(name, e);
    return f->name ? 0 : ERR_MEMORY;
}

/* Fails if a name occurs twice. */
static int check_names(const struct listing *l, const char *where, struct moeflux_err *e)
{
    json_t *seen = json_object();
    int rc = seen ? 0 : err_set(e, ERR_MEMORY, "out of memory for the list of files");
    for (uint32_t i = 0; rc == 0 && i < l->n; i++) {
        if (json_object_get(seen, l->files[i].name))
            rc = fail(where, l->files[i].name, "it occurs twice", e);
        else if (json_object_set(seen, l->files[i].name, json_true()))
            rc = err_set(e, ERR_MEMORY, "out of memory for the list of files");
    }
    json_decref(seen);
    return rc;
}

static int compare_digests(const void *a, const void *b)
{
    const struct listing_file *const *x = a, *const *y = b;
    return strcmp((*x)->digest, (*y)->digest);
}

/* Fails if files with the same digest differ in size, or if the sum of all sizes does not fit. */
static int check_sizes(const struct listing *l, const char *where, struct moeflux_err *e)
{
    uint64_t sum = 0;
    const struct listing_file **files = mem_new(l->n, sizeof *files, e);
    int rc = files ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < l->n; i++) {
        files[i] = &l->files[i];
        if (!size_add(sum, l->files[i].bytes, &sum))
            rc = fail(where, l->files[i].name, "the sum of the sizes is too large", e);
    }
    if (rc == 0)
        qsort(files, l->n, sizeof *files, compare_digests);
    for (uint32_t i = 1; rc == 0 && i < l->n; i++)
        if (strcmp(files[i]->digest, files[i - 1]->digest) == 0 && files[i]->bytes != files[i - 1]->bytes)
            rc = fail(where, files[i]->name, "size is another than that of the same bytes' other name", e);
    free(files);
    return rc;
}

/* Keeps a name of GGUF's, which are words of small letters and digits. */
static void read_architecture(struct listing *l, const json_t *name)
{
    const char *text = json_string_value(name);
    size_t n = text ? strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-_.") : 0;
    if (text && !text[n] && n < sizeof l->architecture)
        memcpy(l->architecture, text, n + 1);
}

int listing_read(struct listing *l, const char *text, size_t n, const char *where, struct moeflux_err *e)
{
    json_t *root = NULL;
    *l = (struct listing){0};
    int rc = json_read(text, n, where, JSON_MAX_LARGE, &root, e);
    const char *commit = json_string_value(json_object_get(root, "sha"));
    const json_t *siblings = json_object_get(root, "siblings");
    if (rc == 0 && !listing_is_hex(commit, LISTING_COMMIT - 1))
        rc = err_set(e, ERR_FORMAT, "%s: the server's list of files: sha is missing or no commit", where);
    if (rc == 0 && json_array_size(siblings) == 0)
        rc = err_set(e, ERR_FORMAT, "%s: the server lists no files", where);
    if (rc == 0) {
        read_architecture(l, json_object_get(json_object_get(root, "gguf"), "architecture"));
        memcpy(l->commit, commit, sizeof l->commit);
        l->files = mem_new(json_array_size(siblings), sizeof *l->files, e);
        rc = l->files ? 0 : ERR_MEMORY;
    }
    for (size_t i = 0; rc == 0 && i < json_array_size(siblings); i++)
        rc = read_file(&l->files[l->n++], json_array_get(siblings, i), where, e);
    if (rc == 0)
        rc = check_names(l, where, e);
    if (rc == 0)
        rc = check_sizes(l, where, e);
    json_decref(root);
    return rc;
}

void listing_free(struct listing *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        free(l->files[i].name);
    free(l->files);
    *l = (struct listing){0};
}

const struct listing_file **listing_blobs(const struct listing_file *const *files, uint32_t n,
                                          uint32_t *n_blobs, struct moeflux_err *e)
{
    const struct listing_file **blobs = mem_new(n, sizeof *blobs, e);
    *n_blobs = 0;
    if (!blobs || n == 0)
        return blobs;
    memcpy(blobs, files, n * sizeof *blobs);
    qsort(blobs, n, sizeof *blobs, compare_digests);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || strcmp(blobs[i]->digest, blobs[*n_blobs - 1]->digest) != 0)
            blobs[(*n_blobs)++] = blobs[i];
    return blobs;
}

const struct listing_file *listing_find(const struct listing *l, const char *name)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (strcmp(l->files[i].name, name) == 0)
            return &l->files[i];
    return NULL;
}
