/* Tests the results of PTX instructions against values from the ISA's definitions, and the errors
 * of the interpreter. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/engine/ptx/half.h"
#include "tests/engine/ptx/ptx.h"

enum { WORDS = 4096 };

static _Alignas(64) uint32_t memory[WORDS];
static uint32_t n_modules;

/* Runs @body with the address of memory in %rd1 and the lane in %r1. There are 99 registers each of
 * %r, %rs, %f, %rd, %fd and %p. Returns true if nothing was refused. */
static bool run_with(const char *body, const struct ptx_launch *settings) {
    static char text[1 << 16];
    char name[32];
    struct {
        void *p;
    } args = {memory};
    struct ptx_launch l = *settings;
    jmp_buf back;

    snprintf(name, sizeof(name), "k%u", n_modules++);
    snprintf(text, sizeof(text),
             "\n.target sm_90a\n.extern .shared .align 128 .b8 at_launch[];\n"
             ".shared .align 4 .u32 of_module;\n"
             ".entry %s(\n.param .u64 %s_param_0\n)\n{\n"
             ".reg .b32 %%r<99>; .reg .b16 %%rs<99>; .reg .f32 %%f<99>; .reg .b64 %%rd<99>;\n"
             ".reg .f64 %%fd<99>; .reg .pred %%p<99>;\n"
             ".shared .align 16 .b8 fixed[64];\n"
             "ld.param.u64 %%rd1, [%s_param_0];\nmov.u32 %%r1, %%tid.x;\n"
             "mov.u32 %%r2, %%ctaid.x;\n%s\nret;\n}\n",
             name, name, name, body);
    l.args = &args;
    l.args_bytes = sizeof(args);
    l.grid_x = l.grid_x ? l.grid_x : 1;
    l.grid_y = 1;
    l.n_threads = l.n_threads ? l.n_threads : 32;
    ptx_memory_add(memory, sizeof(memory));
    ptx_message[0] = 0;
    ptx_catch = &back;
    if (setjmp(back) == 0) {
        ptx_read("test", strdup(text));
        ptx_run(ptx_find(name), &l);
    }
    ptx_catch = NULL;
    return !ptx_message[0];
}

static bool run(const char *body) {
    return run_with(body, &(struct ptx_launch){.shared_bytes = 4096});
}

static void refuses(const char *body, const char *why) {
    cr_assert_not(run(body), "%s", body);
    cr_assert(strstr(ptx_message, why) != NULL, "%s: %s", body, ptx_message);
}

/* ---- one lane's results ---- */

/* Runs @form with @operands, such as an immediate; the result is in a register of @width bytes. */
static uint64_t result(const char *form, const char *operands, uint32_t width) {
    const char *reg = width == 8 ? "%rd9" : width == 4 ? "%r9" : "%rs9";
    char body[400];

    memset(memory, 0xA5, sizeof(memory));
    snprintf(body, sizeof(body), "%s %s, %s;\nst.global.b%u [%%rd1], %s;", form, reg, operands,
             8 * width, reg);
    cr_assert(run_with(body, &(struct ptx_launch){.n_threads = 1}), "%s", ptx_message);
    uint64_t v = 0;
    memcpy(&v, memory, width);
    return v;
}

