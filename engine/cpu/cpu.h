#pragma once

/*
 * cpu - the fast host backend: its parts and their interfaces. Private to engine/cpu.
 *
 *   backend.c       the table of ops; buffers and steps
 *   ops.c           the ops that have no file of their own, phase by phase
 *   isa.c           chooses the instruction set of this machine
 *   pool.c          the threads, which fork and join inside one op
 *   matmul.c        divides products of panels and activations into work items
 *   engine/ops      families of ops: cpu*.c
 *   blocks.c        ops of block drafters
 *   vision.c        ops of image encoders
 *
 * Files with kernels are compiled once for each instruction set (vec.h): acts.c, cpu_tiles.c,
 * gemm_b.c, gemm_f.c, gemm_g.c, gemm_k.c, kernels.c, rows.c, engine/ops/recurrent/cpu_rows.c;
 * gemm_amx.c and gemm_bf16.c for one each.
 *
 * docs/design/cpu-kernels.md has the layouts, and the order of operations that defines the bits of
 * a result.
 */

#include "engine/backend.h"
#include "engine/formats/panel.h"

/* Most rows of activations in a tile, the unit that a kernel multiplies by a panel. */
enum { TILE_MAX = 8 };

/* Layout of a row of activations; rows are acts_bytes() apart. ACTS_F: n_in floats. ACTS_H: the
 * words of gemm_f.c or gemm_bf16.c. Other formats: the int8 values of all blocks, then for each
 * block the following numbers of 4 bytes. An enum constant is the index of a number in its block;
 * AK_UNITS, AB_UNITS and AB16_UNITS count them. Some sums are multiplied by the negated offset
 * with which a format stores its weights, so that a dot product that begins with such a number
 * needs no correction. */
enum {
    /* ACTS_K, ACTS_KT */
    /* 16 int32: -32 times the sum of 16 values */
    AK_NEG32_SUM16 = 0,
    /* 8 int32: -128 times the sum of 32 values */
    AK_NEG128_SUM32 = 16,
    /* 4 pairs of int16: sums of 32 values */
    AK_PAIRS32 = 24,
    /* 8 pairs of int16: sums of 16 values */
    AK_PAIRS16 = 28,
    /* float */
    AK_SCALE = 36,
    /* 2 floats: sums of 128 values */
    AK_SUM128 = 37,
    AK_UNITS = 39,
    /* ACTS_B, ACTS_B16 */
    /* int32: -8 times the sum */
    AB_NEG8_SUM = 0,
    /* int32: -128 times the sum */
    AB_NEG128_SUM = 1,
    /* float */
    AB_SUM = 2,
    /* float */
    AB_SCALE = 3,
    AB_UNITS = 4,
    /* ACTS_B16 only: 2 int32, -16 times the sum of 16 values */
    AB_NEG16_SUM16 = 4,
    AB16_UNITS = 6,
};

/* Returns the bytes of @n rows of @n_in activations. Rows are never a multiple of 1024 bytes apart,
 * so that the eight rows of a tile do not compete for one set of a cache. */
static inline size_t acts_bytes(enum acts_kind kind, uint32_t n_in, uint32_t n) {
    size_t row;

    switch (kind) {
    case ACTS_F:
        row = (size_t)n_in * 4;
        break;
    case ACTS_H:
        row = round_up(n_in, 4) * 4;
        break;
    case ACTS_B:
        row = n_in + (size_t)n_in / 32 * AB_UNITS * 4;
        break;
    case ACTS_B16:
        row = n_in + (size_t)n_in / 32 * AB16_UNITS * 4;
        break;
    default:
        row = n_in + (size_t)n_in / 256 * AK_UNITS * 4;
    }
    row = round_up(row, 64);
    return (row % 1024 ? row : row + 64) * n;
}

/* Returns the number of columns with which a tile of @n columns is computed; the results of the
 * additional columns are not used. */
static inline uint32_t tile_width(uint32_t n) {
    if (n > 4)
        return 8;
    return n > 2 ? 4 : n;
}

/* Layout of the keys and values of a layer in a page: the keys of all kv heads, then the values of
 * all kv heads (docs/design/cpu-kernels.md). */
struct kv_view {
    /* not F32 */
    struct kv_formats type;
    /* head_dim: values of a key; value_dim: values of a value */
    uint32_t head_dim, value_dim, page_tokens;
    /* bytes of 16 keys of a kv head with their scales */
    size_t k_group;
    /* bytes of all keys, and of all values, of a kv head in a page */
    size_t k_head, v_head;
};

