#include "base/repack.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/mathx.h"

#define BLOCK 32u
/* Most rows and columns: products of two numbers and a size fit into 64 bits. */
#define SIDE_MAX (1u << 28)

static_assert(sizeof(struct repack) == REPACK_NUMBERS * sizeof(uint32_t), "numbers without gaps");

static bool repack_is_integer(const struct repack *p) {
    return p->kind >= REPACK_GPTQ && p->kind <= REPACK_INT8;
}

/* Returns true if the codes of a column lie together. */
static bool repack_is_by_columns(const struct repack *p) {
    return p->kind == REPACK_GPTQ || p->kind == REPACK_AWQ;
}

enum tensor_type repack_type(const struct repack *p, uint64_t n_in) {
    switch (p->kind) {
    case REPACK_FP8:
        return TENSOR_BF16;
    case REPACK_MXFP4:
        return TENSOR_MXFP4;
    case REPACK_NVFP4:
        return TENSOR_NVFP4;
    case REPACK_TURNED:
        return (enum tensor_type)p->scale_type;
    default:
        break;
    }
    /* the last group of a row may be short */
    bool whole = n_in % BLOCK == 0 && (p->group % BLOCK == 0 || p->group >= n_in);

    if (p->indexed || !whole || (p->bits == 8 && p->zeros))
        return TENSOR_F16;
    if (p->bits == 8)
        return TENSOR_Q8_0;
    if (p->zeros)
        return TENSOR_Q5_0;
    return TENSOR_Q4_0;
}

bool repack_has_groups(const struct tensor *t, uint32_t columns) {
    const struct repack *p = t->repack;

    if (!p || !repack_is_integer(p) || p->bits != 4 || p->indexed)
        return false;
    return p->group % columns == 0 && t->ne[0] % columns == 0;
}

static uint64_t repack_scale_bytes(const struct repack *p) {
    if (p->scale_type == TENSOR_F32)
        return 4;
    return 2;
}

/* Returns the number of words of 32 bits that hold @n codes. */
static uint64_t repack_words(const struct repack *p, uint64_t n) {
    return (n * p->bits + 31) / 32;
}

static uint64_t repack_n_groups(const struct repack *p, uint64_t n_in) {
    return (n_in + p->group - 1) / p->group;
}

/* Checks the numbers of a layout. */
static bool repack_is_valid(const struct repack *p, uint64_t n_rows, uint64_t n_in) {
    bool scales =
        p->scale_type == TENSOR_F32 || p->scale_type == TENSOR_F16 || p->scale_type == TENSOR_BF16;

    if (p->kind <= REPACK_NONE || p->kind >= REPACK_KINDS || !scales)
        return false;
    if (n_rows < 1 || n_rows > SIDE_MAX || n_in < 1 || n_in > SIDE_MAX)
        return false;
    if (p->group < 1 || p->group_rows < 1)
        return false;
    bool skips = p->kind == REPACK_MXFP4 || p->kind == REPACK_TURNED;
    if (p->zeros > 2 || p->indexed > 1 || p->skip > skips)
        return false;
    if (p->stride && (!repack_is_by_columns(p) || p->stride < n_rows || p->stride > SIDE_MAX))
        return false;
    if (p->kind == REPACK_TURNED && p->scale_type == TENSOR_F32)
        return false;
    if (!repack_is_integer(p))
        return p->zeros == 0 && !p->indexed;
    if (p->scale_type == TENSOR_F32 || (p->bits != 4 && p->bits != 8))
        return false;
    if (p->kind == REPACK_INT8)
        return p->bits == 8 && p->zeros == 0 && !p->indexed;
    if (p->kind != REPACK_AWQ)
        return true;
    return p->bits == 4 && p->zeros == 1 && n_rows % 8 == 0 && p->stride % 8 == 0;
}

/* Returns the rows of the stored matrix. */
static uint64_t repack_stride(const struct repack *p, uint64_t n_rows) {
    return p->stride ? p->stride : n_rows;
}