static const struct {
    const char *form, *operands;
    uint32_t width;
    uint64_t value;
} vectors[] = {
    /* Integers: the lower half of the result, the upper half, and both. */
    {"add.s32", "0x7FFFFFFF, 1", 4, 0x80000000},
    {"sub.s16", "0, 1", 2, 0xFFFF},
    {"mul.lo.s32", "0x10001, 0x10001", 4, 0x20001},
    {"mul.hi.u32", "0xFFFFFFFF, 0xFFFFFFFF", 4, 0xFFFFFFFE},
    {"mul.hi.s32", "-1, -1", 4, 0},
    {"mul.wide.u32", "0xFFFFFFFF, 0xFFFFFFFF", 8, 0xFFFFFFFE00000001},
    {"mul.wide.s32", "-1, 2", 8, 0xFFFFFFFFFFFFFFFE},
    {"mul.wide.u16", "0xFFFF, 0xFFFF", 4, 0xFFFE0001},
    {"mad.lo.s32", "3, -4, 5", 4, 0xFFFFFFF9},
    {"mad.lo.s64", "0x100000000, 3, 1", 8, 0x300000001},
    {"div.s32", "-7, 2", 4, 0xFFFFFFFD},
    {"rem.s32", "-7, 2", 4, 0xFFFFFFFF},
    {"div.u32", "0xFFFFFFFF, 2", 4, 0x7FFFFFFF},
    {"rem.u32", "7, 4", 4, 3},
    {"min.s32", "-1, 1", 4, 0xFFFFFFFF},
    {"min.u32", "-1, 1", 4, 1},
    {"max.u64", "-1, 1", 8, UINT64_MAX},
    {"abs.s32", "-5", 4, 5},
    {"neg.s32", "5", 4, 0xFFFFFFFB},
    /* "Shift amounts greater than the register width N are clamped to N." */
    {"shl.b32", "1, 31", 4, 0x80000000},
    {"shl.b32", "1, 32", 4, 0},
    {"shl.b64", "1, 64", 8, 0},
    {"shl.b16", "0xFF, 4", 2, 0xFF0},
    {"shr.u32", "0x80000000, 33", 4, 0},
    {"shr.s32", "0x80000000, 33", 4, 0xFFFFFFFF},
    {"shr.u64", "0x8000000000000000, 63", 8, 1},
    {"shr.u16", "0x8000, 15", 2, 1},
    /* The funnel shift: bits of [b, a]. */
    {"shf.l.wrap.b32", "0x80000001, 0x12345678, 4", 4, 0x23456788},
    {"shf.l.wrap.b32", "0x80000001, 0x12345678, 36", 4, 0x23456788},
    {"shf.l.clamp.b32", "0x80000001, 0x12345678, 36", 4, 0x80000001},
    {"shf.r.wrap.b32", "0x12345678, 0x9ABCDEF0, 8", 4, 0xF0123456},
    {"shf.r.clamp.b32", "0x12345678, 0x9ABCDEF0, 40", 4, 0x9ABCDEF0},
    /* prmt: bytes 3..0 of a, 7..4 of b; the highest bit of a nibble repeats the sign. */
    {"prmt.b32", "0x33221100, 0x77665544, 0x7531", 4, 0x77553311},
    {"prmt.b32", "0x332211F0, 0x77665544, 0x0008", 4, 0xF0F0F0FF},
    {"prmt.b32", "0x332211F0, 0x77665544, 0x9888", 4, 0x00FFFFFF},
    {"bfe.u32", "0x12345678, 8, 12", 4, 0x456},
    {"bfe.s32", "0x00000F00, 8, 4", 4, 0xFFFFFFFF},
    {"bfe.u32", "0x12345678, 28, 12", 4, 1},
    {"bfe.s32", "0x80000000, 40, 4", 4, 0xFFFFFFFF},
    {"bfe.u32", "0xFFFFFFFF, 0, 0", 4, 0},
    {"bfi.b32", "0xAB, 0xFFFFFFFF, 8, 8", 4, 0xFFFFABFF},
    {"bfi.b32", "0xAB, 0x11111111, 2, 30", 4, 0x2AD},
    {"bfi.b64", "1, 0, 40, 8", 8, 1ull << 40},
    {"lop3.b32", "0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0x96", 4, 0x96969696},
    {"lop3.b32", "0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0x1B", 4, 0x1B1B1B1B},
    {"dp4a.s32.s32", "0xFF010203, 0x01020304, 10", 4, 10 - 1 + 2 + 6 + 12},
    {"dp4a.u32.u32", "0xFF010203, 0x01020304, 10", 4, 10 + 255 + 2 + 6 + 12},
    {"popc.b32", "0xF0F0", 4, 8},
    {"clz.b32", "1", 4, 31},
    {"clz.b32", "0", 4, 32},
    {"bfind.u32", "0", 4, 0xFFFFFFFF},
    {"brev.b32", "0x80000001", 4, 0x80000001},
    {"brev.b32", "0x00000006", 4, 0x60000000},
    /* Floats: ties to even, subnormal numbers kept without .ftz. */
    {"add.rn.f32", "0f3F800000, 0f33800000", 4, 0x3F800000},
    {"add.rn.f32", "0f3F800001, 0f33800000", 4, 0x3F800002},
    {"add.rz.f32", "0f3F800000, 0f337FFFFF", 4, 0x3F800000},
    {"add.rz.f32", "0f3F800000, 0fB2800000", 4, 0x3F7FFFFF},
    {"add.rz.f32", "0f7F7FFFFF, 0f7F7FFFFF", 4, 0x7F7FFFFF},
    {"mul.rn.f32", "0f00800000, 0f3F000000", 4, 0x00400000},
    {"fma.rn.f32", "0f3F800001, 0f3F800001, 0fBF800002", 4, 0x28800000},
    {"div.rn.f32", "0f3F800000, 0f40400000", 4, 0x3EAAAAAB},
    {"rcp.rn.f32", "0f40400000", 4, 0x3EAAAAAB},
    {"sqrt.rn.f32", "0f40000000", 4, 0x3FB504F3},
    {"min.f32", "0f7FC00000, 0f3F800000", 4, 0x3F800000},
    {"max.f32", "0f3F800000, 0f7FC00000", 4, 0x3F800000},
    {"max.f32", "0f7FC00000, 0f7FC00000", 4, 0x7FFFFFFF},
    {"min.f32", "0f00000000, 0f80000000", 4, 0x80000000},
    {"max.f32", "0f80000000, 0f00000000", 4, 0x00000000},
    {"abs.f32", "0fBF800000", 4, 0x3F800000},
    {"neg.f32", "0f00000000", 4, 0x80000000},
    {"ex2.approx.ftz.f32", "0f40400000", 4, 0x41000000},
    {"ex2.approx.ftz.f32", "0fFF800000", 4, 0},
    {"ex2.approx.ftz.f32", "0f7F800000", 4, 0x7F800000},
    {"ex2.approx.ftz.f32", "0fC3000000", 4, 0}, /* 2^-128 is subnormal */
    {"lg2.approx.f32", "0f41000000", 4, 0x40400000},
    {"lg2.approx.f32", "0f00000000", 4, 0xFF800000},
    {"fma.rn.f64", "0d3FF0000000000001, 0d3FF0000000000001, 0dBFF0000000000002", 8,
     0x3970000000000000},
    /* Halves: 2049 / 2048 is a tie; fma is rounded once. */
    {"add.rn.f16x2", "0x3C003C00, 0x10001001", 4, 0x3C003C01},
    {"mul.rn.f16x2", "0x40003C01, 0x40003C01", 4, 0x44003C02},
    {"sub.rn.f16x2", "0x3C007BFF, 0x3C00FBFF", 4, 0x00007C00},
    {"fma.rn.f16x2", "0x3C013C01, 0x3C013C01, 0xBC02BC02", 4, 0x00100010},
    {"fma.rn.f16x2", "0x10000001, 0x3C010001, 0x3C003C00", 4, 0x3C013C00},
    /* cvt */
    {"cvt.rn.f16x2.f32", "0f3F800000, 0f40000000", 4, 0x3C004000},
    {"cvt.rn.f16x2.f32", "0f477FF000, 0f477FEFFF", 4, 0x7C007BFF},
    {"cvt.rn.f16x2.f32", "0f33000000, 0f33000001", 4, 0x00000001},
    {"cvt.rn.f16.f32", "0f3F801000", 2, 0x3C00},
    {"cvt.rn.f16.f32", "0f3F803000", 2, 0x3C02},
    {"cvt.rzi.s32.f32", "0fBFC00000", 4, 0xFFFFFFFF},
    {"cvt.rzi.s32.f32", "0f4F800000", 4, 0x7FFFFFFF},
    {"cvt.rzi.s32.f32", "0fCF800000", 4, 0x80000000},
    {"cvt.rzi.s32.f32", "0f7FC00000", 4, 0},
    {"cvt.rni.s32.f32", "0f40200000", 4, 2},
    {"cvt.rpi.s32.f32", "0f40200000", 4, 3},
    {"cvt.rmi.s32.f32", "0fC0200000", 4, 0xFFFFFFFD},
    {"cvt.rzi.u32.f32", "0fBF800000", 4, 0},
    {"cvt.rzi.u64.f64", "0d43F0000000000000", 8, UINT64_MAX},
    {"cvt.rzi.s64.f64", "0d7FF8000000000000", 8, 0x8000000000000000},
    {"cvt.rn.f32.u32", "0xFFFFFFFF", 4, 0x4F800000},
    {"cvt.rn.f32.s32", "0x01000001", 4, 0x4B800000},
    {"cvt.rn.f32.s32", "0x01000003", 4, 0x4B800002},
    {"cvt.rn.f64.u64", "0xFFFFFFFFFFFFFFFF", 8, 0x43F0000000000000},
    {"cvt.rn.f32.f64", "0d3FF0000010000000", 4, 0x3F800000},
    {"cvt.s32.s8", "0x1F0", 4, 0xFFFFFFF0},
    {"cvt.u16.u32", "0x12345678", 2, 0x5678},
    {"cvt.sat.s16.s32", "40000", 2, 0x7FFF},
    {"cvt.sat.u16.s32", "-1", 2, 0},
    {"cvt.sat.f32.f32", "0fBF800000", 4, 0},
    {"cvt.rni.f32.f32", "0f3FC00000", 4, 0x40000000},
};

