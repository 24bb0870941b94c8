#include "cli/report/hide_paths.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/options/options.h"
#include "moeflux.h"

/* Whether a path may go on with this character. */
static bool is_of_path(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80 || (c && strchr("._-+@/", c));
}

/* Whether text[at..at + n] is a path or its beginning, and not a part of another word. A name without a slash
 * may be a word of the sentence: only the one before a slash or a colon is a path. */
static bool is_whole(const char *text, size_t at, const char *path, size_t n)
{
    char after = text[at + n];
    bool begins = at == 0 || !is_of_path(text[at - 1]);
    if (!strchr(path, '/'))
        return begins && (after == '/' || after == ':');
    /* The part's number follows the name of a split set. */
    return begins && (!is_of_path(after) || strchr("/-.", after));
}

/* Replaces each path of the text by `by`. */
static void replace(char *text, size_t cap, const char *path, const char *by)
{
    struct str out = {0};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (size_t i = 0; n > 0 && text[i];) {
        bool is = strncmp(text + i, path, n) == 0 && is_whole(text, i, path, n);
        str_add(&out, is ? by : text + i, is ? strlen(by) : 1);
        i += is ? n : 1;
    }
    if (n > 0 && str_ok(&out))
        snprintf(text, cap, "%s", str_text(&out));
    str_free(&out);
}

/* Returns the length of the path of a split set without "-00001-of-00002.gguf"; 0: it is none. */
static size_t split_stem(const char *path)
{
    static const char end[] = "-00001-of-00002.gguf";
    size_t n = strlen(path);
    if (n <= sizeof end - 1 || !str_ends_with(path, ".gguf"))
        return 0;
    const char *number = path + n - (sizeof end - 1);
    return number[0] == '-' && strncmp(number + 6, "-of-", 4) == 0 ? (size_t)(number - path) : 0;
}

static void replace_parts(char *text, size_t cap, const char *model)
{
    struct moeflux_part *parts = mem_new(MOEFLUX_MAX_PARTS, sizeof *parts, NULL);
    int n = parts ? moeflux_list_parts(model, parts, MOEFLUX_MAX_PARTS, NULL) : 0;
    for (int i = 1; i < n; i++)
        replace(text, cap, parts[i].path, "DIR");
    free(parts);
}

static void replace_model(char *text, size_t cap, const char *model)
{
    char *parent = file_parent(model, NULL), *real = realpath(model, NULL);
    size_t stem = split_stem(model);
    char *set = stem ? mem_text(model, NULL) : NULL;
    replace_parts(text, cap, model);
    replace(text, cap, model, "MODEL");
    if (set) {
        set[stem] = '\0';
        replace(text, cap, set, "MODEL");
    }
    if (real)
        replace(text, cap, real, "MODEL");
    if (parent && strchr(parent, '/') && strlen(parent) > 1)
        replace(text, cap, parent, "DIR");
    free(set);
    free(real);
    free(parent);
}

static bool is_of_system(const char *path)
{
    static const char *const known[] = {"/usr/", "/etc/", "/dev/", "/proc/", "/sys/"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(path, known[i], strlen(known[i])) == 0)
            return true;
    return false;
}

/* Replaces the absolute paths that are left. */
static void replace_others(char *text, size_t cap)
{
    struct str out = {0};
    for (size_t i = 0; text[i];) {
        size_t n = 0;
        bool begins = text[i] == '/' && (i == 0 || !is_of_path(text[i - 1])) && text[i - (i > 0)] != '~';
        while (begins && is_of_path(text[i + n]))
            n++;
        bool is = n > 1 && !is_of_system(text + i);
        str_add(&out, is ? "PATH" : text + i, is ? 4 : n ? n : 1);
        i += n ? n : 1;
    }
    if (str_ok(&out))
        snprintf(text, cap, "%s", str_text(&out));
    str_free(&out);
}

void hide_paths(char *text, size_t cap, const struct options *o)
{
    const char *home = getenv("HOME");
    if (o->model)
        replace_model(text, cap, o->model);
    if (home && strlen(home) > 1)
        replace(text, cap, home, "~");
    replace_others(text, cap);
}
