#include "tmp_tree.h"

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

char *tmp_tree_new(void)
{
    const char *parent = getenv("TMPDIR");
    char *dir = malloc(4096);
    assert_non_null(dir);
    snprintf(dir, 4096, "%s/moeflux-test-XXXXXX", parent && *parent ? parent : "/tmp");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void tmp_tree_remove(char *dir)
{
    assert_int_equal(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(dir);
}

/* Kept reachable to the end, so that leak checkers see no loss. */
struct path {
    struct path *next;
    char text[];
};

const char *tmp_tree_path(const char *dir, const char *name)
{
    static struct path *all;
    struct path *p = malloc(sizeof *p + strlen(dir) + strlen(name) + 2);
    assert_non_null(p);
    sprintf(p->text, "%s/%s", dir, name);
    p->next = all;
    all = p;
    return p->text;
}

void tmp_tree_write(const char *dir, const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(tmp_tree_path(dir, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void tmp_tree_write_text(const char *dir, const char *name, const char *text)
{
    tmp_tree_write(dir, name, text, strlen(text));
}

uint8_t *tmp_tree_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be read", path);
    struct stat st;
    assert_int_equal(fstat(fileno(f), &st), 0);
    size_t size = (size_t)st.st_size;
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, size, f), size);
    bytes[size] = 0;
    fclose(f);
    if (n)
        *n = size;
    return bytes;
}

void tmp_tree_copy(const char *from, const char *to)
{
    assert_int_equal(mkdir(to, 0777), 0);
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));) {
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, ".."))
            continue;
        const char *a = tmp_tree_path(from, x->d_name), *b = tmp_tree_path(to, x->d_name);
        struct stat st;
        assert_int_equal(stat(a, &st), 0);
        if (S_ISDIR(st.st_mode)) {
            tmp_tree_copy(a, b);
            continue;
        }
        size_t n;
        uint8_t *bytes = tmp_tree_read(a, &n);
        tmp_tree_write(to, x->d_name, bytes, n);
        free(bytes);
    }
    closedir(d);
}

void tmp_tree_replace(const char *dir, const char *name, const char *old, const char *with)
{
    size_t n;
    char *text = (char *)tmp_tree_read(tmp_tree_path(dir, name), &n);
    char *at = memmem(text, n, old, strlen(old));
    if (!at) {
        fail_msg("%s/%s has no %s", dir, name, old);
        return;
    }
    char *out = malloc(n + strlen(with) + 1);
    assert_non_null(out);
    size_t before = (size_t)(at - text), after = n - before - strlen(old);
    memcpy(out, text, before);
    memcpy(out + before, with, strlen(with));
    memcpy(out + before + strlen(with), at + strlen(old), after);
    tmp_tree_write(dir, name, out, before + strlen(with) + after);
    free(out);
    free(text);
}

size_t tmp_tree_count(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
    closedir(d);
    return n;
}

void tmp_tree_expect_same(const char *a_dir, const char *b_dir, const char *name)
{
    size_t n, k;
    uint8_t *a = tmp_tree_read(tmp_tree_path(a_dir, name), &n);
    uint8_t *b = tmp_tree_read(tmp_tree_path(b_dir, name), &k);
    if (n != k || memcmp(a, b, n) != 0)
        fail_msg("%s differs", name);
    free(a);
    free(b);
}