Test(ptx, vectors) {
    for (size_t i = 0; i < sizeof(vectors) / sizeof(*vectors); i++) {
        uint64_t v = result(vectors[i].form, vectors[i].operands, vectors[i].width);

        cr_expect(v == vectors[i].value, "%s %s: %llx instead of %llx", vectors[i].form,
                  vectors[i].operands, (unsigned long long)v, (unsigned long long)vectors[i].value);
    }
}

/* Conversions of halves: there and back, and ties, for all of them. */
Test(ptx, halves) {
    _Alignas(32) uint16_t h[8], back[8];
    _Alignas(32) float f[8];

    for (uint32_t i = 0; i < 0x7C00; i += 8) {
        for (uint32_t j = 0; j < 8; j++)
            h[j] = (uint16_t)(i + j);
        halves_to_floats(f, h, 8);
        floats_to_halves(back, f, 8);
        for (uint32_t j = 0; j < 8; j++) {
            float next = half_float((uint16_t)(h[j] + 1)), middle = (f[j] + next) / 2;

            cr_assert(back[j] == h[j] && half_float(h[j]) == f[j] && float_half(f[j]) == h[j]);
            if (h[j] < 0x7BFF)
                cr_assert(float_half(middle) == h[j] + (h[j] & 1) &&
                          float_half(nextafterf(middle, 0)) == h[j] &&
                          float_half(nextafterf(middle, 1e9f)) == h[j] + 1);
        }
    }
}

/* setp: "the comparison is ordered: false if an operand is NaN", and the unordered ones true. */
Test(ptx, comparisons) {
    static const struct {
        const char *form, *operands;
        bool yes;
    } c[] = {
        {"setp.lt.s32", "-1, 0", true},
        {"setp.lt.u32", "-1, 0", false},
        {"setp.ne.f32", "0f7FC00000, 0f00000000", false},
        {"setp.neu.f32", "0f7FC00000, 0f00000000", true},
        {"setp.eq.f32", "0f80000000, 0f00000000", true},
        {"setp.equ.f32", "0f7FC00000, 0f00000000", true},
        {"setp.ltu.f32", "0f3F800000, 0f7FC00000", true},
        {"setp.gtu.f32", "0f3F800000, 0f40000000", false},
        {"setp.ge.f32", "0f7FC00000, 0f7FC00000", false},
        {"setp.num.f32", "0f3F800000, 0f7FC00000", false},
        {"setp.nan.f32", "0f3F800000, 0f7FC00000", true},
        {"setp.gt.f64", "0d3FF0000000000001, 0d3FF0000000000000", true},
        {"setp.eq.s16", "0x10001, 1", true},
        {"setp.ge.u64", "0xFFFFFFFF00000000, 0xFFFFFFFF", true},
    };

    for (size_t i = 0; i < sizeof(c) / sizeof(*c); i++) {
        char body[300];

        snprintf(body, sizeof(body),
                 "%s %%p1|%%p2, %s;\nselp.u32 %%r3, 1, 0, %%p1;\nselp.u32 %%r4, 2, 0, %%p2;\n"
                 "or.b32 %%r5, %%r3, %%r4;\nst.global.u32 [%%rd1], %%r5;",
                 c[i].form, c[i].operands);
        cr_assert(run(body), "%s", ptx_message);
        cr_expect(memory[0] == (c[i].yes ? 1u : 2u), "%s %s", c[i].form, c[i].operands);
    }
}

/* Stores %r9 of each thread in its word. */
#define KEEP "mul.wide.u32 %rd8, %r1, 4;\nadd.s64 %rd9, %rd1, %rd8;\nst.global.u32 [%rd9], %r9;\n"

/* The modes of shfl by the ISA's pseudocode: a source outside of the segment gives the lane's own
 * value. */
Test(ptx, shuffles) {
    static const struct {
        const char *mode;
        uint32_t b, c;
        /* results of lanes 0, 1, 7, 8, 15, 31 */
        int from[6];
    } s[] = {
        {"bfly", 1, 0x1F, {1, 0, 6, 9, 14, 30}},   {"bfly", 16, 0x1F, {16, 17, 23, 24, 31, 15}},
        {"up", 1, 0, {0, 0, 6, 7, 14, 30}},        {"down", 1, 0x1F, {1, 2, 8, 9, 16, 31}},
        {"idx", 5, 0x1F, {5, 5, 5, 5, 5, 5}},      {"up", 1, 0x1800, {0, 0, 6, 8, 14, 30}},
        {"down", 1, 0x181F, {1, 2, 7, 9, 15, 31}}, {"idx", 2, 0x181F, {2, 2, 2, 10, 10, 26}},
    };
    static const int lanes[] = {0, 1, 7, 8, 15, 31};

    for (size_t i = 0; i < sizeof(s) / sizeof(*s); i++) {
        char body[400];

        snprintf(body, sizeof(body), "shfl.sync.%s.b32 %%r9|%%p1, %%r1, %u, %u, -1;\n%s", s[i].mode,
                 s[i].b, s[i].c, KEEP);
        cr_assert(run(body), "%s", ptx_message);
        for (int j = 0; j < 6; j++)
            cr_expect(memory[lanes[j]] == (uint32_t)s[i].from[j], "shfl.%s %u %x, lane %d: %u",
                      s[i].mode, s[i].b, s[i].c, lanes[j], memory[lanes[j]]);
    }
    cr_assert(run("setp.lt.u32 %p1, %r1, 5;\nvote.sync.ballot.b32 %r9, %p1, -1;\n" KEEP));
    cr_expect(memory[31] == 31);
    cr_assert(run("redux.sync.add.s32 %r9, %r1, -1;\n" KEEP));
    cr_expect(memory[0] == 496);
    cr_assert(run("setp.lt.u32 %p1, %r1, 5;\nvote.sync.all.pred %p2, !%p1, -1;\n"
                  "selp.u32 %r9, 1, 0, %p2;\n" KEEP));
    cr_expect(memory[0] == 0);
}