int repack_sizes(const struct repack *p, uint64_t n_rows, uint64_t n_in,
                 uint64_t bytes[REPACK_PARTS]) {
    if (!repack_is_valid(p, n_rows, n_in))
        return -EINVAL;
    uint64_t groups = repack_n_groups(p, n_in);
    uint64_t row_groups = (n_rows + p->group_rows - 1) / p->group_rows;
    uint64_t n_lines = n_rows + (n_rows - 1) * p->skip, stride = repack_stride(p, n_rows);

    memset(bytes, 0, REPACK_PARTS * sizeof(*bytes));
    switch (p->kind) {
    case REPACK_FP8:
    case REPACK_INT8:
        bytes[REPACK_CODES] = n_rows * n_in;
        bytes[REPACK_SCALES] = row_groups * groups * repack_scale_bytes(p);
        return 0;
    case REPACK_MXFP4:
    case REPACK_NVFP4:
        bytes[REPACK_CODES] = n_lines * n_in / 2;
        bytes[REPACK_SCALES] = n_lines * n_in / (p->kind == REPACK_MXFP4 ? 32 : 16);
        return n_in % (p->kind == REPACK_MXFP4 ? 32 : 64) ? -EINVAL : 0;
    case REPACK_TURNED:
        bytes[REPACK_CODES] = 2 * ((n_in - 1) * n_rows * (1 + p->skip) + n_lines);
        return 0;
    case REPACK_PACKED:
        bytes[REPACK_CODES] = n_rows * repack_words(p, n_in) * 4;
        bytes[REPACK_ZEROS] = repack_words(p, n_rows) * groups * 4;
        break;
    default:
        bytes[REPACK_CODES] = ((repack_words(p, n_in) - 1) * stride + n_rows) * 4;
        bytes[REPACK_ZEROS] =
            ((groups - 1) * repack_words(p, stride) + repack_words(p, n_rows)) * 4;
        break;
    }
    if (p->kind == REPACK_AWQ)
        bytes[REPACK_CODES] = ((n_in - 1) * stride + n_rows) / 2;
    bytes[REPACK_SCALES] = ((groups - 1) * stride + n_rows) * repack_scale_bytes(p);
    bytes[REPACK_INDEX] = 4 * n_in;
    if (!p->zeros)
        bytes[REPACK_ZEROS] = 0;
    if (!p->indexed)
        bytes[REPACK_INDEX] = 0;
    return 0;
}

int repack_slice(const struct repack *p, uint64_t n_rows, uint64_t n_in, uint64_t from, uint64_t n,
                 struct repack *out, uint64_t at[REPACK_PARTS]) {
    uint64_t groups = repack_n_groups(p, n_in), in_group = from % p->group_rows;
    bool words = p->zeros && repack_is_integer(p);

    if (n < 1 || n > n_rows || from > n_rows - n || p->kind == REPACK_TURNED || p->skip)
        return -EINVAL;
    if (words && from * p->bits % 32)
        return -EINVAL;
    if (in_group && in_group + n > p->group_rows)
        return -EINVAL;
    *out = *p;
    memset(at, 0, REPACK_PARTS * sizeof(*at));
    if (repack_is_by_columns(p)) {
        out->stride = (uint32_t)repack_stride(p, n_rows);
        at[REPACK_CODES] = p->kind == REPACK_AWQ ? from / 2 : 4 * from;
        at[REPACK_SCALES] = from * repack_scale_bytes(p);
        at[REPACK_ZEROS] = words ? from * p->bits / 8 : 0;
        return 0;
    }
    at[REPACK_SCALES] = from / p->group_rows * groups * repack_scale_bytes(p);
    switch (p->kind) {
    case REPACK_PACKED:
        at[REPACK_CODES] = from * repack_words(p, n_in) * 4;
        at[REPACK_ZEROS] = words ? from * p->bits / 8 * groups : 0;
        return 0;
    case REPACK_MXFP4:
    case REPACK_NVFP4:
        at[REPACK_CODES] = from * n_in / 2;
        at[REPACK_SCALES] = from * n_in / (p->kind == REPACK_MXFP4 ? 32 : 16);
        return 0;
    default:
        at[REPACK_CODES] = from * n_in;
        return 0;
    }
}

/* A row that is read. */
struct repack_row {
    const struct repack *p;
    const uint8_t *const *part;
    /* number of the row, and of rows of the stored matrix, and columns of the parts */
    uint64_t row, n_rows, n_in, n_groups;
};

/* Reads word @i of 32 bits at @p, which need not be aligned. */
static uint32_t repack_word(const uint8_t *p, uint64_t i) {
    uint32_t v;

    memcpy(&v, p + 4 * i, sizeof(v));
    return le32toh(v);
}

