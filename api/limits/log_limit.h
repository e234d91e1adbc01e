#pragma once

/*
 * log_limit - limits the log lines that the requests of one client cause: a number per second on
 * average, and those of LOG_BURST_S seconds at once. Further lines are counted, and one line
 * reports the count. Without this limit, a journal with its own limit would drop the lines of all
 * clients because of one.
 *
 * A client is a tenant or, if none is known, an address; all addresses together have the lines of
 * LOG_ADDRESSES clients. Server errors have a second allowance of the same size, so that a flood of
 * bad requests does not hide them.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/limits/bucket.h"

struct exchange;

#define LOG_BURST_S 10
#define LOG_ADDRESSES 10
#define LOG_ROWS 1024 /* addresses that are distinguished; two with one hash are one client */

/* [0] answers, [1] server errors. */
struct log_row {
    struct bucket lines[2];
    /* since they were last logged */
    uint32_t n_left_out[2];
    /* the last client whose lines were left out, in the form of payer.address */
    uint8_t address[20];
};

struct log_limit {
    /* lines of one client; 0: no limit */
    double per_second;
    uint64_t secret[2];
    /* addresses together */
    struct log_row all;
    struct log_row address[LOG_ROWS];
    /* since the start */
    uint64_t n_left_out;
};

/* 0 or -errno. */
int log_limit_init(struct log_limit *l, double per_second);
/* Returns true if the line of @x, which has ended, is written; else counts it. @tenant: the row of
 * its tenant, or NULL: its address is the client. */
bool log_limit_allows(struct log_limit *l, struct log_row *tenant, const struct exchange *x,
                      int64_t now);

struct log_left_out {
    /* client by its address: "address:1.2.3.4", "uid:1000" */
    char client[64];
    uint32_t n, n_server_errors;
};

/* Reports the lines of @r that were left out since the last report, without out->client. Returns
 * false if there are none. */
bool log_row_report(struct log_row *r, struct log_left_out *out);

/* Reports the lines left out for the next address, from index *at on, which is 0 at first. Returns
 * false if there is no further address. */
bool log_limit_report(struct log_limit *l, uint32_t *at, struct log_left_out *out);
