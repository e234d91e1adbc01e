#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/gguf.h"
#include "tests/support/few.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test_data.h"

/* A file of its own per test process, removed at its end. */
static char dir[64];

static void make_dir(void) {
    strcpy(dir, "/tmp/weft-gguf-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void remove_dir(void) {
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(gguf, .init = make_dir, .fini = remove_dir);

static const char *in_dir(const char *name) {
    static char path[4][128];
    static int next;
    char *p = path[next++ % 4];

    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static volatile uint64_t sink;

/* Reads everything that the accessors give: a wrong bound shows as a crash or in the sanitizer. */
static void touch(const struct gguf *g) {
    uint64_t sum = 0;

    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        enum gguf_type type;
        struct gguf_str key = gguf_key(g, i, &type), s;
        char name[1100];
        const struct gguf_array *a;

        snprintf(name, sizeof(name), "%.*s", (int)key.len, key.data);
        cr_assert(gguf_has(g, name));
        if (type == GGUF_STRING) {
            cr_assert_eq(gguf_string(g, name, &s), 0);
            for (size_t k = 0; k < s.len; k++)
                sum += (uint8_t)s.data[k];
        }
        a = gguf_array(g, name);
        cr_assert_eq(a != NULL, type == GGUF_ARRAY);
        for (uint64_t k = 0; a && k < gguf_array_n(a); k++) {
            if (gguf_array_type(a) != GGUF_STRING) {
                sum += gguf_array_num(a, k) > 0;
                continue;
            }
            s = gguf_array_str(a, k);
            for (size_t j = 0; j < s.len; j++)
                sum += (uint8_t)s.data[j];
        }
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);

        cr_assert_eq(gguf_find(g, t->name), t);
        cr_assert_eq(t->ne[1] * t->ne[2] * t->ne[3] * t->row_bytes, t->n_bytes);
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += t->data[k];
    }
    sink = sum;
}

static int open_bytes(struct gguf **g, const void *data, size_t len, struct err *err) {
    const char *path = in_dir("m.gguf");

    *g = NULL;
    *err = (struct err){0};
    gw_save_bytes(path, data, len);
    return gguf_open(g, path, err);
}

/* The file of the tests below: every kind of value, three formats. */
static void small_model(struct gguf_writer *w) {
    static const char *const words[] = {"a", "", "three"};
    static const int32_t ids[] = {-1, 2, 3};

    gw_init(w);
    gw_string(w, "general.architecture", "llama");
    gw_u32(w, "general.alignment", 32);
    gw_bool(w, "a.flag", 1);
    gw_f32(w, "a.float", 1.5f);
    gw_strings(w, "a.words", 3, words);
    gw_array(w, "a.ids", GGUF_I32, 3, ids, sizeof(ids));
    gw_tensor(w, "one.weight", TENSOR_F32, 1, (const uint64_t[]){5}, NULL);
    gw_tensor(w, "two.weight", TENSOR_Q8_0, 2, (const uint64_t[]){64, 3}, NULL);
    gw_tensor(w, "three.weight", TENSOR_Q4_K, 3, (const uint64_t[]){256, 2, 2}, NULL);
}

static void expect_refusal(struct gguf_writer *w, const char *reason) {
    struct gguf *g;
    struct err err;

    gw_finish(w);
    int r = open_bytes(&g, w->file.data, w->file.len, &err);
    cr_expect_eq(r, -EINVAL, "%s: %d", reason, r);
    cr_expect(strstr(err.message, reason), "'%s' should contain '%s'", err.message, reason);
    cr_expect(strstr(err.message, "offset "), "'%s' has no offset", err.message);
    gguf_free(g);
    gw_deinit(w);
}

Test(gguf, small_file_is_read_as_written) {
    struct gguf_writer w;
    struct gguf *g;
    struct err err;
    uint32_t u;
    float f;
    bool b;
    struct gguf_str s;

    small_model(&w);
    gw_finish(&w);
    cr_assert_eq(open_bytes(&g, w.file.data, w.file.len, &err), 0, "%s", err.message);
    touch(g);
    cr_expect_eq(gguf_version(g), 3);
    cr_expect_eq(gguf_n_shards(g), 1);
    cr_expect_eq(gguf_bytes(g), w.file.len);
    cr_expect_eq(gguf_n_kv(g), 6);
    cr_assert_eq(gguf_string(g, "general.architecture", &s), 0);
    cr_expect(s.len == 5 && memcmp(s.data, "llama", 5) == 0);
    cr_expect(gguf_bool(g, "a.flag", &b) == 0 && b);
    cr_expect(gguf_f32(g, "a.float", &f) == 0 && f == 1.5f);

    /* wrong type, absent: nothing is written */
    u = 77;
    cr_expect_eq(gguf_u32(g, "a.float", &u), -EINVAL);
    cr_expect_eq(gguf_u32(g, "a.nothing", &u), -ENOENT);
    cr_expect_eq(gguf_u32(g, "a.words", &u), -EINVAL);
    cr_expect_eq(gguf_u32(g, "general.architecture", &u), -EINVAL);
    cr_expect_eq(gguf_u32(g, "a.flag", &u), -EINVAL);
    cr_expect_eq(u, 77);
    cr_expect_eq(gguf_f32(g, "a.flag", &f), -EINVAL);
    cr_expect_eq(gguf_bool(g, "general.alignment", &b), -EINVAL);
    cr_expect_eq(gguf_string(g, "a.ids", &s), -EINVAL);
    cr_expect_null(gguf_array(g, "a.flag"));

    const struct gguf_array *a = gguf_array(g, "a.words");

    cr_assert(a);
    cr_expect_eq(gguf_array_n(a), 3);
    cr_expect_eq(gguf_array_str(a, 1).len, 0);
    s = gguf_array_str(a, 2);
    cr_expect(s.len == 5 && memcmp(s.data, "three", 5) == 0);
    a = gguf_array(g, "a.ids");
    cr_assert(a);
    cr_expect_eq(gguf_array_num(a, 0), -1);
    cr_expect_eq(gguf_array_num(a, 2), 3);

    const struct tensor *t = gguf_find(g, "two.weight");

    cr_assert(t);
    cr_expect_eq(t->ne[0], 64);
    cr_expect_eq(t->ne[1], 3);
    cr_expect_eq(t->ne[2], 1);
    cr_expect_eq(t->row_bytes, 68);
    cr_expect_eq(t->n_bytes, 204);
    cr_expect_eq(memcmp(t->data, w.data.data + 32, 204), 0);
    cr_expect_eq(memcmp(t->data, w.file.data + t->file_offset, 204), 0);
    cr_expect_null(gguf_find(g, "two.weigh"));
    gguf_free(g);
    gw_deinit(&w);
}

Test(gguf, integers_of_every_width_are_accepted_in_range) {
    static const struct {
        uint32_t type;
        int64_t v;
        size_t size;
        int expect;
    } cases[] = {
        {GGUF_U8, 255, 1, 0},       {GGUF_I8, 127, 1, 0},         {GGUF_I8, -1, 1, -EINVAL},
        {GGUF_U16, 65535, 2, 0},    {GGUF_I16, -5, 2, -EINVAL},   {GGUF_I32, 1 << 30, 4, 0},
        {GGUF_I32, -1, 4, -EINVAL}, {GGUF_U64, 0xFFFFFFFF, 8, 0}, {GGUF_U64, 1ll << 32, 8, -EINVAL},
        {GGUF_U64, -1, 8, -EINVAL}, {GGUF_I64, 7, 8, 0},          {GGUF_I64, -7, 8, -EINVAL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct gguf_writer w;
        struct gguf *g;
        struct err err;
        uint32_t u = 0;

        gw_init(&w);
        gw_scalar(&w, "k", cases[i].type, &cases[i].v, cases[i].size);
        gw_finish(&w);
        cr_assert_eq(open_bytes(&g, w.file.data, w.file.len, &err), 0, "%s", err.message);
        cr_expect_eq(gguf_u32(g, "k", &u), cases[i].expect, "case %zu", i);
        cr_expect(cases[i].expect || u == (uint64_t)cases[i].v, "case %zu: %u", i, u);
        gguf_free(g);
        gw_deinit(&w);
    }
}

Test(gguf, names_and_arrays_have_exact_limits) {
    const double d = -2.5;
    struct gguf_writer w;
    struct gguf *g;
    struct err err;
    float f = 0;

    gw_init(&w);
    gw_scalar(&w, "~", GGUF_F64, &d, sizeof(d)); /* the last printable character */
    gw_array(&w, "a.bytes", GGUF_U8, 3, "abc", 3);
    gw_finish(&w);
    /* the array ends with the file */
    cr_assert_eq(open_bytes(&g, w.file.data, 24 + w.kv.len, &err), 0, "%s", err.message);
    cr_expect(gguf_f32(g, "~", &f) == 0 && f == -2.5f);
    cr_expect_eq(gguf_array_num(gguf_array(g, "a.bytes"), 2), 'c');
    int fd = gguf_shard_fd(g, 0);
    cr_expect_geq(fcntl(fd, F_GETFD), 0);
    gguf_free(g);
    cr_expect_lt(fcntl(fd, F_GETFD), 0, "its descriptor is closed");
    gw_deinit(&w);
}

Test(gguf, version_2_is_read_and_others_are_refused) {
    for (uint32_t v = 0; v < 6; v++) {
        struct gguf_writer w;
        struct gguf *g;
        struct err err;

        small_model(&w);
        w.version = v;
        gw_finish(&w);
        cr_expect_eq(open_bytes(&g, w.file.data, w.file.len, &err), v == 2 || v == 3 ? 0 : -EINVAL,
                     "version %u", v);
        gguf_free(g);
        gw_deinit(&w);
    }
    struct gguf_writer w;

    small_model(&w);
    w.version = 3u << 24;
    expect_refusal(&w, "big-endian");
}

Test(gguf, every_truncation_is_refused_or_changes_nothing) {
    struct gguf_writer w;
    size_t whole, loaded = 0;

    small_model(&w);
    gw_finish(&w);
    whole = w.file.len;
    for (size_t len = 0; len < whole; len++) {
        struct gguf *g;
        struct err err;
        int r = open_bytes(&g, w.file.data, len, &err);

        if (r == 0) { /* only the padding after the last tensor is missing */
            touch(g);
            loaded++;
            cr_expect_eq(gguf_n_tensors(g), 3);
        } else {
            cr_expect_eq(r, -EINVAL, "length %zu", len);
            cr_expect(strstr(err.message, "offset "), "length %zu: '%s'", len, err.message);
            cr_expect(strstr(err.message, "downloaded whole?"), "length %zu: '%s'", len,
                      err.message);
        }
        gguf_free(g);
    }
    cr_expect_lt(loaded, 32);
    gw_deinit(&w);
}

Test(gguf, every_integer_field_with_every_hostile_value) {
    static const uint64_t values[] = {
        0,
        1,
        2,
        3,
        7,
        UINT64_MAX,
        UINT64_MAX - 1,
        1ull << 63,
        (1ull << 63) - 1,
        1ull << 31,
        1ull << 32,
        (1ull << 32) - 1,
        (1ull << 31) - 1,
        UINT32_MAX - 1,
        1ull << 62,
        1ull << 60,
        255,
        254,
        0x7F,
        1ull << 16,
        33,
        100,
        4096,
        1ull << 40,
        UINT64_MAX / 2 - 7,
        UINT64_MAX / 144,
        64,
    };
    struct gguf_writer w;
    size_t n = 0, n_loaded = 0;

    small_model(&w);
    gw_finish(&w);
    CLEANUP(freep) char *copy = malloc(w.file.len);

    cr_assert(copy);
    cr_assert_gt(w.n_fields, 40, "%zu", w.n_fields);
    for (size_t i = 0; i < w.n_fields; i++) {
        for (size_t k = 0; k < ARRAY_SIZE(values); k++) {
            struct gguf *g;
            struct err err;

            memcpy(copy, w.file.data, w.file.len);
            memcpy(copy + w.field[i].at, &values[k], w.field[i].bytes);
            int r = open_bytes(&g, copy, w.file.len, &err);

            n++;
            if (r == 0) {
                touch(g);
                n_loaded++;
            } else {
                cr_expect_eq(r, -EINVAL, "%s at %zu = %llu: %d", w.field[i].what, w.field[i].at,
                             (unsigned long long)values[k], r);
                cr_expect(strlen(err.message) > 8 && !strchr(err.message, '\n'));
            }
            gguf_free(g);
        }
    }
    cr_log_info("%zu mutations, %zu loaded", n, n_loaded);
    cr_expect_gt(n, 1000);
    cr_expect_lt(n_loaded, n / 4);
    gw_deinit(&w);
}

Test(gguf, every_byte_of_the_header_with_random_values) {
    struct gguf_writer w;
    uint32_t state = 1;

    small_model(&w);
    gw_finish(&w);
    size_t header = w.file.len - w.data.len;

    for (size_t i = 0; i < header; i++) {
        for (int k = 0; k < FEWEST(12, 2); k++) {
            struct gguf *g;
            struct err err;
            char old = w.file.data[i];

            state = state * 1664525u + 1013904223u;
            w.file.data[i] = (char)(state >> 24);
            int r = open_bytes(&g, w.file.data, w.file.len, &err);
            if (r == 0)
                touch(g);
            cr_expect(r == 0 || r == -EINVAL, "byte %zu: %d", i, r);
            gguf_free(g);
            w.file.data[i] = old;
        }
    }
    gw_deinit(&w);
}

Test(gguf, what_is_downloaded_by_mistake_is_named) {
    static const struct {
        const char *text, *part;
    } table[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"},
        {"<!DOCTYPE html>\n<html><body></body></html>\n", "a web page"},
        {"ggml, a format of the past", "not a GGUF file"},
        {"hello", "not a GGUF file"},
    };
    struct gguf *g;
    struct err err;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        cr_expect_eq(open_bytes(&g, table[i].text, strlen(table[i].text), &err), -EINVAL);
        cr_expect(strstr(err.message, table[i].part), "%s", err.message);
    }
}

Test(gguf, wrong_files_are_refused_with_a_reason) {
    static const uint64_t row[] = {32}, odd[] = {33, 2}, zero[] = {32, 0}, big[] = {1ull << 62, 8},
                          wide[] = {32, 1ull << 50};
    struct gguf_writer w;

    small_model(&w);
    gw_u32(&w, "general.architecture", 1);
    expect_refusal(&w, "'general.architecture': appears twice");
    small_model(&w);
    gw_u32(&w, "a.flag", 1);
    expect_refusal(&w, "'a.flag': appears twice");
    small_model(&w);
    gw_tensor(&w, "one.weight", TENSOR_F32, 1, row, NULL);
    expect_refusal(&w, "'one.weight' appears twice");
    small_model(&w);
    gw_entry(&w, "x", 41, 1, row, w.data.len);
    expect_refusal(&w, "'x' has type 41 (Q1_0)");
    small_model(&w);
    gw_entry(&w, "x", 4, 1, row, w.data.len);
    expect_refusal(&w, "take the file from Hugging Face");
    small_model(&w);
    gw_entry(&w, "x", 12345, 1, row, w.data.len);
    expect_refusal(&w, "'x' has type 12345");
    small_model(&w);
    gw_entry(&w, "x", TENSOR_Q8_0, 2, odd, w.data.len);
    expect_refusal(&w, "rows of 33 values cannot be divided into Q8_0 blocks");
    small_model(&w);
    gw_entry(&w, "x", TENSOR_F32, 2, zero, w.data.len);
    expect_refusal(&w, "dimension 1 is 0");
    small_model(&w);
    gw_entry(&w, "x", TENSOR_F32, 2, big, w.data.len);
    expect_refusal(&w, "dimension 1 is 8");
    small_model(&w);
    gw_entry(&w, "x", TENSOR_F32, 2, wide, w.data.len);
    expect_refusal(&w, "the file ends inside tensor 'x': was it copied or downloaded whole?");
    small_model(&w);
    gw_entry(&w, "x", TENSOR_F32, 1, row, w.data.len - 32);
    expect_refusal(&w, "tensors follow each other"); /* overlap */
    small_model(&w);
    gw_entry(&w, "x", TENSOR_F32, 1, row, w.data.len + 32);
    expect_refusal(&w, "tensors follow each other"); /* gap */
    small_model(&w);
    gw_entry(&w, "x", TENSOR_F32, 1, row, w.data.len + 4);
    expect_refusal(&w, "tensors follow each other"); /* misaligned */
    small_model(&w);
    gw_entry(&w, "", TENSOR_F32, 1, row, w.data.len);
    expect_refusal(&w, "a tensor's name is empty");
    small_model(&w);
    gw_entry(&w, "0123456789012345678901234567890123456789012345678901234567890123", TENSOR_F32, 1,
             row, w.data.len);
    expect_refusal(&w, "at most 63 are allowed");
    small_model(&w);
    gw_entry(&w, "line\nbreak", TENSOR_F32, 1, row, w.data.len);
    expect_refusal(&w, "byte 0x0a");
    small_model(&w);
    gw_u32(&w, "", 1);
    expect_refusal(&w, "a key is empty");
    small_model(&w);
    gw_bool(&w, "a.other", 2);
    expect_refusal(&w, "neither 0 nor 1");
    small_model(&w);
    gw_array(&w, "a.bools", GGUF_BOOL, 4, "\0\1\2\1", 4);
    expect_refusal(&w, "neither 0 nor 1");
    small_model(&w);
    gw_array(&w, "a.nested", GGUF_ARRAY, 0, "", 0);
    expect_refusal(&w, "'a.nested': arrays of type 9");
    small_model(&w);
    gw_scalar(&w, "a.unknown", 13, "", 0);
    expect_refusal(&w, "unknown value type 13");
}

Test(gguf, alignment_is_checked_and_used) {
    static const uint32_t bad[] = {0, 1, 4, 7, 33, 48, 8192, 1u << 31};
    struct gguf_writer w;
    struct gguf *g;
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        gw_init(&w);
        gw_u32(&w, "general.alignment", bad[i]);
        expect_refusal(&w, "offset 0: general.alignment is");
    }
    gw_init(&w);
    gw_string(&w, "general.alignment", "32");
    expect_refusal(&w, "'general.alignment': must be a number");
    for (uint32_t a = 8; a <= 4096; a *= 2) {
        gw_init(&w);
        w.alignment = a;
        gw_u32(&w, "general.alignment", a);
        gw_tensor(&w, "x", TENSOR_F32, 1, (const uint64_t[]){3}, NULL);
        gw_tensor(&w, "y", TENSOR_F32, 1, (const uint64_t[]){5}, NULL);
        gw_finish(&w);
        cr_assert_eq(open_bytes(&g, w.file.data, w.file.len, &err), 0, "%u: %s", a, err.message);
        cr_expect_eq(gguf_find(g, "y")->file_offset % a, 0);
        touch(g);
        gguf_free(g);
        gw_deinit(&w);
    }
}