/* Lanes diverge and reconverge: each leaves a loop after as many iterations as its number. After
 * the loop all must be together, or the shuffle would be refused. */
Test(ptx, divergence) {
    cr_assert(run("mov.u32 %r9, 0;\n$again:\nsetp.ge.u32 %p1, %r9, %r1;\n@%p1 bra $out;\n"
                  "add.s32 %r9, %r9, 1;\nbra.uni $again;\n$out:\n"
                  "shfl.sync.bfly.b32 %r9|%p2, %r9, 31, 31, -1;\n" KEEP),
              "%s", ptx_message);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert(memory[i] == 31 - i);
    cr_assert(
        run("and.b32 %r3, %r1, 3;\nsetp.eq.s32 %p1, %r3, 0;\n@%p1 bra $a;\n"
            "setp.eq.s32 %p1, %r3, 1;\n@%p1 bra $b;\nmov.u32 %r9, 7;\nbra $c;\n"
            "$a: mov.u32 %r9, 5;\nbra $c;\n$b: mov.u32 %r9, 6;\n$c:\nbar.warp.sync -1;\n" KEEP),
        "%s", ptx_message);
    cr_expect(memory[4] == 5 && memory[5] == 6 && memory[6] == 7);
    /* Lanes that have ended are not waited for. */
    cr_assert(run("setp.gt.u32 %p1, %r1, 15;\n@%p1 ret;\nmov.u32 %r9, 3;\nbar.sync 0;\n" KEEP));
}

/* Warps wait for each other; all of them add to a word in shared memory, in any order. */
Test(ptx, barriers) {
    for (uint64_t order = 0; order < 6; order++) {
        cr_assert(
            run_with("mov.u32 %r3, at_launch;\nsetp.ne.s32 %p1, %r1, 0;\nmov.u32 %r4, 0;\n"
                     "@!%p1 st.shared.u32 [%r3+8], %r4;\nbar.sync 0;\n"
                     "atom.shared.add.u32 %r5, [%r3+8], %r1;\nbar.sync 1, 128;\n"
                     "ld.shared.u32 %r9, [at_launch+8];\n" KEEP,
                     &(struct ptx_launch){.n_threads = 128, .shared_bytes = 16, .order = order}),
            "%s", ptx_message);
        cr_assert(memory[0] == 127 * 64 && memory[127] == 127 * 64);
    }
    refuses("setp.gt.u32 %p1, %r1, 15;\n@%p1 bra $x;\nbar.sync 0;\n$x:\nmov.u32 %r9, 1;",
            "not all lanes");
    cr_assert_not(
        run_with("setp.gt.u32 %p1, %r1, 31;\n@%p1 bra $x;\nbar.sync 0, 64;\n$x: bar.sync 1;",
                 &(struct ptx_launch){.n_threads = 64}));
    cr_assert(strstr(ptx_message, "no warp") != NULL, "%s", ptx_message);
}

/* Copied data is there after the wait, and not before. */
Test(ptx, copies) {
    static const char body[] =
        "mov.u32 %r3, at_launch;\nmov.u32 %r4, 77;\nst.shared.u32 [%r3], %r4;\n"
        "cp.async.ca.shared.global [%r3], [%rd1+256], 4;\ncp.async.commit_group;\n"
        "cp.async.cg.shared.global [%r3+16], [%rd1+272], 16;\ncp.async.commit_group;\n"
        "cp.async.wait_group 1;\nld.shared.u32 %r5, [%r3];\nst.global.u32 [%rd1+4], %r5;\n"
        "cp.async.wait_group 0;\nld.shared.u32 %r5, [%r3+28];\nst.global.u32 [%rd1+8], %r5;";

    memory[64] = 1234;
    memory[71] = 5678;
    cr_assert(run_with(body, &(struct ptx_launch){.n_threads = 1, .shared_bytes = 64}), "%s",
              ptx_message);
    cr_assert(memory[1] == 1234 && memory[2] == 5678);
    cr_assert(run_with("mov.u32 %r4, 77;\nst.shared.u32 [fixed], %r4;\n"
                       "mov.u32 %r3, fixed;\ncp.async.ca.shared.global [%r3], [%rd1+256], 4;\n"
                       "ld.shared.u32 %r5, [fixed];\nst.global.u32 [%rd1], %r5;\n"
                       "cp.async.wait_all;",
                       &(struct ptx_launch){.n_threads = 1}),
              "%s", ptx_message);
    cr_assert(memory[0] == 77);
}

/* A bulk copy, counted by a barrier; lane 0 starts it and all wait. */
#define BULK(FENCE)                                                                                \
    "mov.u32 %r3, at_launch;\nsetp.ne.s32 %p1, %r1, 0;\n@%p1 bra $wait;\n"                         \
    "mbarrier.init.shared::cta.b64 [%r3], 1;\nmov.u32 %r4, 9;\nst.shared.u32 [%r3+16], "           \
    "%r4;\n" FENCE                                                                                 \
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;\nadd.s32 %r4, %r3, 16;\n"            \
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd1], 128, "       \
    "[%r3];\n$wait:\nbar.sync 0;\n$again:\n"                                                       \
    "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra $again;\n"                 \
    "shl.b32 %r5, %r1, 2;\nadd.s32 %r5, %r5, %r3;\nld.shared.u32 %r9, [%r5+16];\n"                 \
    "add.s32 %r9, %r9, 1;\n" KEEP

/* A second copy to the same place, and the code after it. */
#define TO_THE_PLACE                                                                               \
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd1], 128, "       \
    "[%r3];\n"
#define ONE_MORE(NEXT)                                                                             \
    "fence.proxy.async.shared::cta;\n"                                                             \
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;\nadd.s32 %r4, %r3, "                 \
    "16;\n" TO_THE_PLACE NEXT

Test(ptx, bulk) {
    for (uint32_t i = 0; i < 32; i++)
        memory[i] = 3 * i;
    cr_assert(run(BULK("fence.proxy.async.shared::cta;\n")), "%s", ptx_message);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert(memory[i] == 3 * i + 1);
    refuses(BULK(""), "no fence.proxy.async");
    /* Threads read data that the copy has not written yet; another copy writes to the same
     * place. */
    refuses(BULK("fence.proxy.async.shared::cta;\n") "@%p1 bra $end;\n" ONE_MORE(
                "ld.shared.u32 %r9, [%r3+32];\n") "$end:",
            "where a copy in bulk is on its way: ld.shared");
    refuses(
        BULK("fence.proxy.async.shared::cta;\n") "@%p1 bra $end;\n" ONE_MORE(TO_THE_PLACE) "$end:",
        "where another one is on its way");
}

