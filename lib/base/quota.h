#pragma once

/*
 * quota - divides a bounded resource between accounts, and selects the charge to take back when the
 * resource is full.
 *
 * Accounts form a tree. The root is the resource; below it stand payers, and groups of payers. A
 * charge to an account counts for all accounts above it. The share of an account is its part, by
 * weight, of its parent's share, among those children of the parent that have charges.
 *
 *   limit ── root ─┬─ tenant a
 *                  ├─ tenant b
 *                  └─ group: without a key ─┬─ address 1
 *                                           └─ address 2
 *
 * When the resource is full and an account asks for more, the oldest charge that an account above
 * its share has offered is taken back; an account within its share never loses a charge. Charges in
 * use are not offered and cannot be taken back. So that they do not lock out other accounts, an
 * account within its share may exceed the limit by the reserve.
 *
 * Pure: no clock, no input. The owner of a charge frees the charged resource and then sets the
 * charge to 0.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

/* Invariants: used is the sum of the charges of this account and of all accounts below it; the
 * account is in its parent's list exactly while used > 0. */
struct quota_account {
    /* in parent.busy */
    struct list link;
    /* quota_account.link: children that have charges */
    struct list busy;
    /* quota_charge.link, oldest first */
    struct list offered;
    /* NULL: this account is the root */
    struct quota_account *parent;
    double weight;
    uint64_t used;
};

/* Invariant: root.used <= limit + reserve, except for charges made without quota_make_room(). */
struct quota {
    struct quota_account root;
    uint64_t limit, reserve;
};

/* A charge, embedded in the object that it pays for. Invariant: it is in account.offered only while
 * n > 0. */
struct quota_charge {
    /* in account.offered */
    struct list link;
    struct quota_account *account;
    uint64_t n;
};

/* Initialises an unused resource of @limit units, with @reserve units beyond the limit. */
void quota_init(struct quota *q, uint64_t limit, uint64_t reserve);
/* Initialises an empty account below @parent, which outlives it. */
void quota_account_init(struct quota_account *a, struct quota_account *parent, double weight);

/* Initialises a charge of 0 to @a, which is not offered. */
void quota_charge_init(struct quota_charge *c, struct quota_account *a);
/* Sets the charge to @n, after quota_make_room(). A charge of 0 is not offered. */
void quota_charge_set(struct quota_charge *c, uint64_t n);
/* Moves the charge to another account of the same resource, where it becomes the youngest. An
 * offered charge stays offered. */
void quota_charge_move(struct quota_charge *c, struct quota_account *a);
/* Initialises @to and moves the whole charge of @from to it. @to is not offered. */
void quota_charge_pass(struct quota_charge *from, struct quota_charge *to);
/* Allows quota_victim() to choose @c from now on, as the youngest of its account;
 * quota_charge_withhold() ends this. */
void quota_charge_offer(struct quota_charge *c);
void quota_charge_withhold(struct quota_charge *c);

/* Returns the charge to take back so that @a may have @n more than the limit allows: the oldest
 * offered charge of the account furthest above its share by weight (@a counted with @n). Returns
 * NULL if no account above its share offers one. */
struct quota_charge *quota_victim(const struct quota *q, const struct quota_account *a, uint64_t n);
/* Returns true if @c may grow by @n, after reclaim() has freed charges of accounts above their
 * share, possibly of @c's own account. reclaim() must reduce its charge or withhold it. False: @c
 * itself would be the victim, or there is no victim and the account is above its share or the
 * reserve is used up. */
bool quota_make_room(struct quota *q, const struct quota_charge *c, uint64_t n,
                     void (*reclaim)(struct quota_charge *victim));
