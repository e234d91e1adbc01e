#include <math.h>
#include <string.h>

#include "tests/engine/ptx/half.h"
#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

/* cvt, setp, mov and cvta. */

enum type { U8, S8, U16, S16, U32, S32, U64, S64, F16, F32, F64, N_TYPES };
static const char *const type_names[] = {"u8",  "s8",  "u16", "s16", "u32", "s32",
                                         "u64", "s64", "f16", "f32", "f64"};
enum rounding { EXACT, NEAREST, ZERO, DOWN, UP };

static bool is_float(enum type t) {
    return t >= F16;
}

static bool is_signed(enum type t) {
    return !is_float(t) && t % 2;
}

static uint32_t bits_in(enum type t) {
    return 8 * type_size(type_names[t]);
}

/* ---- cvt ---- */

static uint64_t read_register(const void *p, uint32_t width, uint32_t lane) {
    uint64_t v = 0;

    memcpy(&v, (const uint8_t *)p + lane * width, width);
    return v;
}

static double read_float(enum type t, uint64_t bits) {
    double d;

    if (t == F16)
        return half_float((uint16_t)bits);
    if (t == F32)
        return float_of((uint32_t)bits);
    memcpy(&d, &bits, 8);
    return d;
}

static uint64_t float_bits(enum type t, double d) {
    uint64_t bits;

    if (t == F16)
        return float_half((float)d);
    if (t == F32)
        return bits_of((float)d);
    memcpy(&bits, &d, 8);
    return bits;
}

static double integral(double d, enum rounding r) {
    switch (r) {
    case NEAREST:
        return nearbyint(d);
    case ZERO:
        return trunc(d);
    case DOWN:
        return floor(d);
    case UP:
        return ceil(d);
    default:
        return d;
    }
}

/* Converts to the nearest integer that the type has. */
static uint64_t float_to_integer(double d, enum type from, enum type to, enum rounding r) {
    uint32_t n = bits_in(to);

    if (d != d)
        return from != F64 && n < 64 ? 0 : 1ull << (n - 1);
    d = integral(d, r);
    if (is_signed(to))
        return d >= ldexp(1, (int)n - 1)    ? (1ull << (n - 1)) - 1
               : d <= -ldexp(1, (int)n - 1) ? 1ull << (n - 1)
                                            : (uint64_t)(int64_t)d;
    return d >= ldexp(1, (int)n) ? ~0ull >> (64 - n) : d <= 0 ? 0 : (uint64_t)d;
}

static uint64_t integer_to_integer(uint64_t v, enum type from, enum type to, bool saturates) {
    uint32_t n = bits_in(to);
    bool negative = is_signed(from) && (int64_t)v < 0;
    uint64_t most = is_signed(to) ? (1ull << (n - 1)) - 1 : ~0ull >> (64 - n);

    if (!saturates)
        return v;
    if (!negative)
        return v > most ? most : v;
    if (!is_signed(to))
        return 0;
    return (int64_t)v < -(int64_t)most - 1 ? (uint64_t)(-(int64_t)most - 1) : v;
}

static uint64_t extended(uint64_t v, enum type t) {
    uint32_t n = bits_in(t);

    v &= ~0ull >> (64 - n);
    return is_signed(t) && v >> (n - 1) ? v | ~(~0ull >> (64 - n)) : v;
}

static uint64_t converted(uint64_t v, const struct op *o) {
    enum type to = o->form[0], from = o->form[1];
    enum rounding r = o->form[2];

    if (is_float(from)) {
        double d = read_float(from, v);
        if (!is_float(to))
            return float_to_integer(d, from, to, r);
        if (to == from)
            d = integral(d, r);
        if (o->flags) /* saturates */
            d = d != d ? 0 : d < 0 ? 0 : d > 1 ? 1 : d;
        return float_bits(to, d);
    }
    v = extended(v, from);
    if (!is_float(to))
        return extended(integer_to_integer(v, from, to, o->flags), to);
    if (to == F64)
        return float_bits(F64, is_signed(from) ? (double)(int64_t)v : (double)v);
    return bits_of(is_signed(from) ? (float)(int64_t)v : (float)v);
}

static void cvt(struct warp *w, const struct op *o, uint32_t m) {
    uint8_t *d = place(w, o->r[0]);
    const void *a = place(w, o->r[1]);

    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        uint64_t v = converted(read_register(a, o->size, l), o);
        memcpy(d + l * o->width, &v, o->width);
    }
}

