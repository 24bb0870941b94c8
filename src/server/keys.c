#include "server/keys.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"

enum { MOST_BYTES = 1 << 16 };

/* Finds the next key from *at on. Returns its length; 0: the end. */
static size_t next_key(const struct keys *k, size_t *at, const char **key)
{
    while (*at < k->len) {
        const char *line = k->text + *at, *end = memchr(line, '\n', k->len - *at);
        size_t n = end ? (size_t)(end - line) : k->len - *at;
        *at += n + 1;
        for (; n > 0 && (*line == ' ' || *line == '\t'); n--)
            line++;
        while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' ' || line[n - 1] == '\t'))
            n--;
        if (n > 0 && line[0] != '#') {
            *key = line;
            return n;
        }
    }
    return 0;
}

/* Refuses bytes that no client can send as a part of a key. */
static int check(const struct keys *k, const char *path, struct moeflux_err *e)
{
    static const char mark[] = "\xef\xbb\xbf";
    if (strncmp(k->text, mark, strlen(mark)) == 0)
        return err_set(e, ERR_USAGE, "%s: begins with a byte order mark, expected a key", path);
    size_t at = strlen(k->text), line = 1;
    for (size_t i = 0; i < at; i++)
        line += k->text[i] == '\n';
    return at < k->len ? err_set(e, ERR_USAGE, "%s: line %zu contains a NUL, expected a key", path, line) : 0;
}

int keys_read(struct keys *k, const char *path, struct moeflux_err *e)
{
    const char *key;
    size_t at = 0;
    *k = (struct keys){0};
    int rc = file_read_text(path, MOST_BYTES, &k->text, &k->len, e);
    if (rc)
        return rc;
    rc = check(k, path, e);
    if (!rc && !next_key(k, &at, &key))
        rc = err_set(e, ERR_USAGE, "%s: contains no key", path);
    if (rc)
        keys_free(k);
    return rc;
}

int keys_add(struct keys *k, const char *text, struct moeflux_err *e)
{
    size_t n = strlen(text), before = k->len;
    const char *key;
    char *all = realloc(k->text, before + n + 2);
    if (!all)
        return err_set(e, ERR_MEMORY, "out of memory for %zu bytes of keys", before + n + 2);
    k->text = all;
    k->len = before + n + 1;
    /* A file may end without a newline. */
    all[before] = '\n';
    memcpy(all + before + 1, text, n + 1);
    for (char *at = all + before + 1; (at = strchr(at, ','));)
        *at = '\n';
    return next_key(k, &before, &key) ? 0 : err_set(e, ERR_USAGE, "the API key is empty");
}

/* Compares every byte, even after a difference. */
static bool same(const char *a, const char *b, size_t n)
{
    volatile unsigned char differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(a[i] ^ b[i]);
    return differ == 0;
}

bool keys_have(const struct keys *k, const char *key)
{
    size_t len = strlen(key), at = 0, n;
    const char *own;
    bool found = false;
    while ((n = next_key(k, &at, &own)))
        found |= n == len && same(own, key, n);
    return found;
}

void keys_free(struct keys *k)
{
    free(k->text);
    *k = (struct keys){0};
}
