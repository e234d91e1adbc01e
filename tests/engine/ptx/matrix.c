/* Products of matrices: mma.sync, wgmma and ldmatrix. The ISA leaves order and rounding of sums
 * open; here they are added in double precision in ascending order and rounded once. */

#include <math.h>

#include "tests/engine/ptx/half.h"
#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"

struct tile {
    /* a: [rows][k]; b: [k][columns] */
    float a[16][16], b[16][8];
};

/* Layout of a: in lane 4 g + t, a0 has row g, columns 2 t and 2 t + 1; a1 row g + 8; a2 and a3 the
 * same with columns + 8. @n: 2 for 16 columns, 1 for 8. */
static void read_a(const struct warp *w, const int32_t *places, uint32_t n, struct tile *t) {
    for (uint32_t i = 0; i < 2 * n; i++) {
        _Alignas(32) float v[2 * LANES];

        halves_to_floats(v, place(w, places[i]), 2 * LANES);
        for (uint32_t l = 0; l < LANES; l++) {
            float *row = t->a[l / 4 + i % 2 * 8] + l % 4 * 2 + i / 2 * 8;

            row[0] = v[2 * l];
            row[1] = v[2 * l + 1];
        }
    }
}

/* Layout of b: b0 has rows 2 t and 2 t + 1 of column g; b1 rows + 8. @n: as in read_a(). */
static void read_b(const struct warp *w, const int32_t *places, uint32_t n, struct tile *t) {
    for (uint32_t i = 0; i < n; i++) {
        _Alignas(32) float v[2 * LANES];

        halves_to_floats(v, place(w, places[i]), 2 * LANES);
        for (uint32_t l = 0; l < LANES; l++) {
            t->b[l % 4 * 2 + i * 8][l / 4] = v[2 * l];
            t->b[l % 4 * 2 + i * 8 + 1][l / 4] = v[2 * l + 1];
        }
    }
}

static float rounded_to_zero(double d) {
    float f = (float)d;

    return fabs((double)f) > fabs(d) ? nextafterf(f, 0) : f;
}

/* d = a b + c. d and c have four registers: row g, columns 2 t and 2 t + 1, then row g + 8. */
static void multiply(const struct tile *t, float *const d[4], const float *const c[4], bool other) {
    for (uint32_t row = 0; row < 16; row++) {
        double sum[8];

        for (uint32_t n = 0; n < 8; n++)
            sum[n] = c ? c[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2] : 0;
        for (uint32_t k = 0; k < 16; k++) {
            double a = t->a[row][k];

            for (uint32_t n = 0; n < 8; n++)
                sum[n] = __builtin_fma(a, t->b[k][n], sum[n]);
        }
        for (uint32_t n = 0; n < 8; n++)
            d[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2] =
                other ? rounded_to_zero(sum[n]) : (float)sum[n];
    }
}

static void look_whole(const struct op *o, uint32_t m) {
    if (m != ALL)
        fail(o, "lanes %08X where all are needed", m);
}

/* list: d[4], a[2 size], b[size], c[4], where size is the number of groups of 8 columns of a, 1 or
 * 2; the others are zero. */
static void mma(struct warp *w, const struct op *o, uint32_t m) {
    struct tile t = {0};
    uint32_t n = o->size;
    float *d[4];
    const float *c[4];

    look_whole(o, m);
    for (uint32_t i = 0; i < 4; i++) {
        d[i] = place(w, o->list[i]);
        c[i] = place(w, o->list[4 + 3 * n + i]);
    }
    read_a(w, o->list + 4, n, &t);
    read_b(w, o->list + 4 + 2 * n, n, &t);
    multiply(&t, d, c, false);
}

static int32_t byte_at(uint32_t v, uint32_t i) {
    return (int8_t)(uint8_t)(v >> (8 * i));
}

/* d = a b + c of signed bytes, modulo 2^32. list: d[4], a[2 size], b[size], c[4], where size is the
 * number of groups of 16 columns of a, 1 or 2. In lane 4 g + t, a0 has row g, columns 4 t .. 4 t +
 * 3; a1 row g + 8; a2 and a3 columns + 16; b0 rows 4 t .. 4 t + 3 of column g; b1 rows + 16. */
static void mma_bytes(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t d[4][LANES];
    uint32_t n = o->size;

    look_whole(o, m);
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t sum = ((const uint32_t *)place(w, o->list[4 + 3 * n + i]))[l];

            for (uint32_t k = 0; k < 16 * n; k++) {
                const uint32_t *a = place(w, o->list[4 + k / 16 * 2 + i / 2]);
                const uint32_t *b = place(w, o->list[4 + 2 * n + k / 16]);
                uint32_t t = k % 16 / 4, row = l / 4, column = l % 4 * 2 + i % 2;

                sum +=
                    (uint32_t)(byte_at(a[4 * row + t], k % 4) * byte_at(b[4 * column + t], k % 4));
            }
            d[i][l] = sum;
        }
    for (uint32_t i = 0; i < 4; i++)
        memcpy(place(w, o->list[i]), d[i], sizeof(d[i]));
}

