#pragma once

/*
 * tenant - the account that is charged for a request: identity, limits, usage. A tenant is known by
 * the name of an API key or by the user at the other end of a UNIX socket; other requests belong to
 * `default`. A tenant that the tenants file does not list has the limits of its section [default].
 *
 * Limits are enforced in the front, so that they answer at once. Requests and tokens per minute
 * are buckets that refill steadily and hold one minute's worth. What a generation takes is a
 * charge embedded in it: the tokens that it may need are reserved when it comes, its place and
 * context count while it is with the worker, and what it did not use is given back when it ends,
 * however it ends.
 */

#include "api/api.h"
#include "api/http/payer.h"
#include "api/limits/auth.h"
#include "api/limits/log_limit.h"
#include "api/limits/pending.h"
#include "base/hash_index.h"
#include "base/list.h"

struct dialect;
struct exchange;
struct http;

enum { TENANT_NORMAL, TENANT_INTERACTIVE, TENANT_BATCH, TENANT_CLASSES }; /* api_tenant.class */

/* Invariants: tenants.list[number] is this one; stats.n_running, n_context and n_reserved are the
 * sums of its charges, stats.n_queued of waiter.n in `waiting`; conf.weight > 0. */
struct tenant {
    /* connections, bodies, output */
    struct payer payer;
    /* admit.busy: has generations or waiters */
    struct list link;
    struct api_tenant conf;
    uint32_t number;
    /* number of the last tenants_set() with a row for it; 0: none */
    uint32_t listed;
    struct bucket requests, tokens;
    /* waiter.link: first come, first served */
    struct list waiting;
    /* time at which the last refused request is expected to return */
    int64_t away_ns;
    double mean_output;
    /* generations that waits.c has counted so far */
    uint32_t n_ranked;
    struct pending_account submits;
    struct tenant_stats stats;
    struct log_row log;
};

struct tenants {
    /* payers of the HTTP server */
    struct payers *payers;
    /* [n]: a tenant is never freed or renumbered before the api is */
    struct tenant **list;
    uint32_t n;
    /* calls of tenants_set() */
    uint32_t n_sets;
    struct hash_index by_name;
    /* by the names of keys and the users of their rows */
    struct hash_index owners;
    struct api_tenant defaults;
};

/* Embedded in a generation: zeroed, charge_acquire(), charge_run(), charge_settle(),
 * charge_deinit(); any but the first and the last may be missing. Invariant: without a tenant all
 * members are 0. */
struct charge {
    /* NULL: nothing was taken */
    struct tenant *tenant;
    uint64_t reserved, context;
    bool runs;
};

/* Initialises the tenants; tenant 0 is `default`. They are payers beside the addresses of @payers.
 * Returns 0 or -ENOMEM. */
int tenants_init(struct tenants *ts, struct payers *payers);
void tenants_deinit(struct tenants *ts); /* no generation has a charge, no connection a tenant */
/* Applies the rows of the tenants file. Returns 0, or -ENOMEM without a change. */
int tenants_set(struct tenants *ts, const struct api_tenant *rows, uint32_t n);
/* Returns the tenant called @name, which is made if it is new. NULL: out of memory. */
struct tenant *tenants_named(struct tenants *ts, const char *name);
/* Returns the tenant called @name, or NULL. */
struct tenant *tenants_find(const struct tenants *ts, const char *name);
/* Returns the tenant of that number, or `default` if no tenant has it. */
struct tenant *tenants_get(const struct tenants *ts, uint32_t number);

/* Finds the tenant of @x by key or peer, and charges the connection to it from now on. Returns 0
 * with x->tenant set, -EINVAL with @err (401), or -ENOMEM. */
int tenant_identify(struct tenants *ts, const struct auth *a, struct exchange *x,
                    const struct http *h, struct err *err);
/* Writes the name from which isolation keys are derived: that of the tenant's group, or its own. */
void tenant_isolation_name(const struct tenant *t, char out[AUTH_ISOLATION_NAME]);
/* Returns its weight times that of its class. */
double tenant_weight(const struct tenant *t);

/* Takes one request from the bucket of requests if it has one, and the bucket of tokens has
 * @n_tokens. Returns 0, or -EINVAL with @err, a 429, and *retry_ms. A request that is larger than
 * the bucket needs a full one. */
int tenant_request(struct tenant *t, uint64_t n_tokens, int64_t now, uint32_t *retry_ms,
                   struct err *err);
/* Returns the output tokens to reserve if the client set no limit, because answers may be long and
 * seldom are. */
uint32_t tenant_expects(const struct tenant *t, uint32_t max_new);

/* Makes a zeroed charge take @n_tokens from the bucket. */
void charge_acquire(struct charge *c, struct tenant *t, uint64_t n_tokens, uint64_t n_context,
                    int64_t now);
void charge_run(struct charge *c); /* the request is sent to the worker */
/* Settles the charge when the generation has ended with these numbers of tokens; unused tokens are
 * returned. May be called again. */
void charge_settle(struct charge *c, uint32_t n_prompt, uint32_t n_cached, uint32_t n_output,
                   int64_t now);
void charge_deinit(struct charge *c, int64_t now); /* returns everything that is still held */

/* Writes the headers with the remaining limits to @out. Returns the number of bytes, 0 without
 * limits. */
size_t tenant_put_headers(struct tenant *t, const struct dialect *dialect, int64_t now, char *out,
                          size_t size);
