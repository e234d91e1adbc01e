#pragma once

/*
 * pending - the order in which requests that wait are submitted to a worker: start-time fair
 * queueing. An account's virtual time is the bytes that were submitted for it, divided by its
 * weight. The next request is the first of the account with the least virtual time; accounts that
 * were absent have earned nothing, so all that are behind the last submit are equal, and then the
 * request with the lowest number comes first.
 *
 * A queue keeps the first request of each account in one list, and the others behind it. To add or
 * withdraw a request takes a time that grows with the number of queues, to find the next one a time
 * that grows with the number of accounts, and neither grows with the number of requests.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

/* Embedded in a tenant; zeroed, then pending_account_init(). */
struct pending_account {
    double virtual_bytes;
    /* pending_item.of_account: its first request in each queue */
    struct list firsts;
};

struct pending {
    /* pending_item.link: the first request of each account */
    struct list firsts;
};

/* Embedded in a request. Invariants: `of_account` is in a list exactly while the item is the first
 * of its account; `behind` is empty in all others. */
struct pending_item {
    /* NULL: it does not wait */
    struct pending *queue;
    struct pending_account *account;
    /* pending.firsts, or `behind` of the first request of its account */
    struct list link;
    /* pending_item.link, in their order */
    struct list behind;
    /* pending_account.firsts */
    struct list of_account;
    uint64_t number;
};

/* Make an empty queue, an account for which nothing was submitted, and a request that does not
 * wait. @number: its place among those of its account. */
void pending_init(struct pending *q);
void pending_account_init(struct pending_account *a);
void pending_item_init(struct pending_item *i, uint64_t number);
/* Adds @i, which does not wait: last among those of @a, or first if its number is lower than that
 * of the first one. */
void pending_add(struct pending *q, struct pending_item *i, struct pending_account *a);
void pending_withdraw(struct pending_item *i); /* @i may be in no queue */
/* Returns the virtual time at which the next submit of @a begins, where @now is that of the last
 * submit of all. */
double pending_begins(const struct pending_account *a, double now);
/* Returns true if @a, which has an account, is submitted before @b. */
bool pending_before(const struct pending_item *a, const struct pending_item *b, double now);
struct pending_item *pending_next(const struct pending *q, double now); /* NULL: none waits */
