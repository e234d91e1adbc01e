/*
 * experts - the mixture of experts of a layer: which experts a row picks, products with the
 * matrices of the picked experts, and their weighted sum. The host knows nothing of the picks:
 * route() leaves lists in device memory, and grids are made for the largest number of items of the
 * rows. Products are those of matmul.cu, tile by tile and with the same order of sums, so the
 * result of a pair (a row and an expert that it picked) depends neither on other rows nor on the
 * kernel that computes it.
 *
 *   route        one warp for each row; the last block makes the list of items, and chooses slots
 *                for experts that are fetched from the host
 *   bring        copies these experts to their slots
 *   expert_vec   up to 8 pairs of an expert at a time. A team of one, two or four warps has a row
 *                tile; a warp's segments come through a ring as in matvec, which is filled before
 *                the wait if the items are settled. The work for each tile takes more instructions
 *                than a segment of Q4_K, so each warp has a tile of its own if there are enough
 *                tiles to keep all warps busy.
 *   expert_wide  64 pairs at a time, like matmul_wide; the copies gather the rows
 *   hand_over    one block for each row, in layers with experts on the host (experts.c)
 *   combine      one block for each row; it also packs the row for the next op
 *   list_heads   items of latent attention, whose heads have matrices of their own
 */

#include "engine/cuda/products/matvec.cuh"
#include "engine/cuda/products/wide.cuh"
#include "engine/cuda/rows/rows.cuh"

enum { SOFTMAX, SIGMOID, ROOT, MASKED }; /* enum gating */
#define SPREAD 0.02f                     /* equals MASKED_SPREAD of engine/experts.c */

/* -- route ------------------------------------------------------------------------------------- */

/* Returns a key that orders by @v, then by lower index; never 0. */
DEVICE uint64_t expert_key(float v, uint32_t index) {
    uint64_t lowest = 1ull << 32 | (uint32_t)~index;

    return v == v ? samp_rank(v + 0.0f, index) : lowest; /* -0 is 0 */
}

/* Replaces the logits of all experts by p, by one warp (engine/experts.c). */
DEVICE void expert_probabilities(const struct route_args &a, float *p) {
    uint32_t lane = threadIdx.x % 32;
    float max = -3e38f, sum = 0;

    for (uint32_t i = lane; i < a.n_expert; i += 32)
        max = p[i] > max ? p[i] : max;
    max = warp_max(max);
    for (uint32_t i = lane; i < a.n_expert; i += 32) {
        if (a.gating == SIGMOID)
            p[i] = mx_sigmoid(p[i]);
        else if (a.gating == ROOT)
            p[i] = sqrtf(mx_softplus(p[i]));
        else
            p[i] = mx_expf(p[i] - max);
    }
    sync_warp();
    if (a.gating != SOFTMAX)
        return;
    for (uint32_t i = 0; i < a.n_expert; i++)
        sum += p[i];
    sync_warp();
    for (uint32_t i = lane; i < a.n_expert; i += 32)
        p[i] /= sum;
    sync_warp();
}

/* Returns the sum of the two largest p + bias of the @each experts of group @g. */
DEVICE float expert_judge_group(const struct route_args &a, const float *p, uint32_t g,
                                uint32_t each) {
    float best = -INFINITY, second = -INFINITY;

    for (uint32_t i = g * each; i < (g + 1) * each; i++) {
        float score = p[i] + (a.bias ? a.bias[i] : 0.0f);

        float less = score > best ? best : score;
        second = less > second ? less : second;
        best = score > best ? score : best;
    }
    return each > 1 ? best + second : best;
}

/* Returns the experts outside the best groups, by one warp: bit i for expert i * 32 + lane. A lane
 * judges groups lane and lane + 32, each from its first expert on, like engine/experts.c. */