static uint16_t repack_half(const uint8_t *p, uint64_t i) {
    uint16_t v;

    memcpy(&v, p + 2 * i, sizeof(v));
    return le16toh(v);
}

static float repack_scale_at(const struct repack *p, const uint8_t *scales, uint64_t i) {
    switch (p->scale_type) {
    case TENSOR_F16:
        return mx_half_to_float(repack_half(scales, i));
    case TENSOR_BF16:
        return mx_bf16_to_float(repack_half(scales, i));
    default:
        return mx_float_of(repack_word(scales, i));
    }
}

/* Returns the scale of group @g. */
static float repack_scale(const struct repack_row *w, uint64_t g) {
    const uint8_t *scales = w->part[REPACK_SCALES];

    switch (w->p->kind) {
    case REPACK_GPTQ:
    case REPACK_AWQ:
        return repack_scale_at(w->p, scales, g * w->n_rows + w->row);
    default:
        return repack_scale_at(w->p, scales, w->row / w->p->group_rows * w->n_groups + g);
    }
}

/* Returns code @i of the words at @p. */
static int repack_code_of(const struct repack *p, const uint8_t *words, uint64_t stride,
                          uint64_t i) {
    uint32_t per = 32 / p->bits;

    return (int)(repack_word(words, i / per * stride) >> (p->bits * (i % per)) &
                 ((1u << p->bits) - 1));
}

/* Returns the shift of row @row in a word of AWQ. */
static uint32_t repack_awq_shift(uint64_t row) {
    static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

    return 4u * place[row % 8];
}

/* Returns the code of column @k. */
static int repack_code(const struct repack_row *w, uint64_t k) {
    const uint8_t *codes = w->part[REPACK_CODES];

    switch (w->p->kind) {
    case REPACK_GPTQ:
        return repack_code_of(w->p, codes + 4 * w->row, w->n_rows, k);
    case REPACK_AWQ:
        return (int)(repack_word(codes, (k * w->n_rows + w->row) / 8) >> repack_awq_shift(w->row) &
                     15);
    case REPACK_INT8:
        return (int8_t)codes[w->row * w->n_in + k] + 128;
    default:
        return repack_code_of(w->p, codes + 4 * w->row * repack_words(w->p, w->n_in), 1, k);
    }
}

/* Reads a code of each of BLOCK words, which are @stride words apart. */
static void repack_awq_codes(const uint8_t *words, uint64_t stride, uint32_t shift,
                             int code[BLOCK]) {
    for (uint32_t i = 0; i < BLOCK; i++, words += 4 * stride)
        code[i] = (int)(repack_word(words, 0) >> shift & 15);
}

/* Reads codes [k, k + BLOCK), which begin a word. */
static void repack_codes(const struct repack_row *w, uint64_t k, int code[BLOCK]) {
    const uint8_t *words = w->part[REPACK_CODES];
    uint64_t stride = 1, bits = w->p->bits, at = k * bits / 32;

    switch (w->p->kind) {
    case REPACK_GPTQ:
        stride = w->n_rows;
        words += 4 * (at * stride + w->row);
        break;
    case REPACK_PACKED:
        words += 4 * (w->row * repack_words(w->p, w->n_in) + at);
        break;
    case REPACK_AWQ:
        words += 4 * ((k * w->n_rows + w->row) / 8);
        repack_awq_codes(words, w->n_rows / 8, repack_awq_shift(w->row), code);
        return;
    default:
        for (uint32_t i = 0; i < BLOCK; i++)
            code[i] = repack_code(w, k + i);
        return;
    }
    for (uint32_t i = 0; i < BLOCK; words += 4 * stride)
        for (uint32_t shift = 0; shift < 32; shift += (uint32_t)bits)
            code[i++] = (int)(repack_word(words, 0) >> shift & ((1u << bits) - 1));
}

/* Returns the zero point of group @g. */
static int repack_zero(const struct repack_row *w, uint64_t g) {
    const uint8_t *zeros = w->part[REPACK_ZEROS];
    int add = w->p->zeros == 2;

    if (!w->p->zeros)
        return 1 << (w->p->bits - 1);
    switch (w->p->kind) {
    case REPACK_GPTQ:
        return add + repack_code_of(w->p, zeros + 4 * g * repack_words(w->p, w->n_rows), 1, w->row);
    case REPACK_AWQ:
        return (int)(repack_word(zeros, (g * w->n_rows + w->row) / 8) >> repack_awq_shift(w->row) &
                     15);
    default:
        return add + repack_code_of(w->p, zeros + 4 * g, w->n_groups, w->row);
    }
}

