#include "fuzz/target.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "tmp_tree.h"

const struct target target_all[] = {
    {"config", target_config},
    {"safetensors", target_safetensors},
    {"gguf", target_gguf},
    {"manifest", target_manifest},
    {"spread", target_spread},
    {"layout", target_layout},
    {"tokenizer", target_tokenizer},
    {"tiktoken", target_tiktoken},
    {"pattern", target_pattern},
    {"jinja", target_jinja},
    {"snapshot", target_snapshot},
    {"session", target_session},
    {"usage", target_usage},
    {"trace", target_trace},
    {"batch", target_batch},
    {"calls", target_calls},
    {"completions", target_completions},
    {"listing", target_listing},
    {"tokens", target_tokens},
    {"grammar", target_grammar},
    {"schema", target_schema},
    {"model", target_model},
    {NULL, NULL},
};

void target_need(int holds, const char *text)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz: %s\n", text);
    abort();
}

int target_answered(int rc, const struct moeflux_err *e)
{
    if (rc >= 0)
        return 1;
    target_need((int)e->code == rc, "a failure whose code is not that of the error");
    target_need(e->text[0] != '\0', "a failure without a text");
    target_need(!strchr(e->text, '\n') && memchr(e->text, '\0', sizeof e->text),
                "an error's text that is no line");
    return 0;
}

/* One for the whole run: an input a file would be most of the time. */
const char *target_file(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    target_need(fd >= 0 && ftruncate(fd, (off_t)n) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n,
                "no room for the input");
    return path;
}

/* Overwrites in place: some file systems write a file that was truncated first out to the disk at once. */
void target_put(const char *path, const uint8_t *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    target_need(fd >= 0 && write(fd, data, n) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0,
                "no room for a file");
    close(fd);
}

static char *made_dir;

static void remove_dir(void)
{
    tmp_tree_remove(made_dir);
}

const char *target_dir(void)
{
    if (!made_dir) {
        made_dir = tmp_tree_new();
        atexit(remove_dir);
    }
    return made_dir;
}

const char *target_new_dir(const char *name)
{
    const char *path = tmp_tree_path(target_dir(), name);
    target_need(mkdir(path, 0777) == 0, "no directory");
    return path;
}