static int read_type(struct instruction *in, uint32_t i) {
    for (int t = 0; t < N_TYPES; t++)
        if (strcmp(in->part[i], type_names[t]) == 0) {
            in->used |= 1u << i;
            return t;
        }
    refuse(in, "an unknown type");
}

static enum rounding read_rounding(struct instruction *in, bool integer) {
    static const char *const names[][2] = {
        {"rn", "rni"}, {"rz", "rzi"}, {"rm", "rmi"}, {"rp", "rpi"}};

    for (int i = 0; i < 4; i++)
        if (has(in, names[i][integer]))
            return (enum rounding)(i + 1);
    return EXACT;
}

void decode_cvt(struct instruction *in) {
    struct op *o = in->op;

    if (in->n_parts < 3 || in->n_operands != 2)
        refuse(in, "an unknown form of the instruction");
    enum type to = (enum type)read_type(in, in->n_parts - 2);
    enum type from = (enum type)read_type(in, in->n_parts - 1);
    enum rounding r = read_rounding(in, is_float(from) && (!is_float(to) || to == from));
    bool narrows = is_float(to) && (!is_float(from) || bits_in(to) < bits_in(from));
    if ((is_float(from) && !is_float(to) && r == EXACT) || (narrows && r != NEAREST) ||
        (to == F16 && from != F32 && from != F16))
        refuse(in, "an unknown form of the instruction");
    o->flags = has(in, "sat");
    o->form[0] = (uint8_t)to;
    o->form[1] = (uint8_t)from;
    o->form[2] = (uint8_t)r;
    o->width = in->operand[0].width;
    o->size = in->operand[1].kind == IMMEDIATE ? 8 : in->operand[1].width;
    if (8u * o->width < bits_in(to) || 8u * o->size < bits_in(from) ||
        (is_float(to) && 8u * o->width != bits_in(to)))
        refuse(in, "a register of another size than the instruction's");
    o->r[0] = target(in, 0, o->width);
    o->r[1] = source(in, 1, o->size);
    o->run = cvt;
}

/* ---- setp ---- */

static uint32_t mask_of(const int32_t *yes) {
    uint32_t m = 0;

#ifdef __AVX2__
    for (uint32_t i = 0; i < 4; i++)
        m |= (uint32_t)_mm256_movemask_ps(_mm256_loadu_ps((const float *)yes + 8 * i)) << 8 * i;
#else
    for (uint32_t i = 0; i < LANES; i++)
        m |= (uint32_t)(yes[i] < 0) << i;
#endif
    return m;
}

enum bool_op { PLAIN, AND, OR, XOR };

static void put_predicates(struct warp *w, const struct op *o, uint32_t m, uint32_t yes) {
    uint32_t no = ~yes, c = o->form[0] ? w->preds[o->r[4]] : ALL;

    c = o->negated == 2 ? ~c : c;
    switch ((enum bool_op)o->form[0]) {
    case OR:
        yes |= c;
        no |= c;
        break;
    case XOR:
        yes ^= c;
        no ^= c;
        break;
    default:
        yes &= c;
        no &= c;
        break;
    }
    w->preds[o->r[0]] = (w->preds[o->r[0]] & ~m) | (yes & m);
    if (o->r[1] >= 0)
        w->preds[o->r[1]] = (w->preds[o->r[1]] & ~m) | (no & m);
}

#define COMPARE(NAME, T, EXPR)                                                                     \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        _Alignas(32) int32_t yes[LANES];                                                           \
        const T *pa = place(w, o->r[2]), *pb = place(w, o->r[3]);                                  \
        for (uint32_t l = 0; l < LANES; l++) {                                                     \
            T a = pa[l], b = pb[l];                                                                \
            yes[l] = -(int32_t)(EXPR);                                                             \
        }                                                                                          \
        put_predicates(w, o, m, mask_of(yes));                                                     \
    }
