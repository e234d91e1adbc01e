/*
 * plan - divides the attention of a step into items, the units of work of a thread block
 * (docs/design/cuda-attention.md, "The work list"). The merge tree (engine/shared/pages.h) gives
 * the same bits for every division, so this kernel may look at the whole batch. The choices:
 *
 *     whole   a block of queries goes over all its chunks of 256 keys: one item, no merge
 *     split   every chunk is an item, and merge() follows: for long sequences of few rows, of which
 *             there would be too few blocks to fill the device (plan_is_whole())
 *     group   sequences of one row that begin with the same pages share items for their common
 *             chunks, which are then loaded once; the rest of each is whole or split
 *             (plan_group_at())
 *     wide    attend_wide takes blocks of 128 queries and leaves smaller ones to attend
 *
 * The kernel runs once per step, as one thread block, for all layers: warps compare page tables,
 * one thread assigns items, merges and room for partial results in the order of the sequences, and
 * all threads write the items. The serial part takes a few operations for each sequence, or for
 * each block of queries if there are fewer. The kernel is bound by memory latency.
 */

#include "engine/cuda/device.cuh"

/* sequences planned at a time; a group does not extend across two such batches */
#define PLAN_SEQS 256u
/* Page table entries that a lane compares at a time. Each round of the warp waits for memory once:
 * 4,096 tokens in pages of 16 take one round instead of eight. */
#define PLAN_PAGES 8u
#define NO_ITEM UINT32_MAX

struct Known { /* input data of a sequence */
    struct plan_seq s;
    /* number of first chunks, without the last chunk of either, whose pages are those of the
     * sequence before */
    uint32_t common;
};

struct Planned {
    /* its first items over all chunks; item NO_ITEM: none */
    uint32_t item, wide_item;
    /* the chunks that it shares with others */
    struct attn_shared shared;
    /* Set for the first sequence of a group of n sequences; n 0: no group begins here. The shared
     * chunks are items of @run chunks each, from shared_item on; its first merge. */
    uint32_t n, run, shared_item, merge;
};

struct Plan {
    struct Known known[PLAN_SEQS];
    struct Planned planned[PLAN_SEQS];
    uint64_t sums[CUDA_THREADS / 32];
    /* merges of these sequences */
    uint32_t first_merge, end_merge;
};

struct Given { /* numbers assigned so far */
    uint32_t items, wide_items, merges, partials;
};

DEVICE uint32_t ceil_div(uint32_t n, uint32_t by) {
    return (n + by - 1) / by;
}

/* Returns the number of chunks up to the last key that query @query of a sequence sees in any
 * layer. */
DEVICE uint32_t chunks_of(const struct plan_args &a, const struct plan_seq &s, uint32_t query) {
    uint32_t row = query / a.group;

    return (a.two_way ? a.batch->last[s.row0 + row] : s.pos0 + row) / ATTN_CHUNK + 1;
}

/* Returns the number of blocks of queries of a sequence, if each goes over all its chunks. */
DEVICE uint32_t blocks_of(const struct plan_args &a, const struct plan_seq &s) {
    return ceil_div(s.n_rows * a.group, a.wide);
}

/* Returns how many of the blocks of @size queries, of @n_queries in all, go to the list of
 * attend_wide. */
DEVICE uint32_t wide_blocks_of(const struct plan_args &a, uint32_t n_queries, uint32_t size) {
    uint32_t whole = size > a.few ? n_queries / size : 0;

    return a.wide_item ? whole + (n_queries - whole * size > a.few && size > a.few) : 0;
}

/* Returns the time of a block that goes over all chunks of a sequence, in units of a chunk for a
 * block of few queries. */
DEVICE uint64_t time_of(const struct plan_args &a, const struct plan_seq &s) {
    bool wide = a.wide_item && a.wide > a.few && s.n_rows * a.group > a.few;

    return (uint64_t)((s.pos0 + s.n_rows - 1) / ATTN_CHUNK + 1) * (wide ? a.wide_worth : 1);
}

/* Returns the units of work of all sequences and key heads, if all blocks go over all chunks. */
DEVICE uint64_t work_of(const struct plan_args &a, struct Plan &p) {
    uint64_t n = 0;

    for (uint32_t i = threadIdx.x; i < a.batch->n_seqs; i += CUDA_THREADS)
        n += blocks_of(a, a.batch->seq[i]) * time_of(a, a.batch->seq[i]);
    auto join = [](uint64_t x, uint64_t y) { return x + y; };
    return join_warps<CUDA_THREADS / 32>(warp_sum(n), p.sums, join) * a.n_head_kv;
}