/* Two blocks of a cluster: each copies half of 256 bytes to both, once both have released the
 * place; a barrier counts the bytes of both halves. */
#define INIT "mbarrier.init.shared::cta.b64 [%r3], 1;\nmbarrier.init.shared::cta.b64 [%r3+8], 2;\n"
#define MEET "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
#define SAY_FREE                                                                                   \
    "mapa.shared::cluster.u32 %r5, %r3, 0;\n"                                                      \
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5+8];\n"                            \
    "mapa.shared::cluster.u32 %r5, %r3, 1;\n"                                                      \
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5+8];\n"
#define PAIR(MEET, FREE, MASK, END)                                                                \
    "mov.u32 %r3, at_launch;\nmov.u32 %r4, %cluster_ctarank;\nsetp.ne.s32 %p1, %r1, 0;\n"          \
    "@%p1 bra $ready;\n" INIT "fence.mbarrier_init.release.cluster;\n$ready:\n" MEET               \
    "@%p1 bra $wait;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;\n" FREE             \
    "$free:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r3+8], 0;\n"          \
    "@!%p2 bra $free;\nshl.b32 %r6, %r4, 7;\nadd.s32 %r7, %r6, %r3;\nadd.s32 %r7, %r7, 16;\n"      \
    "cvt.u64.u32 %rd2, %r6;\nadd.s64 %rd2, %rd2, %rd1;\nmov.u16 %rs1, " MASK ";\n"                 \
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r7], " \
    "[%rd2], 128, [%r3], %rs1;\n$wait:\nbar.sync 0;\n$again:\n"                                    \
    "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra $again;\n"                 \
    "mov.u32 %r8, %cluster_nctarank;\nshl.b32 %r9, %r1, 2;\nadd.s32 %r10, %r9, %r3;\n"             \
    "ld.shared.u32 %r11, [%r10+16];\nld.shared.u32 %r12, [%r10+144];\n"                            \
    "mul.lo.s32 %r11, %r11, %r8;\nshl.b32 %r13, %r2, 8;\nadd.s32 %r9, %r9, %r13;\n"                \
    "cvt.u64.u32 %rd3, %r9;\nadd.s64 %rd3, %rd3, %rd1;\nst.global.u32 [%rd3+1024], %r11;\n"        \
    "st.global.u32 [%rd3+1152], %r12;\n" END

static bool run_pair(const char *body, uint32_t grid, uint64_t order) {
    return run_with(body, &(struct ptx_launch){
                              .grid_x = grid, .shared_bytes = 512, .cluster = 2, .order = order});
}

static void pair_refuses(const char *body, const char *why) {
    cr_assert_not(run_pair(body, 2, 0), "%s", body);
    cr_assert(strstr(ptx_message, why) != NULL, "%s: %s", body, ptx_message);
}

/* Each thread of one block stores 100 times its block's number, plus its own, in the other one. */
Test(ptx, stores_to_other_blocks_of_a_cluster) {
    for (uint64_t order = 0; order < 4; order++) {
        memset(memory, 0, sizeof(memory));
        cr_assert(run_pair("mov.u32 %r3, at_launch;\nmov.u32 %r4, %cluster_ctarank;\n"
                           "xor.b32 %r5, %r4, 1;\nshl.b32 %r6, %r1, 2;\nadd.s32 %r7, %r6, %r3;\n"
                           "mapa.shared::cluster.u32 %r8, %r7, %r5;\n"
                           "mul.lo.s32 %r9, %r4, 100;\nadd.s32 %r9, %r9, %r1;\n" MEET
                           "st.shared::cluster.u32 [%r8], %r9;\n" MEET
                           "ld.shared.u32 %r10, [%r7];\nshl.b32 %r11, %r2, 7;\n"
                           "add.s32 %r11, %r11, %r6;\ncvt.u64.u32 %rd3, %r11;\n"
                           "add.s64 %rd3, %rd3, %rd1;\nst.global.u32 [%rd3+1024], %r10;\n",
                           2, order),
                  "%s", ptx_message);
        for (uint32_t i = 0; i < 64; i++)
            cr_assert(memory[256 + i] == (i < 32 ? 100 : 0) + i % 32, "%u: %u", i, memory[256 + i]);
    }
}

Test(ptx, clusters) {
    for (uint64_t order = 0; order < 8; order++) {
        memset(memory, 0, sizeof(memory));
        for (uint32_t i = 0; i < 64; i++)
            memory[i] = 5 * i + 1;
        cr_assert(run_pair(PAIR(MEET, SAY_FREE, "3", ""), 4, order), "%s", ptx_message);
        for (uint32_t i = 0; i < 4 * 64; i++)
            cr_assert(memory[256 + i] == (5 * (i % 64) + 1) * (i % 64 < 32 ? 2 : 1), "%u", i);
    }
    cr_assert_not(run_pair(PAIR(MEET, SAY_FREE, "3", ""), 3, 0));
    cr_assert(strstr(ptx_message, "in clusters of 2") != NULL, "%s", ptx_message);
    pair_refuses(PAIR("", SAY_FREE, "3", ""), "not initialised");
    pair_refuses(PAIR(MEET, "", "3", ""), "can go on");
    pair_refuses(PAIR(MEET, SAY_FREE, "1", ""), "can go on");
    pair_refuses(PAIR(MEET, SAY_FREE, "7", ""), "blocks 0x7 of 2");
    pair_refuses(PAIR("barrier.cluster.wait.aligned;\n", SAY_FREE, "3", ""), "without an arrival");
    pair_refuses(PAIR("barrier.cluster.arrive.aligned;\nbarrier.cluster.arrive.aligned;\n",
                      SAY_FREE, "3", ""),
                 "a second arrival");
    pair_refuses("mapa.shared::cluster.u32 %r5, %r1, 2;", "block 2 of 2");
    pair_refuses("mov.u32 %r3, at_launch;\nmapa.shared::cluster.u32 %r5, %r3, 0;\n"
                 "ld.shared.u32 %r6, [%r5];",
                 "shared memory");
    /* Block 0 ends at once. */
    pair_refuses("mov.u32 %r4, %cluster_ctarank;\nsetp.eq.s32 %p1, %r4, 0;\n@%p1 bra $end;\n"
                 "bar.sync 0;\nmov.u32 %r3, at_launch;\nmapa.shared::cluster.u32 %r5, %r3, 0;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];\n$end:",
                 "has ended");
    pair_refuses("mov.u32 %r4, %cluster_ctarank;\nsetp.eq.s32 %p1, %r4, 0;\n@%p1 bra $end;\n"
                 "bar.sync 0;\nmov.u32 %r3, at_launch;\nmapa.shared::cluster.u32 %r5, %r3, 0;\n"
                 "st.shared::cluster.u32 [%r5], %r3;\n$end:",
                 "has ended");
    pair_refuses("mov.u32 %r3, at_launch;\nmapa.shared::cluster.u32 %r5, %r3, 1;\n"
                 "st.shared::cluster.u32 [%r5+4096], %r3;",
                 "of shared memory");
    refuses("ld.shared::cluster.u32 %r5, [%r3];", "");
    refuses("barrier.cluster.arrive;", "an unknown form");
    refuses("mapa.u64 %rd2, %rd1, 0;", "an unknown form");
    refuses("mbarrier.arrive.shared::cluster.b64 _, [at_launch];", "an unknown form");
}

