#include "peak.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* A line of /proc/self/status in bytes. */
static uint64_t status_of(const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), ": %llu", &kib);
    if (f)
        fclose(f);
    return kib * 1024;
}

static uint64_t measure(void (*work)(void *ctx), void *ctx)
{
    /* 5: the peak begins anew. */
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "5", 1) < 0)
        perror("clear_refs");
    if (fd >= 0)
        close(fd);
    uint64_t before = status_of("VmRSS");
    work(ctx);
    return status_of("VmHWM") - before;
}

uint64_t peak_of(void (*work)(void *ctx), void *ctx)
{
    int ends[2], status;
    uint64_t bytes = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bytes = measure(work, ctx);
        _exit(write(ends[1], &bytes, sizeof bytes) == (ssize_t)sizeof bytes ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &bytes, sizeof bytes), sizeof bytes);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return bytes;
}