DEVICE uint32_t excluded_groups(const struct route_args &a, const float *p) {
    uint32_t lane = threadIdx.x % 32, each = a.n_expert / a.n_group, left = 0;
    uint64_t key[ROUTE_GROUPS / 32], kept = 0;

#pragma unroll
    for (uint32_t i = 0; i < ROUTE_GROUPS / 32; i++) {
        uint32_t g = lane + i * 32;

        key[i] = g < a.n_group ? expert_key(expert_judge_group(a, p, g, each), g) : 0;
    }
    for (uint32_t k = 0; k < a.n_group_used; k++) {
        uint64_t best = 0;

#pragma unroll
        for (uint32_t i = 0; i < ROUTE_GROUPS / 32; i++)
            best = !(kept >> (lane + i * 32) & 1) && key[i] > best ? key[i] : best;
        kept |= 1ull << samp_rank_id(warp_max(best));
    }
    for (uint32_t i = lane; i < a.n_expert; i += 32)
        left |= (kept >> (i / each) & 1) ? 0 : 1u << (i / 32);
    return left;
}

/* Returns pick @k of row @r from the table of its token. */
DEVICE uint32_t table_pick(const struct route_args &a, uint32_t r, uint32_t k) {
    int32_t token = rows_token(a.batch, a.sampled, r);
    size_t t = (uint32_t)token < a.n_tokens ? (uint32_t)token : 0;

    return (uint32_t)a.table[t * a.n_used + k];
}

/* Returns the weight by MASKED of the expert with the largest logit, @top, of those that are left;
 * p of the others is minus infinity. The sum is in the order of engine/experts.c. */
DEVICE float masked_weight(const struct route_args &a, const float *p, float top) {
    float sum = 0;

    for (uint32_t i = 0; i < a.n_expert; i++) {
        bool masked = (top - p[i]) / fmaxf(fabsf(p[i]), top) > SPREAD;

        if (p[i] > -INFINITY && !masked)
            sum += mx_expf(p[i] - top);
    }
    return 1 / sum;
}

/* Computes the weight of expert @e by MASKED and removes the expert from @p, by one warp. */
DEVICE float mask_pick(const struct route_args &a, float *p, uint32_t e) {
    float weight = masked_weight(a, p, p[e]);

    sync_warp();
    if (threadIdx.x % 32 == 0)
        p[e] = -INFINITY;
    sync_warp();
    return weight;
}

/* Picks the experts of row @r, by one warp; lane k has pick k. p: [n_expert] in shared memory. */
DEVICE void expert_pick_row(const struct route_args &a, uint32_t r, float *p) {
    uint32_t lane = threadIdx.x % 32, taken = 0, mine = 0;
    bool late = a.gating == SOFTMAX && a.normalize && !a.bias && !a.table && !a.n_group;
    float max = 0, sum = 0, weight = 0;

    for (uint32_t i = lane; i < a.n_expert; i += 32) {
        float l = a.logits[(size_t)r * a.n_expert + i] * a.in_scale;

        p[i] = l > -INFINITY ? l : -3e38f; /* NaN too */
    }
    sync_warp();
    if (!late && a.gating != MASKED)
        expert_probabilities(a, p);
    if (a.n_group)
        taken = excluded_groups(a, p);
    for (uint32_t k = 0; k < a.n_used; k++) {
        uint64_t best = 0;

        for (uint32_t i = lane; i < a.n_expert; i += 32) {
            uint64_t key = expert_key(a.bias ? p[i] + a.bias[i] : p[i], i);

            best = !(taken >> (i / 32) & 1) && key > best ? key : best;
        }
        uint32_t e;
        if (a.table)
            e = table_pick(a, r, k);
        else
            e = samp_rank_id(warp_max(best));
        float v = p[e];

        max = k == 0 ? v : max;
        v = late ? mx_expf(v - max) : v;
        if (a.gating == MASKED)
            v = mask_pick(a, p, e);
        sum += v;
        taken |= e % 32 == lane ? 1u << (e / 32) : 0;
        mine = k == lane ? e : mine;
        weight = k == lane ? v : weight;
    }
    sum = sum < 0x1p-14f ? 0x1p-14f : sum;
    sum = a.normalize && a.gating != MASKED ? sum : 1.0f;
    if (lane >= a.n_used)
        return;
    uint32_t pair = r * a.n_used + lane, at = add_global(a.count + mine, 1);
    uint32_t slot = a.slot ? a.slot[mine] : mine;
    a.expert[pair] = mine;
    a.weight[pair] = weight / sum * a.scale;
    if (slot != SLOT_HOST)
        a.list[(size_t)slot * a.stride + at] = r * ROUTE_PICKS + lane;
}

