#pragma once

/*
 * cpu - the fast host backend: its parts and their interfaces. Private to engine/cpu.
 *
 *   backend.c   the op table: buffers, steps, which phase runs where
 *   isa.c chooses the instruction set of this machine
 *   pool.c      the threads: fork-join inside one op
 *   panel.c     weights repacked into panels of 16 output rows
 *   matmul.c    panels x activations, cut into work items
 *   attend.c    attention over pages, cut into work items
 *   recurrent.c the states of sequences, and what recurrent layers have in common
 *   delta.c     gated delta nets; conv.c short convolutions; mamba.c Mamba-2
 *   mla.c       latent attention
 *   condensed.c attention to a window and to condensed keys
 *   host_experts.c  experts of layers that a device leaves to the host
 *   vision.c    what image encoders are made of
 *
 * and, compiled once an instruction set (vec.h): acts.c, rows.c, gemm_k.c, gemm_b.c, gemm_f.c,
 * attention.c, recurrent_rows.c.
 * docs/design/cpu-kernels.md has the layouts and the order of operations that defines the bits of a
 * result.
 */

#include "engine/backend.h"

enum { LANES = 16, TILE_MAX = 8 };

/* Formats of activations (acts.c). Per row, for every block of values:
 *   ACTS_K   256: int8, scale, sums of 16 and 32      K-quants, IQ4_XS
 *   ACTS_KT  the same, the int8 of each 32 transposed as 8 x 4 instead of 4 x 8: IQ2_XXS
 *   ACTS_B   32: int8, scale, sum
 *   ACTS_B16 like ACTS_B with sums of 16: NVFP4
 *   ACTS_F   float */
enum acts_kind { ACTS_K, ACTS_KT, ACTS_B, ACTS_B16, ACTS_F, ACTS_KINDS };

/* Formats of panels; panel.c has the layouts. */
enum panel_format {
    PANEL_F32,
    PANEL_F16,
    PANEL_BF16,
    PANEL_Q4K,
    PANEL_Q5K,
    PANEL_Q6K,
    PANEL_Q3K,
    PANEL_Q2K,
    PANEL_IQ4XS,
    PANEL_IQ2XXS,
    PANEL_IQ1S,
    PANEL_IQ1M,
    PANEL_IQ2S, /* and IQ2_XS */
    PANEL_IQ3XXS,
    PANEL_IQ3S,
    PANEL_TQ, /* TQ1_0, TQ2_0 */
    PANEL_Q8, /* Q8_0 */
    PANEL_Q5, /* Q5_0 */
    PANEL_Q4, /* Q4_0 */
    PANEL_IQ4NL,
    PANEL_Q4M, /* Q4_1: with minimums */
    PANEL_Q5M, /* Q5_1 */
    PANEL_MXFP4,
    PANEL_NVFP4,
    PANEL_FORMATS
};

/* Properties that all panels of a format share. */
struct panel_info {
    enum acts_kind acts;
    uint16_t block;                   /* values of a row that share a scale */
    uint16_t quant_bytes, meta_bytes; /* bytes for 16 rows of a block */
    uint16_t unit, unit_bytes;        /* blocks that are stored together: their quants, then their
                                * scales */
};

/* In the header, so that the kernels' strides are constants. Layouts: panel.c. */
static const struct panel_info panel_infos[PANEL_FORMATS] = {
    [PANEL_F32] = {ACTS_F, 1, 64, 0, 1, 64},
    [PANEL_F16] = {ACTS_F, 1, 32, 0, 1, 32},
    [PANEL_BF16] = {ACTS_F, 1, 32, 0, 1, 32},
    [PANEL_Q4K] = {ACTS_K, 256, 2048, 320, 1, 2368},
    [PANEL_Q5K] = {ACTS_K, 256, 2560, 320, 1, 2880},
    [PANEL_Q6K] = {ACTS_K, 256, 3072, 288, 1, 3392},
    [PANEL_Q3K] = {ACTS_K, 256, 1536, 288, 1, 1856},
    [PANEL_Q2K] = {ACTS_K, 256, 1024, 576, 1, 1600},
    [PANEL_IQ4XS] = {ACTS_K, 256, 2048, 160, 1, 2240},
    [PANEL_IQ2XXS] = {ACTS_KT, 256, 1024, 160, 1, 1216},
    [PANEL_IQ1S] = {ACTS_K, 256, 1024, 288, 1, 1344},
    [PANEL_IQ1M] = {ACTS_K, 256, 1536, 288, 1, 1856},
    [PANEL_IQ2S] = {ACTS_K, 256, 1536, 288, 1, 1856},
    [PANEL_IQ3XXS] = {ACTS_K, 256, 2048, 160, 1, 2240},
    [PANEL_IQ3S] = {ACTS_K, 256, 2048, 160, 1, 2240},
    [PANEL_TQ] = {ACTS_K, 256, 1024, 32, 1, 1088},
    [PANEL_Q8] = {ACTS_B, 32, 512, 32, 2, 1088},
    [PANEL_Q4] = {ACTS_B, 32, 256, 32, 2, 576},
    [PANEL_IQ4NL] = {ACTS_B, 32, 256, 32, 2, 576},
    [PANEL_Q4M] = {ACTS_B, 32, 256, 64, 2, 640},
    [PANEL_Q5] = {ACTS_B, 32, 320, 32, 2, 704},
    [PANEL_Q5M] = {ACTS_B, 32, 320, 64, 2, 768},
    [PANEL_MXFP4] = {ACTS_B, 32, 256, 16, 4, 1088},
    [PANEL_NVFP4] = {ACTS_B16, 64, 512, 64, 1, 576},
};

