#pragma once

/*
 * mutant - deliberate bugs, to measure whether the tests would find them. A test library is compiled
 * with -DKV_MUTANT=n for each of them; everywhere else MUTANT() is 0 and the branch does not exist.
 */

enum {
    MUTANT_LEAK_ON_FREE = 1, /* a freed sequence's last page is forgotten */
    MUTANT_EVICT_HELD,       /* the idle list gets pages that are still held */
    MUTANT_PUBLISH_PARTIAL,  /* a page is published one token before it is full */
    MUTANT_NO_SHARE_KEY,     /* everybody shares with everybody */
    MUTANT_NO_COMPARE,       /* a hash hit is taken without comparing tokens */
    MUTANT_DOUBLE_FREE,      /* the refused page of a deduplication is freed twice */
    MUTANT_PARENT_FIRST,     /* pages are released from the front: parents are evicted first */
    MUTANT_NO_PARENT,        /* a page's key and comparison ignore what precedes it */
    MUTANT_FULL_HALFWAY,     /* growing takes what is left before it answers KV_FULL */
    MUTANT_LRU_BACKWARDS,    /* the most recently used page is evicted first */
    MUTANT_CHILD_FORGOTTEN,  /* a parent does not learn that a child was evicted */
    MUTANT_LENGTH_STAYS,     /* truncating gives pages back, but the length committed stays */
    MUTANT_NO_DEDUPLICATION, /* an equal page is published a second time */
    MUTANT_SEES_TOO_FAR,     /* a lookup takes a page that ends one token after what was asked */
    MUTANT_COUNT,
};

#ifdef KV_MUTANT
#define MUTANT(which) (KV_MUTANT == MUTANT_##which)
#else
#define MUTANT(which) 0
#endif
