#include "disk_room.h"

#include <dlfcn.h>
#include <sys/statvfs.h>

static uint64_t pretended = UINT64_MAX;

void disk_room_pretend(uint64_t bytes)
{
    pretended = bytes;
}

/* Stands before the C library's. */
// The library's own names of the parameters are reserved.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
int statvfs(const char *restrict file, struct statvfs *restrict buf)
{
    int (*real)(const char *, struct statvfs *);
    *(void **)&real = dlsym(RTLD_NEXT, "statvfs");
    int rc = real(file, buf);
    if (rc == 0 && pretended != UINT64_MAX) {
        buf->f_frsize = 1;
        buf->f_bavail = pretended;
    }
    return rc;
}