/* A weight matrix as panels of 16 rows (the last filled up with zero rows). A panel is read from
 * front to back, once. */
struct mat {
    enum panel_format format;
    uint32_t n_out, n_in, n_blocks, n_panels;
    size_t panel_bytes;
    uint8_t *data;             /* aligned to 64 */
    const float *scale, *bias; /* factor of the matrix, and bias of each row; NULL: 1, 0 */
};

/* Returns panel @i: rows [16 i, 16 i + 16). */
static inline const uint8_t *mat_panel(const struct mat *m, uint32_t i) {
    return m->data + i * m->panel_bytes;
}

/* Chooses the layout: fills all members except data, scale and bias. Returns 0, or -EINVAL with
 * @err for a format that has no panels. */
int panel_plan(struct mat *m, const struct tensor *t, struct err *err);
/* Repacks 16 rows of @t; lossless. */
void panel_pack(const struct mat *m, const struct tensor *t, uint32_t panel, uint8_t *out);

/* Activations of a row; rows are acts_bytes() apart. Either floats, or the int8 of all its blocks
 * followed, block by block, by these 4-byte numbers: */
enum {
    /* ACTS_K, ACTS_KT */
    AK_NEG32_SUM16 = 0,   /* 16 x int32: -32 times the sum of 16 values */
    AK_NEG128_SUM32 = 16, /* 8 x int32 */
    AK_PAIRS32 = 24,      /* 4 x two int16: sums of 32 */
    AK_PAIRS16 = 28,      /* 8 x two int16: sums of 16 */
    AK_SCALE = 36,        /* float */
    AK_UNITS = 37,
    /* ACTS_B */
    AB_NEG8_SUM = 0, /* int32 */
    AB_NEG128_SUM = 1,
    AB_SUM = 2, /* float */
    AB_SCALE = 3,
    AB_UNITS = 4,
    AB_NEG16_SUM16 = 4, /* ACTS_B16: 2 x int32 */
    AB16_UNITS = 6,
};

/* Returns the bytes of @n rows of @n_in activations. The distance of rows keeps eight rows from
 * falling into one set of a cache. */
static inline size_t acts_bytes(enum acts_kind kind, uint32_t n_in, uint32_t n) {
    size_t row = kind == ACTS_F     ? (size_t)n_in * 4
                 : kind == ACTS_B   ? n_in + (size_t)n_in / 32 * AB_UNITS * 4
                 : kind == ACTS_B16 ? n_in + (size_t)n_in / 32 * AB16_UNITS * 4
                                    : n_in + (size_t)n_in / 256 * AK_UNITS * 4;

    row = round_up(row, 64);
    return (row % 1024 ? row : row + 64) * n;
}

/* Returns the number of columns with which a tile of @n columns is computed; the results of the
 * additional columns are not used. */
static inline uint32_t tile_width(uint32_t n) {
    return n > 4 ? 8 : n > 2 ? 4 : n;
}

struct kv_view {            /* place of the keys and values of a layer's kv head in a page */
    struct kv_formats type; /* not F32 */
    uint32_t head_dim, page_tokens;
    size_t k_group; /* bytes of 16 keys */
    size_t k_head, v_head;
};

