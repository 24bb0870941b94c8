/* late_shim.c - a program that is slow to listen, for LD_PRELOAD: it sleeps before each wait for stdin. What
 * arrives between its last look around and the wait arrives then, each time and not once in a thousand. */
#include <dlfcn.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

static void sleep_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
}

int poll(struct pollfd *fds, nfds_t nfds, int timeout)
{
    int (*real)(struct pollfd *, nfds_t, int);
    *(void **)&real = dlsym(RTLD_NEXT, "poll");
    if (nfds > 0 && fds[0].fd == STDIN_FILENO)
        sleep_a_little();
    return real(fds, nfds, timeout);
}

ssize_t read(int fd, void *buf, size_t nbytes)
{
    ssize_t (*real)(int, void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "read");
    if (fd == STDIN_FILENO)
        sleep_a_little();
    return real(fd, buf, nbytes);
}