/* Layout of fragments: the place of element (row, column) of each matrix. */
static void mma_of_halves(int columns) {
    static char body[4000];
    float a[16][16], b[16][8];
    int at = 0;

    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            a[i][j] = (float)((i * 7 + j * 3) % 11 - 5);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            b[i][j] = (float)((i * 5 + j) % 7 - 3);
    /* For each lane: a0 .. a7 and b0 .. b3 as halves, numbered as in the ISA; then 4 floats of
     * c. */
    for (uint32_t l = 0; l < 32; l++) {
        uint32_t g = l >> 2, t = l % 4;
        uint16_t h[12];

        for (uint32_t i = 0; i < 8; i++) {
            uint32_t row = i < 2 || (i >= 4 && i < 6) ? g : g + 8;
            uint32_t col = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
            h[i] = float_half(a[row][col]);
        }
        for (uint32_t i = 0; i < 4; i++)
            h[8 + i] = float_half(b[t * 2 + (i & 1) + (i >= 2 ? 8 : 0)][g]);
        memcpy((uint8_t *)memory + 64 * l, h, sizeof(h));
    }
    at += snprintf(body, sizeof(body),
                   "mul.wide.u32 %%rd2, %%r1, 64;\nadd.s64 %%rd3, %%rd1, %%rd2;\n");
    for (int i = 0; i < 6; i++)
        at += snprintf(body + at, sizeof(body) - (size_t)at, "ld.global.u32 %%r%d, [%%rd3+%d];\n",
                       10 + i, 4 * i);
    at += snprintf(body + at, sizeof(body) - (size_t)at,
                   "mov.f32 %%f5, 0f3F800000;\n"
                   "mma.sync.aligned.m16n8k%d.row.col.f32.f16.f16.f32 {%%f1, %%f2, %%f3, %%f4}, "
                   "{%s}, {%s}, {%%f5, %%f5, %%f5, %%f5};\n",
                   columns, columns == 16 ? "%r10, %r11, %r12, %r13" : "%r10, %r11",
                   columns == 16 ? "%r14, %r15" : "%r14");
    for (int i = 0; i < 4; i++)
        at += snprintf(body + at, sizeof(body) - (size_t)at, "st.global.f32 [%%rd3+%d], %%f%d;\n",
                       32 + 4 * i, 1 + i);
    cr_assert(run(body), "%s", ptx_message);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = l / 4 + (i >= 2 ? 8 : 0), col = l % 4 * 2 + (i & 1);
            float sum = 1, got;

            for (int k = 0; k < columns; k++)
                sum += a[row][k] * b[k][col];
            memcpy(&got, (uint8_t *)memory + 64 * l + 32 + 4 * i, 4);
            cr_assert(got == sum, "%d columns, row %u, column %u: %g, not %g", columns, row, col,
                      (double)got, (double)sum);
        }
}

Test(ptx, mma) {
    mma_of_halves(16);
    mma_of_halves(8);
}

/* Multiplies signed bytes, 32 columns and 16: a0 .. a15 and b0 .. b7 of a lane, numbered as in the
 * ISA. */
Test(ptx, mma_of_bytes) {
    for (int n = 16; n <= 32; n += 16) {
        static char body[4000];
        int a[16][32], b[32][8], at = 0;

        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 32; j++)
                a[i][j] = (i * 37 + j * 11) % 256 - 128;
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 8; j++)
                b[i][j] = (i * 29 + j * 53) % 256 - 128;
        for (uint32_t l = 0; l < 32; l++) {
            uint8_t *lane = (uint8_t *)memory + 64 * l;

            for (uint32_t i = 0; i < (uint32_t)n / 2; i++) {
                uint32_t row = i / 4 % 2 ? l / 4 + 8 : l / 4;

                lane[i] = (uint8_t)a[row][l % 4 * 4 + i % 4 + (i >= 8 ? 16 : 0)];
            }
            for (uint32_t i = 0; i < (uint32_t)n / 4; i++)
                lane[16 + i] = (uint8_t)b[l % 4 * 4 + i % 4 + (i >= 4 ? 16 : 0)][l / 4];
        }
        at += snprintf(body, sizeof(body),
                       "mul.wide.u32 %%rd2, %%r1, 64;\nadd.s64 %%rd3, %%rd1, %%rd2;\n");
        for (int i = 0; i < 6; i++)
            at += snprintf(body + at, sizeof(body) - (size_t)at,
                           "ld.global.u32 %%r%d, [%%rd3+%d];\n", 10 + i, 4 * i);
        at += snprintf(body + at, sizeof(body) - (size_t)at,
                       "mov.u32 %%r16, 1262485504;\n"
                       "mma.sync.aligned.m16n8k%d.row.col.s32.s8.s8.s32 {%%r20, %%r21, %%r22, "
                       "%%r23}, {%s}, {%s}, {%%r16, %%r16, %%r16, %%r16};\n",
                       n, n == 32 ? "%r10, %r11, %r12, %r13" : "%r10, %r11",
                       n == 32 ? "%r14, %r15" : "%r14");
        for (int i = 0; i < 4; i++)
            at += snprintf(body + at, sizeof(body) - (size_t)at,
                           "st.global.u32 [%%rd3+%d], %%r%d;\n", 32 + 4 * i, 20 + i);
        cr_assert(run(body), "%s", ptx_message);
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t row = l / 4 + (i >= 2 ? 8 : 0), col = l % 4 * 2 + (i & 1);
                int sum = 0x4B400000, got;

                for (int k = 0; k < n; k++)
                    sum += a[row][k] * b[k][col];
                memcpy(&got, (uint8_t *)memory + 64 * l + 32 + 4 * i, 4);
                cr_assert(got == sum, "%d columns, row %u, column %u: %d, not %d", n, row, col, got,
                          sum);
            }
    }
}

