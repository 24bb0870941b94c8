/* server/connections.h: which connections are closed, and when.
 * suites: check asan tsan fast */
#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "server/connections.h"

static const uint64_t LONG_NS = (uint64_t)3600 * 1000000000;

/* A connection: `own` is the server's end. */
struct pair {
    int own, other;
    struct connection *entry;
};

static struct pair add(struct connections *c, const char *address)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
    int ends[2];
    assert_true(is_v4 || inet_pton(AF_INET6, address, &v6.sin6_addr) == 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    struct pair p = {.own = ends[0], .other = ends[1]};
    p.entry = connections_add(c, p.own, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6);
    assert_non_null(p.entry);
    return p;
}

/* Waits up to `ms` for the end of the connection; -1: until it comes. */
static bool ends(const struct pair *p, int ms)
{
    struct pollfd fd = {.fd = p->other, .events = POLLRDHUP};
    return poll(&fd, 1, ms) == 1;
}

static void finish(struct connections *c, struct pair *p)
{
    connections_remove(c, p->entry);
    close(p->own);
    close(p->other);
}

static void start(struct connections *c, uint32_t most, uint32_t most_of_address, uint64_t arrival_ns)
{
    struct moeflux_err e = {0};
    const struct connections_limits limits = {most, most_of_address, arrival_ns};
    check_ok(connections_init(c, &limits, &e), &e);
}

static void a_request_has_a_time_to_arrive_and_none_to_be_answered(void **state)
{
    (void)state;
    struct connections c;
    start(&c, 9, 0, 50 * 1000000);
    struct pair slow = add(&c, "10.0.0.1"), slow_body = add(&c, "10.0.0.1"), answered = add(&c, "10.0.0.1");
    connections_set_phase(&c, slow_body.entry, CONNECTION_BODY);
    connections_set_phase(&c, answered.entry, CONNECTION_ANSWERED);
    assert_true(ends(&slow, -1) && ends(&slow_body, -1));
    assert_false(ends(&answered, 200));
    /* Now it waits for the next request. */
    connections_set_phase(&c, answered.entry, CONNECTION_HEADERS);
    assert_true(ends(&answered, -1));
    finish(&c, &slow);
    finish(&c, &slow_body);
    finish(&c, &answered);
    connections_free(&c);
}

static void the_one_that_waits_longest_makes_way(void **state)
{
    (void)state;
    struct connections c;
    struct pair p[4];
    start(&c, 3, 0, LONG_NS);
    for (int i = 0; i < 3; i++)
        p[i] = add(&c, "10.0.0.1");
    connections_set_phase(&c, p[0].entry, CONNECTION_ANSWERED);
    p[3] = add(&c, "10.0.0.2");
    assert_true(ends(&p[1], 0));
    assert_false(ends(&p[0], 0) || ends(&p[2], 0) || ends(&p[3], 0));
    /* The closed one does not count; nobody else waits: the new one is refused. */
    connections_set_phase(&c, p[2].entry, CONNECTION_ANSWERED);
    connections_set_phase(&c, p[3].entry, CONNECTION_ANSWERED);
    struct pair more = add(&c, "10.0.0.3");
    assert_true(ends(&more, 0));
    assert_false(ends(&p[0], 0) || ends(&p[2], 0) || ends(&p[3], 0));
    for (int i = 0; i < 4; i++)
        finish(&c, &p[i]);
    finish(&c, &more);
    connections_free(&c);
}

/* The last two columns are of one client: of IPv6 addresses the network counts, unless they stand for
 * IPv4. */
static void an_address_has_its_share(void **state)
{
    (void)state;
    static const char *const addresses[][3] = {
        {"10.0.0.1", "10.0.0.2", "10.0.0.2"},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2"},
        {"2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:0:2:3::4"},
    };
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        struct connections c;
        struct pair p[3];
        start(&c, 9, 1, LONG_NS);
        for (int k = 0; k < 3; k++)
            p[k] = add(&c, addresses[i][k]);
        assert_true(ends(&p[1], 0));
        assert_false(ends(&p[0], 0) || ends(&p[2], 0));
        for (int k = 0; k < 3; k++)
            finish(&c, &p[k]);
        connections_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_has_a_time_to_arrive_and_none_to_be_answered),
        cmocka_unit_test(the_one_that_waits_longest_makes_way),
        cmocka_unit_test(an_address_has_its_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
