#include "cli/startup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/options/options.h"

/* A file that is opened next would get the number, and be written instead. */
void startup_keep_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void startup_allow_many_files(void)
{
    const rlim_t enough = 4096;
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= enough)
        return;
    l.rlim_cur = l.rlim_max < enough ? l.rlim_max : enough;
    (void)setrlimit(RLIMIT_NOFILE, &l);
}

void startup_skip_software_drivers(const struct options *o)
{
    bool is_named = o->device && strcmp(o->device, "auto") != 0 && strcmp(o->device, "all") != 0;
    if (!is_named && o->verb != VERB_LIST_DEVICES && o->verb != VERB_DOCTOR)
        (void)setenv("VK_LOADER_DRIVERS_DISABLE", "*lvp_icd*,*swiftshader_icd*", 0);
}