Test(gguf, only_regular_files_are_opened) {
    struct gguf *g = NULL;
    struct err err = {0};
    const char *fifo = in_dir("fifo");

    cr_assert_eq(mkfifo(fifo, 0600), 0);
    cr_expect_eq(gguf_open(&g, fifo, &err), -EINVAL);
    cr_expect(strstr(err.message, "not a regular file"));
    cr_expect_eq(gguf_open(&g, dir, &err), -EINVAL);
    cr_expect_eq(gguf_open(&g, "/dev/zero", &err), -EINVAL);
    cr_expect_eq(gguf_open(&g, in_dir("absent"), &err), -ENOENT);
    gw_save_bytes(in_dir("empty"), "", 0);
    cr_expect_eq(gguf_open(&g, in_dir("empty"), &err), -EINVAL);
    cr_expect(strstr(err.message, "offset 0"));
    cr_expect_null(g);
}

/* --- split files --- */

static void save_part(const char *name, uint16_t no, uint16_t count, int32_t total,
                      const char *tensor) {
    struct gguf_writer w;

    gw_init(&w);
    if (no == 0)
        gw_string(&w, "general.architecture", "llama");
    gw_scalar(&w, "split.no", GGUF_U16, &no, 2);
    gw_scalar(&w, "split.count", GGUF_U16, &count, 2);
    gw_scalar(&w, "split.tensors.count", GGUF_I32, &total, 4);
    gw_tensor(&w, tensor, TENSOR_F32, 1, (const uint64_t[]){(uint64_t)no + 3}, NULL);
    gw_save(&w, in_dir(name));
    gw_deinit(&w);
}

