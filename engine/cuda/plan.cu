/*
 * plan - who does what in attention. Queries (rows x heads of a group) of a sequence are cut into
 * blocks of 16. A block goes over all its chunks of 256 keys, or, when there are too few blocks to
 * fill the device, every chunk becomes an item of its own and a merge follows. Sequences of one row
 * each that stand side by side and begin with the same pages share the items of their common
 * chunks: a block of 16 has queries of several of them, and the keys are read once for all. In a
 * step of many rows a block that goes over all its chunks has 64 queries. The result is the same
 * (engine/shared/pages.h), so this is free to look at the batch.
 *
 * One block, once a step: warps compare page tables, one thread gives out items, merges and room
 * for partial results in the order of the sequences, and all threads write the items. What one
 * thread does is a few operations a sequence, or a block of queries where those are few; bound by
 * the latency of memory.
 */

#include "engine/cuda/device.cuh"

#define PLAN_SEQS 256u /* that are planned at a time; groups do not go over the border */
#define PLAN_PAGES 8u  /* that a lane compares at a time */
#define NO_ITEM UINT32_MAX

#define LONG_CHUNKS 8u /* of one row that are items of their own, however much there is to do */

struct Known { /* of a sequence */
    struct plan_seq s;
    uint32_t
        common; /* whole chunks, before the last of each, whose pages are those of the one before */
};

struct Planned {
    uint32_t item; /* crowded: the first of its items; else NO_ITEM */
    uint32_t shared_item, n_shared,
        n;                  /* of a group of n, by its first sequence; n 0: none begins here */
    uint32_t shared, merge; /* the first of the group's partial results, and of its merges */
};

struct Plan {
    struct Known known[PLAN_SEQS];
    struct Planned planned[PLAN_SEQS];
    uint64_t sums[CUDA_THREADS / 32];
    uint32_t first_merge, end_merge; /* those of these sequences */
};

struct Given { /* so far */
    uint32_t items, merges, partials;
};

/* Blocks of queries that go over all their chunks. */
DEVICE uint32_t blocks_of(const struct plan_args &a, const struct plan_seq &s) {
    return (s.n_rows * a.group + a.wide - 1) / a.wide;
}

/* Whether there are blocks of queries enough to fill the device. */
DEVICE bool is_crowded(const struct plan_args &a, struct Plan &p) {
    uint64_t n = 0;

    for (uint32_t i = threadIdx.x; i < a.batch->n_seqs; i += CUDA_THREADS)
        n += blocks_of(a, a.batch->seq[i]);
    for (int m = 1; m < 32; m *= 2)
        n += lane_xor(n, m);
    if (threadIdx.x % 32 == 0)
        p.sums[threadIdx.x / 32] = n;
    sync_block();
    n = 0;
    for (uint32_t i = 0; i < CUDA_THREADS / 32; i++)
        n += p.sums[i];
    n *= a.n_head_kv;
    return a.wide > a.few ? 2 * n >= a.n_multiprocessors : n >= (uint64_t)8 * a.n_multiprocessors;
}

/* Chunks that two sequences of one row have in common, by a warp. */
DEVICE uint32_t common_chunks(const struct plan_args &a, const struct plan_seq &x,
                              const struct plan_seq &y) {
    const uint32_t *p = a.batch->page_table[0] + x.page0, *q = a.batch->page_table[0] + y.page0;
    uint32_t n = (x.pos0 < y.pos0 ? x.pos0 : y.pos0) / ATTN_CHUNK, lane = threadIdx.x % 32;

    if (a.page_tokens == 0 || x.n_rows != 1 || y.n_rows != 1 || y.row0 != x.row0 + 1)
        return 0;
    uint32_t per_chunk = ATTN_CHUNK / a.page_tokens, n_pages = n * per_chunk;
    uint64_t other = n_pages; /* the first page that differs */
    for (uint32_t first = 0; first < n_pages && other == n_pages; first += 32 * PLAN_PAGES) {
#pragma unroll
        for (uint32_t i = 0; i < PLAN_PAGES; i++) {
            uint32_t k = first + i * 32 + lane;

            if (k < n_pages && p[k] != q[k])
                other = k < other ? k : other;
        }
        for (int m = 1; m < 32; m *= 2) {
            uint64_t theirs = lane_xor(other, m);

            other = theirs < other ? theirs : other;
        }
    }
    return (uint32_t)other / per_chunk;
}

