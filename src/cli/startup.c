#include "cli/startup.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/options/options.h"

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
    if (!is_named && o->verb != VERB_LIST_DEVICES)
        (void)setenv("VK_LOADER_DRIVERS_DISABLE", "*lvp_icd*,*swiftshader_icd*", 0);
}
