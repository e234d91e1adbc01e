/*
 * matmul_roles - the products of matmul_wgmma_64 for 17 to 64 rows, by warps with roles. An
 * experiment: WEFT_CUDA_ROLES=1 turns it on (docs/design/cuda-products.md).
 *
 * In matmul_wgmma_64 all warps of a block copy, decode and multiply, and meet at a barrier for each
 * slice of 64 columns; so they all decode at the same time, while the tensor cores wait. Here one
 * warp copies and twelve multiply, and no barrier joins the three warpgroups:
 *
 *     copying warp   | stage 3 -> room of 0 | stage 4 -> room of 1 | ...
 *     warpgroup 0    decode | wgmma  decode | wgmma  decode | ...
 *     warpgroup 1       decode | wgmma  decode | wgmma  decode | ...
 *     warpgroup 2          decode | wgmma  decode | wgmma  decode | ...
 *
 * A stage of the ring has up to 256 columns: slices of N rows of the activations, which wgmma
 * reads, and the tiles of each warp, which it decodes in registers. Two barriers belong to a stage:
 * `full` ends a phase when the copies have arrived, `empty` when all twelve warps have used the
 * stage. A warp loads the codes of the next slice before it waits for the products of the last one,
 * and gives back a stage once the products that read it have ended.
 *
 * The copying warp needs few registers, which its warpgroup gives to the others.
 *
 * A panel is ROLES_OUT rows of a matrix. If blocks share its segments, they leave the sums where
 * those of matmul_wide would be, so residual() and the order of the sum are the same.
 */

#include "engine/cuda/products/roles.cuh"

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define ROLES_WARPS (ROLES_GROUPS * 4u) /* warps that multiply */
#define ROLES_MULTIPLY (ROLES_GROUPS * 128u)
#define ROLES_LAUNCHED 128u /* registers of a thread of the launch (check_kernels.py) */
#define ROLES_FEW 24u       /* then of the warpgroup that copies */
#define ROLES_MANY 160u     /* and of the others */

/* Otherwise the warpgroups that multiply would wait for registers for ever. */
static_assert(128 * ROLES_FEW + ROLES_MULTIPLY * ROLES_MANY <= ROLES_THREADS * ROLES_LAUNCHED,
              "the registers that one warpgroup gives back are those that the others take");

/* Return the barriers of stage @i: of its copies, and of the warps that use it. */
DEVICE uint64_t *roles_full(uint32_t i) {
    SHARED uint64_t full[ROLES_STAGES];

    return full + i;
}

DEVICE uint64_t *roles_empty(uint32_t i) {
    SHARED uint64_t empty[ROLES_STAGES];

    return empty + i;
}

/* The part of the product that a block computes. */
struct RolesPart {
    /* with gates: the gate */
    const struct matrix *m;
    /* its number */
    uint32_t which;
    /* number of the panel in the grid and in the matrix; panels of 128 rows of matrices before */
    uint32_t panel, local, wide;
    /* segments */
    uint32_t first, last;

    /* Finds the part of block @block. */
    MEMBER void find(const struct matmul_args &a, uint32_t block) {
        uint32_t each = TILE_SEGMENTS / a.n_splits, i = 0;

        panel = block / a.n_splits;
        first = block % a.n_splits * each;
        last = first + each;
        local = panel;
        wide = 0;
        while (!a.gated && i + 1 < a.n_mats && local >= panels_of(a.m[i])) {
            local -= panels_of(a.m[i]);
            wide += (a.m[i++].n_row_tiles + 7) / 8;
        }
        which = i;
        m = &a.m[i];
    }
    static MEMBER uint32_t panels_of(const struct matrix &m) {
        return (m.n_row_tiles + ROLES_TILES - 1) / ROLES_TILES;
    }
    /* Returns the row tile of warp @warp, counted in its matrix. */
    MEMBER uint32_t tile_of(const struct matmul_args &a, uint32_t warp) const {
        constexpr uint32_t half = ROLES_TILES / 2;

        if (a.gated)
            return local * half + warp % half;
        return local * ROLES_TILES + warp;
    }
    /* Returns the matrix of warp @warp. */
    MEMBER const struct matrix &matrix_of(const struct matmul_args &a, uint32_t warp) const {
        return a.gated ? a.m[warp / (ROLES_TILES / 2)] : *m;
    }
};