Test(gguf, any_part_opens_the_whole_split_model) {
    static const char *const name[] = {"s-00001-of-00003.gguf", "s-00002-of-00003.gguf",
                                       "s-00003-of-00003.gguf"};
    uint8_t print[3][16];

    save_part(name[0], 0, 3, 3, "a");
    save_part(name[1], 1, 3, 3, "b");
    save_part(name[2], 2, 3, 3, "c");
    for (int i = 0; i < 3; i++) {
        CLEANUP(gguf_freep) struct gguf *g = NULL;
        struct err err = {0};

        cr_assert_eq(gguf_open(&g, in_dir(name[i]), &err), 0, "%s", err.message);
        cr_expect_eq(gguf_n_shards(g), 3);
        cr_expect_eq(gguf_n_tensors(g), 3);
        cr_expect_eq(gguf_find(g, "c")->shard, 2);
        cr_expect(gguf_has(g, "general.architecture"));
        touch(g);
        gguf_fingerprint(g, print[i]);
        cr_expect_eq(memcmp(print[i], print[0], 16), 0);
    }
}

static void expect_split_refusal(const char *name, int code, const char *reason) {
    struct gguf *g = NULL;
    struct err err = {0};
    int r = gguf_open(&g, in_dir(name), &err);

    cr_expect_eq(r, code, "%s: %d", reason, r);
    cr_expect(strstr(err.message, reason), "'%s' should contain '%s'", err.message, reason);
    gguf_free(g);
}

