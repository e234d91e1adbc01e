#pragma once

/*
 * payer - the account to which an HTTP server charges connections, request bodies, unsent output
 * and turns on the loop. A connection belongs to the address of its peer (of IPv6 the network, 64
 * bits; over a UNIX socket the user) until its owner knows the tenant and calls conn_set_payer().
 *
 * If tenants have keys, all addresses together are one payer among the tenants, so that a host
 * without a key gains nothing by using many addresses.
 */

#include <sys/socket.h>

#include "api/http/turn.h"
#include "base/quota.h"

/* Connections over UNIX sockets have their own places, the same number as connections over TCP. */
enum payer_resource { PAYER_TCP, PAYER_UNIX, PAYER_BODIES, PAYER_OUTPUT, PAYER_RESOURCES };

/* Invariant: an address is in its bucket, and is freed once n_refs and all its accounts are 0; then
 * none of its connections waits for a turn. */
struct payer {
    /* payers.bucket[] when it is an address */
    struct list link;
    struct quota_account account[PAYER_RESOURCES];
    /* a group's: those of its members */
    struct turn_flow turns;
    /* family and bytes */
    uint8_t address[20];
    /* number of connections that belong to an address */
    uint32_t n_refs;
};

#define PAYER_BUCKETS 256

struct payers {
    struct quota quota[PAYER_RESOURCES];
    /* turns of all payers */
    struct turn_flow turns;
    /* the group of addresses, where has_keys */
    struct payer strangers;
    bool has_keys;
    uint64_t secret[2];
    /* payer.link, by address */
    struct list bucket[PAYER_BUCKETS];
};

/* Initialises payers; the caller sets the limits of @ps->quota. Returns 0 or -errno. */
int payers_init(struct payers *ps, bool has_keys);
void payers_deinit(struct payers *ps); /* no charge is left */

/* Makes @p a payer beside the addresses: a tenant. */
void payer_init(struct payer *p, struct payers *ps, double weight);
void payer_set_weight(struct payer *p, double weight);
/* Returns the payer of the peer of socket @fd, which is made if it is new; payer_release() releases
 * it. NULL: out of memory. */
struct payer *payer_of_peer(struct payers *ps, int fd);
void payer_release(struct payer *p);