/* Returns the bytes of @n codes, without scales. */
static inline size_t kv_codes(enum engine_kv_type type, size_t n) {
    return n * kv_types[type].code_bits / 8;
}

/* Running softmax of one query over the keys that it has seen so far (engine/ops/attention/cpu.c):
 * the largest score, the sum of the weights in 16 parts, and the sum of the weighted values. */
struct attn_state {
    float m, l[LANES];
    /* [head_dim rounded up to 16] */
    float *o;
};

/* A tile of attention: 32 keys as two groups of 16, with their values. */
struct attn_tile {
    const uint8_t *k[2];
    /* values of the group's first key */
    const uint8_t *v[2];
    /* scales of the blocks of these values */
    const uint8_t *v_scale[2];
    /* the queries see keys [first, n); n is 1 to 32 */
    uint32_t first, n;
    /* soft cap of the scores; 0: no cap */
    float cap;
    /* scores decrease with distance, as slope[] and at[] say */
    bool alibi;
    /* [32], added to the scores: 0, -inf for hidden keys; NULL: hides none */
    const float *hide;
    /* a key whose score is not finite gets no weight (OP_HOLES) */
    bool holes;
    /* for alibi, by query: decrease of the score for each position of distance; position of the
     * query minus that of the tile's first key */
    float slope[4], at[4];
};

/* Kernel that multiplies a panel by a tile of @n rows of activations (1, 2, 4 or 8; the columns of
 * the product): acc[column][lane] += the dot products over the blocks [b0, b1). For ACTS_F and
 * ACTS_H over all blocks, and @acc is overwritten. */
struct gemm {
    void (*run)(const struct mat *m, const uint8_t *panel, const uint8_t *acts, uint32_t n,
                uint32_t b0, uint32_t b1, float *acc);
};

/* Kernels that multiply a panel by many tiles. The panel is unpacked once, a stretch of blocks at a
 * time, and each stretch is multiplied by all tiles. For ACTS_F and ACTS_H, stretches begin at a
 * multiple of four values, and until the last stretch @acc has two sums for each row and lane (of
 * FP8 one). */
struct gemm_wide {
    /* Unpacks the quants of blocks [b0, b1) to bytes: n_planes * 16 * block bytes for each block.
     * ACTS_F, ACTS_H: unpacks to words (gemm_f.h), and n_planes is the bytes of a value. Prefetches
     * what is unpacked next, @next bytes further. NULL: many rows of this format are multiplied by
     * gemm.run. */
    void (*unpack)(const uint8_t *panel, ptrdiff_t next, uint32_t b0, uint32_t b1, uint8_t *out);
    /* Multiplies like gemm.run, but for @n_tiles consecutive full tiles, a multiple of min_tiles,
     * and with the unpacked @quants. */
    void (*run)(const struct mat *m, const uint8_t *panel, const uint8_t *quants,
                const uint8_t *acts, uint32_t n_tiles, uint32_t b0, uint32_t b1, float *acc);
    uint32_t n_planes, min_tiles;
};

/* Operands of a value head of a delta net (OP_DELTA, OP_KDA). Row r has q, k and v at r * stride,
 * e^g and sigmoid(beta) at r * mix_stride, and its output at r * out_stride, in floats. */
struct delta_head {
    /* dim: a multiple of 16 */
    uint32_t dim, n_rows;
    const float *q, *k, *v;
    size_t stride;
    const float *keep, *beta;
    size_t mix_stride;
    /* KDA: @keep has e^g for each element of a key, row r at r * keep_stride */
    size_t keep_stride;
    float *out;
    size_t out_stride;
};

/* Operands of a head of Mamba-2 (OP_MAMBA). Row r has x at r * stride, B (@in) and C (@out) at r *
 * part_stride, e^(dt A) (@keep) and dt at r * mix_stride, and its output at r * y_stride, in
 * floats. */
struct mamba_head {
    /* dim: a multiple of 16; n_state: a multiple of 4 */
    uint32_t dim, n_state, n_rows;
    const float *x, *in, *out;
    size_t stride, part_stride;
    const float *keep, *dt;
    size_t mix_stride;
    /* factor of x in the output */
    float skip;
    float *y;
    size_t y_stride;
};

/* Operands of sixteen channels of Mamba-1 (OP_SCAN). Row r has x at r * stride, its step at r *
 * step_stride, B (@in) and C (@out) at r * part_stride, and its output at r * y_stride, in
 * floats. */