/* Returns the group of column @k. A file that changes may have any number in its index. */
static uint64_t repack_group(const struct repack_row *w, uint64_t k) {
    if (!w->p->indexed)
        return k / w->p->group;
    return MIN((uint64_t)repack_word(w->part[REPACK_INDEX], k), w->n_groups - 1);
}

static void repack_store_half(uint8_t *out, uint16_t v) {
    v = htole16(v);
    memcpy(out, &v, sizeof(v));
}

/* Writes the block of columns [32 b, 32 b + 32) as Q4_0, Q5_0 or Q8_0. */
static void repack_integer_block(const struct repack_row *w, enum tensor_type type, uint64_t b,
                                 uint8_t *out) {
    uint64_t g = repack_group(w, b * BLOCK);
    uint8_t *codes = out + (type == TENSOR_Q5_0 ? 6 : 2);
    int zero = repack_zero(w, g), code[BLOCK];
    uint32_t high = 0;

    repack_store_half(out, mx_float_to_half(repack_scale(w, g)));
    repack_codes(w, b * BLOCK, code);
    if (type == TENSOR_Q8_0) {
        for (uint32_t i = 0; i < BLOCK; i++)
            codes[i] = (uint8_t)(code[i] - zero);
        return;
    }
    for (uint32_t i = 0; i < BLOCK; i++) {
        code[i] += (type == TENSOR_Q5_0 ? 16 : 8) - zero;
        high |= (uint32_t)(code[i] >> 4 & 1) << i;
    }
    for (uint32_t i = 0; i < BLOCK / 2; i++)
        codes[i] = (uint8_t)((code[i] & 15) | (code[i + BLOCK / 2] & 15) << 4);
    if (type == TENSOR_Q5_0) {
        high = htole32(high);
        memcpy(out + 2, &high, sizeof(high));
    }
}

/* Returns code @k of a row with two codes a byte, the lower half first. */
static uint8_t repack_nibble(const uint8_t *codes, uint64_t k) {
    return codes[k / 2] >> (k % 2 * 4) & 15;
}

/* Returns the value of column @k of MXFP4 or NVFP4. */
static float repack_fp4_value(const struct repack_row *w, uint64_t k) {
    static const float twice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    uint64_t line = w->row * (1 + w->p->skip);
    uint8_t code = repack_nibble(w->part[REPACK_CODES] + line * w->n_in / 2, k);
    const uint8_t *scales = w->part[REPACK_SCALES];
    float v = twice[code & 7];

    if (w->p->kind == REPACK_MXFP4)
        v *= mx_e8m0_half(scales[(line * w->n_in + k) / 32]);
    else
        v *= mx_e4m3_to_float(scales[(line * w->n_in + k) / 16]) / 2;
    return code & 8 ? -v : v;
}

/* Returns the value of column @k. */
static float repack_value(const struct repack_row *w, uint64_t k) {
    float scale;

    switch (w->p->kind) {
    case REPACK_FP8:
        scale = repack_scale(w, k / w->p->group);
        return mx_e4m3_to_float(w->part[REPACK_CODES][w->row * w->n_in + k]) * scale;
    case REPACK_MXFP4:
    case REPACK_NVFP4:
        return repack_fp4_value(w, k);
    default:
        scale = repack_scale(w, repack_group(w, k));
        return scale * (float)(repack_code(w, k) - repack_zero(w, repack_group(w, k)));
    }
}

/* Writes values [first, first + n) as F16. */
static void repack_halves(const struct repack_row *w, uint64_t first, uint64_t n, uint8_t *out) {
    for (uint64_t k = first; k < first + n; k++, out += 2)
        repack_store_half(out, mx_float_to_half(repack_value(w, k)));
}

