/* fault_shim.c - a disk that fails, for LD_PRELOAD: stands between the program and what it asks of the disk.
 * The file that $MOEFLUX_FAULT names says what suffers; without it, or with another text in it, nothing does.
 *
 * "KIND FROM TO": preads FROM .. TO - 1 of files of experts, counted from the start of the program.
 *   eio, enospc   fail with that error         eintr   every second one is interrupted
 *   zero          end of file                  short   bring at most 1,000 bytes
 *   slow          take 2 ms longer
 *
 * "lag FROM TO": calls FROM .. TO - 1 that change or map files below $MOEFLUX_FAULT_ROOT take 100 ms longer.
 *
 * "call FROM TO ERRNO" and "half FROM TO ERRNO": calls FROM .. TO - 1 that change or map files below
 * $MOEFLUX_FAULT_ROOT (write, pwrite, fsync, fdatasync, rename, ftruncate, mmap), counted from the start,
 * fail with that number. With "half" the first of them is a write that brings half of its bytes, as on a disk
 * that becomes full. $MOEFLUX_FAULT_LOG gets a line for each: its name, the file, and "failed" if it did. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };
static atomic_ullong n_reads, n_calls;

static void path_of(int fd, char target[MAX_PATH])
{
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, target, MAX_PATH - 1);
    target[n > 0 ? n : 0] = '\0';
}

static bool holds_experts(int fd)
{
    char path[MAX_PATH];
    path_of(fd, path);
    return strstr(path, "/packed_experts/") != NULL;
}

struct fault {
    char kind[16]; /* empty: none */
    unsigned long long from, to;
    int number;
};

/* What read or call number `i` suffers. */
static struct fault look(unsigned long long i)
{
    const char *control = getenv("MOEFLUX_FAULT");
    char text[64] = "";
    struct fault f = {0};
    int fd = control ? open(control, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return f;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || sscanf(text, "%15s %llu %llu %d", f.kind, &f.from, &f.to, &f.number) < 3 || i < f.from ||
        i >= f.to)
        f.kind[0] = '\0';
    return f;
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
    if (!holds_experts(fd))
        return real_pread(fd, buf, nbytes, offset);
    unsigned long long i = n_reads++;
    struct fault f = look(i);
    const char *kind = f.kind;
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

/* The page cache holds no experts here: each is read from the disk, by pread. */
ssize_t preadv2(int fp, const struct iovec *iovec, int count, off_t offset, int flags)
{
    if (getenv("MOEFLUX_FAULT") && holds_experts(fp))
        return fail(EAGAIN);
    ssize_t (*real)(int, const struct iovec *, int, off_t, int);
    *(void **)&real = dlsym(RTLD_NEXT, "preadv2");
    return real(fp, iovec, count, offset, flags);
}

/* ---- calls that change or map files ---- */

static void add_to_log(const char *call, const char *path, bool failed)
{
    const char *log = getenv("MOEFLUX_FAULT_LOG");
    char line[MAX_PATH + 32];
    int n = snprintf(line, sizeof line, "%s %s%s\n", call, path, failed ? " failed" : "");
    int fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    /* A line that is lost makes the test fail, which counts them. */
    if (fd >= 0 && syscall(SYS_write, fd, line, (size_t)n) == n)
        close(fd);
}

/* Whether this call is to fail, with errno set. *half: a write is to bring half of its bytes instead. */
static bool fails(const char *call, const char *path, bool *half)
{
    const char *root = getenv("MOEFLUX_FAULT_ROOT");
    if (!root || strncmp(path, root, strlen(root)) != 0)
        return false;
    unsigned long long i = n_calls++;
    struct fault f = look(i);
    bool halves = !strcmp(f.kind, "half"), hit = halves || !strcmp(f.kind, "call");
    if (half)
        *half = halves && i == f.from;
    if (!strcmp(f.kind, "lag"))
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    add_to_log(call, path, hit);
    errno = f.number;
    return hit;
}

static bool fails_on(const char *call, int fd, bool *half)
{
    char path[MAX_PATH];
    int saved = errno;
    path_of(fd, path);
    errno = saved;
    return fails(call, path, half);
}

ssize_t write(int fd, const void *buf, size_t n)
{
    bool half = false;
    if (fails_on("write", fd, &half) && !half)
        return -1;
    return syscall(SYS_write, fd, buf, half ? n / 2 : n);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    bool half = false;
    if (fails_on("pwrite", fd, &half) && !half)
        return -1;
    return syscall(SYS_pwrite64, fd, buf, half ? n / 2 : n, offset);
}

/* Nobody cuts the power here, and a real sync takes tens of milliseconds: one that does not fail does
 * nothing. */
int fsync(int fd)
{
    return fails_on("fsync", fd, NULL) ? -1 : 0;
}

int fdatasync(int fildes)
{
    return fails_on("fdatasync", fildes, NULL) ? -1 : 0;
}

int ftruncate(int fd, off_t length)
{
    return fails_on("ftruncate", fd, NULL) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

int renameat2(int oldfd, const char *old, int newfd, const char *new, unsigned flags)
{
    return fails("rename", new, NULL) ? -1 : (int)syscall(SYS_renameat2, oldfd, old, newfd, new, flags);
}

int rename(const char *old, const char *new)
{
    return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0);
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    /* Anonymous memory is the allocator's. */
    if (fd >= 0 && fails_on("mmap", fd, NULL))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, offset);
}