/* Returns true if the blocks of a sequence go over all their chunks. They are split if the device
 * would wait for them at the end of the step, because one takes longer than a multiprocessor's
 * share of the work. A block of many queries, of which a multiprocessor runs one at a time, may
 * take twice the share, since blocks of few queries need twice as long for the same work; a block
 * of few queries may take 1 / a.part of the share. A sequence of one row loses nothing when it is
 * split. */
DEVICE bool plan_is_whole(const struct plan_args &a, const struct plan_seq &s, uint64_t work) {
    uint64_t time = time_of(a, s) * a.n_multiprocessors;

    if (s.n_rows == 1 && s.pos0 / ATTN_CHUNK >= a.long_chunks)
        return false;
    return a.wide > a.few ? time <= 2 * work : a.part * time <= work;
}

/* Returns the number of chunks that two sequences of one row have in common; called by a warp. */
DEVICE uint32_t common_chunks(const struct plan_args &a, const struct plan_seq &x,
                              const struct plan_seq &y) {
    const uint32_t *p = a.batch->page_table[0] + x.page0, *q = a.batch->page_table[0] + y.page0;
    uint32_t n = (x.pos0 < y.pos0 ? x.pos0 : y.pos0) / ATTN_CHUNK, lane = threadIdx.x % 32;

    if (a.page_tokens == 0 || x.n_rows != 1 || y.n_rows != 1 || y.row0 != x.row0 + 1)
        return 0;
    uint32_t per_chunk = ATTN_CHUNK / a.page_tokens, n_pages = n * per_chunk;
    uint64_t other = n_pages; /* index of the first page that differs */
    for (uint32_t first = 0; first < n_pages && other == n_pages; first += 32 * PLAN_PAGES) {
#pragma unroll
        for (uint32_t i = 0; i < PLAN_PAGES; i++) {
            uint32_t k = first + i * 32 + lane;

            if (k < n_pages && p[k] != q[k])
                other = k < other ? k : other;
        }
        other = ~warp_max(~other); /* the warp's least */
    }
    return (uint32_t)other / per_chunk;
}

/* Returns how many sequences from @i on share their beginning, with at most @most queries together,
 * and sets *n_shared to the number of chunks in common; 1: none share. A sequence that would reduce
 * the shared chunks to less than half begins a new group. */
DEVICE uint32_t plan_group_at(const struct plan_args &a, const struct Plan &p, uint32_t i,
                              uint32_t n_known, uint32_t most, uint32_t *n_shared) {
    uint32_t n = 1;

    for (; i + n < n_known && (n + 1) * a.group <= most; n++) {
        uint32_t common = p.known[i + n].common;

        if (common == 0 || (n > 1 && common < *n_shared / 2))
            break;
        *n_shared = n > 1 && *n_shared < common ? *n_shared : common;
    }
    return n;
}

/* Returns the number of items of @run chunks for groups of more than a few queries. Adds to
 * *few_items the items of few queries and one chunk that would replace them, and sets *longest. */
DEVICE uint32_t count_runs(const struct plan_args &a, const struct Plan &p, uint32_t n,
                           uint32_t run, uint32_t *few_items, uint32_t *longest) {
    uint32_t runs = 0;

    for (uint32_t i = 0; i < n;) {
        uint32_t n_shared = 0, n_group = plan_group_at(a, p, i, n, a.shared, &n_shared);

        if (n_group * a.group > a.few && n_group > 1) {
            runs += ceil_div(n_shared, run);
            *few_items += ceil_div(n_group * a.group, a.few) * n_shared;
            *longest = n_shared > *longest ? n_shared : *longest;
        }
        i += n_group;
    }
    return runs;
}

/* Returns the number of chunks of a shared item of many queries, so that every multiprocessor gets
 * one; 0 if there are so few that blocks of few queries finish earlier. */
DEVICE uint32_t run_of(const struct plan_args &a, const struct Plan &p, uint32_t n) {
    uint32_t few_items = 0, longest = 0, most = a.n_multiprocessors / a.n_head_kv, unused = 0;

    if (a.shared <= a.few)
        return 0;
    uint32_t chunks = count_runs(a, p, n, 1, &few_items, &longest);
    if (chunks == 0)
        return 0;
    uint32_t run = ceil_div(chunks, most > 0 ? most : 1);
    while (run < longest && count_runs(a, p, n, run, &unused, &unused) > most)
        run++;
    run = run < longest ? run : longest;
    uint64_t full = (uint64_t)run * a.n_multiprocessors, all = (uint64_t)chunks * a.n_head_kv;
    bool worth = (uint64_t)few_items * a.n_head_kv >= a.wide_worth * (full > all ? full : all);
    return worth ? run : 0;
}