/* Returns the bytes of @n codes, without scales. */
static inline size_t kv_codes(enum engine_kv_type type, size_t n) {
    return n * kv_types[type].code_bits / 8;
}

/* Running softmax of the queries of one kernel call: maximum, 16 partial sums, weighted values. */
struct attn_state {
    float m, l[LANES];
    float *o; /* [head_dim rounded up to 16] */
};

/* 32 keys as two groups of 16. */
struct attn_tile {
    const uint8_t *k[2];
    const uint8_t *v[2];       /* values of the group's first key */
    const uint8_t *v_scale[2]; /* scales of blocks */
    uint32_t first, n;         /* keys [first, n) are visible, n 1..32 */
    float cap;                 /* limit of the scores; 0: none */
    /* alibi: scores decrease with distance. slope[]: the decrease of each query's score per
     * position; at[]: the query's position less that of the first key. */
    bool alibi;
    const float *hide; /* [32] added to the scores: -inf for keys that are not seen; or NULL */
    bool holes;        /* scores that are not finite are of keys that weigh nothing */
    float slope[4], at[4];
};

/* Kernel that multiplies a panel of a format by a tile of activations. acc[column][lane] += panel x
 * tile over the blocks [b0, b1); for ACTS_F over all blocks, and acc is overwritten. */
struct gemm {
    void (*run)(const struct mat *m, const uint8_t *panel, const uint8_t *acts, uint32_t n,
                uint32_t b0, uint32_t b1, float *acc);
};

/* Many rows against the same panel: its quants are unpacked once. Of ACTS_F, @acc has two sums for
 * each row and lane until the last stretch, and @b0 is even. */
struct gemm_wide {
    /* Unpacks the quants of a run of blocks to bytes, n_planes x 16 x block for each block; for
     * ACTS_F to floats, where n_planes is their size. NULL: the format is not unpacked. */
    void (*unpack)(const struct mat *m, const uint8_t *panel, uint32_t b0, uint32_t b1,
                   uint8_t *out);
    /* Multiplies like gemm.run, for @n_tiles consecutive full tiles, a multiple of min_tiles. */
    void (*run)(const struct mat *m, const uint8_t *panel, const uint8_t *quants,
                const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1, float *acc);
    uint32_t n_planes, min_tiles;
};

/* A value head of a delta net and its rows. Row r: q, k and v at r * stride, e^g and sigmoid(beta)
 * at r * mix_stride, the output at r * out_stride. */
struct delta_head {
    uint32_t dim, n_rows; /* dim: a multiple of 16 */
    const float *q, *k, *v;
    size_t stride;
    const float *keep, *beta;
    size_t mix_stride;
    size_t keep_stride; /* KDA: @keep has e^g of each key, row r at r * keep_stride */
    float *out;
    size_t out_stride;
};

/* A head of Mamba-2 and its rows. Row r: x, B (@in) and C (@out) at r * stride, e^(dt A) and dt at
 * r * mix_stride, the output at r * y_stride. */
struct mamba_head {
    uint32_t dim, n_state, n_rows; /* dim: a multiple of 16, n_state one of 4 */
    const float *x, *in, *out;
    size_t stride;
    const float *keep, *dt;
    size_t mix_stride;
    float skip; /* factor of x in the output */
    float *y;
    size_t y_stride;
};

/* The code of one instruction set. */
struct cpu_kernels {
    const char *name;

    /* Writes the activations of row @x. */
    void (*acts_store[ACTS_KINDS])(const float *x, uint32_t n_in, uint8_t *row);
    const struct gemm *gemm_k, *gemm_b, *gemm_f;     /* [PANEL_FORMATS], by kind of activations */
    const struct gemm_wide *gemm_wide, *gemm_wide_f; /* [PANEL_FORMATS] */

