/*
 * Addresses have no entries of their own but share rows by a keyed hash: a client that connects
 * anew for each request keeps its row, and clients without number take no memory.
 */

#include "api/limits/log_limit.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "api/http/exchange.h"
#include "api/http/siphash.h"
#include "base/result.h"

int log_limit_init(struct log_limit *l, double per_second) {
    *l = (struct log_limit){.per_second = per_second};
    return errno_if_negative(getrandom(l->secret, sizeof(l->secret), 0));
}

/* Takes a line from @r's bucket, which fills at @per_second; false if it is empty. */
static bool log_limit_charge_line(struct log_row *r, bool error, double per_second, int64_t now) {
    struct bucket *b = &r->lines[error];

    bucket_refill(b, LOG_BURST_S * per_second, per_second, now);
    assert(b->level >= 0); /* lines are not reserved ahead */
    if (b->level < 1)
        return false;
    b->level -= 1;
    return true;
}

bool log_limit_allows(struct log_limit *l, struct log_row *tenant, const struct exchange *x,
                      int64_t now) {
    struct log_row *r = tenant;
    bool error = x->status >= 500, written;

    if (l->per_second <= 0)
        return true;
    if (r) {
        written = log_limit_charge_line(r, error, l->per_second, now);
    } else {
        r = &l->address[siphash(l->secret, x->peer, sizeof(x->peer)) % LOG_ROWS];
        written = log_limit_charge_line(r, error, l->per_second, now) &&
                  log_limit_charge_line(&l->all, error, LOG_ADDRESSES * l->per_second, now);
    }
    if (written)
        return true;
    r->n_left_out[error]++;
    l->n_left_out++;
    memcpy(r->address, x->peer, sizeof(r->address));
    return false;
}

static void name_address(const uint8_t address[20], char *out, size_t size) {
    char text[INET6_ADDRSTRLEN] = "";
    struct in6_addr a = {0};
    uint32_t uid;

    if (address[0] == AF_INET) {
        inet_ntop(AF_INET, address + 1, text, sizeof(text));
        snprintf(out, size, "address:%s", text);
    } else if (address[0] == AF_INET6) { /* IPv6 addresses, unless mapped, count by network */
        memcpy(&a, address + 1, 16);
        inet_ntop(AF_INET6, &a, text, sizeof(text));
        snprintf(out, size, "address:%s%s", text, IN6_IS_ADDR_V4MAPPED(&a) ? "" : "/64");
    } else {
        memcpy(&uid, address + 1, sizeof(uid));
        snprintf(out, size, "uid:%u", uid);
    }
}

bool log_row_report(struct log_row *r, struct log_left_out *out) {
    *out = (struct log_left_out){.n = r->n_left_out[0] + r->n_left_out[1],
                                 .n_server_errors = r->n_left_out[1]};
    r->n_left_out[0] = r->n_left_out[1] = 0;
    return out->n > 0;
}

bool log_limit_report(struct log_limit *l, uint32_t *at, struct log_left_out *out) {
    for (; *at < LOG_ROWS; ++*at) {
        struct log_row *r = &l->address[*at];

        if (!log_row_report(r, out))
            continue;
        name_address(r->address, out->client, sizeof(out->client));
        return true;
    }
    return false;
}
