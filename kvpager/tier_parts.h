#pragma once

/* tier_parts - what the parts of a tier (kvpager/tier.h), offload and disk, share with its owner:
 * prefixes, copies, prices and memory. */

#include "base/clock.h"
#include "kvpager/kvpager.h"
#include "kvpager/media.h"

/* A prefix: what a pager finds pages by. */
struct kv_keys {
    const struct kv_isolation *isolation;
    const int32_t *tokens;
    uint32_t n_tokens;
};

/* Copies between device and host memory: of a page, and of a recurrent state between its slot and a
 * snapshot. */
enum kv_copy_kind { KV_PAGE_SAVE, KV_PAGE_FETCH, KV_STATE_LOAD, KV_STATE_SAVE };

struct kv_copy {
    uint32_t src, dst;
    enum kv_copy_kind kind;
};

/* Expected times, in ns, which change while steps are measured. */
struct kv_prices {
    void *ctx;
    /* time that computing tokens [from, to) adds to steps */
    double (*compute_ns)(void *ctx, uint32_t from, uint32_t to);
    /* time of copying @n_pages between device and host memory */
    double (*copy_ns)(void *ctx, uint32_t n_pages);
};

/* Host memory, whose owner is not known here. */
struct kv_memory {
    void *ctx;
    /* state_bytes 0: there are no states */
    uint64_t page_bytes, state_bytes;
    /* Return the address of a page and of a snapshot; NULL: they are not in host memory. */
    void *(*page)(void *ctx, uint32_t page);
    void *(*snapshot)(void *ctx, uint32_t snapshot);
    /* Notes that @snapshot was filled with the state behind @n_tokens tokens. */
    void (*set_snapshot)(void *ctx, uint32_t snapshot, uint32_t n_tokens);
};

/* A file; fd stays the caller's. */
struct kv_tier_file {
    int fd;
    uint64_t n_bytes;
    /* bytes written per day at most; 0: no limit */
    uint64_t daily_bytes;
    /* identifies everything besides its tokens that the bytes of a page depend on */
    const void *identity;
    size_t n_identity;
    /* tests: no thread, the file is read and written in kv_tier_step() */
    bool in_step;
};