/* Assigns the items of one sequence: for each block of queries one item, or one for each chunk. */
DEVICE void assign_seq(const struct plan_args &a, const struct plan_seq &s, uint32_t seq,
                       struct Given &g) {
    uint32_t n_queries = s.n_rows * a.group;

    for (uint32_t q0 = 0; q0 < n_queries; q0 += a.few) {
        uint32_t n_q = n_queries - q0 < a.few ? n_queries - q0 : a.few;
        uint32_t n = chunks_of(a, s, q0 + n_q - 1);

        if (n == 1 || n > a.max_partials - g.partials) {
            a.item[g.items++] = {s.row0, s.pos0, q0, n_q, s.page0, -1, 0, 0, n, {}, 0, 0};
            continue;
        }
        a.merge[g.merges++] = {s.row0, q0, n_q, g.partials, n, {}, g.items, seq};
        g.items += n;
        g.partials += n;
    }
}

/* Assigns items for the chunks of sequence @s after the shared ones, one each, and a merge. */
DEVICE void assign_own(const struct plan_args &a, const struct plan_seq &s, uint32_t seq,
                       const struct attn_shared &shared, struct Given &g) {
    uint32_t n_chunks = s.pos0 / ATTN_CHUNK + 1, n_own = n_chunks - shared.n_chunks;

    for (uint32_t q0 = 0; q0 < a.group; q0 += a.few) {
        uint32_t n_q = a.group - q0 < a.few ? a.group - q0 : a.few;
        struct attn_merge &m = a.merge[g.merges++];

        m = {s.row0, q0, n_q, g.partials, n_chunks, shared, g.items, seq};
        m.shared.place += q0;
        g.items += n_own;
        g.partials += n_own;
    }
}

/* Returns true if the chunks of a sequence after the first @n_shared are one item, which continues
 * from the shared results. */
DEVICE bool plan_goes_on(const struct plan_args &a, const struct plan_seq &s, uint32_t n_shared,
                         bool many) {
    return many && s.pos0 / ATTN_CHUNK + 1 - n_shared <= a.long_chunks;
}

/* Assigns the items of a group of @n sequences: shared items of @run chunks, then each sequence's
 * own chunks. @many: one own item for each sequence suffices to fill the device. Returns false if
 * there is no room for the group. */
DEVICE bool assign_group(const struct plan_args &a, struct Plan &p, uint32_t i, uint32_t n,
                         uint32_t n_shared, uint32_t run, bool many, uint32_t seq,
                         struct Given &g) {
    bool wide = n * a.group > a.few;
    uint32_t step = ceil_div(n * a.group, a.few), blocks = ceil_div(a.group, a.few);
    uint32_t n_results = n_shared - run + 1;
    uint64_t partials = (uint64_t)n_results * step;

    for (uint32_t k = i; k < i + n; k++)
        if (!plan_goes_on(a, p.known[k].s, n_shared, wide && many))
            partials += (p.known[k].s.pos0 / ATTN_CHUNK + 1 - n_shared) * blocks;
    if (partials > a.max_partials - g.partials)
        return false;
    struct attn_shared shared = {n_shared, n_results, g.partials, step, 0};
    uint32_t n_items = ceil_div(n_shared, run);
    uint32_t first_item = wide ? g.wide_items : g.items, first_merge = g.merges;
    g.wide_items += wide ? n_items : 0;
    g.items += wide ? 0 : n_items;
    g.partials += n_results * step;
    for (uint32_t k = i; k < i + n; k++) {
        bool whole = plan_goes_on(a, p.known[k].s, n_shared, wide && many);

        p.planned[k] = {whole ? g.items : NO_ITEM, 0, shared, 0, 0, 0, 0};
        shared.place += a.group;
        if (whole)
            g.items += blocks;
        else
            assign_own(a, p.known[k].s, seq + k - i, p.planned[k].shared, g);
    }
    p.planned[i].n = n;
    p.planned[i].run = run;
    p.planned[i].shared_item = first_item;
    p.planned[i].merge = first_merge;
    return true;
}

