/*
 * matvec_cluster - y (+)= W x + bias for 3 to 16 rows, by clusters of blocks that share the
 * activations (kernels_cluster.h). In matvec each of a block's warps has another segment of a row
 * tile, so a block reads all activations for each row tile. Here a block has one segment of eight
 * row tiles, and keeps the activations of that segment in shared memory:
 *
 *                  tile 40       tile 41         tile 47
 *         block 0  [segment 0]   [segment 0] ... [segment 0]    warps 0 to 7
 *         block 1  [segment 1]   [segment 1] ... [segment 1]
 *         ...
 *         sums of  block 0       block 1     ... block 7        segment 0, then 1, ...
 *
 * The sums of a row tile go to the shared memory of the block that adds them up, while its warps
 * are at their next row tile: the cluster's barrier is waited for one row tile late.
 */

#include "engine/cuda/cluster.cuh"
#include "engine/cuda/products/kernels_cluster.h"
#include "engine/cuda/products/matvec_walk.cuh"

#ifdef WEFT_CLUSTERS

/* Returns row tile @i of the eight that begin with @lead, or n_tiles if there are fewer. */
DEVICE uint32_t cluster_tile(const struct matmul_args &a, uint32_t lead, uint32_t i) {
    uint32_t end = lead < a.gated ? a.gated : a.n_tiles;

    return lead + i < end ? lead + i : a.n_tiles;
}

/* Multiplies, in a warp, its block's segment of one row tile in each eight of the cluster. */
struct OfCluster {
    static MEMBER uint32_t segment() {
        return blockIdx.x % MATVEC_CLUSTER;
    }
    /* Returns the first row tile of the cluster. */
    static MEMBER uint32_t lead() {
        return blockIdx.x / MATVEC_CLUSTER * MATVEC_CLUSTER;
    }
    static MEMBER uint32_t first(const struct matmul_args &a) {
        return cluster_tile(a, lead(), threadIdx.x / 32);
    }
};

/* The activations of a block's segment in shared memory, [G][columns / 32][8][32], and what a lane
 * reads of them. */
template <int F, int G> struct ClusterRows {
    uint32_t x[G]; /* offsets in shared memory of the lane's activations of the first part */

    /* Copies segment @segment of the rows to offset @to. A lane without a row loads the first. */
    MEMBER void start(const struct matmul_args &a, const struct matrix &m, uint32_t segment,
                      uint32_t n_rows, uint32_t to) {
        constexpr uint32_t part = Parts<F>::n * Parts<F>::pairs * 512;
        uint32_t lane = threadIdx.x % 32, first = m.unit[segment] * part;
        const uint8_t *from = (const uint8_t *)a.x + first;

        if constexpr (has_bytes(F))
            from += plane_bytes(a.n_blocks);
        uint32_t group = m.unit[segment + 1] * part - first; /* bytes of eight rows */
#pragma unroll
        for (uint32_t g = 0; g < G; g++) {
            bool there = g * PACK_ROWS + lane / 4 < n_rows;

            x[g] = to + (there ? g * group + lane * 16 : lane % 4 * 16);

#pragma unroll 4
            for (uint32_t i = threadIdx.x * 16; i < group; i += CUDA_THREADS * 16)
                if (there)
                    store16(dynamic_shared() + to + g * group + i,
                            load16_device(from + g * weights_group_bytes(a.n_blocks) + i));
        }
    }
    /* Returns the activations of pair @p of part @part, counted from the segment's first on. */
    MEMBER struct vec4 load(uint32_t g, uint32_t part, uint32_t p) const {
        return load16(dynamic_shared() + x[g] + (part * Parts<F>::pairs + p) * 512);
    }
};