/* ldmatrix: lanes 8 i .. 8 i + 7 have the addresses of the rows of matrix i. */
static void ldmatrix(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t count = o->count;
    uint16_t rows[4][8][8];

    look_whole(o, m);
    for (uint32_t l = 0; l < 8 * count; l++) {
        const void *p = place(w, o->r[0]);
        uint64_t at =
            (o->wide ? ((const uint64_t *)p)[l] : ((const uint32_t *)p)[l]) + (uint64_t)o->imm;

        memcpy(rows[l / 8][l % 8], shared_at(w, at, 16, 16, DIRTY_READ), 16);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *d = place(w, o->list[i]);

        for (uint32_t l = 0; l < LANES; l++) {
            uint32_t g = l / 4, t = l % 4 * 2;
            uint16_t low = o->flags ? rows[i][t][g] : rows[i][g][t];
            uint16_t high = o->flags ? rows[i][t + 1][g] : rows[i][g][t + 1];

            d[l] = low | (uint32_t)high << 16;
        }
    }
}

static void decode_mma(struct instruction *in) {
    static const struct {
        const char *form;
        uint8_t size;
        void (*run)(struct warp *w, const struct op *o, uint32_t m);
    } forms[] = {{"m16n8k8.row.col.f32.f16.f16.f32", 1, mma},
                 {"m16n8k16.row.col.f32.f16.f16.f32", 2, mma},
                 {"m16n8k16.row.col.s32.s8.s8.s32", 1, mma_bytes},
                 {"m16n8k32.row.col.s32.s8.s8.s32", 2, mma_bytes}};
    static const char aligned[] = "mma.sync.aligned.";
    size_t skip = strlen(aligned);
    struct op *o = in->op;

    o->size = 0;
    for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++)
        if (strncmp(in->name, aligned, skip) == 0 && strcmp(in->name + skip, forms[i].form) == 0) {
            o->size = forms[i].size;
            o->run = forms[i].run;
        }
    if (o->size == 0 || in->n_operands != 4)
        refuse(in, "an unknown form of the instruction");
    in->used = (1u << in->n_parts) - 1;
    lists(in, 0, 3, 4);
    int n = o->size;
    if (in->operand[0].n != 4 || in->operand[1].n != 2 * n || in->operand[2].n != n ||
        in->operand[3].n != 4)
        refuse(in, "another number of operands");
    for (uint32_t i = 0; i < 4; i++)
        if (o->list[i] & 1)
            refuse(in, "an operand that is no register");
}

void decode_matrix(struct instruction *in) {
    struct op *o = in->op;

    if (strcmp(in->part[0], "mma") == 0) {
        decode_mma(in);
        return;
    }
    bool whole = has(in, "sync") && has(in, "aligned") && has(in, "m8n8");
    bool shared = has(in, "shared") || has(in, "shared::cta");
    if (!whole || !shared || !has(in, "b16") || in->n_operands != 2)
        refuse(in, "an unknown form of the instruction");
    o->count = has(in, "x4") ? 4 : has(in, "x2") ? 2 : has(in, "x1") ? 1 : 0;
    o->flags = has(in, "trans");
    o->space = SHARED;
    lists(in, 0, 0, 4);
    address(in, 1, 0);
    if (o->n_list != o->count)
        refuse(in, "another number of operands");
    o->run = ldmatrix;
}

/* ---- wgmma ---- */

/* Descriptor of a K-major matrix without swizzle: core matrices of 8 columns by 8 halves, where a
 * column has 16 bytes. The leading offset is along K, the stride along N. */
static uint64_t core_at(uint64_t b, uint32_t k, uint32_t n) {
    return (b & 0x3FFF) * 16 + (b >> 16 & 0x3FFF) * 16 * k + (b >> 32 & 0x3FFF) * 16 * n;
}

static void look_operand(struct warp *w, const struct op *o, uint64_t b) {
    if (b >> 46)
        fail(o, "a descriptor %#lx with a swizzle or offset", (unsigned long)b);
    for (uint32_t n = 0; n < o->size; n++)
        for (uint32_t k = 0; k < 2; k++) {
            uint64_t at = core_at(b, k, n);

            shared_at(w, at, 128, 16, 0);
            for (uint64_t g = at / 16; g < at / 16 + 8; g++) {
                if (w->block->dirty[g] & DIRTY_WRITTEN)
                    fail(o, "no fence.proxy.async between a write of %#lx and this",
                         (unsigned long)(g * 16));
                if (w->block->dirty[g] & COMING)
                    fail(o, "a product of %#lx, where a copy in bulk is on its way",
                         (unsigned long)(g * 16));
            }
        }
}

