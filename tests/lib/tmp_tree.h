/* tmp_tree.h - throw-away directories of files for tests. Everything asserts: a failure ends the test. */
#ifndef MOEFLUX_TESTS_TMP_TREE_H
#define MOEFLUX_TESTS_TMP_TREE_H

#include <stddef.h>
#include <stdint.h>

/* A fresh directory under $TMPDIR or /tmp; freed by tmp_tree_remove. */
char *tmp_tree_new(void);
/* Deletes it with everything inside and frees the path. */
void tmp_tree_remove(char *dir);

/* dir/name, good until the end of the test program. */
const char *tmp_tree_path(const char *dir, const char *name);

/* Writes a file (over an old one). */
void tmp_tree_write(const char *dir, const char *name, const void *bytes, size_t n);
void tmp_tree_write_text(const char *dir, const char *name, const char *text);

/* The whole file, NUL-terminated; the caller frees it. *n may be NULL. */
uint8_t *tmp_tree_read(const char *path, size_t *n);

/* How many files are in a directory. */
size_t tmp_tree_count(const char *dir);

/* The two directories' files of this name are the same bytes. */
void tmp_tree_expect_same(const char *a_dir, const char *b_dir, const char *name);

/* Copies a directory with its plain files and folders into `to`, which is made. */
void tmp_tree_copy(const char *from, const char *to);

/* Replaces the first `old` in a file; asserts that it is there. */
void tmp_tree_replace(const char *dir, const char *name, const char *old, const char *with);

#endif