/* Rounds to the nearest bfloat16, of two the even one. */
static uint16_t repack_bf16(float f) {
    uint32_t u = mx_bits_of(f);

    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

/* Writes values [first, first + n) of FP8 as BF16. */
static void repack_fp8(const struct repack_row *w, uint64_t first, uint64_t n, uint8_t *out) {
    const uint8_t *codes = w->part[REPACK_CODES] + w->row * w->n_in;
    uint64_t end = first + n;

    for (uint64_t k = first; k < end;) {
        uint64_t g = k / w->p->group, stop = MIN(end, (g + 1) * w->p->group);
        float scale = repack_scale(w, g);

        for (; k < stop; k++, out += 2)
            repack_store_half(out, repack_bf16(mx_e4m3_to_float(codes[k]) * scale));
    }
}

/* Writes values [first, first + n) of a row of a matrix that is stored by columns. */
static void repack_turned(const struct repack_row *w, uint64_t first, uint64_t n, uint8_t *out) {
    uint64_t stride = 2 * w->n_rows * (1 + w->p->skip);
    const uint8_t *from = w->part[REPACK_CODES] + 2 * w->row * (1 + w->p->skip) + first * stride;

    for (uint64_t k = 0; k < n; k++)
        memcpy(out + 2 * k, from + k * stride, 2);
}

/* Writes the block of columns [32 b, 32 b + 32). */
static void repack_mxfp4(const struct repack_row *w, uint64_t b, uint8_t *out) {
    uint64_t line = w->row * (1 + w->p->skip);
    const uint8_t *codes = w->part[REPACK_CODES] + line * w->n_in / 2;

    out[0] = w->part[REPACK_SCALES][line * (w->n_in / 32) + b];
    for (uint32_t i = 0; i < 16; i++)
        out[1 + i] = (uint8_t)(repack_nibble(codes, 32 * b + i) |
                               repack_nibble(codes, 32 * b + 16 + i) << 4);
}

/* Writes the block of columns [64 b, 64 b + 64). GGUF's scales have no sign: that of a negative
 * scale goes to the codes. */
static void repack_nvfp4(const struct repack_row *w, uint64_t b, uint8_t *out) {
    const uint8_t *codes = w->part[REPACK_CODES] + w->row * w->n_in / 2;
    const uint8_t *scales = w->part[REPACK_SCALES] + w->row * (w->n_in / 16) + 4 * b;

    for (uint32_t s = 0; s < 4; s++) {
        uint8_t flip = scales[s] & 0x80 ? 0x88 : 0;
        uint64_t at = 64 * b + 16 * s;

        out[s] = scales[s] & 0x7F;
        for (uint32_t i = 0; i < 8; i++)
            out[4 + 8 * s + i] =
                (uint8_t)((repack_nibble(codes, at + i) | repack_nibble(codes, at + 8 + i) << 4) ^
                          flip);
    }
}

/* Returns row @r of a whole tensor. */
static struct repack_row repack_row_of(const struct tensor *t, uint64_t r) {
    uint64_t matrix = r / t->piece_rows;

    return (struct repack_row){
        .p = t->repack,
        .part = t->piece + matrix * REPACK_PARTS,
        .row = r - matrix * t->piece_rows,
        .n_rows = repack_stride(t->repack, t->piece_rows),
        .n_in = t->ne[0],
        .n_groups = repack_n_groups(t->repack, t->ne[0]),
    };
}

const uint8_t *repack_fp8_codes(const struct tensor *t, uint64_t r, uint64_t k, float *scale) {
    const struct repack_row w = repack_row_of(t, r);

    assert(w.p->kind == REPACK_FP8 && k < w.n_in);
    *scale = repack_scale(&w, k / w.p->group);
    return w.part[REPACK_CODES] + w.row * w.n_in + k;
}

void repack_values(const struct tensor *t, uint64_t r, float *out) {
    const struct repack_row w = repack_row_of(t, r);

    assert(w.p->kind != REPACK_TURNED);
    for (uint64_t k = 0; k < w.n_in; k++)
        out[k] = repack_value(&w, k);
}

void repack_blocks(const struct tensor *t, uint64_t r, uint64_t first, uint64_t n, uint8_t *out) {
    const struct repack_row w = repack_row_of(t, r);
    enum tensor_type type = t->format->type;
    size_t each = t->format->block_bytes;

    if (w.p->kind == REPACK_TURNED) {
        repack_turned(&w, first, n, out);
        return;
    }
    if (type == TENSOR_BF16) {
        repack_fp8(&w, first, n, out);
        return;
    }
    if (type == TENSOR_F16) {
        repack_halves(&w, first, n, out);
        return;
    }
    for (uint64_t b = first; b < first + n; b++, out += each) {
        if (type == TENSOR_MXFP4)
            repack_mxfp4(&w, b, out);
        else if (type == TENSOR_NVFP4)
            repack_nvfp4(&w, b, out);
        else
            repack_integer_block(&w, type, b, out);
    }
}