/* ldmatrix of one matrix of 8 by 8, by rows and by columns. */
Test(ptx, ldmatrix) {
    for (int trans = 0; trans < 2; trans++) {
        char body[600];

        snprintf(body, sizeof(body),
                 "mov.u32 %%r3, at_launch;\nand.b32 %%r4, %%r1, 7;\nshl.b32 %%r4, %%r4, 4;\n"
                 "add.s32 %%r4, %%r4, %%r3;\nshl.b32 %%r5, %%r1, 2;\nadd.s32 %%r5, %%r5, %%r3;\n"
                 "shl.b32 %%r6, %%r1, 1;\nadd.s32 %%r7, %%r6, 1;\nshl.b32 %%r7, %%r7, 16;\n"
                 "or.b32 %%r6, %%r6, %%r7;\nst.shared.u32 [%%r5], %%r6;\nbar.warp.sync -1;\n"
                 "ldmatrix.sync.aligned.m8n8.x1%s.shared.b16 {%%r9}, [%%r4];\n%s",
                 trans ? ".trans" : "", KEEP);
        cr_assert(run(body), "%s", ptx_message);
        for (uint32_t l = 0; l < 32; l++) { /* element (i, j) is 8 i + j */
            uint32_t g = l / 4, t = l % 4 * 2;
            uint32_t low = trans ? 8 * t + g : 8 * g + t;
            uint32_t high = trans ? 8 * (t + 1) + g : 8 * g + t + 1;

            cr_assert(memory[l] == (low | high << 16));
        }
    }
}

/* A warpgroup's product, 64 by 16 by 32: row r of A is r + 1 in column k = r % 16 and 0 elsewhere;
 * row k of B is 10 k + n in column n. */
static const char wgmma_body[] =
    "mov.u32 %r3, at_launch;\n"
    /* B: thread i < 128 writes four of the 512 halves, 4 i .. */
    "and.b32 %r4, %r1, 127;\nmov.u32 %r5, 0;\n$fill:\nshl.b32 %r6, %r4, 2;\nadd.s32 %r6, %r6, "
    "%r5;\n"
    /* r6 = k + 16 n: k = r6 % 16, n = r6 / 16; at n/8 * 256 + k/8 * 128 + n%8 * 16 + k%8 * 2 */
    "and.b32 %r7, %r6, 15;\nshr.u32 %r8, %r6, 4;\nshr.u32 %r10, %r8, 3;\nmul.lo.s32 %r10, %r10, "
    "256;\n"
    "shr.u32 %r11, %r7, 3;\nmad.lo.s32 %r10, %r11, 128, %r10;\nand.b32 %r11, %r8, 7;\n"
    "mad.lo.s32 %r10, %r11, 16, %r10;\nand.b32 %r11, %r7, 7;\nmad.lo.s32 %r10, %r11, 2, %r10;\n"
    "add.s32 %r10, %r10, %r3;\nmad.lo.s32 %r12, %r7, 10, %r8;\ncvt.rn.f32.u32 %f1, %r12;\n"
    "cvt.rn.f16.f32 %rs1, %f1;\nst.shared.b16 [%r10], %rs1;\nadd.s32 %r5, %r5, 1;\n"
    "setp.lt.u32 %p1, %r5, 4;\n@%p1 bra $fill;\n"
    /* A: lane 4 g + t of warp w: rows 16 w + g (+ 8), columns 2 t (+ 1) (+ 8) */
    "shr.u32 %r4, %r1, 5;\nshl.b32 %r4, %r4, 4;\nand.b32 %r5, %r1, 31;\nshr.u32 %r6, %r5, 2;\n"
    "and.b32 %r7, %r5, 3;\nshl.b32 %r7, %r7, 1;\n"
    "add.s32 %r8, %r4, %r6;\nadd.s32 %r8, %r8, 1;\ncvt.rn.f32.u32 %f1, %r8;\n"
    "add.s32 %r8, %r8, 8;\ncvt.rn.f32.u32 %f2, %r8;\nmov.f32 %f3, 0f00000000;\n"
    "add.s32 %r10, %r7, 1;\nadd.s32 %r11, %r6, 8;\n"
    "setp.eq.s32 %p1, %r6, %r7;\nsetp.eq.s32 %p2, %r6, %r10;\n"
    "selp.f32 %f4, %f1, %f3, %p1;\nselp.f32 %f5, %f1, %f3, %p2;\ncvt.rn.f16x2.f32 %r20, %f5, %f4;\n"
    "selp.f32 %f4, %f2, %f3, %p1;\nselp.f32 %f5, %f2, %f3, %p2;\ncvt.rn.f16x2.f32 %r23, %f5, %f4;\n"
    "mov.u32 %r21, 0;\nmov.u32 %r22, 0;\n"
    "mov.f32 %f40, 0f00000000;\nmov.f32 %f41, %f40;\nmov.f32 %f42, %f40;\nmov.f32 %f43, %f40;\n"
    "mov.f32 %f44, %f40;\nmov.f32 %f45, %f40;\nmov.f32 %f46, %f40;\nmov.f32 %f47, %f40;\n"
    "mov.f32 %f48, %f40;\nmov.f32 %f49, %f40;\nmov.f32 %f50, %f40;\nmov.f32 %f51, %f40;\n"
    "mov.f32 %f52, %f40;\nmov.f32 %f53, %f40;\nmov.f32 %f54, %f40;\nmov.f32 %f55, %f40;\n"
    "FENCE\nbar.sync 0;\n"
    /* leading 128 bytes, stride 256 */
    "shr.u32 %r12, %r3, 4;\ncvt.u64.u32 %rd5, %r12;\nmov.u64 %rd6, 0x1000080000;\n"
    "or.b64 %rd5, %rd5, %rd6;\nBEGIN\n"
    "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%f40, %f41, %f42, %f43, %f44, %f45, %f46, "
    "%f47, %f48, %f49, %f50, %f51, %f52, %f53, %f54, %f55}, {%r20, %r21, %r22, %r23}, %rd5, 1, 1, "
    "1, 0;\nwgmma.commit_group.sync.aligned;\nWAIT\n"
    "mul.wide.u32 %rd8, %r1, 16;\nadd.s64 %rd9, %rd1, %rd8;\nst.global.f32 [%rd9], %f40;\n"
    "st.global.f32 [%rd9+4], %f47;\nst.global.f32 [%rd9+8], %f52;\nst.global.f32 [%rd9+12], %f55;";

