/* fault_shim.c - a disk that fails, for LD_PRELOAD: stands between the program and pread on files of experts.
 *
 * The file that $MOEFLUX_FAULT names holds "KIND FROM TO": reads FROM .. TO - 1 of experts, counted from the start of
 * the program, suffer. Without the file, or with another text in it, none does.
 *   eio, enospc   fail with that error         eintr   every second one is interrupted
 *   zero          end of file                  short   bring at most 1,000 bytes
 *   slow          take 2 ms longer */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_ullong n_reads;

static bool holds_experts(int fd)
{
    char name[64], target[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    return strstr(target, "/packed_experts/") != NULL;
}

/* What read number `i` suffers; empty: nothing. */
static void look(unsigned long long i, char kind[16])
{
    const char *control = getenv("MOEFLUX_FAULT");
    char text[64] = "", found[16];
    unsigned long long from, to;
    int fd = control ? open(control, O_RDONLY | O_CLOEXEC) : -1;
    kind[0] = '\0';
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n > 0 && sscanf(text, "%15s %llu %llu", found, &from, &to) == 3 && i >= from && i < to)
        memcpy(kind, found, sizeof found);
}

static ssize_t real_pread(int fd, void *dst, size_t n, off_t off)
{
    ssize_t (*real)(int, void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pread");
    return real(fd, dst, n, off);
}

static ssize_t fail(int number)
{
    errno = number;
    return -1;
}

ssize_t pread(int fd, void *buf, size_t nbytes, off_t offset)
{
    char kind[16];
    if (!holds_experts(fd))
        return real_pread(fd, buf, nbytes, offset);
    unsigned long long i = n_reads++;
    look(i, kind);
    if (!strcmp(kind, "eio"))
        return fail(EIO);
    if (!strcmp(kind, "enospc"))
        return fail(ENOSPC);
    if (!strcmp(kind, "eintr") && i % 2)
        return fail(EINTR);
    if (!strcmp(kind, "zero"))
        return 0;
    if (!strcmp(kind, "slow"))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    return real_pread(fd, buf, !strcmp(kind, "short") && nbytes > 1000 ? 1000 : nbytes, offset);
}