#define COMPARE_ALL(T)                                                                             \
    COMPARE(eq_##T, T, a == b)                                                                     \
    COMPARE(ne_##T, T, a != b)                                                                     \
    COMPARE(lt_##T, T, a < b)                                                                      \
    COMPARE(le_##T, T, a <= b)                                                                     \
    COMPARE(gt_##T, T, a > b)                                                                      \
    COMPARE(ge_##T, T, a >= b)
#define COMPARE_FLOATS(T)                                                                          \
    COMPARE_ALL(T)                                                                                 \
    COMPARE(ne2_##T, T, (a < b) | (a > b))                                                         \
    COMPARE(equ_##T, T, !((a < b) | (a > b)))                                                      \
    COMPARE(ltu_##T, T, !(a >= b))                                                                 \
    COMPARE(leu_##T, T, !(a > b))                                                                  \
    COMPARE(gtu_##T, T, !(a <= b))                                                                 \
    COMPARE(geu_##T, T, !(a < b))                                                                  \
    COMPARE(num_##T, T, (a == a) & (b == b))                                                       \
    COMPARE(nan_##T, T, (a != a) | (b != b))
#define ROW(T, NAME, WIDTH)                                                                        \
    {"eq", NAME, WIDTH, eq_##T}, {"ne", NAME, WIDTH, ne_##T}, {"lt", NAME, WIDTH, lt_##T},         \
        {"le", NAME, WIDTH, le_##T}, {"gt", NAME, WIDTH, gt_##T}, {                                \
        "ge", NAME, WIDTH, ge_##T                                                                  \
    }
#define FLOAT_ROW(T, NAME, WIDTH)                                                                  \
    {"eq", NAME, WIDTH, eq_##T}, {"ne", NAME, WIDTH, ne2_##T}, {"lt", NAME, WIDTH, lt_##T},        \
        {"le", NAME, WIDTH, le_##T}, {"gt", NAME, WIDTH, gt_##T}, {"ge", NAME, WIDTH, ge_##T},     \
        {"equ", NAME, WIDTH, equ_##T}, {"neu", NAME, WIDTH, ne_##T},                               \
        {"ltu", NAME, WIDTH, ltu_##T}, {"leu", NAME, WIDTH, leu_##T},                              \
        {"gtu", NAME, WIDTH, gtu_##T}, {"geu", NAME, WIDTH, geu_##T},                              \
        {"num", NAME, WIDTH, num_##T}, {                                                           \
        "nan", NAME, WIDTH, nan_##T                                                                \
    }
COMPARE_ALL(uint16_t)
COMPARE_ALL(int16_t)
COMPARE_ALL(uint32_t)
COMPARE_ALL(int32_t)
COMPARE_ALL(uint64_t)
COMPARE_ALL(int64_t)
COMPARE_FLOATS(float)
COMPARE_FLOATS(double)

static const struct {
    const char *name, *type;
    uint32_t width;
    void (*run)(struct warp *w, const struct op *o, uint32_t m);
} comparisons[] = {
    ROW(uint16_t, "u16", 2),       ROW(int16_t, "s16", 2),        ROW(uint32_t, "u32", 4),
    ROW(int32_t, "s32", 4),        ROW(uint64_t, "u64", 8),       ROW(int64_t, "s64", 8),
    FLOAT_ROW(float, "f32", 4),    FLOAT_ROW(double, "f64", 8),   {"eq", "b16", 2, eq_uint16_t},
    {"ne", "b16", 2, ne_uint16_t}, {"eq", "b32", 4, eq_uint32_t}, {"ne", "b32", 4, ne_uint32_t},
    {"eq", "b64", 8, eq_uint64_t}, {"ne", "b64", 8, ne_uint64_t},
};

void decode_setp(struct instruction *in) {
    struct op *o = in->op;
    const char *type = in->part[in->n_parts - 1];

    in->used |= 1u << (in->n_parts - 1) | 2;
    o->form[0] = (uint8_t)(has(in, "and")   ? AND
                           : has(in, "or")  ? OR
                           : has(in, "xor") ? XOR
                                            : PLAIN);
    if (in->n_parts < 3 || in->n_operands != (o->form[0] ? 4u : 3u))
        refuse(in, "an unknown form of the instruction");
    for (size_t i = 0; i < sizeof(comparisons) / sizeof(*comparisons); i++) {
        if (strcmp(comparisons[i].name, in->part[1]) != 0 || strcmp(comparisons[i].type, type) != 0)
            continue;
        o->run = comparisons[i].run;
        o->r[0] = predicate(in, 0);
        o->r[1] = in->operand[0].second;
        o->r[2] = source(in, 1, comparisons[i].width);
        o->r[3] = source(in, 2, comparisons[i].width);
        if (o->form[0])
            o->r[4] = predicate(in, 3);
        return;
    }
    refuse(in, "an unknown form of the instruction");
}

/* ---- mov ---- */

OP1(mov_16, uint16_t, uint16_t, a)
OP1(mov_32, uint32_t, uint32_t, a)
OP1(mov_64, uint64_t, uint64_t, a)

static void mov_address_32(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t *d = place(w, o->r[0]);
    const uint32_t *a = place(w, o->r[1]);

    EACH_LANE(m, d[l] = a[l] + (uint32_t)o->imm);
}

static void mov_address_64(struct warp *w, const struct op *o, uint32_t m) {
    uint64_t *d = place(w, o->r[0]);
    const uint64_t *a = place(w, o->r[1]);

    EACH_LANE(m, d[l] = a[l] + (uint64_t)o->imm);
}

/* The first element of the list has the lowest bits. */
static void mov_unpack(struct warp *w, const struct op *o, uint32_t m) {
    const uint8_t *a = place(w, o->r[0]);
    uint32_t all = o->n_list * o->size;
    uint64_t v[LANES];

    for (uint32_t l = 0; l < LANES; l++)
        v[l] = read_register(a, all, l);
    for (uint32_t i = 0; i < o->n_list; i++) {
        uint8_t *d = o->list[i] == -2 ? NULL : place(w, o->list[i]);
        for (uint32_t l = 0; d && l < LANES; l++) {
            uint64_t part = v[l] >> 8 * o->size * i;
            if (m >> l & 1)
                memcpy(d + l * o->size, &part, o->size);
        }
    }
}

static void mov_pack(struct warp *w, const struct op *o, uint32_t m) {
    uint8_t *d = place(w, o->r[0]);
    uint32_t all = o->n_list * o->size;

    for (uint32_t l = 0; l < LANES; l++) {
        uint64_t v = 0;

        for (uint32_t i = 0; i < o->n_list; i++)
            v |= read_register(place(w, o->list[i]), o->size, l) << 8 * o->size * i;
        if (m >> l & 1)
            memcpy(d + l * all, &v, all);
    }
}

void decode_mov(struct instruction *in) {
    struct op *o = in->op;
    uint32_t width = in->n_parts == 2 ? type_size(in->part[1]) : 0;
    static const char *const types[] = {"b16", "u16", "s16", "b32", "u32", "s32",
                                        "f32", "b64", "u64", "s64", "f64"};
    bool known = false;

    for (size_t i = 0; in->n_parts == 2 && i < sizeof(types) / sizeof(*types); i++)
        known |= strcmp(in->part[1], types[i]) == 0;
    if (!known || in->n_operands != 2)
        refuse(in, "an unknown form of the instruction");
    in->used |= 2;
    if (in->operand[0].kind == LIST || in->operand[1].kind == LIST) {
        uint32_t list = in->operand[0].kind == LIST ? 0 : 1, n = in->operand[list].n;
        if (n != 2 && n != 4)
            refuse(in, "an unknown form of the instruction");
        o->size = (uint8_t)(width / n);
        o->run = list ? mov_pack : mov_unpack;
        o->r[0] = list ? target(in, 0, width) : source(in, 1, width);
        lists(in, list, list, o->size);
        return;
    }
    o->r[0] = target(in, 0, width);
    if (in->operand[1].kind == SYMBOL) {
        decode_address_of(in, width);
        o->run = width == 8 ? mov_address_64 : mov_address_32;
        return;
    }
    o->run = width == 2 ? mov_16 : width == 4 ? mov_32 : mov_64;
    o->r[1] = source(in, 1, width);
}

/* ---- cvta: a generic address is the host's ---- */

static void cvta_shared(struct warp *w, const struct op *o, uint32_t m) {
    uint64_t *d = place(w, o->r[0]);
    const uint64_t *a = place(w, o->r[1]);
    uint64_t base = (uint64_t)(uintptr_t)w->block->shared;

    EACH_LANE(m, d[l] = a[l] + (uint64_t)o->imm + base);
}

static void cvta_to_shared(struct warp *w, const struct op *o, uint32_t m) {
    uint64_t *d = place(w, o->r[0]);
    const uint64_t *a = place(w, o->r[1]);
    uint64_t base = (uint64_t)(uintptr_t)w->block->shared;

    EACH_LANE(m, d[l] = a[l] - base);
}

void decode_cvta(struct instruction *in) {
    struct op *o = in->op;
    bool to = has(in, "to"), shared = has(in, "shared");

    if (!has(in, "u64") || in->n_operands != 2 ||
        (!shared && !has(in, "global") && !has(in, "local") && !has(in, "param")))
        refuse(in, "an unknown form of the instruction");
    o->r[0] = target(in, 0, 8);
    if (in->operand[1].kind == SYMBOL && !to) {
        decode_address_of(in, 8);
        o->run = shared ? cvta_shared : mov_address_64;
        return;
    }
    o->r[1] = source(in, 1, 8);
    o->run = !shared ? mov_64 : to ? cvta_to_shared : cvta_shared;
}
