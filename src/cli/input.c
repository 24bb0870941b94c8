#include "cli/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"
#include "cli/signals.h"

int input_open(struct input *in, const char *path, struct moeflux_err *e)
{
    *in = (struct input){.name = "stdin", .fd = STDIN_FILENO};
    if (!path || strcmp(path, "-") == 0)
        return 0;
    in->name = path;
    /* O_NONBLOCK: a FIFO without a writer opens at once; the wait is in input_read, which Ctrl-C can end. */
    in->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return in->fd < 0 ? err_errno(e, ERR_IO, "%s", path) : 0;
}

static bool is_ready(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) != 0;
}

int input_read(const struct input *in, bool wait, struct str *out, struct moeflux_err *e)
{
    char block[64 << 10];
    ssize_t n;
    do {
        if (!wait && !is_ready(in->fd))
            return INPUT_NOT_YET;
        if (wait && signals_wait(in->fd) == SIGNALS_INTERRUPT)
            return err_set(e, ERR_INTERRUPTED, "%s: interrupted", in->name);
        n = read(in->fd, block, sizeof block);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0)
        return err_errno(e, ERR_IO, "%s", in->name);
    if (n == 0)
        return INPUT_END;
    str_add(out, block, (size_t)n);
    return str_ok(out) ? INPUT_BYTES : err_set(e, ERR_MEMORY, "%s: out of memory", in->name);
}

void input_close(struct input *in)
{
    if (in->fd > STDIN_FILENO)
        close(in->fd);
    *in = (struct input){.fd = -1};
}