/* How many sequences from @i on share their beginning, and how many chunks of it; 1: none. A
 * sequence that would more than halve what is shared begins a group of its own. */
DEVICE uint32_t group_at(const struct plan_args &a, const struct Plan &p, uint32_t i,
                         uint32_t n_known, uint32_t *n_shared) {
    uint32_t n = 1;

    for (; i + n < n_known && (n + 1) * a.group <= a.few; n++) {
        uint32_t common = p.known[i + n].common;

        if (common == 0 || (n > 1 && common < *n_shared / 2))
            break;
        *n_shared = n > 1 && *n_shared < common ? *n_shared : common;
    }
    return n;
}

/* Blocks of queries of one sequence, each with as many items as it has chunks, or one. */
DEVICE void give_seq(const struct plan_args &a, const struct plan_seq &s, uint32_t seq,
                     struct Given &g) {
    uint32_t n_queries = s.n_rows * a.group;

    for (uint32_t q0 = 0; q0 < n_queries; q0 += a.few) {
        uint32_t n_q = n_queries - q0 < a.few ? n_queries - q0 : a.few;
        uint32_t n = (s.pos0 + (q0 + n_q - 1) / a.group) / ATTN_CHUNK + 1;

        if (n == 1 || n > a.max_partials - g.partials) {
            a.item[g.items++] = {s.row0, s.pos0, q0, n_q, s.page0, -1, 0, n, 0, 0};
            continue;
        }
        a.merge[g.merges++] = {s.row0, q0, n_q, g.partials, n, 0, 0, 0, g.items, seq};
        g.items += n;
        g.partials += n;
    }
}

/* A group of @n sequences: the items that they share, then each one's own. false: there is no room
 * for it. */
DEVICE bool give_group(const struct plan_args &a, struct Plan &p, uint32_t i, uint32_t n,
                       uint32_t n_shared, uint32_t seq, struct Given &g) {
    uint64_t partials = n_shared;

    for (uint32_t k = i; k < i + n; k++)
        partials += p.known[k].s.pos0 / ATTN_CHUNK + 1 - n_shared;
    if (partials > a.max_partials - g.partials)
        return false;
    uint32_t shared = g.partials;
    p.planned[i] = {NO_ITEM, g.items, n_shared, n, shared, g.merges};
    g.items += n_shared;
    g.partials += n_shared;
    for (uint32_t k = i; k < i + n; k++) {
        const struct plan_seq &s = p.known[k].s;
        uint32_t n_chunks = s.pos0 / ATTN_CHUNK + 1, n_own = n_chunks - n_shared;

        if (k > i)
            p.planned[k] = {NO_ITEM, 0, 0, 0, 0, 0};
        a.merge[g.merges++] = {s.row0, 0,        a.group,           g.partials, n_chunks,
                               shared, n_shared, (k - i) * a.group, g.items,    seq + k - i};
        g.items += n_own;
        g.partials += n_own;
    }
    return true;
}

/* By one thread, for @n sequences from @first on. */
DEVICE void give(const struct plan_args &a, struct Plan &p, uint32_t first, uint32_t n,
                 bool crowded, struct Given &g) {
    p.first_merge = g.merges;
    for (uint32_t i = 0; i < n;) {
        uint32_t n_shared = 0, n_group = group_at(a, p, i, n, &n_shared);

        if (n_group > 1 && give_group(a, p, i, n_group, n_shared, first + i, g)) {
            i += n_group;
            continue;
        }
        /* Nothing else would be left for the device to do than a long sequence's one row. */
        bool is_long = p.known[i].s.n_rows == 1 && p.known[i].s.pos0 / ATTN_CHUNK >= LONG_CHUNKS;
        bool whole = crowded && !is_long;
        p.planned[i] = {whole ? g.items : NO_ITEM, 0, 0, 0, 0, 0};
        if (whole)
            g.items += blocks_of(a, p.known[i].s);
        else
            give_seq(a, p.known[i].s, first + i, g);
        i++;
    }
    p.end_merge = g.merges;
}