Test(gguf, wrong_splits_are_refused) {
    save_part("a-00001-of-00002.gguf", 0, 2, 2, "a");
    expect_split_refusal("a-00001-of-00002.gguf", -ENOENT, "a-00002-of-00002.gguf");
    save_part("a-00002-of-00002.gguf", 0, 2, 2, "b");
    expect_split_refusal("a-00001-of-00002.gguf", -EINVAL, "split.no is 0 where 1 is expected");
    save_part("a-00002-of-00002.gguf", 1, 2, 2, "a");
    expect_split_refusal("a-00001-of-00002.gguf", -EINVAL, "'a' appears twice");
    save_part("a-00002-of-00002.gguf", 1, 3, 2, "b");
    expect_split_refusal("a-00001-of-00002.gguf", -EINVAL, "split.count is 3, but 2 files");
    save_part("a-00002-of-00002.gguf", 1, 2, 2, "b");
    save_part("a-00001-of-00002.gguf", 0, 2, 3, "a");
    expect_split_refusal("a-00001-of-00002.gguf", -EINVAL, "split.tensors.count");
    save_part("renamed.gguf", 0, 2, 2, "a");
    expect_split_refusal("renamed.gguf", -EINVAL, "must end in");
    save_part("x-00001-of-00002.gguf", 0, 65535, 2, "a");
    expect_split_refusal("x-00001-of-00002.gguf", -EINVAL, "the limit is 512");
}

