/* selection.h - which files of a repository are fetched. */
#ifndef MOEFLUX_HUB_SELECTION_H
#define MOEFLUX_HUB_SELECTION_H

#include <stdbool.h>
#include <stdint.h>

struct listing;

/* Patterns of fnmatch(3) in which * also stands for "/"; "DIR/" is "DIR/" and a star. */
struct selection {
    const char *const *include, *const *exclude;
    uint32_t n_include, n_exclude;
};

/* What a repository has. */
enum selection_kind {
    SELECTION_MODEL, /* safetensors and a configuration, or what --include names */
    SELECTION_GGUF,  /* one GGUF file or set, and no safetensors */
    SELECTION_MANY,  /* several GGUF files or sets: the user chooses */
    SELECTION_NONE,  /* no weights that this program reads */
};

/* Sets `wanted` and `excluded` of each file. include: exactly what the patterns match. Otherwise a model:
 * its configuration, tokenizer and safetensors in the repository's first directory, or its only GGUF file
 * or set. */
enum selection_kind selection_make(const struct selection *s, struct listing *l);

/* A GGUF file, or a set of them that a model was split into. */
struct selection_set {
    uint32_t first; /* index of a file of the set */
    uint32_t n_files;
    uint64_t bytes;
    char pattern[1100]; /* an --include that names it */
};

/* Fills *set with the set at or after file *i and moves *i past it; false: there are no more. Files of vision
 * (mmproj) do not count. */
bool selection_next_set(const struct listing *l, uint32_t *i, struct selection_set *set);

#endif