/* The items of a sequence that are one a block of queries, and those that it and others share. */
DEVICE void write_seq(const struct plan_args &a, const struct plan_seq &s, const struct Planned &p,
                      uint32_t shared_page0) {
    uint32_t lane = threadIdx.x % 32, n_queries = s.n_rows * a.group;

    if (p.item != NO_ITEM)
        for (uint32_t i = lane; i * a.wide < n_queries; i += 32) {
            uint32_t q0 = i * a.wide, n_q = n_queries - q0 < a.wide ? n_queries - q0 : a.wide;
            uint32_t n = (s.pos0 + (q0 + n_q - 1) / a.group) / ATTN_CHUNK + 1;

            a.item[p.item + i] = {s.row0, s.pos0, q0, n_q, s.page0, -1, 0, n, 0, 0};
        }
    for (uint32_t c = lane; c < p.n_shared; c += 32)
        a.item[p.shared_item + c] = {
            s.row0,     s.pos0,       0,          p.n * a.group, shared_page0,
            (int32_t)c, p.shared + c, p.n_shared, p.merge,       p.n};
}

/* The page table for what the group that begins with @i shares: that of the sequence of the lowest
 * position, whose window begins first. The others may have let go of a window's first pages. */
DEVICE uint32_t table_of(const struct Plan &p, uint32_t i) {
    uint32_t low = i;

    for (uint32_t k = i + 1; k < i + p.planned[i].n; k++)
        low = p.known[k].s.pos0 < p.known[low].s.pos0 ? k : low;
    return p.known[low].s.page0;
}

/* The items of a merge, but for those that it shares. */
DEVICE void write_merge(const struct plan_args &a, uint32_t i) {
    struct attn_merge m = a.merge[i];
    const struct plan_seq s = a.batch->seq[m.seq];

    for (uint32_t c = m.n_shared + threadIdx.x % 32; c < m.n_chunks; c += 32)
        a.item[m.item + c - m.n_shared] = {
            m.row0,     s.pos0, m.q0, m.n_q, s.page0, (int32_t)c, m.partial + c - m.n_shared,
            m.n_chunks, i,      1};
}

KERNEL(plan, struct plan_args, CUDA_THREADS, 1) {
    wait_for_previous();
    SHARED struct Plan p;
    uint32_t tid = threadIdx.x, warp = tid / 32, n_seqs = a.batch->n_seqs;
    struct Given g = {0, 0, 0};
    bool crowded = is_crowded(a, p);

    for (uint32_t first = 0; first < n_seqs; first += PLAN_SEQS) {
        uint32_t n = n_seqs - first < PLAN_SEQS ? n_seqs - first : PLAN_SEQS;

        sync_block();
        if (tid < n)
            p.known[tid].s = a.batch->seq[first + tid];
        sync_block();
        for (uint32_t i = warp; i < n; i += CUDA_THREADS / 32) {
            uint32_t common = i > 0 ? common_chunks(a, p.known[i - 1].s, p.known[i].s) : 0;

            if (tid % 32 == 0)
                p.known[i].common = common;
        }
        sync_block();
        if (tid == 0)
            give(a, p, first, n, crowded, g);
        sync_block();
        for (uint32_t i = warp; i < n; i += CUDA_THREADS / 32)
            write_seq(a, p.known[i].s, p.planned[i], table_of(p, i));
        for (uint32_t i = p.first_merge + warp; i < p.end_merge; i += CUDA_THREADS / 32)
            write_merge(a, i);
    }
    if (tid == 0) {
        a.batch->n_items = g.items;
        a.batch->n_merges = g.merges;
    }
}