/* Returns the number of pairs of an expert that the device computes. */
DEVICE uint32_t pairs_here(const struct route_args &a, uint32_t expert) {
    return a.slot && a.slot[expert] == SLOT_HOST ? 0 : get_global(a.count + expert);
}

/* Returns the slot that was picked least recently, by a warp; a.n: this step has picked all. */
DEVICE uint32_t oldest_slot(const struct expert_slots &a, uint32_t now) {
    uint64_t best = 0; /* key of the oldest, lowest number among equals; never 0 */

    for (uint32_t i = threadIdx.x % 32; i < a.n; i += 32) {
        uint64_t key = (uint64_t)~get_global(a.since + i) << 32 | ~i;

        best = key > best ? key : best;
    }
    best = warp_max(best);
    return best == 0 || ~(uint32_t)(best >> 32) == now ? a.n : ~(uint32_t)best;
}

/* Takes slots for the experts in @missing (shared: bit e % 32 of word e / 32), by one warp. */
DEVICE void acquire_slots(const struct expert_slots &s, const uint32_t *missing, uint32_t now) {
    uint32_t lane = threadIdx.x, left = missing[lane], n = 0;

    for (;;) {
        uint32_t first = 32 - (uint32_t)warp_max((uint64_t)(left ? 32 - lane : 0));
        uint32_t slot = first < 32 ? oldest_slot(s, now) : s.n;

        if (slot == s.n)
            break;
        sync_warp();
        if (lane == first) {
            uint32_t bit = 0;

            while (!(left >> bit & 1))
                bit++;
            uint32_t e = lane * 32 + bit;

            store_global(s.slot + get_global(s.expert + slot), SLOT_HOST);
            store_global(s.slot + e, slot);
            store_global(s.expert + slot, e);
            store_global(s.since + slot, now);
            s.move[n][0] = e;
            s.move[n][1] = slot;
            left -= 1u << bit;
        }
        n++;
        sync_warp();
    }
    if (lane == 0) {
        *s.n_moves = n;
        store_global(s.since + s.n, now);
    }
}

/* Chooses slots for the step's picks, by a block, before the counts are cleared; shared:
 * [ROUTE_EXPERTS / 32]. */
DEVICE void choose_slots(const struct route_args &a, uint32_t *shared) {
    const struct expert_slots &s = a.slots;
    uint32_t now = get_global(s.since + s.n) + 1, tid = threadIdx.x;

    if (tid < ROUTE_EXPERTS / 32)
        shared[tid] = 0;
    sync_block();
    for (uint32_t e = tid; e < a.n_expert; e += CUDA_THREADS) {
        uint32_t count = get_global(a.count + e), slot = get_global(s.slot + e);

        if (count > 0 && slot == SLOT_HOST) {
            add_shared(shared + e / 32, 1u << e % 32);
            if (s.n_missed)
                add_global(s.n_missed, (uint64_t)count);
        } else if (count > 0) {
            store_global(s.since + slot, now);
        }
    }
    sync_block();
    if (tid < 32)
        acquire_slots(s, shared, now);
    sync_block();
}

/* Makes the items from the counts, and clears the counts; shared: [CUDA_THREADS + ROUTE_EXPERTS /
 * 32]. */