/* -- the warp that copies ---------------------------------------------------------------------- */

/* Copies of one lane, one for each stage: lanes up to ROLES_TILES copy tiles of a row of tiles, the
 * next ones slices of the activations. A row of tiles that does not exist is replaced by the last
 * one, since four warps multiply together. */
template <uint32_t N> struct RolesCopies {
    static constexpr uint32_t slice_bytes = N * 128; /* bytes of a slice in the ring */

    const uint8_t *from;
    /* offset in a stage */
    uint32_t to;
    /* number in the stage; of other lanes no number of a slice */
    uint32_t slice;
    /* of the ring */
    uint32_t stage_bytes;
    /* bytes of a row of tiles in a stage */
    uint32_t tile_stage;
    /* bytes of it that were not copied yet */
    uint32_t left;
    /* of a stage; of the ring */
    uint32_t slices, n_slots;

    MEMBER void start(const struct matmul_args &a, const struct RolesPart &part) {
        const struct matrix &m = *part.m;
        uint32_t lane = threadIdx.x % 32, units = roles_units(m.format);

        slices = units * (tile_k(m.format) / 64);
        tile_stage = units * tile_bytes(m.format);
        stage_bytes = roles_stage_bytes(N, m.format);
        n_slots = roles_stages(N, m.format);
        left = m.bytes[part.last] - m.bytes[part.first];
        slice = lane - ROLES_TILES;
        if (lane < ROLES_TILES) {
            const struct matrix &own = part.matrix_of(a, lane);
            uint32_t tile = part.tile_of(a, lane);

            tile = tile < own.n_row_tiles ? tile : own.n_row_tiles - 1;
            from = own.tiles + ((size_t)tile * own.bytes[TILE_SEGMENTS] + own.bytes[part.first]);
            to = slices * slice_bytes + lane * tile_stage;
        } else {
            from = (const uint8_t *)a.x +
                   ((size_t)m.unit[part.first] * tile_k(m.format) / 64 + slice) *
                       WGMMA_SLICE_BYTES(WGMMA_ROWS);
            to = slice * slice_bytes;
        }
    }
    /* Returns the bytes of a row of tiles in the next stage, and its number of slices. */
    MEMBER uint32_t bytes() const {
        return left < tile_stage ? left : tile_stage;
    }
    MEMBER uint32_t count() const {
        return slices * bytes() / tile_stage;
    }
    /* Announces the next stage. */
    MEMBER void expect(uint32_t slot) const {
        if (threadIdx.x % 32 == 0)
            bulk_expect(roles_full(slot), ROLES_TILES * bytes() + count() * slice_bytes);
    }
    /* Starts the lane's copy to the next stage, if it is one of tiles, or with @rows of rows. */
    MEMBER void copy(uint32_t slot, bool rows) const {
        bool is_tile = threadIdx.x % 32 < ROLES_TILES;
        uint8_t *at = dynamic_shared() + slot * stage_bytes + to;

        if (is_tile && !rows)
            bulk_copy(at, from, bytes(), roles_full(slot));
        if (slice < count() && rows)
            bulk_copy(at, from, slice_bytes, roles_full(slot));
    }
    /* Goes to the next stage. */
    MEMBER void advance() {
        uint32_t step = slices * WGMMA_SLICE_BYTES(WGMMA_ROWS);

        left -= bytes();
        from += threadIdx.x % 32 < ROLES_TILES ? tile_stage : step;
    }
    /* Fills the ring. Tiles, which the preceding kernel does not change, are copied while it
     * ends. */
    MEMBER void fill() {
        RolesCopies rows = *this;
        uint32_t n = 0;

        for (; n < n_slots && left > 0; n++) {
            expect(n);
            copy(n, false);
            advance();
        }
        wait_for_previous();
        for (uint32_t i = 0; i < n; i++) {
            rows.copy(i, true);
            rows.advance();
        }
    }
    /* Copies all stages. The warps' loads from a stage precede their arrivals, and a fence orders
     * them before the copies. */
    MEMBER void run() {
        uint32_t slot = 0, round = 0;

        fill();
        while (left > 0) {
            bulk_wait(roles_empty(slot), round);
            bulk_publish();
            expect(slot);
            copy(slot, false);
            copy(slot, true);
            advance();
            slot++;
            round += slot == n_slots;
            slot = slot == n_slots ? 0 : slot;
        }
    }
};

