#include "hub/selection.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "hub/listing.h"

static bool matches(const char *const *patterns, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strlen(patterns[i]);
        bool is_dir = len > 0 && patterns[i][len - 1] == '/';
        if (is_dir ? strncmp(name, patterns[i], len) == 0 : fnmatch(patterns[i], name, FNM_NOESCAPE) == 0)
            return true;
    }
    return false;
}

/* --- GGUF --- */

static const char *base_name(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

static bool is_gguf(const struct listing_file *f)
{
    return !f->excluded && str_ends_with(f->name, ".gguf") && strncmp(base_name(f->name), "mmproj", 6) != 0;
}

/* Returns the bytes of a name before -NNNNN-of-MMMMM.gguf; 0: the file is not part of a set. */
static size_t stem_of(const char *name)
{
    static const char form[] = "-#####-of-#####.gguf";
    size_t n = strlen(name), tail = sizeof form - 1;
    if (n <= tail)
        return 0;
    for (size_t i = 0; i < tail; i++)
        if (form[i] == '#' ? !isdigit((unsigned char)name[n - tail + i]) : name[n - tail + i] != form[i])
            return 0;
    return n - tail;
}

static bool is_same_set(const char *a, const char *b)
{
    size_t n = stem_of(a);
    return n ? stem_of(b) == n && strncmp(a, b, n) == 0 : strcmp(a, b) == 0;
}

/* Whether an earlier file belongs to the same set. */
static bool is_known(const struct listing *l, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (is_gguf(&l->files[k]) && is_same_set(l->files[k].name, l->files[i].name))
            return true;
    return false;
}

bool selection_next_set(const struct listing *l, uint32_t *i, struct selection_set *set)
{
    while (*i < l->n && (!is_gguf(&l->files[*i]) || is_known(l, *i)))
        (*i)++;
    if (*i == l->n)
        return false;
    const char *name = l->files[*i].name;
    size_t stem = stem_of(name);
    *set = (struct selection_set){.first = *i};
    for (uint32_t k = *i; k < l->n; k++)
        if (is_gguf(&l->files[k]) && is_same_set(name, l->files[k].name)) {
            set->n_files++;
            set->bytes += l->files[k].bytes;
        }
    if (stem)
        snprintf(set->pattern, sizeof set->pattern, "%.*s-*.gguf", (int)stem, name);
    else
        snprintf(set->pattern, sizeof set->pattern, "%s", name);
    /* It is shown between quotation marks of a shell, and stands for itself. */
    for (char *at = set->pattern; (at = strpbrk(at, "'[\\"));)
        *at = '?';
    (*i)++;
    return true;
}

/* --- the choice --- */

/* Whether a model needs the file: other weights, pictures and programs stay where they are. */
static bool is_of_model(const char *name)
{
    static const char *const endings[] = {".safetensors", ".json",     ".jinja", ".txt",
                                          ".model",       ".tiktoken", ".md"};
    if (str_after(name, "additional_chat_templates/"))
        return str_ends_with(name, ".jinja");
    if (strchr(name, '/') || name[0] == '.' || strncmp(name, "consolidated", 12) == 0)
        return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (str_ends_with(name, endings[i]))
            return true;
    return strncmp(name, "LICENSE", 7) == 0;
}

static enum selection_kind choose_gguf(struct listing *l)
{
    struct selection_set set, other;
    uint32_t i = 0;
    if (!selection_next_set(l, &i, &set))
        return SELECTION_NONE;
    if (selection_next_set(l, &i, &other))
        return SELECTION_MANY;
    for (uint32_t k = 0; k < l->n; k++)
        l->files[k].wanted = is_gguf(&l->files[k]) && is_same_set(l->files[set.first].name, l->files[k].name);
    return SELECTION_GGUF;
}

enum selection_kind selection_make(const struct selection *s, struct listing *l)
{
    uint32_t n_weights = 0;
    enum selection_kind kind = SELECTION_MODEL;
    for (uint32_t i = 0; i < l->n; i++) {
        struct listing_file *f = &l->files[i];
        f->excluded = matches(s->exclude, s->n_exclude, f->name);
        f->wanted = s->n_include ? matches(s->include, s->n_include, f->name) : is_of_model(f->name);
        f->wanted &= !f->excluded;
        n_weights += f->wanted && str_ends_with(f->name, ".safetensors");
    }
    if (!s->n_include && n_weights == 0)
        kind = choose_gguf(l);
    return kind;
}