DEVICE void make_items(const struct route_args &a, uint32_t *shared) {
    uint32_t each = (a.n_expert + CUDA_THREADS - 1) / CUDA_THREADS, tid = threadIdx.x;
    uint32_t from = tid * each, to = from + each, n = 0, at = 0;

    if (a.slots.slot)
        choose_slots(a, shared + CUDA_THREADS);
    to = to < a.n_expert ? to : a.n_expert;
    for (uint32_t e = from; e < to; e++)
        n += (pairs_here(a, e) + a.columns - 1) / a.columns;
    uint32_t of_warp = (uint32_t)warp_sum((uint64_t)n), *warps = shared + CUDA_THREADS;
    shared[tid] = n;
    if (tid % 32 == 0)
        warps[tid / 32] = of_warp;
    sync_block();
    for (uint32_t w = 0; w < tid / 32; w++)
        at += warps[w];
    for (uint32_t t = tid / 32 * 32; t < tid; t++)
        at += shared[t];
    for (uint32_t e = from; e < to; e++) {
        uint32_t count = pairs_here(a, e);

        for (uint32_t first = 0; first < count; first += a.columns) {
            struct expert_item item = {a.slot ? a.slot[e] : e, first, count - first};

            item.n = item.n < a.columns ? item.n : a.columns;
            a.item[at++] = item;
        }
        if (a.picks)
            add_global(a.picks + e, (uint64_t)get_global(a.count + e));
        store_global(a.count + e, 0u);
    }
    if (tid == CUDA_THREADS - 1)
        *a.n_items = at;
}

KERNEL(route, struct route_args, CUDA_THREADS, 2) {
    if (blockIdx.x == 0)
        prefetch_weights(a.bias, a.n_expert);
    wait_for_previous();
    SHARED float p[ROUTE_ROWS][ROUTE_EXPERTS];
    uint32_t warp = threadIdx.x / 32, r = blockIdx.x * ROUTE_ROWS + warp;

    if (r < a.batch->n_rows)
        expert_pick_row(a, r, p[warp]);
    if (last_of(a.count + a.n_expert, gridDim.x))
        make_items(a, (uint32_t *)p);
}

KERNEL(bring, struct bring_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t n_moves = *a.n_moves;
    size_t at = ((size_t)blockIdx.x * CUDA_THREADS + threadIdx.x) * 16;
    size_t step = (size_t)gridDim.x * CUDA_THREADS * 16;

    for (uint32_t i = 0; i < n_moves; i++)
        for (uint32_t m = 0; m < MATMUL_MATRICES; m++) {
            const uint8_t *from = a.host[m] + (size_t)a.move[i][0] * a.bytes[m];
            uint8_t *to = a.here[m] + (size_t)a.move[i][1] * a.bytes[m];

            for (size_t k = at; k < a.bytes[m]; k += step)
                store16(to + k, load16(from + k));
        }
}

/* Lists items in the order of heads, then of rows. */
KERNEL(list_heads, struct heads_args, CUDA_THREADS, 2) {
    wait_for_previous();
    uint32_t n_rows = a.batch->n_rows, each = (n_rows + a.columns - 1) / a.columns;

    for (uint32_t i = threadIdx.x; i < a.n_head * each; i += CUDA_THREADS) {
        struct expert_item item = {i / each, i % each * a.columns, 0};

        item.n = n_rows - item.first < a.columns ? n_rows - item.first : a.columns;
        a.item[i] = item;
    }
    if (threadIdx.x == 0)
        *a.n_items = a.n_head * each;
}

/* -- products ---------------------------------------------------------------------------------- */

/* Convert an entry of a list to its pair, and to the pair's row of x. */
DEVICE uint32_t expert_pair(const struct expert_args &a, uint32_t entry) {
    return entry / ROUTE_PICKS * a.n_used + entry % ROUTE_PICKS;
}

DEVICE uint32_t expert_row(const struct expert_args &a, uint32_t entry) {
    return a.by_pair ? expert_pair(a, entry) : entry / ROUTE_PICKS;
}

DEVICE const uint32_t *expert_pairs(const struct expert_args &a, const struct expert_item &item) {
    return a.list + (size_t)item.expert * a.stride + item.first;
}

/* Returns the tiles of an expert of matrix @i, on the device or in host memory. */
DEVICE const uint8_t *tiles_of(const struct expert_args &a, uint32_t i, uint32_t expert) {
    const struct matrix &m = a.m[i];
    uint32_t slot = a.slot ? a.slot[expert] : expert;
    bool far = slot == SLOT_HOST;

    return (far ? a.host[i] : m.tiles) +
           (size_t)(far ? expert : slot) * m.n_row_tiles * m.bytes[TILE_SEGMENTS];
}