/* -- the warps that multiply ------------------------------------------------------------------- */

/* Multiplies segments @first .. @last - 1 of one row of tiles with all rows. total and c have the
 * layout of mma accumulators, [8 rows][4]. If @shared is not NULL, each segment's sums are stored
 * there instead of being added to total. */
template <uint32_t N> struct RolesWalk {
    const struct matmul_args &a;
    /* number of the matrix: its address would need two registers */
    uint32_t which;
    uint32_t first, last;
    float (&total)[N / 2];
    float *shared;

    /* Ends a segment: waits for its products, adds c to the total, and clears c. */
    MEMBER void add_up(uint32_t segment, float (&c)[N / 2]) const {
        wgmma_wait<0>();
        wgmma_hold(c);
#pragma unroll
        for (uint32_t k = 0; k < N / 2; k++) {
            if (shared)
                shared[segment * WIDE_SUMS + sum_place(k)] = c[k];
            else
                total[k] = segment ? total[k] + c[k] : c[k];
            c[k] = 0;
        }
        wgmma_hold(c);
    }
    /* Gives back a stage; what the warp reads there has been read. */
    MEMBER void release(uint32_t slot) const {
        sync_warp();
        if (threadIdx.x % 32 == 0)
            bulk_arrive(roles_empty(slot));
    }
    template <int F> MEMBER void of() const {
        constexpr uint32_t slices = Steps<F>::slices;     /* of a tile */
        constexpr uint32_t of_part = Parts<F>::pairs / 2; /* slices of a part of a tile */
        constexpr bool whole = Steps<F>::unroll > 1;      /* a tile is unrolled */
        constexpr uint32_t step = whole ? slices : 2;     /* even, because w alternates */
        /* slices that are loaded together: of formats that need many registers one */
        constexpr uint32_t together = F == TILE_Q5_K || F == TILE_Q6_K ? 1 : of_part;
        const struct matrix &m = a.m[which];
        const uint32_t units = roles_units(F), of_stage = slices * units;
        const uint32_t stage_bytes = roles_stage_bytes(N, F), n_slots = roles_stages(N, F);
        const uint32_t tiles =
            of_stage * (N * 128) + threadIdx.x / 32 * (units * tile_bytes(F)); /* in a stage */
        const uint32_t n = (m.unit[last] - m.unit[first]) * slices;
        uint32_t segment = first, end = end_of(segment, slices), done;
        uint32_t slot = 0, round = 0;      /* stage of the slice that is loaded */
        uint32_t operand = wgmma_place(0); /* the slice that is multiplied */
        float c[N / 2] = {};
        uint32_t w[2][ROLES_BLOCKS][4]; /* decoded weights of the slices whose products run */
        struct Tile<F> tile;            /* the part of a tile that belongs to the next slice */

        wgmma_hold(c);
        bulk_wait(roles_full(0), 0);
        tile.load(dynamic_shared() + tiles, threadIdx.x % 32, 0, m.grid);
        for (uint32_t i0 = 0; i0 < n; i0 += done) {
            done = step;
#pragma unroll
            for (uint32_t j = 0; j < step; j++) {
                const uint32_t i = i0 + j, in_tile = (whole ? j : i) % slices;
                const uint32_t in_stage = whole ? j : i % of_stage;

                /* the segment has an odd number of slices: the next one starts with w[0] again */
                if (slices == 1 && j > 0 && i == end) {
                    wgmma_wait<0>();
                    done = j;
                    break;
                }
                roles_decode<F>(tile, in_tile % of_part * ROLES_BLOCKS, w[j % 2]);
                if (j == 0 && i == end) {
                    add_up(segment++, c);
                    end = end_of(segment, slices);
                }
                roles_slice(c, w[j % 2], operand);
                operand += N * 128 / 16;
                const bool ends = in_stage == of_stage - 1;
                const uint32_t used = slot ? slot - 1 : n_slots - 1; /* the stage before */

                if (ends) {
                    slot++;
                    round += slot == n_slots;
                    slot = slot == n_slots ? 0 : slot;
                    operand = wgmma_place(slot * stage_bytes);
                    if (i + 1 < n)
                        bulk_wait(roles_full(slot), round);
                }
                if ((in_tile + 1) % together == 0 && i + 1 < n) {
                    const uint32_t next = (in_tile + 1) % slices;
                    const uint32_t unit = ends ? 0 : (in_stage + 1) / slices;

                    tile.load(dynamic_shared() +
                                  (slot * stage_bytes + tiles + unit * tile_bytes(F)),
                              threadIdx.x % 32, next / of_part, m.grid);
                }
                wgmma_wait<1>();
                if (in_stage == 0 && i > 0)
                    release(used);
            }
        }
        add_up(segment, c);
    }
    /* Returns the index of the first slice after segment @segment. */
    MEMBER uint32_t end_of(uint32_t segment, uint32_t slices) const {
        return (a.m[which].unit[segment + 1] - a.m[which].unit[first]) * slices;
    }
};

