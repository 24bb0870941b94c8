#include "cli/terminal/editor.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

#define MAX_BYTES ((uint64_t)64 << 20)

static const char *choose(void)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR");
    return visual && *visual ? visual : editor && *editor ? editor : "vi";
}

/* Runs the editor through the shell, since the variable may contain flags. */
static int run_editor(const char *editor, const char *path, struct moeflux_err *e)
{
    struct str command = {0};
    int status = -1;
    str_addf(&command, "%s \"$1\"", editor);
    if (!str_ok(&command))
        return err_set(e, ERR_MEMORY, "out of memory");
    pid_t pid = fork();
    if (pid == 0) {
        /* Signals that this program ignores (signals.c) would be ignored in the editor and what it starts. */
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        execl("/bin/sh", "sh", "-c", command.data, "sh", path, (char *)NULL);
        _exit(127);
    }
    str_free(&command);
    if (pid < 0)
        return err_errno(e, ERR_IO, "%s", editor);
    /* Ctrl-C belongs to the editor while it runs. */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return err_set(e, ERR_IO, "%s: the editor ended with status %d", editor,
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static int read_back(const char *path, struct str *text, struct moeflux_err *e)
{
    char *data;
    size_t n;
    int rc = file_read_text(path, MAX_BYTES, &data, &n, e);
    if (rc)
        return rc;
    if (strlen(data) != n) {
        free(data);
        return err_set(e, ERR_FORMAT, "%s: the text has a NUL byte", path);
    }
    while (n > 0 && strchr(" \t\r\n", data[n - 1]))
        n--;
    str_clear(text);
    str_add(text, data, n);
    free(data);
    return str_ok(text) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the question");
}

int editor_run(struct str *text, struct moeflux_err *e)
{
    const char *dir = getenv("TMPDIR");
    struct str path = {0};
    str_addf(&path, "%s/moeflux-XXXXXX.md", dir && *dir ? dir : "/tmp");
    if (!str_ok(&path))
        return err_set(e, ERR_MEMORY, "out of memory");
    int fd = mkstemps(path.data, 3);
    int rc = fd < 0 ? err_errno(e, ERR_IO, "%s", path.data) : 0;
    if (!rc)
        rc = file_write(fd, path.data, str_text(text), text->len, e);
    if (!rc && text->len)
        rc = file_write(fd, path.data, "\n", 1, e);
    if (fd >= 0)
        close(fd);
    if (!rc)
        rc = run_editor(choose(), path.data, e);
    if (!rc)
        rc = read_back(path.data, text, e);
    if (fd >= 0)
        unlink(path.data);
    str_free(&path);
    return rc;
}