Test(gguf, descriptors_open_the_same_model) {
    const char *name[2] = {in_dir("d-00001-of-00002.gguf"), in_dir("d-00002-of-00002.gguf")};
    struct gguf *g = NULL, *h = NULL;
    struct err err = {0};
    uint8_t a[16], b[16];
    int fd[2];

    save_part("d-00001-of-00002.gguf", 0, 2, 2, "a");
    save_part("d-00002-of-00002.gguf", 1, 2, 2, "b");
    for (int i = 0; i < 2; i++)
        fd[i] = open(name[i], O_RDONLY);
    cr_assert_eq(gguf_open_fds(&g, fd, 2, &err), 0, "%s", err.message);
    cr_assert_eq(gguf_open(&h, name[0], &err), 0);
    gguf_fingerprint(g, a);
    gguf_fingerprint(h, b);
    cr_expect_eq(memcmp(a, b, 16), 0);
    gguf_free(g);
    gguf_free(h);
    int swapped[2] = {fd[1], fd[0]};

    g = NULL;
    cr_expect_eq(gguf_open_fds(&g, swapped, 2, &err), -EINVAL);
    cr_expect_eq(gguf_open_fds(&g, fd, 1, &err), -EINVAL); /* one part is not a model */
    cr_expect_eq(gguf_open_fds(&g, fd, 0, &err), -EINVAL);
    cr_expect_null(g);
    cr_expect_neq(fcntl(fd[0], F_GETFD), -1, "the caller's descriptors stay open");
    close(fd[0]);
    close(fd[1]);
}

