#pragma once

/*
 * util - the few macros that every file of weft may use.
 *
 * CLEANUP and STEAL express ownership: an object that a function owns is declared with
 * CLEANUP(x_freep), and returned at the end by `*out = STEAL(x)`.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Definitions of <sys/param.h>, which includes so much that it would slow down each compilation. */
#ifndef MIN
#define MIN(a, b) (((a) < (b)) ? (a) : (b))
#define MAX(a, b) (((a) > (b)) ? (a) : (b))
#endif

#define CLEANUP(f) __attribute__((cleanup(f)))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Implements STEAL(). */
static inline void *steal_pointer(void *pp) {
    void **p = (void **)pp;
    void *v = *p;

    *p = NULL;
    return v;
}

/* Returns the value of pointer @p and sets @p to NULL, so that its CLEANUP does nothing. */
#define STEAL(p) ((__typeof__(p))steal_pointer(&(p)))

/* Declares x_freep() for CLEANUP from x_free(). */
#define DEFINE_FREEP(type, name)                                                                   \
    static inline void name##_freep(type **p) {                                                    \
        if (*p)                                                                                    \
            name##_free(*p);                                                                       \
    }

/* Frees memory of malloc(), for CLEANUP(freep). */
static inline void freep(void *pp) {
    free(*(void **)pp);
}

/* Resizes *@array, memory of malloc(), to @n items of @size bytes. Returns false if memory is
 * short; the array is then unchanged. */
static inline _Bool array_resize(void *array, size_t n, size_t size) {
    void **v = (void **)array;
    void *p = reallocarray(*v, n, size);

    if (p)
        *v = p;
    return p != NULL;
}

/* Makes room for one item behind the @n items of array @v, which has room for @cap items: for
 * @first items at first, then for twice as many each time. The value is false if memory is
 * short. */
#define ARRAY_GROW(v, n, cap, first)                                                               \
    ((n) < (cap) || (array_resize(&(v), (cap) ? 2 * (size_t)(cap) : (first), sizeof(*(v))) &&      \
                     ((cap) = (cap) ? 2 * (cap) : (first), 1)))

/* Returns hash @h with @v mixed in, for tables whose keys are not chosen to collide. */
static inline uint64_t hash_step(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* Returns the value of a hexadecimal digit, -1 for any other character. */
static inline int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Writes @n bytes to @out as 2 @n lower-case hexadecimal digits and a NUL. */
static inline void hex_write(char *out, const uint8_t *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = 0;
}

/* Sets *out = a + b and returns true if that does not fit. Sizes that come from outside are only
 * ever added and multiplied with these two. */
static inline _Bool size_add(size_t a, size_t b, size_t *out) {
    return __builtin_add_overflow(a, b, out);
}

/* Sets *out = a * b and returns true if that does not fit. */
static inline _Bool size_mul(size_t a, size_t b, size_t *out) {
    return __builtin_mul_overflow(a, b, out);
}

/* Returns the smallest multiple of @to >= @n; the caller ensures that it fits. */
static inline size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}