/* -- results ----------------------------------------------------------------------------------- */

/* Returns the address of output @out of tile @tile, row 0, in the sums that blocks share. */
DEVICE float *roles_sum(const struct matmul_args &a, const struct RolesPart &part, uint32_t tile,
                        uint32_t out) {
    return a.sums + (size_t)(part.wide + tile / 8) * (TILE_SEGMENTS * WIDE_SUMS) +
           (tile % 8 * TILE_ROWS + out);
}

/* Adds up the sums of a panel, done by the last block to arrive of those that share its segments. A
 * thread has four outputs of every eighth row. */
DEVICE void roles_store_shared(const struct matmul_args &a, const struct RolesPart &part,
                               uint32_t n_rows) {
    SHARED uint32_t is_last;
    constexpr uint32_t across = ROLES_OUT / 4;
    uint32_t out = threadIdx.x % across * 4, row = threadIdx.x / across;
    uint32_t tile = part.local * ROLES_TILES + out / TILE_ROWS;

    wgmma_sync(ROLES_MULTIPLY);
    if (threadIdx.x == 0)
        is_last = arrive(a.arrived + part.panel, 1, a.n_splits);
    wgmma_sync(ROLES_MULTIPLY);
    if (!is_last || tile >= part.m->n_row_tiles)
        return;
    const float *from = roles_sum(a, part, tile, out % TILE_ROWS);
#pragma unroll 2
    for (; row < n_rows; row += ROLES_MULTIPLY / across)
        store_segments(a, *part.m, n_rows, row, tile * TILE_ROWS + out % TILE_ROWS,
                       from + row * WIDE_OUT);
}