/* A model whose data is longer than a page, then @spoil done to its file in place. */
static struct gguf *open_then(void (*spoil)(int fd, off_t size)) {
    struct gguf_writer w;
    struct gguf *g;
    struct err err;
    struct stat st;

    small_model(&w);
    gw_tensor(&w, "large.weight", TENSOR_F32, 1, (const uint64_t[]){20000}, NULL);
    gw_finish(&w);
    cr_assert_eq(open_bytes(&g, w.file.data, w.file.len, &err), 0, "%s", err.message);
    gw_deinit(&w);
    cr_expect(!gguf_has_changed(g));
    int fd = open(in_dir("m.gguf"), O_RDWR);
    cr_assert_eq(fstat(fd, &st), 0);
    spoil(fd, st.st_size);
    close(fd);
    return g;
}

static void nothing(int fd, off_t size) {
    (void)fd;
    (void)size;
}

static void cut_off(int fd, off_t size) {
    (void)size;
    cr_assert_eq(ftruncate(fd, 0), 0);
}

static void overwrite(int fd, off_t size) {
    CLEANUP(freep) char *junk = malloc((size_t)size);

    memset(junk, 0xff, (size_t)size);
    cr_assert_eq(pwrite(fd, junk, (size_t)size, 0), size);
}

static void expect_metadata(const struct gguf *g) {
    struct gguf_str s;
    bool b;

    cr_assert_eq(gguf_string(g, "general.architecture", &s), 0);
    cr_expect(s.len == 5 && memcmp(s.data, "llama", 5) == 0);
    cr_expect(gguf_bool(g, "a.flag", &b) == 0 && b);
    s = gguf_array_str(gguf_array(g, "a.words"), 2);
    cr_expect(s.len == 5 && memcmp(s.data, "three", 5) == 0);
    cr_expect_eq(gguf_array_num(gguf_array(g, "a.ids"), 0), -1);
    cr_expect_str_eq(gguf_find(g, "large.weight")->name, "large.weight");
}

Test(gguf, what_was_read_stays_when_the_file_changes) {
    void (*const spoil[])(int fd, off_t size) = {cut_off, overwrite};

    for (size_t i = 0; i < ARRAY_SIZE(spoil); i++) {
        struct gguf *g = open_then(spoil[i]);

        cr_expect(gguf_has_changed(g));
        expect_metadata(g);
        gguf_drop_data(g);
        expect_metadata(g);
        cr_expect_null(gguf_find(g, "large.weight")->data);
        gguf_free(g);
    }
}

/* Opens the model @n times; a signal ends the process, which no caller of gguf_open() survives. */
static void open_often(int n) {
    for (int i = 0; i < n; i++) {
        CLEANUP(gguf_freep) struct gguf *g = NULL;
        struct err err = {0};

        if (gguf_open(&g, in_dir("m.gguf"), &err) == 0)
            gguf_drop_data(g);
    }
    _exit(0);
}

Test(gguf, a_file_that_is_cut_off_while_it_is_read_is_refused) {
    enum { N_WORDS = 200000 };
    CLEANUP(freep) const char **words = calloc(N_WORDS, sizeof(*words));
    struct gguf_writer w;
    int status = 0;

    for (int i = 0; i < N_WORDS; i++)
        words[i] = "a word of a vocabulary";
    small_model(&w);
    gw_strings(&w, "a.vocabulary", N_WORDS, words);
    gw_finish(&w);
    int fd = open(in_dir("m.gguf"), O_RDWR | O_CREAT, 0600);
    pid_t reader = fork();

    if (reader == 0)
        open_often(200);
    while (waitpid(reader, &status, WNOHANG) == 0) {
        cr_assert_eq(ftruncate(fd, 0), 0);
        cr_assert_eq(pwrite(fd, w.file.data, w.file.len, 0), (ssize_t)w.file.len);
    }
    close(fd);
    gw_deinit(&w);
    cr_expect(WIFEXITED(status), "signal %d", WTERMSIG(status));
}

