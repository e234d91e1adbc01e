/*
 * gguf_number - converts numbers of metadata. Converters write one key in several types: scores as
 * F32 or I32, types of tokens as I32 or I64. A reader therefore names the type that it needs, and
 * gets every number that this type represents, whatever the type in the file is.
 */

#include <assert.h>
#include <endian.h>
#include <math.h>
#include <string.h>

#include "base/gguf_private.h"

size_t gguf_scalar_bytes(uint32_t type) {
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

/* A number of a file: its rounded value, and its exact value if it is an integer of 64 bits. */
struct number {
    double value;
    bool is_whole, is_negative;
    /* of an integer: two's complement if it is negative */
    uint64_t bits;
};

/* Returns the @n <= 8 bytes at @p as a little-endian number. */
static uint64_t number_load(const uint8_t *p, size_t n) {
    uint64_t v = 0;

    memcpy(&v, p, n);
    return le64toh(v);
}

static struct number number_of_float(double v) {
    struct number x = {.value = v, .is_negative = v < 0};

    x.is_whole = v == trunc(v) && v >= -0x1p63 && v < 0x1p64;
    if (x.is_whole)
        x.bits = x.is_negative ? (uint64_t)(int64_t)v : (uint64_t)v;
    return x;
}

/* Makes a number of the low @bytes of @bits, which are an integer; @is_signed: its first bit is the
 * sign. */
static struct number number_of_integer(uint64_t bits, size_t bytes, bool is_signed) {
    unsigned unused = 64 - 8 * (unsigned)bytes;
    int64_t extended = (int64_t)(bits << unused) >> unused;
    bool is_negative = is_signed && extended < 0;

    return (struct number){
        .value = is_negative ? (double)extended : (double)bits,
        .is_whole = true,
        .is_negative = is_negative,
        .bits = is_negative ? (uint64_t)extended : bits,
    };
}

/* Reads the number of @type, which is a scalar type, at @p. */
static struct number number_read(enum gguf_type type, const uint8_t *p) {
    size_t n = gguf_scalar_bytes(type);
    uint64_t bits = number_load(p, n);
    uint32_t low = (uint32_t)bits;
    double d;
    float f;

    assert(n > 0);
    switch (type) {
    case GGUF_F32:
        memcpy(&f, &low, sizeof(f));
        return number_of_float((double)f);
    case GGUF_F64:
        memcpy(&d, &bits, sizeof(d));
        return number_of_float(d);
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        return number_of_integer(bits, n, true);
    default:
        return number_of_integer(bits, n, false);
    }
}

/* Writes @x as a float. Returns false for a NaN, and for a number beyond the range of floats;
 * an infinity of the file stays one. */
static bool number_store_float(const struct number *x, float *out) {
    float f = (float)x->value;

    if (isnan(f) || (isinf(f) && !isinf(x->value)))
        return false;
    *out = f;
    return true;
}

/* Returns whether the integer type @as, which is no bool, has the value of @x. */
static bool number_fits(const struct number *x, enum gguf_type as) {
    unsigned bits = 8 * (unsigned)gguf_scalar_bytes(as);
    bool is_signed = as == GGUF_I8 || as == GGUF_I16 || as == GGUF_I32 || as == GGUF_I64;
    uint64_t most = UINT64_MAX >> (64 - bits + is_signed);

    if (!x->is_whole)
        return false;
    if (x->is_negative)
        return is_signed && ~x->bits <= most;
    return x->bits <= most;
}

/* Writes the integer @x, which fits, as @bytes bytes. */
static void number_store_integer(const struct number *x, size_t bytes, void *out) {
    switch (bytes) {
    case 1:
        *(uint8_t *)out = (uint8_t)x->bits;
        break;
    case 2:
        *(uint16_t *)out = (uint16_t)x->bits;
        break;
    case 4:
        *(uint32_t *)out = (uint32_t)x->bits;
        break;
    default:
        *(uint64_t *)out = x->bits;
    }
}

bool gguf_number_read(enum gguf_type type, const uint8_t *p, enum gguf_type as, void *out) {
    struct number x = number_read(type, p);

    if (type == GGUF_BOOL && as != GGUF_BOOL)
        return false;
    switch (as) {
    case GGUF_F32:
        return number_store_float(&x, out);
    case GGUF_F64:
        *(double *)out = x.value;
        return !isnan(x.value);
    case GGUF_BOOL:
        *(bool *)out = x.value == 1;
        return x.value == 0 || x.value == 1;
    default:
        if (!number_fits(&x, as))
            return false;
        number_store_integer(&x, gguf_scalar_bytes(as), out);
        return true;
    }
}

uint64_t gguf_array_read(const struct gguf_array *a, enum gguf_type as, uint64_t first, uint64_t n,
                         void *out) {
    size_t from = a ? gguf_scalar_bytes(a->type) : 0, to = gguf_scalar_bytes(as);
    uint64_t i = 0;

    assert(to > 0);
    if (from == 0 || first >= a->n)
        return 0;
    n = MIN(n, a->n - first);
    while (i < n &&
           gguf_number_read(a->type, a->data + (first + i) * from, as, (uint8_t *)out + i * to))
        i++;
    return i;
}

double gguf_array_num(const struct gguf_array *a, uint64_t i) {
    assert(i < a->n && a->type != GGUF_STRING);
    return number_read(a->type, a->data + i * gguf_scalar_bytes(a->type)).value;
}
