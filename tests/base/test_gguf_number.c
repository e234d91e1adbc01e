/* Numbers of metadata in every type: each value of the file is read where the wanted type has
 * it. */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "tests/support/gguf_writer.h"

static struct gguf_writer writer;

/* Opens what was written, and closes the writer. */
static struct gguf *finish(void) {
    char path[] = "/tmp/weft-test-number-XXXXXX";
    struct gguf *g = NULL;
    struct err err = {0};
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    close(fd);
    gw_save(&writer, path);
    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.message);
    unlink(path);
    gw_deinit(&writer);
    return g;
}

/* Writes @v as one element of @type at @p. Returns the bytes of the element. */
static size_t put(enum gguf_type type, double v, void *p) {
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL:
        *(uint8_t *)p = (uint8_t)v;
        return 1;
    case GGUF_I8:
        *(int8_t *)p = (int8_t)v;
        return 1;
    case GGUF_U16:
        *(uint16_t *)p = (uint16_t)v;
        return 2;
    case GGUF_I16:
        *(int16_t *)p = (int16_t)v;
        return 2;
    case GGUF_U32:
        *(uint32_t *)p = (uint32_t)v;
        return 4;
    case GGUF_I32:
        *(int32_t *)p = (int32_t)v;
        return 4;
    case GGUF_U64:
        *(uint64_t *)p = (uint64_t)v;
        return 8;
    case GGUF_I64:
        *(int64_t *)p = (int64_t)v;
        return 8;
    case GGUF_F32:
        *(float *)p = (float)v;
        return 4;
    default:
        *(double *)p = v;
        return 8;
    }
}

static double get(enum gguf_type type, const void *p) {
    switch (type) {
    case GGUF_U8:
        return *(const uint8_t *)p;
    case GGUF_I8:
        return *(const int8_t *)p;
    case GGUF_U16:
        return *(const uint16_t *)p;
    case GGUF_I16:
        return *(const int16_t *)p;
    case GGUF_U32:
        return *(const uint32_t *)p;
    case GGUF_I32:
        return *(const int32_t *)p;
    case GGUF_U64:
        return (double)*(const uint64_t *)p;
    case GGUF_I64:
        return (double)*(const int64_t *)p;
    case GGUF_BOOL:
        return *(const bool *)p;
    case GGUF_F32:
        return (double)*(const float *)p;
    default:
        return *(const double *)p;
    }
}

static const enum gguf_type types[] = {
    GGUF_U8,  GGUF_I8,  GGUF_U16, GGUF_I16, GGUF_U32,  GGUF_I32,
    GGUF_U64, GGUF_I64, GGUF_F32, GGUF_F64, GGUF_BOOL,
};

/* Returns whether @type has the value @v, by the limits of the type. */
static bool has_value(enum gguf_type type, double v) {
    static const struct {
        double lo, hi;
    } range[] = {
        [GGUF_U8] = {0, UINT8_MAX},     [GGUF_I8] = {INT8_MIN, INT8_MAX},
        [GGUF_U16] = {0, UINT16_MAX},   [GGUF_I16] = {INT16_MIN, INT16_MAX},
        [GGUF_U32] = {0, UINT32_MAX},   [GGUF_I32] = {INT32_MIN, INT32_MAX},
        [GGUF_U64] = {0, 0x1.fffffp63}, [GGUF_I64] = {-0x1p63, 0x1.fffffp62},
        [GGUF_BOOL] = {0, 1},
    };

    if (type == GGUF_F64)
        return !isnan(v);
    if (type == GGUF_F32)
        return !isnan(v) && (isinf(v) || fabs(v) < 3.5e38);
    return v == trunc(v) && v >= range[type].lo && v <= range[type].hi;
}