Test(gguf, a_change_of_any_part_is_seen) {
    for (int i = 0; i < 2; i++) {
        CLEANUP(gguf_freep) struct gguf *g = NULL;
        struct err err = {0};

        save_part("c-00001-of-00002.gguf", 0, 2, 2, "a");
        save_part("c-00002-of-00002.gguf", 1, 2, 2, "b");
        cr_assert_eq(gguf_open(&g, in_dir("c-00001-of-00002.gguf"), &err), 0, "%s", err.message);
        cr_expect(!gguf_has_changed(g));
        cr_assert_eq(truncate(in_dir(i ? "c-00002-of-00002.gguf" : "c-00001-of-00002.gguf"), 64),
                     0);
        cr_expect(gguf_has_changed(g));
    }
}

Test(gguf, data_that_was_copied_stays_when_the_file_is_cut_off) {
    static uint8_t before[80000];
    struct gguf *g = open_then(nothing);
    const struct tensor *t = gguf_find(g, "large.weight");
    const uint8_t *at = t->data;

    cr_assert_eq(t->n_bytes, sizeof(before));
    memcpy(before, at, sizeof(before));
    cr_assert_eq(gguf_copy_data(g), 0);
    cr_assert_eq(truncate(in_dir("m.gguf"), 0), 0);
    cr_expect_eq(t->data, at);
    cr_expect_eq(memcmp(t->data, before, sizeof(before)), 0);
    touch(g);
    gguf_free(g);
}

Test(gguf, a_file_that_is_replaced_by_rename_has_not_changed) {
    struct gguf_writer w;
    struct gguf *g;
    struct err err;

    small_model(&w);
    gw_finish(&w);
    cr_assert_eq(open_bytes(&g, w.file.data, w.file.len, &err), 0, "%s", err.message);
    gw_save_bytes(in_dir("next.gguf"), "another", 7);
    cr_assert_eq(rename(in_dir("next.gguf"), in_dir("m.gguf")), 0);
    cr_expect(!gguf_has_changed(g));
    touch(g);
    gguf_free(g);
    gw_deinit(&w);
}

Test(gguf, fingerprint_sees_every_byte_of_a_small_file) {
    struct gguf_writer w;
    uint8_t first[16], other[16];
    struct gguf *g;
    struct err err;
    size_t n = 0;

    small_model(&w);
    gw_finish(&w);
    cr_assert_eq(open_bytes(&g, w.file.data, w.file.len, &err), 0);
    gguf_fingerprint(g, first);
    gguf_free(g);
    /* Files of prefixes contain it, so it does not change from version to version. */
    cr_expect_arr_eq(first, "\xde\x2c\x3e\x2a\x9c\x98\x37\x12\x0d\x9d\x5b\xa1\x87\xdf\x9b\x13", 16);
    for (size_t i = 0; i < w.file.len; i++) {
        w.file.data[i] ^= 1;
        if (open_bytes(&g, w.file.data, w.file.len, &err) == 0) {
            gguf_fingerprint(g, other);
            /* padding between header and data is neither */
            size_t header = w.file.len - w.data.len;

            if (i < header - 32 || i >= header) {
                cr_expect_neq(memcmp(first, other, 16), 0, "byte %zu", i);
                n++;
            }
            gguf_free(g);
        }
        w.file.data[i] ^= 1;
    }
    cr_expect_gt(n, w.data.len);
    gw_deinit(&w);
}

/* --- cost of hostile files --- */

#if defined(__SANITIZE_ADDRESS__)
#define MEASURE_MEMORY 0 /* the sanitizer's own memory is larger than the limit */
#else
#define MEASURE_MEMORY 1
#endif

/* Opens @path in a child, which must take less than 64 MiB of memory; refused if @refused. */
static void expect_cheap(const char *path, bool refused) {
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        struct gguf *g = NULL;
        struct err err = {0};
        struct rusage use;
        int r = gguf_open(&g, path, &err);

        getrusage(RUSAGE_SELF, &use);
        if ((r == -EINVAL) != refused)
            _exit(1);
        _exit(MEASURE_MEMORY && use.ru_maxrss > 64 * 1024 ? 2 : 0);
    }
    int status;

    waitpid(pid, &status, 0);
    cr_expect_eq(status, 0, "%s: status 0x%x", path, status);
}

Test(gguf, claims_of_gigabytes_cost_nothing) {
    static const uint64_t claims[] = {5ull << 30, 1ull << 32, 1ull << 63, UINT64_MAX, 60000};
    struct gguf_writer w;

    gw_init(&w);
    gw_strings(&w, "a.words", 1, (const char *const[]){"abc"});
    gw_array(&w, "a.ids", GGUF_I32, 1, "abcd", 4);
    gw_tensor(&w, "x", TENSOR_F32, 1, (const uint64_t[]){1}, NULL);
    gw_finish(&w);
    for (size_t i = 0; i < w.n_fields; i++) {
        for (size_t k = 0; k < ARRAY_SIZE(claims); k++) {
            uint64_t old = 0;
            char *at = w.file.data + w.field[i].at;

            if (w.field[i].bytes < 8)
                continue;
            memcpy(&old, at, 8);
            memcpy(at, &claims[k], 8);
            gw_save_bytes(in_dir("claim"), w.file.data, w.file.len);
            expect_cheap(in_dir("claim"), true);
            /* the same with 5 GiB of holes behind it */
            cr_assert_eq(truncate(in_dir("claim"), 5ll << 30), 0);
            if (strcmp(w.field[i].what, "a dimension") != 0)
                expect_cheap(in_dir("claim"), true);
            memcpy(at, &old, 8);
        }
    }
    gw_deinit(&w);
}