    /* y = x / rms(x) * w; w NULL: 1 */
    void (*norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    /* x = (x - mean(x)) / sqrt(variance(x) + eps) * w + bias; bias NULL: 0 */
    void (*layer_norm)(float *x, const float *w, const float *bias, uint32_t n, float eps);
    /* x = mx_gelu(x) */
    void (*gelu)(float *x, uint32_t n);
    /* Rotates the pairs of the first @n_rot values of a head; @cs: n_rot / 2 cosines, then as many
     * sines. */
    void (*rope)(float *x, const float *cs, uint32_t n_rot, enum rope_type type);
    /* Multiplies each run of @run values of @x by the Hadamard matrix (shape.h); @run: a power of
     * two, from 32 on */
    void (*hadamard)(float *x, uint32_t n, uint32_t run);
    /* h = glu(g, u), as enum glu says; h may be g */
    void (*glu[GLUS])(const float *g, const float *u, float *h, uint32_t n);
    /* h = min(silu(g), limit) u, u within +-limit; @n: a multiple of 16; h may be g */
    void (*silu_limited)(const float *g, const float *u, float *h, uint32_t n, float limit);
    /* h = silu(min(g, limit)) u; h may be g */
    void (*silu_cut)(const float *g, const float *u, float *h, uint32_t n, float limit);
    /* x = e^(scale (x - the largest x)) and returns the sum; @n: a multiple of 16, scale > 0. */
    float (*exps)(float *x, uint32_t n, float scale);
    /* x = cap tanh(x / cap) */
    void (*soft_cap)(float *x, uint32_t n, float cap);
    /* o *= sigmoid(g) */
    void (*gate)(float *o, const float *g, uint32_t n);
    /* acc = fma(w, x, acc) */
    void (*add_scaled)(float *acc, const float *x, float w, uint32_t n);
    /* Writes the key and value of a position into its page: @slot is the position inside the
     * page. */
    void (*kv_write)(const struct kv_view *v, uint8_t *k_head, uint8_t *v_head, uint32_t slot,
                     const float *k, const float *val);

    /* Adds the keys of a tile for @n (1..4) queries that see the same keys. @q holds the queries
     * times the scale of the scores: dimension d of query c at d * stride + c. */
    void (*attend)(const struct kv_view *v, const struct attn_tile *t, const float *q,
                   uint32_t stride, uint32_t n, struct attn_state *const *state);
    /* score[i] = the sum over heads of max(0, q . key i), for @n consecutive keys in halves; q:
     * [n_head][dim], dim a multiple of 16 */
    void (*index_scores)(const float *q, uint32_t n_head, uint32_t dim, const uint8_t *keys,
                         uint32_t n, float *score);
    /* y = the @n halves at @x; n, and dim below: a multiple of 16 */
    void (*halves)(const uint8_t *x, float *y, uint32_t n);
    /* score[h * stride + i] = scale q[h] . key[i]; q: [n_head][dim] */
    void (*dots)(const float *q, uint32_t n_head, uint32_t dim, const float *const *key, uint32_t n,
                 float scale, float *score, size_t stride);
    /* o[h] += the sum of weight[h * stride + i] key[i], by fma in the keys' order; o:
     * [n_head][dim] */
    void (*weigh_keys)(const float *weight, size_t stride, uint32_t n_head, uint32_t dim,
                       const float *const *key, uint32_t n, float *o);
    /* Adds the later part @b of the keys to @a. */
    void (*attend_merge)(struct attn_state *a, const struct attn_state *b, uint32_t head_dim);
    /* Adds a key that has score @sink and no value. */
    void (*attend_sink)(struct attn_state *a, float sink, uint32_t head_dim);
    /* out = weighted values / sum of weights, of one key at least. */
    void (*attend_finish)(const struct attn_state *a, float *out, uint32_t head_dim);

    /* Recurrent layers: OP_DELTA and its kin in op.h; recurrent_rows.c.
     * c = sum over j < kernel of w[j] u[j], rows of @n values (a multiple of 16), plus bias (NULL:
     * 0); through silu if so. */
    void (*convolve)(const float *w, const float *const *u, uint32_t kernel, const float *bias,
                     bool silu, float *c, uint32_t n);
    /* x *= scale / sqrt(x . x + eps) */
    void (*delta_unit)(float *x, uint32_t n, float eps, float scale);
    /* Advances the state @m of a head by all rows, in their order. @m: sixteen values of the head
     * after the other, of each [dim][16] or [n_state][16]. */
    void (*delta_advance)(const struct delta_head *h, float *m);
    void (*kda_advance)(const struct delta_head *h, float *m);
    void (*mamba_advance)(const struct mamba_head *h, float *m);
    /* keep = e^(lower sigmoid(by (x + dt))); @n: a multiple of 16; keep may be x */
    void (*kda_keep)(const float *x, const float *dt, float by, float lower, float *keep,
                     uint32_t n);
};

/* Returns the products of @k for panels of @format. */
static inline const struct gemm *gemm_of(const struct cpu_kernels *k, enum panel_format format) {
    enum acts_kind kind = panel_infos[format].acts;

    return &(kind == ACTS_F                       ? k->gemm_f
             : kind == ACTS_B || kind == ACTS_B16 ? k->gemm_b
                                                  : k->gemm_k)[format];
}

/* Returns the products of many rows of @k for panels of @format. */
static inline const struct gemm_wide *gemm_wide_of(const struct cpu_kernels *k,
                                                   enum panel_format format) {
    return &(panel_infos[format].acts == ACTS_F ? k->gemm_wide_f : k->gemm_wide)[format];
}

extern const struct cpu_kernels cpu_kernels_generic, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_amx, cpu_kernels_neon, cpu_kernels_dotprod, cpu_kernels_i8mm;

/* Called on the calling thread (@thread 0) and on the threads that start in time: each takes items
 * until none is left. */
typedef void (*pool_fn)(void *ctx, uint32_t thread);

struct pool;
/* Makes a pool of @n_threads threads, including the caller's, which is thread 0; 0: the number of
 * processors that this process may use. 0 or -errno. */
int pool_new(struct pool **out, uint32_t n_threads);
/* Ends the threads; no round may be open. Accepts NULL, returns NULL. */
struct pool *pool_free(struct pool *p);
uint32_t pool_n_threads(const struct pool *p); /* including the caller's */
/* Runs @fn on the calling thread and on the threads that start before it returns there; returns
 * when all have returned. All threads see earlier writes of the caller, and the caller sees their
 * writes afterwards. Must not be called inside @fn. */
void pool_run(struct pool *p, pool_fn fn, void *ctx);

/* One or more products of the same activations, cut into items that the threads take. */
enum matmul_mode {
    MATMUL_STORE, /* out[i] = scale m[i] a + bias */
    MATMUL_ADD,   /* out[0] += scale m[0] a + bias */
    MATMUL_GLU,   /* out[0] = glu(scale m[0] a + bias, scale m[1] a + bias) */
};

enum { MATMUL_ROWS = 256, MATMUL_UNPACK = 16 * 1024 }; /* sizes of a thread's scratch memory */

struct matmul_scratch {                                  /* one for each thread */
    _Atomic uint64_t range __attribute__((aligned(64))); /* items: first | end << 32 */
    float acc[2][MATMUL_ROWS * LANES * 2] __attribute__((aligned(64)));
    uint8_t quants[MATMUL_UNPACK] __attribute__((aligned(64)));
};

/* Invariants: all matrices have the same n_in; GLU has two of the same format and n_out, ADD one;
 * row r of m[i]'s result is at out[i] + r * out_stride[i]; acts[] is set for every kind that m[]
 * wants. */
struct matmul {
    const struct cpu_kernels *kernels;
    enum matmul_mode mode;
    enum glu glu; /* function of mode GLU */
    float limit;  /* limit of GLU_SILU, 0: none; of GLU_CUT */
    uint32_t n_mats, n_rows;
    const struct mat *m[OP_MATRICES];
    float *out[OP_MATRICES];
    size_t out_stride[OP_MATRICES];  /* floats */
    const uint8_t *acts[ACTS_KINDS]; /* tiles of 8 rows; those that m[] wants */
    struct matmul_scratch *scratch;
    /* Division into items, set by matmul_run(). */
    uint32_t chunk_rows, n_chunks, stretch, n_panels, first_item;
};

/* acc[row][lane] = panel @panel of @m times @n_rows rows of activations at @acts, whose tiles are
 * whole. Room: @acc [rows of these tiles][LANES], of ACTS_F twice that; @quants MATMUL_UNPACK
 * bytes, or NULL for F32, whose panel is read where it is. */
void matmul_panel(const struct cpu_kernels *k, const struct mat *m, uint32_t panel,
                  const uint8_t *acts, uint32_t n_rows, float *acc, uint8_t *quants);
/* @n products at once, 1 at least; each has rows and activations of its own. A result depends on
 * its own row and matrix only, not on how the work is cut or which thread does it. */
void matmul_run(struct pool *p, struct matmul *mm, uint32_t n);

/* Returns the kernels for the name opts.isa. NULL with @err: the name is unknown, or this machine
 * cannot run them. */
const struct cpu_kernels *isa_find(const char *name, struct err *err);

/* [i][j]: value j of entry i of the IQ2_XXS grid; in the other, [j][i]: the same plus 64. Filled by
 * isa.c, which is compiled for every machine: a constructor in a file of one instruction set would
 * run where that is missing. */
extern uint8_t cpu_iq2_runs[256][8], cpu_iq2_grid[8][256];