/* Stores glu(gate, up) of the thread's outputs. */
template <uint32_t N>
DEVICE void roles_store_gated(const struct matmul_args &a, const struct RolesPart &part,
                              uint32_t n_rows, const float (&total)[N / 2]) {
    uint32_t warp = threadIdx.x / 32;
    const struct matrix &own = part.matrix_of(a, warp);

    wgmma_sync(ROLES_MULTIPLY);
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        keep_gated<ROLES_OUT / 2>(a, own, n_rows, 0, part.tile_of(a, warp), k, total[k]);
    wgmma_sync(ROLES_MULTIPLY);
    put_gated_rows<N, true, ROLES_OUT / 2>(a, n_rows, 0, part.local, ROLES_MULTIPLY);
}

/* Computes the thread's outputs of its part, or with shared segments their sums. */
template <uint32_t N>
DEVICE void roles_multiply(const struct matmul_args &a, float (&total)[N / 2]) {
    uint32_t lane = threadIdx.x % 32;
    float *shared = NULL;
    struct RolesPart part;

    part.find(a, blockIdx.x);
    uint32_t tile = part.tile_of(a, threadIdx.x / 32);
    /* warps without a row tile multiply as well, and store nothing */
    if (a.n_splits > 1 && tile < part.m->n_row_tiles)
        shared = roles_sum(a, part, tile, lane / 4) + lane % 4 * 2 * WIDE_OUT;
    walk_of(part.m->format, RolesWalk<N>{a, part.which, part.first, part.last, total, shared});
}

/* Writes y. Computes the part again, since registers are scarce during the walk. */
template <uint32_t N>
DEVICE void roles_store(const struct matmul_args &a, const float (&total)[N / 2]) {
    uint32_t lane = threadIdx.x % 32, n_rows = product_count_rows(a);
    struct RolesPart part;

    if (a.leave)
        return;
    part.find(a, anew(blockIdx.x));
    uint32_t tile = part.tile_of(a, threadIdx.x / 32);
    if (a.n_splits > 1)
        return roles_store_shared(a, part, n_rows);
    if (a.gated)
        return roles_store_gated<N>(a, part, n_rows, total);
    if (tile >= part.m->n_row_tiles)
        return;
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
        product_store(a, *part.m, n_rows, k / 4 * PACK_ROWS + lane % 4 * 2 + k % 2,
                      tile * TILE_ROWS + lane / 4 + k % 4 / 2 * 8, total[k]);
}

/* Copies the part's stages, by one warp. */
template <uint32_t N> DEVICE void roles_copy(const struct matmul_args &a) {
    struct RolesCopies<N> copies;
    struct RolesPart part;

    part.find(a, blockIdx.x);
    copies.start(a, part);
    copies.run();
}

template <uint32_t N> DEVICE void roles_run(const struct matmul_args &a) {
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < ROLES_STAGES; i++) {
            bulk_init(roles_full(i));
            bulk_init(roles_empty(i), ROLES_WARPS);
        }
        bulk_publish();
    }
    sync_block();
    if (threadIdx.x < ROLES_MULTIPLY) {
        float total[N / 2];

        wgmma_more<ROLES_MANY>();
        wait_for_previous();
        roles_multiply<N>(a, total);
        roles_store<N>(a, total);
    } else {
        wgmma_fewer<ROLES_FEW>();
        if (threadIdx.x < ROLES_MULTIPLY + 32)
            roles_copy<N>(a);
        else
            wait_for_previous();
    }
}

#define ROLES_BODY(N) roles_run<N>(a)
#else
#define ROLES_BODY(N)
#endif

KERNEL(matmul_roles_24, struct matmul_args, ROLES_THREADS, 1) {
    ROLES_BODY(24);
}

KERNEL(matmul_roles_32, struct matmul_args, ROLES_THREADS, 1) {
    ROLES_BODY(32);
}

KERNEL(matmul_roles_48, struct matmul_args, ROLES_THREADS, 1) {
    ROLES_BODY(48);
}

KERNEL(matmul_roles_64, struct matmul_args, ROLES_THREADS, 1) {
    ROLES_BODY(64);
}