struct scan_channels {
    /* n_state: a multiple of 4 */
    uint32_t n_state, n_rows;
    const float *x;
    size_t stride;
    const float *step;
    size_t step_stride;
    const float *in, *out;
    size_t part_stride;
    /* [n_state][16] logarithms of decays, and [16] factors of x in the output */
    const float *decay, *skip;
    float *y;
    size_t y_stride;
};

/* The kernels of one instruction set. All instruction sets give the same bits. Functions on rows
 * take @n values; a formula names the operation on each of them. */
struct cpu_kernels {
    const char *name;
    /* Returns true if this processor rounds products as the kernels need it. NULL: all do. */
    bool (*is_exact)(void);

    /* Writes a row of @n_in floats as activations of the given format. */
    void (*acts_store[ACTS_KINDS])(const float *x, uint32_t n_in, uint8_t *row);
    /* [PANEL_FORMATS], by kind of activations */
    const struct gemm *gemm_k, *gemm_b, *gemm_f, *gemm_h;
    /* [PANEL_FORMATS] */
    const struct gemm_wide *gemm_wide, *gemm_wide_f, *gemm_wide_h;

    /* y = x / rms(x) * w; w NULL: 1 */
    void (*norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    /* x = (x - mean(x)) / sqrt(variance(x) + eps) * w + bias; bias NULL: 0 */
    void (*layer_norm)(float *x, const float *w, const float *bias, uint32_t n, float eps);
    /* x = mx_gelu(x) */
    void (*gelu)(float *x, uint32_t n);
    /* Rotates the pairs of the first @n_rot values of a head (RoPE). @cs: n_rot / 2 cosines, then
     * n_rot / 2 sines. */
    void (*rope)(float *x, const float *cs, uint32_t n_rot, enum rope_type type);
    /* Multiplies each run of @run values of @x by the Hadamard matrix (shape.h). @run: a power of
     * two, at least 32. */
    void (*hadamard)(float *x, uint32_t n, uint32_t run);
    /* h = glu(g, u) (op.h), except GLU_CUT and a limited GLU_SILU; h may be g */
    void (*glu[GLUS])(const float *g, const float *u, float *h, uint32_t n);
    /* h = min(silu(g), limit) clamp(u), GLU_SILU with a limit; @n: a multiple of 16; h may be g */
    void (*silu_limited)(const float *g, const float *u, float *h, uint32_t n, float limit);
    /* h = silu(min(g, limit)) clamp(u), GLU_CUT; @n: a multiple of 16; h may be g */
    void (*silu_cut)(const float *g, const float *u, float *h, uint32_t n, float limit);
    /* x = e^(scale (x - the largest x)). Returns the sum of the new values. @n: a multiple of 16;
     * scale > 0. */
    float (*exps)(float *x, uint32_t n, float scale);
    /* x = cap tanh(x / cap) */
    void (*soft_cap)(float *x, uint32_t n, float cap);
    /* o *= sigmoid(g) */
    void (*gate)(float *o, const float *g, uint32_t n);
    /* acc = fma(w, x, acc) */
    void (*add_scaled)(float *acc, const float *x, float w, uint32_t n);
    /* Writes the key and the value of a position to a kv head of its page. @slot: index of the
     * position in the page. */
    void (*kv_write)(const struct kv_view *v, uint8_t *k_head, uint8_t *v_head, uint32_t slot,
                     const float *k, const float *val);

    /* Adds the keys of a tile to the states of @n (1 to 4) queries that see the same keys. @q has
     * the queries, multiplied by the scale of the scores: dimension d of query c at d * stride +
     * c. */
    void (*attend)(const struct kv_view *v, const struct attn_tile *t, const float *q,
                   uint32_t stride, uint32_t n, struct attn_state *const *state);
    /* score[i] = sum over heads of max(0, q . key i), for @n consecutive keys in half precision; q:
     * [n_head][dim]; dim: a multiple of 16 */
    void (*index_scores)(const float *q, uint32_t n_head, uint32_t dim, const uint8_t *keys,
                         uint32_t n, float *score);
    /* y = the @n numbers of half precision at @x; @n: a multiple of 16 */
    void (*halves)(const uint8_t *x, float *y, uint32_t n);
    /* score[h * stride + i] = scale q[h] . key[i]; q: [n_head][dim]; dim: a multiple of 16 */
    void (*dots)(const float *q, uint32_t n_head, uint32_t dim, const float *const *key, uint32_t n,
                 float scale, float *score, size_t stride);
    /* o[h] += sum over i of weight[h * stride + i] key[i], by fma in the order of the keys; o:
     * [n_head][dim]; dim: a multiple of 16 */
    void (*weigh_keys)(const float *weight, size_t stride, uint32_t n_head, uint32_t dim,
                       const float *const *key, uint32_t n, float *o);
    /* Merges state @b, of keys that follow those of @a, into @a. */
    void (*attend_merge)(struct attn_state *a, const struct attn_state *b, uint32_t head_dim);
    /* Adds a key that has score @sink and no value. */
    void (*attend_sink)(struct attn_state *a, float sink, uint32_t head_dim);
    /* out = weighted values / sum of weights; @a has at least one key */
    void (*attend_finish)(const struct attn_state *a, float *out, uint32_t head_dim);

    /* Functions of recurrent layers (cpu_rows.c).
     * c = sum over j < kernel of w[j] u[j], plus @bias if it is not NULL; then c = silu(c) if @silu
     * is set. Rows have @n values, a multiple of 16. */
    void (*convolve)(const float *w, const float *const *u, uint32_t kernel, const float *bias,
                     bool silu, float *c, uint32_t n);
    /* x *= scale / sqrt(x . x + eps); @n: a multiple of 16 */
    void (*delta_unit)(float *x, uint32_t n, float eps, float scale);
    /* Advance the state @m of a head by all rows of @h, in their order, and write the outputs. The
     * state is stored by sixteen values of the head: [dim / 16][dim][16], of Mamba-2
     * [dim / 16][n_state][16]. */
    void (*delta_advance)(const struct delta_head *h, float *m);
    void (*kda_advance)(const struct delta_head *h, float *m);
    void (*mamba_advance)(const struct mamba_head *h, float *m);
    /* Advances the state @m of sixteen channels, [n_state][16]. */
    void (*scan_advance)(const struct scan_channels *h, float *m);
    /* keep = e^(lower sigmoid(by (x + dt))), the decays of OP_KDA; @n: a multiple of 16; keep may
     * be x */
    void (*kda_keep)(const float *x, const float *dt, float by, float lower, float *keep,
                     uint32_t n);
};

/* Returns the kernel of @k that multiplies a panel of @format by one tile. */
static inline const struct gemm *gemm_of(const struct cpu_kernels *k, enum panel_format format) {
    switch (panel_infos[format].acts) {
    case ACTS_F:
        return &k->gemm_f[format];
    case ACTS_H:
        return &k->gemm_h[format];
    case ACTS_B:
    case ACTS_B16:
        return &k->gemm_b[format];
    default:
        return &k->gemm_k[format];
    }
}

/* Returns the kernels of @k that multiply a panel of @format by many tiles. */
static inline const struct gemm_wide *gemm_wide_of(const struct cpu_kernels *k,
                                                   enum panel_format format) {
    switch (panel_infos[format].acts) {
    case ACTS_F:
        return &k->gemm_wide_f[format];
    case ACTS_H:
        return &k->gemm_wide_h[format];
    default:
        return &k->gemm_wide[format];
    }
}

extern const struct cpu_kernels cpu_kernels_generic, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_avx512bf16, cpu_kernels_amx, cpu_kernels_neon, cpu_kernels_dotprod,
    cpu_kernels_i8mm;

/* Function that pool_run() runs on several threads. It takes items of the work until there are no
 * more, because it runs on the calling thread (@thread 0) and on as many others as join in time. */
typedef void (*pool_fn)(void *ctx, uint32_t thread);

struct pool;
/* Creates a pool of @n_threads threads, at most 1024. The caller is thread 0 and counts. 0: one
 * thread for each processor that this process may use. Returns 0 or -errno. */
int pool_new(struct pool **out, uint32_t n_threads);
/* Ends the threads; must not be called during pool_run(). Accepts NULL, returns NULL. */
struct pool *pool_free(struct pool *p);
/* Returns the number of threads, including the caller of pool_run(). */
uint32_t pool_n_threads(const struct pool *p);
/* Runs @fn on the calling thread, and on each other thread that joins before @fn returns on the
 * calling one. Returns when all calls have returned. The threads see the caller's earlier writes,
 * and the caller sees theirs afterwards. Must not be called inside @fn. */
void pool_run(struct pool *p, pool_fn fn, void *ctx);

/* Function that pool_each() calls for item @i on thread @thread. */
typedef void (*each_fn)(void *ctx, uint32_t i, uint32_t thread);
/* Calls @fn for items 0 to @n - 1, in any order: threads take items one by one. The caller alone
 * computes a single item. */
void pool_each(struct pool *p, uint32_t n, each_fn fn, void *ctx);

/* Operation on the results of a product, struct matmul, with a = the activations. */
enum matmul_mode {
    /* out[i] = scale m[i] a + bias */
    MATMUL_STORE,
    /* out[0] += scale m[0] a + bias */
    MATMUL_ADD,
    /* out[0] = glu(scale m[0] a + bias, scale m[1] a + bias) */
    MATMUL_GLU,
};

/* Sizes of a thread's scratch memory: most rows of an item, most panels that share its activations,
 * bytes of unpacked weights, and floats of the sums of a panel (for ACTS_F and ACTS_H two of each
 * row and lane). */
enum {
    MATMUL_ROWS = 256,
    MATMUL_PANELS = 4,
    MATMUL_UNPACK = 16 * 1024,
    MATMUL_SUMS = MATMUL_ROWS * LANES * 2,
};

/* Scratch memory of one thread. */
struct matmul_scratch {
    /* items that the thread still has to take: first | end << 32 */
    _Atomic uint64_t range __attribute__((aligned(64)));
    /* sums of panels of one matrix, or of a gate and an up matrix */
    float acc[2][MATMUL_PANELS * MATMUL_SUMS] __attribute__((aligned(64)));
    uint8_t quants[MATMUL_UNPACK] __attribute__((aligned(64)));
};

/* Products of the same activations with one or more matrices.
 *
 * Invariants: all matrices have the same n_in; mode GLU has two with the same format and n_out,
 * mode ADD has one; row r of the result of m[i] is at out[i] + r * out_stride[i]; acts[] is set for
 * every format of activations that a matrix needs. */
struct matmul {
    const struct cpu_kernels *kernels;
    enum matmul_mode mode;
    /* function of mode GLU */
    enum glu glu;
    /* limit of GLU_SILU (0: no limit) or GLU_CUT */
    float limit;
    uint32_t n_mats, n_rows;
    const struct mat *m[OP_MATRICES];
    float *out[OP_MATRICES];
    /* floats */
    size_t out_stride[OP_MATRICES];
    /* the same rows in each format, in whole tiles of 8 rows */
    const uint8_t *acts[ACTS_KINDS];
    /* [number of threads] */
    struct matmul_scratch *scratch;
    /* Division into items, set by matmul_run() (matmul.c): rows and number of chunks of rows,
     * panels of an item, panels of all matrices, number of the first item of this product. */
    uint32_t chunk_rows, n_chunks, stretch, n_panels, first_item;
};

/* acc[row][lane] = panel @first of @m times @n_rows rows of activations at @acts, which has whole
 * tiles; likewise for the @n - 1 panels that follow, whose sums are MATMUL_SUMS floats apart. @acc
 * has room for [rows of these tiles][LANES] floats, for ACTS_F and ACTS_H twice as much. @quants
 * has MATMUL_UNPACK bytes; NULL, for F32 only: the weights are read from the panels directly. */
void matmul_panels(const struct cpu_kernels *k, const struct mat *m, uint32_t first, uint32_t n,
                   const uint8_t *acts, uint32_t n_rows, float *acc, uint8_t *quants);
/* Computes @n products, at least 1, with rows and activations of their own, in one round of the
 * pool. A result depends only on its row and its matrix, not on the division of the work. */
void matmul_run(struct pool *p, struct matmul *mm, uint32_t n);

/* Returns the kernels for @name, a value of engine_opts.isa; "auto" or NULL: those of the best
 * instruction set of this machine. Returns NULL with @err if the name is unknown, or if this
 * machine or this build lacks the instruction set. */
const struct cpu_kernels *isa_find(const char *name, struct err *err);

/* Returns true if AVX-512's products of BF16 round as gemm_bf16.c needs it. */
bool bf16_is_exact(void);

/* Grid of IQ2_XXS: cpu_iq2_runs[i][j] is value j of entry i, cpu_iq2_grid[j][i] that value plus 64.
 * isa.c, which is compiled for every machine, fills both: a constructor in a file that is compiled
 * for one instruction set would also run on machines that lack it. */
extern uint8_t cpu_iq2_runs[256][8], cpu_iq2_grid[8][256];
/* The lower and the upper bytes of E4M3 codes below 128 as BF16. isa.c fills them. */
extern uint8_t cpu_e4m3[2][128];
/* Tells whether this processor shuffles vectors beside its products (gemm_g.c); isa.c finds it. */
extern bool cpu_shuffles_beside;