static bool wgmma_with(const char *fence, const char *begin, const char *wait) {
    static char body[8000];
    const char *const names[] = {"FENCE", "BEGIN", "WAIT"}, *const texts[] = {fence, begin, wait};

    strcpy(body, wgmma_body);
    for (int i = 0; i < 3; i++) {
        char *p = strstr(body, names[i]);
        size_t n = strlen(names[i]), m = strlen(texts[i]);

        memmove(p + m, p + n, strlen(p + n) + 1);
        memcpy(p, texts[i], m);
    }
    return run_with(body, &(struct ptx_launch){.n_threads = 128, .shared_bytes = 4096});
}

/* B is in the first 1,024 bytes. */
#define COPY_TO(PLACE)                                                                             \
    "setp.ne.s32 %p3, %r1, 0;\n@%p3 bra $started;\nmbarrier.init.shared::cta.b64 [%r3+2048], 1;\n" \
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+2048], 128;\n"                              \
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+" PLACE                \
    "], [%rd1], 128, [%r3+2048];\n$started:\nbar.sync 0;\n"
#define WAIT_COPY                                                                                  \
    "$again:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+2048], 0;\n@!%p3 bra $again;\n"

Test(ptx, wgmma) {
    static const char fence[] = "fence.proxy.async;", begin[] = "wgmma.fence.sync.aligned;",
                      wait[] = "wgmma.wait_group.sync.aligned 0;";

    cr_assert(wgmma_with(fence, begin, wait), "%s", ptx_message);
    for (uint32_t i = 0; i < 128; i++) {
        uint32_t w = i / 32, g = i % 32 / 4, t = i % 4;
        /* f40: block 0, register 0; f47: 1, 3; f52: 3, 0; f55: 3, 3 */
        const uint32_t n[4] = {2 * t, 8 + 2 * t + 1, 24 + 2 * t, 24 + 2 * t + 1};
        const uint32_t row[4] = {g, g + 8, g, g + 8};

        for (int j = 0; j < 4; j++) {
            float want = (float)((16 * w + row[j] + 1) * (10 * row[j] + n[j])), got;

            memcpy(&got, memory + 4 * i + j, 4);
            cr_assert(got == want, "thread %u, %d: %g, not %g", i, j, (double)got, (double)want);
        }
    }
    cr_assert_not(wgmma_with("", begin, wait));
    cr_assert(strstr(ptx_message, "no fence.proxy.async") != NULL, "%s", ptx_message);
    cr_assert_not(wgmma_with(fence, "", wait));
    cr_assert(strstr(ptx_message, "wgmma.fence") != NULL, "%s", ptx_message);
    cr_assert_not(wgmma_with(fence, begin, ""));
    cr_assert(strstr(ptx_message, "not waited for") != NULL, "%s", ptx_message);
    /* A bulk copy next to a product's operand, and one over it, before the product is waited for; a
     * product of data that a copy has not written yet. */
    cr_assert(
        wgmma_with(fence, begin, COPY_TO("1024") WAIT_COPY "wgmma.wait_group.sync.aligned 0;"),
        "%s", ptx_message);
    cr_assert_not(wgmma_with(fence, begin, COPY_TO("896") WAIT_COPY));
    cr_assert(strstr(ptx_message, "which a product reads") != NULL, "%s", ptx_message);
    cr_assert_not(wgmma_with(fence, COPY_TO("896") "wgmma.fence.sync.aligned;", wait));
    cr_assert(strstr(ptx_message, "where a copy in bulk is on its way: wgmma") != NULL, "%s",
              ptx_message);
}

Test(ptx, shared_variables_of_a_module) {
    cr_assert(run("mov.u32 %r3, 77;\nst.shared.u32 [of_module], %r3;\nst.shared.u32 [fixed], %r1;\n"
                  "bar.sync 0;\nld.shared.u32 %r4, [of_module];\nst.global.u32 [%rd1], %r4;"),
              "%s", ptx_message);
    cr_expect(memory[0] == 77, "%u", memory[0]);
}

Test(ptx, refusals) {
    refuses("add.s128 %rd2, %rd1, 1;", "an unknown instruction");
    refuses("add.cc.s32 %r2, %r1, 1;", "line 15: an unknown instruction");
    refuses("ld.global.u32.v3 %r2, [%rd1];", "an unknown form");
    refuses("shfl.sync.down.tree.b32 %r9, %r1, 1, 31, -1;", "an unknown form");
    refuses("add.s32 %r3, %rd1, 1;", "another size");
    refuses("add.s64 %rd2, %r1, 1;", "another size");
    refuses("mma.sync.aligned.m16n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};",
            "an unknown form");
    refuses("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};",
            "another number of operands");
    refuses("ld.global.u32 %r3, [%rd1+2];", "no multiple");
    refuses("ld.global.u32 %r3, [%rd1+16384];", "not allocated");
    refuses("ld.shared.u32 %r3, [at_launch+4096];", "shared memory");
    refuses("mov.u32 %r3, 0;\nld.shared.u32 %r3, [%r3];", "shared memory");
    refuses("setp.lt.u32 %p1, %r1, 9;\n@%p1 shfl.sync.bfly.b32 %r9|%p2, %r1, 1, 31, -1;",
            "are named");
    refuses("bra $nowhere;", "unknown label");
    refuses("mbarrier.init.shared::cta.b64 [at_launch], 0;", "arrivals");
    refuses("mbarrier.arrive.expect_tx.shared::cta.b64 _, [at_launch], 16;", "not initialised");
    refuses("setmaxnreg.inc.sync.aligned.u32 20;", "a number of registers");
    refuses("setmaxnreg.inc.sync.aligned.u32 164;", "a number of registers");
    refuses("setmaxnreg.sync.aligned.u32 160;", "an unknown form");
    cr_assert_not(run_with("st.global.u32 [%rd1], %r1;\ngriddepcontrol.wait;",
                           &(struct ptx_launch){.early = true}));
    cr_assert(strstr(ptx_message, "before it has waited") != NULL, "%s", ptx_message);
    cr_assert_not(run_with("mov.u32 %r3, 1;", &(struct ptx_launch){.early = true}));
    cr_assert(strstr(ptx_message, "did not wait") != NULL, "%s", ptx_message);
}
