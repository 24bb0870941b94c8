/* hub.h - finds models by the names of their repositories ("Qwen/Qwen3-30B-A3B") in the cache of Hugging
 * Face's tools:
 *
 *   CACHE/models--ORG--NAME/refs/main           the revision that the name stood for last
 *   CACHE/models--ORG--NAME/snapshots/REVISION  a directory of links to files
 *
 * CACHE is HF_HUB_CACHE or HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
 * ~/.cache/huggingface/hub. */
#ifndef MOEFLUX_CLI_HUB_H
#define MOEFLUX_CLI_HUB_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct options;

/* Returns whether the text has the form of a repository's name: two words of letters, digits, ".", "_" and
 * "-". */
bool hub_is_name(const char *text);

/* Returns the value of a variable of the environment that is set and not empty, else NULL. */
const char *hub_variable(const char *name);

/* Where Hugging Face's tools keep something, if the variable is set. */
struct hub_place {
    const char *variable;
    const char *inside; /* path below the variable's folder; NULL: the variable names the place itself */
};
/* Returns the path of the first of n places whose variable is set, with ~ and $NAME replaced; the caller
 * frees it. NULL: none is; or, with `e` filled, ~ names another user's home, or no memory. */
char *hub_place(const struct hub_place *places, size_t n, struct moeflux_err *e);

/* Returns the directory of the cache, which need not exist; the caller frees it. NULL with `e` filled: no
 * variable names one, or no memory. */
char *hub_cache(struct moeflux_err *e);

/* Writes the name that a repository's directory has in the cache. ERR_IO: it is too long. */
enum { HUB_FOLDER = 255 };
int hub_folder(const char *name, char folder[HUB_FOLDER], struct moeflux_err *e);

/* Finds the snapshot of a repository that has all files: refs/main's, else the newest. *path: fresh memory;
 * its directory, or the file if its only weights are one GGUF file or one split set. A snapshot of several
 * GGUF files or of PyTorch's files counts as complete: which_model_check explains it. ERR_IO: the cache has
 * none. The message counts the files that are missing; advises: it says how to fetch them. */
int hub_find(const char *name, bool advises, char **path, struct moeflux_err *e);

/* Replaces the name of a repository in `o` (-m, inspect's argument, or convert's source) by a path of its
 * snapshot, unless a directory or file has this name. */
int hub_use(struct options *o, struct moeflux_err *e);

#endif
