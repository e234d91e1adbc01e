/* Limits of the number of log lines that one client causes. */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>

#include "api/http/exchange.h"
#include "api/limits/log_limit.h"

#define PER_SECOND 5
#define BURST (PER_SECOND * LOG_BURST_S)
#define SECOND INT64_C(1000000000)

/* Scene; rows 1 and 2 are tenants. */
struct scene {
    struct log_limit l;
    struct log_row tenant[3];
    int64_t now;
};

static void setup(struct scene *s, double per_second) {
    *s = (struct scene){.now = SECOND};
    cr_assert_eq(log_limit_init(&s->l, per_second), 0);
}

/* Sends @n requests of a tenant, or of an address (tenant 0). Returns the number of log lines. */
static uint32_t flood(struct scene *s, uint32_t tenant, uint32_t address, int status, uint32_t n) {
    struct exchange x = {.status = status, .peer = {AF_INET}};
    uint32_t written = 0;

    memcpy(x.peer + 1, &address, sizeof(address));
    for (uint32_t i = 0; i < n; i++)
        written += log_limit_allows(&s->l, tenant ? &s->tenant[tenant] : NULL, &x, s->now);
    return written;
}

Test(log_limit, a_flood_takes_its_own_lines_only) {
    static struct scene s;

    setup(&s, PER_SECOND);
    cr_expect_eq(flood(&s, 1, 0, 400, 10000), BURST);
    cr_expect_eq(flood(&s, 2, 0, 400, 20), 20, "another tenant has its own");
    cr_expect_eq(flood(&s, 0, 7, 401, 10), 10, "a stranger too");
    cr_expect_eq(flood(&s, 1, 0, 500, 20), 20, "our own failures are not hidden by it");
    s.now += 2 * SECOND;
    cr_expect_eq(flood(&s, 1, 0, 400, 10000), 2 * PER_SECOND);
    cr_expect_eq(s.l.n_left_out, 20000 - BURST - 2 * PER_SECOND);
}

Test(log_limit, addresses_together_have_a_limit) {
    static struct scene s;
    uint32_t written = 0;

    setup(&s, PER_SECOND);
    for (uint32_t i = 0; i < 5000; i++)
        written += flood(&s, 0, i, 401, 10);
    cr_expect_eq(written, LOG_ADDRESSES * BURST);
    cr_expect_eq(flood(&s, 1, 0, 200, 10), 10, "tenants are not among them");
}

Test(log_limit, what_was_left_out_is_told_once) {
    static struct scene s;
    struct log_left_out o;
    uint32_t at = 0;

    setup(&s, PER_SECOND);
    cr_expect_not(log_row_report(&s.tenant[2], &o));
    cr_expect_not(log_limit_report(&s.l, &at, &o));
    flood(&s, 2, 0, 400, BURST + 30);
    flood(&s, 2, 0, 503, BURST + 2);
    flood(&s, 0, htonl(0x7f000001), 401, BURST + 4);
    cr_expect(log_row_report(&s.tenant[2], &o) && o.n == 32 && o.n_server_errors == 2);
    cr_expect_not(log_row_report(&s.tenant[2], &o));
    at = 0;
    cr_expect(log_limit_report(&s.l, &at, &o) && o.n == 4 && o.n_server_errors == 0);
    cr_expect_str_eq(o.client, "address:127.0.0.1");
    cr_expect_not(log_limit_report(&s.l, &at, &o));
    cr_expect_eq(s.l.n_left_out, 36);
}

/* Clients are named by their IPv6 network, or by the user behind a UNIX socket. */
Test(log_limit, a_client_has_the_name_of_its_kind) {
    static const struct {
        const char *v6, *name;
    } row[] = {
        {"2001:db8:1:2::", "address:2001:db8:1:2::/64"},
        {"::ffff:1.2.3.4", "address:::ffff:1.2.3.4"},
        {NULL, "uid:1000"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        static struct scene s;
        struct exchange x = {.status = 401, .peer = {row[i].v6 ? AF_INET6 : AF_UNIX}};
        struct log_left_out o;
        uint32_t at = 0, uid = 1000;

        setup(&s, PER_SECOND);
        if (row[i].v6)
            cr_assert_eq(inet_pton(AF_INET6, row[i].v6, x.peer + 1), 1);
        else
            memcpy(x.peer + 1, &uid, sizeof(uid));
        for (uint32_t k = 0; k < BURST + 1; k++)
            cr_expect_eq(log_limit_allows(&s.l, NULL, &x, s.now), k < BURST);
        cr_assert(log_limit_report(&s.l, &at, &o));
        cr_expect_str_eq(o.client, row[i].name);
        cr_expect_eq(o.n, 1);
    }
}

Test(log_limit, zero_is_no_limit) {
    static struct scene s;

    setup(&s, 0);
    cr_expect_eq(flood(&s, 1, 0, 400, 100000), 100000);
    cr_expect_eq(flood(&s, 0, 1, 400, 100000), 100000);
}
