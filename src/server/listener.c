#include "server/listener.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"

enum { BACKLOG = 128 };

/* Writes the socket's address as a URL. */
static int tell_url(int fd, char *url, size_t cap, struct moeflux_err *e)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    char host[64], port[16];
    if (getsockname(fd, (struct sockaddr *)&at, &len) < 0)
        return err_errno(e, ERR_IO, "getsockname");
    int rc = getnameinfo((struct sockaddr *)&at, len, host, sizeof host, port, sizeof port,
                         NI_NUMERICHOST | NI_NUMERICSERV);
    if (rc)
        return err_set(e, ERR_IO, "getnameinfo: %s", gai_strerror(rc));
    bool six = at.ss_family == AF_INET6;
    snprintf(url, cap, "http://%s%s%s:%s", six ? "[" : "", host, six ? "]" : "", port);
    return 0;
}

static int open_at(const struct addrinfo *a, const char *host, uint16_t port, struct moeflux_err *e)
{
    int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return err_errno(e, ERR_IO, "%s port %u", host, port);
    /* Allows a port with old connections in TIME_WAIT, but not one that another program listens on. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
        int rc = err_errno(e, ERR_IO, "%s port %u", host, port);
        close(fd);
        return rc;
    }
    return fd;
}

int listener_open(const char *host, uint16_t port, char *url, size_t cap, struct moeflux_err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *all;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &all);
    if (rc)
        return err_set(e, ERR_USAGE, "--host %.200s: %s", host, gai_strerror(rc));
    int fd = open_at(all, host, port, e);
    freeaddrinfo(all);
    rc = fd < 0 ? fd : tell_url(fd, url, cap, e);
    if (rc && fd >= 0)
        close(fd);
    return rc ? rc : fd;
}
