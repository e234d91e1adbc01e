/* Instructions on integers and bits. Shifts by the width or more give 0, or copies of the sign. */

#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
__extension__ typedef __int128 s128;
__extension__ typedef unsigned __int128 u128;

#define WIDTHS(NAME, EXPR)                                                                         \
    OP2(NAME##_16, u16, u16, u16, EXPR)                                                            \
    OP2(NAME##_32, u32, u32, u32, EXPR)                                                            \
    OP2(NAME##_64, u64, u64, u64, EXPR)
#define SIGNED(NAME, EXPR)                                                                         \
    OP2(NAME##_s16, s16, s16, s16, EXPR)                                                           \
    OP2(NAME##_s32, s32, s32, s32, EXPR)                                                           \
    OP2(NAME##_s64, s64, s64, s64, EXPR)

WIDTHS(add, a + b)
WIDTHS(sub, a - b)
OP2(mul_16, u16, u16, u16, (u32)a *b)
OP2(mul_32, u32, u32, u32, a *b)
OP2(mul_64, u64, u64, u64, a *b)
WIDTHS(and, a &b)
WIDTHS(or, a | b)
WIDTHS(xor, a ^ b)
WIDTHS(min, a < b ? a : b)
WIDTHS(max, a > b ? a : b)
SIGNED(min, a < b ? a : b)
SIGNED(max, a > b ? a : b)
WIDTHS(div, b ? a / b : ~(u64)0)
WIDTHS(rem, b ? a % b : a)
OP2(div_s32, s32, s32, s32, b == -1 ? 0u - (u32)a : b ? (u32)(a / b) : ALL)
OP2(div_s64, s64, s64, s64, b == -1 ? 0u - (u64)a : b ? (u64)(a / b) : ~(u64)0)
OP2(rem_s32, s32, s32, s32, b == -1 ? 0 : b ? a % b : a)
OP2(rem_s64, s64, s64, s64, b == -1 ? 0 : b ? a % b : a)
OP2(mulhi_u32, u32, u32, u32, (u64)a *b >> 32)
OP2(mulhi_s32, s32, s32, s32, (s64)a *b >> 32)
OP2(mulhi_u64, u64, u64, u64, (u128)a *b >> 64)
OP2(mulhi_s64, s64, s64, s64, (s128)a *b >> 64)
OP2(wide_u16, u32, u16, u16, (u32)a *b)
OP2(wide_s16, s32, s16, s16, (s32)a *b)
OP2(wide_u32, u64, u32, u32, (u64)a *b)
OP2(wide_s32, s64, s32, s32, (s64)a *b)
OP3(mad_16, u16, u16, u16, u16, (u32)a *b + c)
OP3(mad_32, u32, u32, u32, u32, a *b + c)
OP3(mad_64, u64, u64, u64, u64, a *b + c)
OP3(madwide_u32, u64, u32, u32, u64, (u64)a *b + c)
OP3(madwide_s32, s64, s32, s32, s64, (u64)((s64)a *b) + (u64)c)
OP3(madhi_u32, u32, u32, u32, u32, (u32)((u64)a *b >> 32) + c)
OP1(neg_16, u16, u16, 0 - a)
OP1(neg_32, u32, u32, 0 - a)
OP1(neg_64, u64, u64, 0 - a)
OP1(abs_32, s32, s32, a < 0 ? 0u - (u32)a : (u32)a)
OP1(abs_64, s64, s64, a < 0 ? 0u - (u64)a : (u64)a)
OP1(not_16, u16, u16, ~a)
OP1(not_32, u32, u32, ~a)
OP1(not_64, u64, u64, ~a)
OP2(shl_16, u16, u16, u32, b > 15 ? 0 : (u32)a << b)
OP2(shl_32, u32, u32, u32, b > 31 ? 0 : a << b)
OP2(shl_64, u64, u64, u32, b > 63 ? 0 : a << b)
OP2(shr_u16, u16, u16, u32, b > 15 ? 0 : a >> b)
OP2(shr_u32, u32, u32, u32, b > 31 ? 0 : a >> b)
OP2(shr_u64, u64, u64, u32, b > 63 ? 0 : a >> b)
OP2(shr_s16, s16, s16, u32, a >> (b > 15 ? 15 : b))
OP2(shr_s32, s32, s32, u32, a >> (b > 31 ? 31 : b))
OP2(shr_s64, s64, s64, u32, a >> (b > 63 ? 63 : b))
OP1(popc_32, u32, u32, __builtin_popcount(a))
OP1(popc_64, u32, u64, __builtin_popcountll(a))
OP1(clz_32, u32, u32, a ? __builtin_clz(a) : 32)
OP1(clz_64, u32, u64, a ? __builtin_clzll(a) : 64)
OP1(bfind_u32, u32, u32, a ? 31 - __builtin_clz(a) : -1)

static inline u32 reversed(u32 a) {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0F0F0F0F) | (a & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(a);
}
OP1(brev_32, u32, u32, reversed(a))

/* The 64 bits of the funnel shift have b in the upper half, a in the lower one. */
static inline u32 funnel_left(u32 a, u32 b, u32 n) {
    return n == 0 ? b : n > 31 ? a : b << n | a >> (32 - n);
}
static inline u32 funnel_right(u32 a, u32 b, u32 n) {
    return n == 0 ? a : n > 31 ? b : b << (32 - n) | a >> n;
}
OP3(shf_l_wrap, u32, u32, u32, u32, funnel_left(a, b, c & 31))
OP3(shf_l_clamp, u32, u32, u32, u32, funnel_left(a, b, c))
OP3(shf_r_wrap, u32, u32, u32, u32, funnel_right(a, b, c & 31))
OP3(shf_r_clamp, u32, u32, u32, u32, funnel_right(a, b, c))

/* A nibble of the selector: the index of a byte, and a bit that selects copies of its sign. */
static inline u32 permuted(u32 a, u32 b, u32 selector) {
    u64 both = (u64)b << 32 | a;
    u32 d = 0;

    for (u32 i = 0; i < 4; i++) {
        u32 s = selector >> 4 * i & 15, byte = (u32)(both >> 8 * (s & 7)) & 255;

        if (s & 8)
            byte = byte & 128 ? 255 : 0;
        d |= byte << 8 * i;
    }
    return d;
}
OP3(prmt_32, u32, u32, u32, u32, permuted(a, b, c))

static inline u64 extracted(u64 a, u32 at, u32 n, u32 width, bool is_signed) {
    u32 last = at + n - 1 < width - 1 ? at + n - 1 : width - 1;
    u64 sign = is_signed && n ? a >> last & 1 : 0, d = 0;

    for (u32 i = 0; i < width; i++)
        d |= (i < n && at + i < width ? a >> (at + i) & 1 : sign) << i;
    return d;
}
OP3(bfe_u32, u32, u32, u32, u32, extracted(a, b & 255, c & 255, 32, false))
OP3(bfe_s32, u32, u32, u32, u32, extracted(a, b & 255, c & 255, 32, true))
OP3(bfe_u64, u64, u64, u32, u32, extracted(a, b & 255, c & 255, 64, false))
OP3(bfe_s64, u64, u64, u32, u32, extracted(a, b & 255, c & 255, 64, true))

/* Inserts the lowest @n bits of a in b, from bit @at on. */
static inline u64 inserted(u64 a, u64 b, u32 at, u32 n, u32 width) {
    u64 mask = n > 63 ? ~(u64)0 : ((u64)1 << n) - 1;

    if (at >= width)
        return b;
    return (b & ~(mask << at)) | (a & mask) << at;
}
#define BFI(NAME, T, WIDTH)                                                                        \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        T *d = place(w, o->r[0]);                                                                  \
        const T *a = place(w, o->r[1]), *b = place(w, o->r[2]);                                    \
        const u32 *at = place(w, o->r[3]), *n = place(w, o->r[4]);                                 \
        EACH_LANE(m, d[l] = (T)inserted(a[l], b[l], at[l] & 255, n[l] & 255, WIDTH));              \
    }
BFI(bfi_32, u32, 32)
BFI(bfi_64, u64, 64)

static inline u32 dot4(u32 a, u32 b, u32 c, bool signed_a, bool signed_b) {
    for (u32 i = 0; i < 4; i++) {
        s32 x = (s32)(a >> 8 * i & 255), y = (s32)(b >> 8 * i & 255);

        x = signed_a && x > 127 ? x - 256 : x;
        y = signed_b && y > 127 ? y - 256 : y;
        c += (u32)(x * y);
    }
    return c;
}
OP3(dp4a_uu, u32, u32, u32, u32, dot4(a, b, c, false, false))
OP3(dp4a_us, u32, u32, u32, u32, dot4(a, b, c, false, true))
OP3(dp4a_su, u32, u32, u32, u32, dot4(a, b, c, true, false))
OP3(dp4a_ss, u32, u32, u32, u32, dot4(a, b, c, true, true))

#define SELECT(NAME, T)                                                                            \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        T *d = place(w, o->r[0]);                                                                  \
        const T *a = place(w, o->r[1]), *b = place(w, o->r[2]);                                    \
        u32 p = w->preds[o->r[3]];                                                                 \
        EACH_LANE(m, d[l] = p >> l & 1 ? a[l] : b[l]);                                             \
    }
SELECT(selp_16, u16)
SELECT(selp_32, u32)
SELECT(selp_64, u64)

#define PREDICATES(NAME, EXPR)                                                                     \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        u32 a = w->preds[o->r[1]], b = w->preds[o->r[2]], d = w->preds[o->r[0]];                   \
        (void)b;                                                                                   \
        w->preds[o->r[0]] = (d & ~m) | ((EXPR)&m);                                                 \
    }
PREDICATES(and_pred, a &b)
PREDICATES(or_pred, a | b)
PREDICATES(xor_pred, a ^ b)
PREDICATES(not_pred, ~a)
PREDICATES(mov_pred, a)

/* lop3: d = a function of three bits, given as a table of 8 bits. */
static void lop3(struct warp *w, const struct op *o, uint32_t m) {
    u32 *d = place(w, o->r[0]);
    const u32 *pa = place(w, o->r[1]), *pb = place(w, o->r[2]), *pc = place(w, o->r[3]);
    u32 table = (u32)o->imm;

    for (u32 l = 0; l < LANES; l++) {
        u32 v = 0;

        for (u32 i = 0; i < 8; i++)
            if (table >> i & 1)
                v |= (i & 4 ? pa[l] : ~pa[l]) & (i & 2 ? pb[l] : ~pb[l]) & (i & 1 ? pc[l] : ~pc[l]);
        if (m >> l & 1)
            d[l] = v;
    }
}

void decode_lop3(struct instruction *in) {
    if (!has(in, "b32") || in->n_operands != 5)
        refuse(in, "an unknown form of the instruction");
    in->op->run = lop3;
    in->op->r[0] = target(in, 0, 4);
    for (u32 i = 1; i < 4; i++)
        in->op->r[i] = source(in, i, 4);
    in->op->imm = immediate(in, 4);
}

#define ALIKE(NAME, FN)                                                                            \
    {NAME ".s16", FN##_16, "222"}, {NAME ".u16", FN##_16, "222"}, {NAME ".s32", FN##_32, "444"},   \
        {NAME ".u32", FN##_32, "444"}, {NAME ".s64", FN##_64, "888"}, {                            \
        NAME ".u64", FN##_64, "888"                                                                \
    }
#define BITS(NAME, FN)                                                                             \
    {NAME ".b16", FN##_16, "222"}, {NAME ".b32", FN##_32, "444"}, {NAME ".b64", FN##_64, "888"}, { \
        NAME ".pred", FN##_pred, "ppp"                                                             \
    }
#define APART(NAME, FN)                                                                            \
    {NAME ".u16", FN##_16, "222"}, {NAME ".u32", FN##_32, "444"}, {NAME ".u64", FN##_64, "888"},   \
        {NAME ".s32", FN##_s32, "444"}, {                                                          \
        NAME ".s64", FN##_s64, "888"                                                               \
    }
#define SELECTS(TYPE, N, W)                                                                        \
    { "selp." TYPE, selp_##N, W W W "p" }

const struct form ptx_forms[] = {
    ALIKE("add", add),
    ALIKE("sub", sub),
    ALIKE("mul.lo", mul),
    BITS("and", and),
    BITS("or", or),
    BITS("xor", xor),
    APART("min", min),
    APART("max", max),
    APART("div", div),
    APART("rem", rem),
    {"min.s16", min_s16, "222"},
    {"max.s16", max_s16, "222"},
    {"mul.hi.u32", mulhi_u32, "444"},
    {"mul.hi.s32", mulhi_s32, "444"},
    {"mul.hi.u64", mulhi_u64, "888"},
    {"mul.hi.s64", mulhi_s64, "888"},
    {"mul.wide.u16", wide_u16, "422"},
    {"mul.wide.s16", wide_s16, "422"},
    {"mul.wide.u32", wide_u32, "844"},
    {"mul.wide.s32", wide_s32, "844"},
    {"mad.lo.s16", mad_16, "2222"},
    {"mad.lo.u16", mad_16, "2222"},
    {"mad.lo.s32", mad_32, "4444"},
    {"mad.lo.u32", mad_32, "4444"},
    {"mad.lo.s64", mad_64, "8888"},
    {"mad.lo.u64", mad_64, "8888"},
    {"mad.wide.u32", madwide_u32, "8448"},
    {"mad.wide.s32", madwide_s32, "8448"},
    {"mad.hi.u32", madhi_u32, "4444"},
    {"neg.s16", neg_16, "22"},
    {"neg.s32", neg_32, "44"},
    {"neg.s64", neg_64, "88"},
    {"abs.s32", abs_32, "44"},
    {"abs.s64", abs_64, "88"},
    {"not.b16", not_16, "22"},
    {"not.b32", not_32, "44"},
    {"not.b64", not_64, "88"},
    {"not.pred", not_pred, "pp"},
    {"mov.pred", mov_pred, "pp"},
    {"shl.b16", shl_16, "224"},
    {"shl.b32", shl_32, "444"},
    {"shl.b64", shl_64, "884"},
    {"shr.u16", shr_u16, "224"},
    {"shr.u32", shr_u32, "444"},
    {"shr.u64", shr_u64, "884"},
    {"shr.b16", shr_u16, "224"},
    {"shr.b32", shr_u32, "444"},
    {"shr.b64", shr_u64, "884"},
    {"shr.s16", shr_s16, "224"},
    {"shr.s32", shr_s32, "444"},
    {"shr.s64", shr_s64, "884"},
    {"popc.b32", popc_32, "44"},
    {"popc.b64", popc_64, "48"},
    {"clz.b32", clz_32, "44"},
    {"clz.b64", clz_64, "48"},
    {"bfind.u32", bfind_u32, "44"},
    {"brev.b32", brev_32, "44"},
    {"shf.l.wrap.b32", shf_l_wrap, "4444"},
    {"shf.l.clamp.b32", shf_l_clamp, "4444"},
    {"shf.r.wrap.b32", shf_r_wrap, "4444"},
    {"shf.r.clamp.b32", shf_r_clamp, "4444"},
    {"prmt.b32", prmt_32, "4444"},
    {"bfe.u32", bfe_u32, "4444"},
    {"bfe.s32", bfe_s32, "4444"},
    {"bfe.u64", bfe_u64, "8844"},
    {"bfe.s64", bfe_s64, "8844"},
    {"bfi.b32", bfi_32, "44444"},
    {"bfi.b64", bfi_64, "88844"},
    {"dp4a.u32.u32", dp4a_uu, "4444"},
    {"dp4a.u32.s32", dp4a_us, "4444"},
    {"dp4a.s32.u32", dp4a_su, "4444"},
    {"dp4a.s32.s32", dp4a_ss, "4444"},
    SELECTS("b16", 16, "2"),
    SELECTS("u16", 16, "2"),
    SELECTS("s16", 16, "2"),
    SELECTS("b32", 32, "4"),
    SELECTS("u32", 32, "4"),
    SELECTS("s32", 32, "4"),
    SELECTS("f32", 32, "4"),
    SELECTS("b64", 64, "8"),
    SELECTS("u64", 64, "8"),
    SELECTS("s64", 64, "8"),
    SELECTS("f64", 64, "8"),
};
const uint32_t ptx_n_forms = sizeof(ptx_forms) / sizeof(*ptx_forms);
