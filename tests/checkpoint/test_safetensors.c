#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/rng.h"
#include "checkpoint/safetensors.h"

static struct st_list list;
static struct err err;

static void begin(void) {
    st_list_init(&list);
    err = (struct err){0};
}

static void end(void) {
    st_list_deinit(&list);
}

TestSuite(safetensors, .init = begin, .fini = end);

/* Parses a header of a file with @data bytes of data. */
static int parse(const char *text, size_t data) {
    return st_parse(&list, 0, text, strlen(text), 8 + strlen(text) + data, &err);
}

#define A R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]})"
#define B R"("b.c":{"shape":[4],"data_offsets":[12,28],"dtype":"F32"})"

Test(safetensors, a_header_gives_names_shapes_and_places) {
    const char *text = R"({"__metadata__":{"format":"pt","x":"\"}"}, )" B " , " A "}   ";

    cr_assert_eq(parse(text, 28), 0, "%s", err.message);
    cr_assert_eq(list.n, 2);
    const struct st_tensor *a = st_find(&list, "a"), *b = st_find(&list, "b.c");
    cr_assert(a && b && !st_find(&list, "b") && !st_find(&list, "__metadata__"));
    cr_expect_eq(a->type, ST_BF16);
    cr_expect(a->n_dims == 2 && a->dim[0] == 2 && a->dim[1] == 3 && a->n_bytes == 12);
    cr_expect_eq(a->offset, 8 + strlen(text));
    cr_expect(b->type == ST_F32 && b->n_dims == 1 && b->dim[0] == 4 && b->n_bytes == 16);
    cr_expect_eq(b->offset, a->offset + 12);
}

Test(safetensors, scalars_and_empty_tensors_have_no_dimensions_or_bytes) {
    cr_assert_eq(parse(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                       R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]}})",
                       8),
                 0, "%s", err.message);
    cr_expect_eq(st_find(&list, "s")->n_dims, 0);
    cr_expect_eq(st_find(&list, "e")->n_bytes, 0);
}

Test(safetensors, a_file_without_tensors_is_empty) {
    cr_expect_eq(parse("{}", 0), 0);
    cr_expect_eq(list.n, 0);
}

/* A tensor of @shape and @place, of @type. */
#define ONE(type, shape, place)                                                                    \
    R"({"a":{"dtype":")" type R"(","shape":[)" shape R"(],"data_offsets":[)" place "]}}"

Test(safetensors, damaged_and_hostile_headers_are_refused_with_the_reason) {
    static const struct {
        const char *text;
        size_t data;
        const char *why;
    } bad[] = {
        {"", 0, "'{' is missing"},
        {"[]", 0, "'{' is missing"},
        {"{", 0, R"('"' is missing)"},
        {"{}x", 0, "follows the last brace"},
        {"{" A "," A "}", 12, "appears twice"},
        {"{" A ",}", 12, R"('"' is missing)"},
        {R"({"__metadata__":{},"__metadata__":{}})", 0, "appears twice"},
        {R"({"__metadata__":{"a":{}}})", 0, R"('"' is missing)"},
        {R"({"__metadata__":{"a":"b)", 0, "does not end"},
        {R"({"__metadata__":{"a":"b\")", 0, "does not end"},
        {R"({"__metadata__":{"a":"b\)", 0, "does not end"},
        {R"({"":{}})", 0, "a name of 0 bytes"},
        {R"({"a\u0041":{}})", 0, "byte 0x5c"},
        {R"({"a b":{}})", 0, "byte 0x20"},
        {R"({"a)"
         "\xc3\xa9"
         R"(":{}})",
         0, "byte 0xc3"},
        {R"({"a":{}})", 0, R"('"' is missing)"},
        {R"({"a":{"dtype":"F32"}})", 0, "lacks dtype, shape or data_offsets"},
        {R"({"a":{"dtype":"F32","dtype":"F32"}})", 0, "'dtype' twice"},
        {R"({"a":{"kind":"F32"}})", 0, "unknown member 'kind'"},
        {ONE("F33", "1", "0,4"), 4, "unknown type F33"},
        {ONE("F32", "1", "0,4"), 3, "has bytes 0 to 4 of 3"},
        {ONE("F32", "1", "0,4"), 5, "the tensors end at offset"},
        {ONE("F32", "1", "4,8"), 8, "follows a gap"},
        {ONE("F32", "2", "0,4"), 4, "has 4 bytes, its shape needs 8"},
        {ONE("F32", "1", "4,0"), 4, "has bytes 4 to 0"},
        {ONE("F32", "1", "0"), 4, "data_offsets has 1 numbers"},
        {ONE("F32", "1", "0,4,8"), 4, "more than 2 numbers"},
        {ONE("F32", "1,1,1,1,1,1,1", "0,4"), 4, "more than 6 numbers"},
        {ONE("F32", "-1", "0,4"), 4, "a whole number is missing"},
        {ONE("F32", "01", "0,4"), 4, "a whole number is missing"},
        {ONE("F32", "1.0", "0,4"), 4, "']' is missing"},
        {ONE("F32", "1e0", "0,4"), 4, "']' is missing"},
        {ONE("F32", "9223372036854775808", "0,4"), 4, "too large"},
        {ONE("F32", "4294967296,4294967296", "0,4"), 4, "too large"},
        {ONE("F64", "2305843009213693952,4", "0,4"), 4, "too large"},
        {"{" A R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}})", 12, "overlaps"},
        {R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("c":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
         5, "begins in the middle of a value"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        end();
        begin();
        cr_expect_eq(parse(bad[i].text, bad[i].data), -EINVAL, "%s", bad[i].text);
        cr_expect(strstr(err.message, bad[i].why), "%s: %s, not: %s", bad[i].text, err.message,
                  bad[i].why);
    }
}

Test(safetensors, a_name_is_unique_in_all_files_of_a_model) {
    cr_assert_eq(parse("{" A "}", 12), 0);
    cr_expect_eq(st_parse(&list, 1, "{" A "}", strlen("{" A "}"), 8 + strlen("{" A "}") + 12, &err),
                 -EINVAL);
    cr_expect(strstr(err.message, "appears twice"));
}

/* Writes a header of @n tensors of one byte each, in random order, to *text. */
static size_t write_header(struct buf *text, uint32_t n, uint64_t seed) {
    CLEANUP(freep) uint32_t *order = calloc(n, sizeof(*order));
    struct rng rng = {seed};

    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)rng_below(&rng, i), was = order[i - 1];

        order[i - 1] = order[k];
        order[k] = was;
    }
    buf_add_char(text, '{');
    for (uint32_t i = 0; i < n; i++)
        buf_printf(text, R"(%s"t.%u":{"dtype":"U8","shape":[1],"data_offsets":[%u,%u]})",
                   i ? "," : "", order[i], order[i], order[i] + 1);
    buf_add_char(text, '}');
    return n;
}