/* Returns y of an element whose pair has row @row of x. */
DEVICE float expert_value(const struct expert_args &a, const struct matrix &m, uint32_t expert,
                          uint32_t entry, uint32_t out, float sum) {
    float v = sum * (a.scale[expert_row(a, entry)] * m.inverse);

    v = m.scale ? v * m.scale[expert] : v;
    v = a.weight ? v * a.weight[expert_pair(a, entry)] : v;
    return m.bias ? v + m.bias[(size_t)expert * m.n_out + out] : v;
}

#define WARPS (EXPERT_THREADS / 32)

/* Position of a block's products, or of a warp's copies, which run ahead: an item, one of its
 * matrices, and a row of tiles for each team. */
struct Place {
    /* tile: of the first team */
    uint32_t item, tile, mat;

    __device__ __forceinline__ void start(const struct expert_args &a) {
        item = 0;
        mat = 0;
        tile = blockIdx.x * a.n_teams;
        settle(a);
    }
    __device__ __forceinline__ void settle(const struct expert_args &a) {
        uint32_t n = (a.m[0].n_row_tiles + a.n_teams - 1) / a.n_teams * a.n_teams;

        while (tile >= n) {
            tile -= n;
            item++;
        }
    }
    __device__ __forceinline__ void next(const struct expert_args &a) {
        if (++mat < a.n_mats)
            return;
        mat = 0;
        tile += gridDim.x * a.n_teams;
        settle(a);
    }
};

DEVICE uint32_t team_rank(const struct expert_args &a) {
    return threadIdx.x / 32 % (WARPS / a.n_teams);
}

DEVICE uint32_t team_of(const struct expert_args &a) {
    return threadIdx.x / 32 / (WARPS / a.n_teams);
}

/* Ring of a warp's weights, filled by cp.async: its segments of the team's tiles, stage by stage. A
 * stage never extends across the end of a segment. */
struct ExpertFeed {
    /* offset of the stage that is fetched next */
    uint32_t slot;
    uint32_t n_items;
    /* remaining bytes of the segment that is fetched */
    uint32_t n_left, segment;
    struct Place place;
    /* address of the lane's next bytes */
    const uint8_t *from;

    __device__ __forceinline__ void start(const struct expert_args &a) {
        slot = threadIdx.x / 32 * MATVEC_STAGES * a.stage_bytes;
        n_items = *a.n_items;
        place.start(a);
        seek(a);
        for (uint32_t i = 0; i + 1 < MATVEC_STAGES; i++)
            fetch(a);
    }
    /* Moves to the place's tile, or to the next one with a segment for this warp. */
    __device__ __forceinline__ void seek(const struct expert_args &a) {
        for (; place.item < n_items; place.next(a)) {
            const struct expert_cut &cut = a.cut[place.mat];
            uint32_t rank = team_rank(a), tile = place.tile + team_of(a);

            segment = cut.share[rank];
            if (tile >= a.m[0].n_row_tiles || segment == cut.share[rank + 1])
                continue;
            const struct matrix &m = a.m[place.mat];
            n_left = m.bytes[segment + 1] - m.bytes[segment];
            from =
                tiles_of(a, place.mat, a.item[place.item].expert) +
                ((size_t)tile * m.bytes[TILE_SEGMENTS] + m.bytes[segment] + threadIdx.x % 32 * 16);
            return;
        }
    }
    /* Starts copying the next stage, if any is left. */
    __device__ __forceinline__ void fetch(const struct expert_args &a) {
        uint32_t ring = MATVEC_STAGES * a.stage_bytes, end = (threadIdx.x / 32 + 1) * ring;

        if (place.item < n_items) {
            const struct matrix &m = a.m[place.mat];
            uint32_t n = n_left < m.stage_bytes ? n_left : m.stage_bytes;

            fetch_bytes(shared_start() + slot + threadIdx.x % 32 * 16, from, n);
            from += n; /* the next segment follows this one */
            n_left -= n;
            if (n_left == 0 && ++segment < a.cut[place.mat].share[team_rank(a) + 1]) {
                n_left = m.bytes[segment + 1] - m.bytes[segment];
            } else if (n_left == 0) {
                place.next(a);
                seek(a);
            }
        }
        slot += a.stage_bytes;
        slot = slot < end ? slot : end - ring;
        copy_commit();
    }
    /* Waits for the oldest stage and returns it; starts copying into the stage used before. */
    __device__ __forceinline__ const uint8_t *take(const struct expert_args &a) {
        copy_wait<MATVEC_STAGES - 2>();
        sync_warp();
        fetch(a);
        return dynamic_shared() + slot; /* all other stages are in flight */
    }
};