Test(gguf, the_largest_possible_header_is_cheap) {
    struct gguf_writer w;
    uint64_t zero = 0;
    uint64_t n = (40u << 20) / 8;

    /* 40 MiB of empty strings: beyond the limit, which ends the reading */
    gw_init(&w);
    gw_strings(&w, "a.words", 0, NULL);
    memcpy(w.kv.data + w.kv.len - 8, &n, 8);
    for (uint64_t i = 0; i < n; i++)
        cr_assert_eq(buf_add(&w.kv, &zero, 8), 0);
    gw_save(&w, in_dir("large"));
    gw_deinit(&w); /* before the fork: the child starts with our memory */
    expect_cheap(in_dir("large"), true);

    /* the most keys and tensors that a header may have */
    gw_init(&w);
    for (uint32_t i = 0; i < 65536; i++) {
        char name[32];

        snprintf(name, sizeof(name), "k%u", i);
        gw_u32(&w, name, i);
        gw_tensor(&w, name, TENSOR_F32, 1, (const uint64_t[]){1}, NULL);
    }
    gw_save(&w, in_dir("many"));
    gw_deinit(&w);
    expect_cheap(in_dir("many"), false);
}

/* --- the test data --- */

/* Whether @err says that weft does not read a tensor format, and the file's name carries that
 * format. */
static bool names_format(const struct err *err, const char *path) {
    const char *open = strrchr(err->message, '('), *close = open ? strchr(open, ')') : NULL;
    char format[16] = "";

    if (!close || !strstr(close, "which weft does not support"))
        return false;
    snprintf(format, sizeof(format), "%.*s", (int)(close - open - 1), open + 1);
    return format[0] && strcasestr(strrchr(path, '/'), format);
}

/* How many files of @folder open. The others must be refused because of their format, and are
 * counted in @n_refused; NULL: none may be. */
static size_t open_all(const char *folder, size_t *n_refused) {
    char pattern[TEST_DATA_PATH];
    glob_t found;
    size_t n = 0;

    snprintf(pattern, sizeof(pattern), "%s/%s/*.gguf", test_data(), folder);
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "the test data has no %s", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        CLEANUP(gguf_freep) struct gguf *g = NULL;
        struct err err = {0};
        int r = gguf_open(&g, found.gl_pathv[i], &err);

        if (r < 0 && n_refused && names_format(&err, found.gl_pathv[i])) {
            printf("# left out: %s\n", err.message);
            ++*n_refused;
            continue;
        }
        cr_assert_eq(r, 0, "%s: %s", found.gl_pathv[i], err.message);
        touch(g);
        cr_expect(gguf_has(g, "general.architecture"), "%s", found.gl_pathv[i]);
        cr_expect(gguf_array(g, "tokenizer.ggml.tokens"), "%s", found.gl_pathv[i]);
        n++;
    }
    globfree(&found);
    return n;
}

Test(gguf, golden_models_open) {
    size_t n_refused = 0, n = open_all("golden", &n_refused);

    cr_expect_geq(n, test_data_is_larger() ? 63 : 41);
    printf("# %zu golden files open, %zu are of formats that weft does not read\n", n, n_refused);
}

Test(gguf, real_models_open) {
    cr_expect_geq(open_all("models", NULL), test_data_is_larger() ? 3 : 1);
}

Test(gguf, vocabularies_open) {
    cr_expect_geq(open_all("vocab", NULL), 7);
}

Test(gguf, the_split_golden_model_has_the_tensors_of_the_whole_one) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(gguf_freep) struct gguf *s = NULL;
    char whole[TEST_DATA_PATH], part[TEST_DATA_PATH];
    struct err err = {0};

    test_data_file(whole, "golden", "llama-gqa", ".gguf");
    test_data_file(part, "golden", "llama-gqa-split-00002-of-00003", ".gguf");
    cr_assert_eq(gguf_open(&g, whole, &err), 0, "%s", err.message);
    cr_assert_eq(gguf_open(&s, part, &err), 0, "%s", err.message);
    cr_expect_eq(gguf_n_tensors(g), gguf_n_tensors(s));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *a = gguf_tensor(g, i), *b = gguf_find(s, a->name);

        cr_assert(b, "%s", a->name);
        cr_assert_eq(a->n_bytes, b->n_bytes);
        cr_expect_eq(memcmp(a->data, b->data, a->n_bytes), 0, "%s", a->name);
    }
}