/* Goes over the row tiles of the block's cluster, for G groups of 8 rows. */
template <int G> struct ClusterWalk {
    const struct matmul_args &a;

    /* Returns a half of the sums of the block's row tile, [4 G][CUDA_THREADS]. */
    MEMBER float *sums(uint32_t half) const {
        float *first = (float *)(dynamic_shared() + matvec_shared(a.stage_bytes, a.n_stages));

        return first + half * (4 * G * CUDA_THREADS);
    }
    /* Adds the products of the warp's tiles of its row tile to c. */
    template <int F>
    MEMBER void add(const struct matrix &m, struct Feed<F, OfCluster> &feed,
                    const struct ClusterRows<F, G> &rows, float c[G][4]) const {
        constexpr uint32_t units = TILE_STAGE_UNITS(F);
        uint32_t segment = OfCluster::segment(), n = m.unit[segment + 1] - m.unit[segment];

#pragma unroll 1
        for (uint32_t u = 0; u < n; u += units) {
            const uint8_t *stage = feed.take(a);

#pragma unroll
            for (uint32_t k = 0; k < units; k++)
                if (u + k < n)
                    add_unit<F>(m, stage + k * tile_bytes(F), u + k, rows, c);
        }
    }
    template <int F>
    MEMBER void add_unit(const struct matrix &m, const uint8_t *tile, uint32_t unit,
                         const struct ClusterRows<F, G> &rows, float c[G][4]) const {
#pragma unroll 1
        for (uint32_t part = 0; part < Parts<F>::n; part++) {
            PartSums<F> sums[G] = {};
            struct Tile<F> t;

            t.load(tile, threadIdx.x % 32, part, m.grid);
#pragma unroll
            for (uint32_t p = 0; p < Parts<F>::pairs; p++) {
                Pair<F> w;

                w.take(t, (int)p, false);
#pragma unroll
                for (int g = 0; g < G; g++)
                    w.add(rows.load(g, unit * Parts<F>::n + part, p), c[g], sums[g]);
            }
        }
    }
    /* Stores the warp's sums of its row tile in the block that adds them up. */
    MEMBER void send(uint32_t half, const float c[G][4]) const {
        float *to = sums(half) + OfCluster::segment() * TILE_LANES + threadIdx.x % 32;

#pragma unroll
        for (int j = 0; j < 4 * G; j++)
            cluster_store(to + j * CUDA_THREADS, threadIdx.x / 32, c[j / 4][j % 4]);
    }
    /* Writes y of the block's row tile of the eight from @lead on. */
    MEMBER void finish(uint32_t half, uint32_t lead,
                       const struct Element<LivePass> &element) const {
        uint32_t local, tid = anew(threadIdx.x);
        uint32_t tile = cluster_tile(a, anew(lead), OfCluster::segment());

        if (tile >= a.n_tiles || tid >= TILE_LANES * 4 * G)
            return;
        uint32_t i = matrix_of(a, tile, &local);
        const float *value = sums(half) + tid / 32 * CUDA_THREADS + tid % 32;
        element.put(a, a.m[i], i, local, add_segments(value, a.m[i].n_units), sums(2) + tid);
    }
    template <int F> MEMBER void of() const {
        uint32_t lead = OfCluster::lead(), before = a.n_tiles, half = 0, local;
        const struct matrix &m = a.m[matrix_of(a, lead, &local)];
        struct ClusterRows<F, G> rows;
        struct Element<LivePass> element;
        struct Feed<F, OfCluster> feed;

        feed.start(a); /* before the preceding kernel has ended: it does not change weights */
        cluster_arrive();
        element.n_rows = product_count_rows(a);
        wait_for_previous();
        rows.start(a, m, OfCluster::segment(), element.n_rows,
                   matvec_shared(a.stage_bytes, a.n_stages) + cluster_floats(G) * 4);
        uint32_t row = element.row_of(threadIdx.x);
        element.scale = row < element.n_rows ? a.scale[row] : 0;
        sync_block();
#pragma unroll 1
        for (; lead < a.n_tiles; lead = next_tile(a, lead)) {
            uint32_t tile = cluster_tile(a, lead, threadIdx.x / 32);
            float c[G][4] = {};

            if (tile < a.n_tiles)
                add<F>(a.m[matrix_of(a, tile, &local)], feed, rows, c);
            cluster_wait(); /* all blocks have begun, or have given the sums before */
            finish(half ^ 1, before, element);
            if (tile < a.n_tiles)
                send(half, c);
            cluster_arrive();
            before = lead;
            half ^= 1;
        }
        cluster_wait();
        finish(half ^ 1, before, element);
        copy_wait<0>();
    }
};

/* Multiplies the row tiles of the block's cluster, which all have one format. */
template <int G> DEVICE void cluster_groups(const struct matmul_args &a) {
    uint32_t local;

    walk_of(a.m[matrix_of(a, OfCluster::lead(), &local)].format, ClusterWalk<G>{a});
}
#else
template <int G> DEVICE void cluster_groups(const struct matmul_args &) {}
#endif

KERNEL_CLUSTER(matvec_cluster, struct matmul_args, CUDA_THREADS, MATVEC_BLOCKS, MATVEC_CLUSTER) {
    cluster_groups<1>(a);
}

KERNEL_CLUSTER(matvec_cluster_16, struct matmul_args, CUDA_THREADS, 2, MATVEC_CLUSTER) {
    cluster_groups<2>(a);
}
