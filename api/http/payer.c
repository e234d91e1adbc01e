/*
 * An address is kept while connections belong to it or something is charged to it: a body may
 * outlive its connection by the time of a job. An address that has outlived its connections is
 * freed when its bucket is next searched. So there are never more addresses than connections and
 * jobs.
 */

#include "api/http/payer.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "api/http/siphash.h"
#include "base/result.h"

/* Initialises an account for each resource, below those of @group, or below the roots if @group is
 * NULL. */
static void init_below(struct payer *p, struct payers *ps, struct payer *group, double weight) {
    for (int i = 0; i < PAYER_RESOURCES; i++)
        quota_account_init(&p->account[i], group ? &group->account[i] : &ps->quota[i].root, weight);
    turn_flow_init(&p->turns, group ? &group->turns : &ps->turns, false, weight);
    list_init(&p->link);
    p->n_refs = 0;
}

int payers_init(struct payers *ps, bool has_keys) {
    *ps = (struct payers){.has_keys = has_keys};
    for (int i = 0; i < PAYER_RESOURCES; i++)
        quota_init(&ps->quota[i], 0, 0);
    for (int i = 0; i < PAYER_BUCKETS; i++)
        list_init(&ps->bucket[i]);
    turn_flow_init(&ps->turns, NULL, true, 1);
    init_below(&ps->strangers, ps, NULL, 1);
    turn_flow_init(&ps->strangers.turns, &ps->turns, true, 1);
    return errno_if_negative(getrandom(ps->secret, sizeof(ps->secret), 0));
}

/* Returns true if an address may be forgotten. */
static bool is_unused(const struct payer *p) {
    uint64_t used = 0;

    for (int i = 0; i < PAYER_RESOURCES; i++)
        used += p->account[i].used;
    return p->n_refs == 0 && used == 0;
}

/* Frees an address if nothing belongs to it any more. */
static void payer_forget(struct payer *p) {
    if (!is_unused(p))
        return;
    assert(list_empty(&p->turns.ready)); /* only connections wait for turns */
    list_remove(&p->link);
    free(p);
}

static void sweep(struct list *bucket) {
    LIST_FOREACH(node, bucket)
    payer_forget(LIST_ENTRY(node, struct payer, link));
}

void payers_deinit(struct payers *ps) {
    assert(list_empty(&ps->turns.ready));
    for (int i = 0; i < PAYER_BUCKETS; i++) {
        sweep(&ps->bucket[i]);
        assert(list_empty(&ps->bucket[i]));
    }
}

void payer_init(struct payer *p, struct payers *ps, double weight) {
    init_below(p, ps, NULL, weight);
}

void payer_set_weight(struct payer *p, double weight) {
    assert(weight > 0);
    for (int i = 0; i < PAYER_RESOURCES; i++)
        p->account[i].weight = weight;
    p->turns.weight = weight;
}

/* Reads the bytes that tell the peer of @fd from other peers; zeros if they are unknown. An IPv6
 * client can choose its address within its network, so only the network (/64) counts; of a Unix
 * socket the user counts. */
static void read_address(int fd, uint8_t out[20]) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    struct ucred peer;

    memset(out, 0, 20);
    if (getpeername(fd, (struct sockaddr *)&sa, &len) < 0)
        return;
    out[0] = (uint8_t)sa.ss_family;
    len = sizeof(peer);
    if (sa.ss_family == AF_INET) {
        memcpy(out + 1, &((struct sockaddr_in *)&sa)->sin_addr, 4);
    } else if (sa.ss_family == AF_INET6) {
        const struct in6_addr *a = &((struct sockaddr_in6 *)&sa)->sin6_addr;

        memcpy(out + 1, a, IN6_IS_ADDR_V4MAPPED(a) ? 16 : 8);
    } else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0) {
        memcpy(out + 1, &peer.uid, sizeof(peer.uid));
    }
}

struct payer *payer_of_peer(struct payers *ps, int fd) {
    uint8_t address[20];

    read_address(fd, address);
    struct list *bucket = &ps->bucket[siphash(ps->secret, address, 20) % PAYER_BUCKETS];
    sweep(bucket);
    LIST_FOREACH_ENTRY(p, bucket, struct payer, link) {
        if (memcmp(p->address, address, sizeof(address)) != 0)
            continue;
        p->n_refs++;
        return p;
    }
    struct payer *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    init_below(p, ps, ps->has_keys ? &ps->strangers : NULL, 1);
    memcpy(p->address, address, sizeof(address));
    p->n_refs = 1;
    list_push_back(bucket, &p->link);
    return p;
}

void payer_release(struct payer *p) {
    assert(p->n_refs > 0);
    p->n_refs--;
    payer_forget(p);
}