/* Offsets of rows that are anywhere in x. A lane without a pair takes the row of the item's first
 * pair. */
struct Gathered {
    /* offset in bytes */
    uint32_t x[1];

    __device__ __forceinline__ static uint32_t row(const struct expert_args &a,
                                                   const struct expert_item &item, uint32_t i) {
        return expert_row(a, expert_pairs(a, item)[i < item.n ? i : 0]);
    }
    __device__ __forceinline__ void start(const struct expert_args &a,
                                          const struct expert_item &item) {
        uint32_t lane = threadIdx.x % 32, r = row(a, item, lane / 4);

        x[0] = r / PACK_ROWS * (uint32_t)weights_group_bytes(a.n_blocks) +
               (r % PACK_ROWS * 4 + lane % 4) * 16;
    }
};

#define TILE_VALUES (EXPERT_ROWS * TILE_ROWS)

/* Shared memory of a block: the sums of the teams' segments, and gates until their ups come. */
struct Sums {
    float segment[WARPS / 2 * TILE_SEGMENTS][4][TILE_LANES];
    /* each element is read only by the thread that wrote it */
    float gate[WARPS * TILE_VALUES];
};

/* Adds the products of the units of a stage, from unit @u on. */
struct StageWalk {
    const struct expert_args &a;
    const struct matrix &m;
    const uint8_t *stage;
    uint32_t u, to;
    const struct Gathered &rows;
    float (*c)[4];

    template <int F> __device__ __forceinline__ void of() const {
        constexpr uint32_t units = TILE_STAGE_UNITS(F);
        struct Activations<F, 1> x;

        x.take_all(a, rows, u * Parts<F>::n);
#pragma unroll
        for (uint32_t n = 0; n < units; n++)
            if (u + n < to)
                matvec_add_unit(a, m, stage + n * tile_bytes(F), u + n,
                                u + n + 1 < to ? u + n + 1 : u, rows, x, c);
    }
};

/* Adds the warp's segments of the matrix at @at. The first warp of a team adds its segments up in
 * @total; the others store the sum of each segment in @sums. */
DEVICE void add_share(const struct expert_args &a, const struct Place &at, struct ExpertFeed &feed,
                      const struct Gathered &rows, struct Sums *sums, float total[4]) {
    const struct expert_cut &cut = a.cut[at.mat];
    const struct matrix &m = a.m[at.mat];
    uint32_t rank = team_rank(a), end = cut.share[rank + 1];

    for (uint32_t s = cut.share[rank]; s < end; s++) {
        uint32_t to = m.unit[s + 1];
        float c[1][4] = {{0, 0, 0, 0}};

        for (uint32_t u = m.unit[s]; u < to; u += m.stage_units) {
            /* taken before the branch on the format, so that this code exists once */
            const uint8_t *stage = feed.take(a);

            walk_of(m.format, StageWalk{a, m, stage, u, to, rows, c});
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (rank == 0)
                total[j] = s > 0 ? total[j] + c[0][j] : c[0][j];
            else
                sums->segment[team_of(a) * TILE_SEGMENTS + s][j][threadIdx.x % 32] = c[0][j];
        }
    }
}

/* Stores y of value @i of the tiles at @at. Values are numbered by team, then by accumulator of mma
 * (4), then by lane (32). */
