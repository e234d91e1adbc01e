#pragma once

/*
 * log_limit - how many log lines the requests of one client cause: so many a second in the mean,
 * those of LOG_BURST_S seconds at once. The lines beyond are counted, and the count is logged in
 * one line. A journal with a limit of its own would else lose the lines of all for those of one.
 *
 * A client is a tenant, or where none is known an address; all addresses together have those of
 * LOG_ADDRESSES. Answers that are our own failure have as many lines again, so that no flood of bad
 * requests hides them.
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
    uint32_t n_left_out[2]; /* since they were last logged */
    /* the last client whose lines were left out, in the form of payer.address */
    uint8_t address[20];
};

struct log_limit {
    double per_second; /* lines of one client; 0: no limit */
    uint64_t secret[2];
    struct log_row all; /* addresses together */
    struct log_row address[LOG_ROWS];
    uint64_t n_left_out; /* since the start */
};

/* 0 or -errno. */
int log_limit_init(struct log_limit *l, double per_second);
/* Returns true if the line of @x, which has ended, is written; else counts it. @tenant: the row of
 * its tenant, or NULL: its address is the client. */
bool log_limit_take(struct log_limit *l, struct log_row *tenant, const struct exchange *x,
                    int64_t now);

struct log_left_out {
    char client[64]; /* client by its address: "address:1.2.3.4", "uid:1000" */
    uint32_t n, n_server_errors;
};

/* Reports the lines of @r that were left out since the last report; without out->client. False:
 * there are none. */
bool log_row_tell(struct log_row *r, struct log_left_out *out);

/* Reports the lines left out for the next address, from place *at on, which begins with 0. False:
 * there is no further address. */
bool log_limit_tell(struct log_limit *l, uint32_t *at, struct log_left_out *out);