static void look_product(const struct products *p, const struct op *o, uint64_t address,
                         uint32_t n) {
    for (uint32_t i = 0; i < 2u * p->op->size; i++) {
        uint64_t at = core_at(p->b, i % 2, i / 2);

        if (at < address + n && address < at + 128)
            fail(o, "a copy in bulk to %#lx, which a product reads that is not waited for",
                 (unsigned long)address);
    }
}

void look_unread(const struct block *b, const struct op *o, uint64_t address, uint32_t n) {
    for (uint32_t i = 0; i < b->n_warps; i++)
        for (uint32_t j = 0; j < b->warp[i].n_products; j++)
            look_product(&b->warp[i].products[j], o, address, n);
}

/* list: d[4 size], a[4], then the descriptor in r[0] */
static void wgmma(struct warp *w, const struct op *o, uint32_t m) {
    const uint64_t *b = place(w, o->r[0]);

    look_whole(o, m);
    if (!w->fenced)
        fail(o, "a product without wgmma.fence in front");
    for (uint32_t l = 1; l < LANES; l++)
        if (b[l] != b[0])
            fail(o, "a descriptor that lanes do not agree on");
    look_operand(w, o, b[0]);
    if (w->n_products == sizeof(w->products) / sizeof(*w->products))
        fail(o, "too many products that are not waited for");
    w->products[w->n_products++] = (struct products){o, w->products_committed, b[0]};
}

static void multiply_group(struct warp *w, const struct products *p) {
    const struct op *o = p->op;
    struct tile t;

    read_a(w, o->list + 4 * o->size, 2, &t);
    for (uint32_t n = 0; n < o->size; n++) {
        float *d[4];

        for (uint32_t i = 0; i < 4; i++)
            d[i] = place(w, o->list[4 * n + i]);
        for (uint32_t k = 0; k < 2; k++) {
            _Alignas(32) float v[64];

            halves_to_floats(
                v, (const uint16_t *)(const void *)(w->block->shared + core_at(p->b, k, n)), 64);
            for (uint32_t i = 0; i < 64; i++)
                t.b[8 * k + i % 8][i / 8] = v[i];
        }
        multiply(&t, d, o->flags ? (const float *const *)d : NULL, w->block->launch->other_wgmma);
    }
}

static void wgmma_fence(struct warp *w, const struct op *o, uint32_t m) {
    look_whole(o, m);
    w->fenced = true;
}

static void wgmma_commit(struct warp *w, const struct op *o, uint32_t m) {
    look_whole(o, m);
    w->products_committed++;
    w->fenced = false; /* the registers of the next products need a fence again */
}

static void wgmma_wait(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t n = 0;

    look_whole(o, m);
    for (uint32_t i = 0; i < w->n_products; i++) {
        struct products p = w->products[i];

        if (p.group + (uint32_t)o->imm < w->products_committed)
            multiply_group(w, &p);
        else
            w->products[n++] = p;
    }
    w->n_products = n;
}

static void decode_product(struct instruction *in) {
    static const struct {
        const char *shape;
        uint32_t n;
    } shapes[] = {{"m64n24k16", 3}, {"m64n32k16", 4},  {"m64n48k16", 6},
                  {"m64n64k16", 8}, {"m64n96k16", 12}, {"m64n128k16", 16}};
    struct op *o = in->op;
    uint32_t halves = 0;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        if (has(in, shapes[i].shape))
            o->size = (uint8_t)shapes[i].n;
    halves = (uint32_t)has(in, "f16") + has(in, "f16");
    if (!o->size || !has(in, "f32") || halves != 2 || in->n_operands != 7 ||
        in->operand[0].n != 4 * o->size || in->operand[1].kind != LIST || in->operand[1].n != 4)
        refuse(in, "an unknown form of the instruction");
    lists(in, 0, 1, 4);
    o->r[0] = source(in, 2, 8);
    o->flags = immediate(in, 3) != 0;
    if (immediate(in, 4) != 1 || immediate(in, 5) != 1 || immediate(in, 6) != 0)
        refuse(in, "an unknown form of the instruction");
    o->run = wgmma;
    note_proxies(in);
}

void decode_wgmma(struct instruction *in) {
    struct op *o = in->op;

    if (!has(in, "sync") || !has(in, "aligned"))
        refuse(in, "an unknown form of the instruction");
    if (has(in, "fence")) {
        o->run = wgmma_fence;
    } else if (has(in, "commit_group")) {
        o->run = wgmma_commit;
    } else if (has(in, "wait_group")) {
        o->run = wgmma_wait;
        o->imm = immediate(in, 0);
    } else if (has(in, "mma_async")) {
        decode_product(in);
    } else {
        refuse(in, "an unknown form of the instruction");
    }
}