Test(safetensors, a_large_header_in_any_order_is_read) {
    CLEANUP(buf_deinit) struct buf text = {.max = 64 << 20};
    size_t n = write_header(&text, 100000, 1);

    cr_assert_eq(st_parse(&list, 0, text.data, text.len, 8 + text.len + n, &err), 0, "%s",
                 err.message);
    cr_expect_eq(list.n, n);
    for (uint32_t i = 0; i < n; i += 997) {
        char name[32];

        snprintf(name, sizeof(name), "t.%u", i);
        const struct st_tensor *t = st_find(&list, name);
        cr_assert(t);
        cr_expect_eq(t->offset, 8 + text.len + i);
    }
}

Test(safetensors, a_header_that_is_cut_anywhere_is_refused) {
    CLEANUP(buf_deinit) struct buf text = {.max = 1 << 20};
    size_t n = write_header(&text, 20, 2);

    for (size_t len = 0; len < text.len; len++) {
        end();
        begin();
        char *cut = strndup(text.data, len);
        cr_expect_eq(st_parse(&list, 0, cut, len, 8 + len + n, &err), -EINVAL, "%zu", len);
        free(cut);
    }
}

/* Returns a file in memory with the header length @n and @len bytes behind it. */
static int file_of(uint64_t n, const void *bytes, size_t len) {
    int fd = memfd_create("safetensors", MFD_CLOEXEC);

    cr_assert(fd >= 0 && write(fd, &n, sizeof(n)) == sizeof(n));
    cr_assert_eq(write(fd, bytes, len), (ssize_t)len);
    return fd;
}

Test(safetensors, the_length_of_the_header_is_checked) {
    static const char text[] = "{" A "}............";
    uint64_t len = strlen("{" A "}");
    const uint64_t bad[] = {0, 1, strlen(text) + 1, ST_HEADER_MAX + 1ull, UINT64_MAX};
    int fd = file_of(len, text, strlen(text));

    cr_expect_eq(st_read(&list, 3, fd, &err), 0, "%s", err.message);
    cr_expect(list.n == 1 && list.tensor[0].file == 3);
    close(fd);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        end();
        begin();
        fd = file_of(bad[i], text, strlen(text));
        cr_expect_eq(st_read(&list, 0, fd, &err), -EINVAL);
        cr_expect(strstr(err.message, "a header of"), "%s", err.message);
        close(fd);
    }
}