/* Assigns the items of @n sequences from @first on; called by one thread. */
DEVICE void plan_assign(const struct plan_args &a, struct Plan &p, uint32_t first, uint32_t n,
                        uint64_t work, struct Given &g) {
    uint32_t run = run_of(a, p, n);
    bool many = n * a.n_head_kv >= a.n_multiprocessors;

    p.first_merge = g.merges;
    for (uint32_t i = 0; i < n;) {
        uint32_t n_shared = 0,
                 n_group = plan_group_at(a, p, i, n, run ? a.shared : a.few, &n_shared);
        bool wide = n_group * a.group > a.few;
        uint32_t wide_run = run < n_shared ? run : n_shared;
        uint32_t its_run = wide ? wide_run : 1;

        if (n_group > 1 && assign_group(a, p, i, n_group, n_shared, its_run, many, first + i, g)) {
            i += n_group;
            continue;
        }
        const struct plan_seq &s = p.known[i].s;
        bool whole = plan_is_whole(a, s, work);
        p.planned[i] = {whole ? g.items : NO_ITEM, g.wide_items, {}, 0, 0, 0, 0};
        if (whole) {
            uint32_t n_wide = wide_blocks_of(a, s.n_rows * a.group, a.wide);

            g.wide_items += n_wide;
            g.items += blocks_of(a, s) - n_wide;
        } else {
            assign_seq(a, s, first + i, g);
        }
        i++;
    }
    p.end_merge = g.merges;
}

/* Returns the index of the sequence with the lowest position in the group that begins with @i. Its
 * window begins first, so its page table serves for the shared chunks; the others may have released
 * their window's first pages. */
DEVICE uint32_t lowest_of(const struct Plan &p, uint32_t i) {
    uint32_t low = i;

    for (uint32_t k = i + 1; k < i + p.planned[i].n; k++)
        low = p.known[k].s.pos0 < p.known[low].s.pos0 ? k : low;
    return low;
}

/* Writes the items of sequence @i that go over all chunks, and the shared items of a group that
 * begins with it. */
DEVICE void write_seq(const struct plan_args &a, const struct Plan &p, uint32_t i) {
    const struct plan_seq &s = p.known[i].s, &low = p.known[lowest_of(p, i)].s;
    const struct Planned &d = p.planned[i];
    struct attn_shared shared = d.shared;
    uint32_t lane = threadIdx.x % 32, n_queries = s.n_rows * a.group;
    uint32_t size = shared.n_chunks ? a.few : a.wide;
    uint32_t n_wide = wide_blocks_of(a, n_queries, size);

    if (d.item != NO_ITEM)
        for (uint32_t k = lane; k * size < n_queries; k += 32) {
            uint32_t q0 = k * size, n_q = n_queries - q0 < size ? n_queries - q0 : size;
            uint32_t n = chunks_of(a, s, q0 + n_q - 1);

            shared.place = d.shared.place + q0;
            (k < n_wide ? a.wide_item[d.wide_item + k] : a.item[d.item + k - n_wide]) = {
                s.row0, s.pos0, q0, n_q, s.page0, -1, 0, 0, n, shared, 0, 0};
        }
    for (uint32_t k = lane; d.n && k * d.run < shared.n_chunks; k += 32) {
        uint32_t c = k * d.run, left = shared.n_chunks - c, result = k == 0 ? 0 : c - d.run + 1;
        bool wide = d.n * a.group > a.few;

        (wide ? a.wide_item : a.item)[d.shared_item + k] = {s.row0,
                                                            low.pos0,
                                                            0,
                                                            d.n * a.group,
                                                            low.page0,
                                                            (int32_t)c,
                                                            left < d.run ? left : d.run,
                                                            shared.partial + result * shared.step,
                                                            shared.n_chunks,
                                                            {},
                                                            d.merge,
                                                            d.n * ceil_div(a.group, a.few)};
    }
}

/* Writes the items of merge @i, except the shared ones. */
DEVICE void write_merge(const struct plan_args &a, uint32_t i) {
    struct attn_merge m = a.merge[i];
    const struct plan_seq s = a.batch->seq[m.seq];

    for (uint32_t k = threadIdx.x % 32, c; (c = m.shared.n_chunks + k) < m.n_chunks; k += 32)
        a.item[m.item + k] = {m.row0, s.pos0,        m.q0,       m.n_q, s.page0, (int32_t)c,
                              1,      m.partial + k, m.n_chunks, {},    i,       1};
}

KERNEL(plan, struct plan_args, CUDA_THREADS, 1) {
    wait_for_previous();
    SHARED struct Plan p;
    uint32_t tid = threadIdx.x, warp = tid / 32, n_seqs = a.batch->n_seqs;
    struct Given g = {0, 0, 0, 0};
    uint64_t work = work_of(a, p);

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
            plan_assign(a, p, first, n, work, g);
        sync_block();
        for (uint32_t i = warp; i < n; i += CUDA_THREADS / 32)
            write_seq(a, p, i);
        for (uint32_t i = p.first_merge + warp; i < p.end_merge; i += CUDA_THREADS / 32)
            write_merge(a, i);
    }
    if (tid == 0) {
        a.batch->n_items = g.items;
        a.batch->n_wide_items = g.wide_items;
        a.batch->n_merges = g.merges;
    }
}