DEVICE void expert_store_value(const struct expert_args &a, const struct Place &at,
                               struct Sums *sums, uint32_t i, float sum) {
    /* loaded only here, since registers are scarce before */
    const struct expert_item item = a.item[at.item];
    const struct matrix &m = a.m[at.mat];
    uint32_t lane = i % 32, j = i / 32 % 4, column = lane % 4 * 2 + j % 2;
    uint32_t out = (at.tile + i / TILE_VALUES) * TILE_ROWS + lane / 4 + j / 2 * 8;

    if (column >= item.n || out >= m.n_out)
        return;
    uint32_t entry = expert_pairs(a, item)[column], pair = expert_pair(a, entry);
    float v = expert_value(a, m, item.expert, entry, out, sum);
    if (a.n_mats > 1 && at.mat == 0)
        sums->gate[i] = v;
    else
        a.m[0].y[(size_t)pair * m.n_out + out] = a.n_mats > 1 ? gated(a.glu, sums->gate[i], v) : v;
}

/* Adds up the segments of each team; the first warp's segments are already one sum. */
DEVICE void store_teams(const struct expert_args &a, const struct Place &at, struct Sums *sums) {
    const struct expert_cut &cut = a.cut[at.mat];

    for (uint32_t i = threadIdx.x; i < a.n_teams * TILE_VALUES; i += EXPERT_THREADS) {
        uint32_t lane = i % 32, j = i / 32 % 4, first = i / TILE_VALUES * TILE_SEGMENTS;

        if (at.tile + i / TILE_VALUES >= a.m[0].n_row_tiles)
            return;
        float sum = sums->segment[first][j][lane];
        for (uint32_t s = cut.share[1]; s < cut.n_segments; s++)
            sum += sums->segment[first + s][j][lane];
        expert_store_value(a, at, sums, i, sum);
    }
}

/* Multiplies the tiles at @at, of each matrix, and advances @at past them. A team of one warp needs
 * no exchange. */
DEVICE void multiply_item(const struct expert_args &a, struct Place &at, struct ExpertFeed &feed,
                          struct Sums *sums) {
    uint32_t lane = threadIdx.x % 32;
    bool alone = a.n_teams == WARPS;
    struct Gathered rows;

    rows.start(a, a.item[at.item]);
    do {
        bool there = at.tile + team_of(a) < a.m[0].n_row_tiles;
        float total[4] = {0, 0, 0, 0};

        if (there)
            add_share(a, at, feed, rows, sums, total);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (there && alone)
                expert_store_value(a, at, sums, team_of(a) * TILE_VALUES + j * 32 + lane, total[j]);
            else if (there && team_rank(a) == 0)
                sums->segment[team_of(a) * TILE_SEGMENTS][j][lane] = total[j];
        }
        if (!alone) {
            sync_block();
            store_teams(a, at, sums);
            sync_block();
        }
        at.next(a);
    } while (at.mat > 0);
}

KERNEL(expert_vec, struct expert_args, EXPERT_THREADS, 4) {
    SHARED struct Sums sums;
    struct ExpertFeed feed;
    struct Place at;

    if (!a.settled)
        wait_for_previous(); /* route() decided which weights there are to fetch */
    feed.start(a);
    if (a.settled)
        wait_for_previous();
    for (at.start(a); at.item < feed.n_items;)
        multiply_item(a, at, feed, &sums);
    copy_wait<0>();
}

/* -- many rows --------------------------------------------------------------------------------- */

KERNEL(expert_wide, struct expert_args, CUDA_THREADS, 1) {
    if (!a.settled)
        wait_for_previous(); /* as in expert_vec */
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = blockIdx.y, i = 0;
    float total[WIDE_GROUPS * 4] = {};
    struct Supply supply;

    if (blockIdx.x >= *a.n_items) {
        if (a.settled && !may_exit())
            wait_for_previous();
        return;
    }
    const struct expert_item item = a.item[blockIdx.x];
    while (i + 1 < a.n_mats && block >= (a.m[i].n_row_tiles + 7) / 8)
        block -= (a.m[i++].n_row_tiles + 7) / 8;
    const struct matrix &m = a.m[i];
    uint32_t tile = block * 8 + warp;

    for (uint32_t k = 0; k < SLICE_VECTORS; k++) {
        uint32_t c = Supply::row_of(k);

        supply.take_row(k, m, a.x, a.n_blocks,
                        expert_row(a, expert_pairs(a, item)[c < item.n ? c : 0]));
    }
    supply.start(m, tiles_of(a, i, item.expert), tile, item.n, 0, TILE_SEGMENTS);
    walk_of(m.format, WideWalk{supply, m, total, NULL, a.settled != 0});
    copy_wait<0>();
    if (!supply.tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < WIDE_GROUPS * 4; k++) {
        uint32_t column = k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2;
        uint32_t out = tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8;

        if (column >= item.n || out >= m.n_out)
            continue;
        uint32_t entry = expert_pairs(a, item)[column];
        m.y[(size_t)expert_pair(a, entry) * m.n_out + out] =
            expert_value(a, m, item.expert, entry, out, total[k]);
    }
}