/* Every value in every type of file, read as every type. */
Test(gguf_number, is_read_where_the_wanted_type_has_it) {
    static const double values[] = {
        0,     1,     2,     -1,    127,        128,    -128,    -129,       255,       256,
        32767, 32768, 65535, 65536, 0x1p31 - 1, 0x1p31, -0x1p31, 0x1p32 - 1, 0x1p32,    0x1p40,
        0.5,   -0.5,  1e30,  1e300, -0x1p63,    0x1p63, 0x1p64,  INFINITY,   -INFINITY, NAN,
    };

    for (size_t f = 0; f < ARRAY_SIZE(types); f++) {
        for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
            double v = values[i];
            uint64_t raw = 0;

            bool is_float = types[f] == GGUF_F32 || types[f] == GGUF_F64;

            if (!has_value(types[f], v) && !(isnan(v) && is_float))
                continue; /* no file has it */
            gw_init(&writer);
            gw_array(&writer, "a", types[f], 1, &raw, put(types[f], v, &raw));
            v = get(types[f], &raw); /* rounded to the type of the file */
            CLEANUP(gguf_freep) struct gguf *g = finish();

            for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
                bool is_number = types[f] != GGUF_BOOL || types[t] == GGUF_BOOL;
                uint64_t out = 0, n = gguf_array_read(gguf_array(g, "a"), types[t], 0, 1, &out);

                cr_expect_eq(n, is_number && has_value(types[t], v), "%g, type %d as %d", v,
                             types[f], types[t]);
                if (n && types[t] != GGUF_F32)
                    cr_expect_eq(get(types[t], &out), v, "%g, type %d as %d", v, types[f],
                                 types[t]);
                if (n && types[t] == GGUF_F32)
                    cr_expect_eq(get(types[t], &out), (double)(float)v);
            }
        }
    }
}

Test(gguf_number, integers_of_64_bits_are_exact) {
    const uint64_t large[] = {UINT64_MAX, (1ull << 53) + 1};
    const int64_t small[] = {INT64_MIN, -(1ll << 53) - 1};
    uint64_t u[2];
    int64_t s[2];

    gw_init(&writer);
    gw_array(&writer, "large", GGUF_U64, 2, large, sizeof(large));
    gw_array(&writer, "small", GGUF_I64, 2, small, sizeof(small));
    CLEANUP(gguf_freep) struct gguf *g = finish();

    cr_assert_eq(gguf_array_read(gguf_array(g, "large"), GGUF_U64, 0, 2, u), 2);
    cr_assert_eq(memcmp(u, large, sizeof(u)), 0);
    cr_assert_eq(gguf_array_read(gguf_array(g, "small"), GGUF_I64, 0, 2, s), 2);
    cr_assert_eq(memcmp(s, small, sizeof(s)), 0);
    cr_assert_eq(gguf_array_read(gguf_array(g, "large"), GGUF_I64, 1, 1, s), 1);
    cr_assert_eq(s[0], (1ll << 53) + 1);
}

Test(gguf_number, reading_ends_at_the_first_that_does_not_fit) {
    const int64_t ids[] = {1, 2, 1ll << 40, 4};
    const char *const words[] = {"1", "2"};
    int32_t out[4] = {0};

    gw_init(&writer);
    gw_array(&writer, "ids", GGUF_I64, 4, ids, sizeof(ids));
    gw_strings(&writer, "words", 2, words);
    gw_array(&writer, "none", GGUF_F32, 0, "", 0);
    CLEANUP(gguf_freep) struct gguf *g = finish();
    const struct gguf_array *a = gguf_array(g, "ids");

    cr_expect_eq(gguf_array_read(a, GGUF_I32, 0, 4, out), 2);
    cr_expect(out[0] == 1 && out[1] == 2 && out[2] == 0);
    cr_expect_eq(gguf_array_read(a, GGUF_I32, 3, 4, out), 1);
    cr_expect_eq(out[0], 4);
    cr_expect_eq(gguf_array_read(a, GGUF_I32, 4, 4, out), 0);
    cr_expect_eq(gguf_array_read(a, GGUF_I32, UINT64_MAX, UINT64_MAX, out), 0);
    cr_expect_eq(gguf_array_read(gguf_array(g, "words"), GGUF_I32, 0, 1, out), 0);
    cr_expect_eq(gguf_array_read(gguf_array(g, "none"), GGUF_I32, 0, 1, out), 0);
    cr_expect_eq(gguf_array_read(gguf_array(g, "absent"), GGUF_I32, 0, 1, out), 0);
}

Test(gguf_number, single_numbers_have_every_type_too) {
    const double real = 8, half = 0.5, endless = INFINITY;
    const int64_t whole = 10000;
    uint32_t u;
    float f;

    gw_init(&writer);
    gw_scalar(&writer, "real", GGUF_F64, &real, 8);
    gw_scalar(&writer, "half", GGUF_F64, &half, 8);
    gw_scalar(&writer, "whole", GGUF_I64, &whole, 8);
    gw_scalar(&writer, "endless", GGUF_F64, &endless, 8);
    CLEANUP(gguf_freep) struct gguf *g = finish();

    cr_expect(gguf_u32(g, "real", &u) == 0 && u == 8);
    cr_expect_eq(gguf_u32(g, "half", &u), -EINVAL);
    cr_expect(gguf_f32(g, "whole", &f) == 0 && f == 10000);
    cr_expect_eq(gguf_f32(g, "endless", &f), -EINVAL);
}
