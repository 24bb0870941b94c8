#include "cli/terminal/term.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const char term_dim[] = "\033[2m", term_plain[] = "\033[0m", term_erase_line[] = "\r\033[K";
const char term_paste_on[] = "\033[?2004h", term_paste_off[] = "\033[?2004l";

static void occupy_closed_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        /* open takes the lowest free number, which is fd. Text for a closed stderr may vanish, text for
         * stdout must fail, hence read-only. */
        int got = open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
        if (got > fd)
            close(got);
    }
}

struct term term_look(void)
{
    occupy_closed_streams();
    const char *kind = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool able = kind && strcmp(kind, "dumb") != 0;
    bool dress = able && !(no_color && *no_color);
    struct term t = {
        .in = isatty(STDIN_FILENO),
        .out = isatty(STDOUT_FILENO),
        .err = isatty(STDERR_FILENO),
    };
    t.out_dress = t.out && dress;
    t.err_dress = t.err && dress;
    t.pastes = t.in && t.err && able;
    return t;
}

unsigned term_out_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 0;
}

int term_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
        return size.ws_col;
    return 80;
}