/* -- experts of the host ----------------------------------------------------------------------- */

ROW_KERNEL(hand_over, struct hand_over_args, PACK_THREADS, 2) {
    size_t at = (size_t)r * a.n;

    for (uint32_t i = threadIdx.x; i < a.n; i += PACK_THREADS)
        a.host_x[at + i] = a.x[at + i];
    if (threadIdx.x < a.n_used) {
        uint32_t pair = r * a.n_used + threadIdx.x;

        a.host_expert[pair] = a.expert[pair];
        a.host_weight[pair] = a.weight[pair];
    }
    if (r == 0 && threadIdx.x == 0)
        *a.host_rows = a.batch->n_rows;
}

/* -- the sum ----------------------------------------------------------------------------------- */

/* Returns the sigmoid of gate times the norm of row @r of x, or times the row itself, by a
 * block. */
DEVICE float shared_gate(const struct combine_args &a, uint32_t r, float *shared) {
    const float *x = a.x + (size_t)r * a.n_x;
    float square = 0, dot = 0;

    for (uint32_t i = threadIdx.x; i < a.n_x; i += PACK_THREADS) {
        square = fmaf(x[i], x[i], square);
        dot = fmaf(a.norm ? x[i] * a.norm[i] : x[i], a.gate[i], dot);
    }
    square = block_sum<PACK_THREADS / 32>(square, shared);
    dot = block_sum<PACK_THREADS / 32>(dot, shared);
    return mx_sigmoid(a.norm ? dot * (1.0f / sqrtf(square / (float)a.n_x + a.eps)) : dot);
}

DEVICE void combine_row(const struct combine_args &a, uint32_t r) {
    SHARED float weight[ROUTE_PICKS], shared[PACK_SHARED];
    SHARED const float *from[ROUTE_PICKS];
    uint32_t tid = threadIdx.x;
    float gate = 0;

    if (tid < a.n_used) {
        uint32_t pair = r * a.n_used + tid;

        bool hosts = a.slot && a.slot[a.expert[pair]] == SLOT_HOST;

        float w = a.weight ? a.weight[pair] : 1;
        weight[tid] = a.weigh ? w * a.weigh[a.expert[pair]] : w;
        from[tid] = (hosts ? a.host_y : a.y) + (size_t)pair * a.n;
    }
    if (a.shared)
        gate = shared_gate(a, r, shared);
    sync_block();
    for (uint32_t i = tid; i < a.n; i += PACK_THREADS) {
        float sum = a.adds ? a.x[(size_t)r * a.n_x + a.first + i] : 0;

        for (uint32_t k = 0; k < a.n_used; k++)
            sum += weight[k] * from[k][i];
        a.to[(size_t)r * a.n + i] = a.shared ? sum + gate * a.shared[(size_t)r * a.n + i] : sum;
    }
    if (!a.packs)
        return;
    sync_block();
    pack_row(a.pack, r, r, shared);
}

/* Prefetches what does not depend on this step while the last experts are multiplied. */
KERNEL(combine, struct combine_args, PACK_THREADS, 2) {
    bool works = blockIdx.x < a.batch->n_rows;

    if (!works && may_exit())
        return;
    if (blockIdx.x == 0) {
        prefetch_weights(a.packs ? a.pack.weight : NULL, a.pack.n);
        prefetch_weights(a.shared ? a.gate : NULL, a.n_x);
        prefetch_weights(a.shared ? a.norm : NULL, a.n_x);
    }
    wait_for_previous();
    if (works)
        combine_row(a, blockIdx.x);
}
