#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/files.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mathx.h"
#include "base/mbox.h"
#include "base/rng.h"
#include "base/sha256.h"

Test(buf, limit_is_hard_and_a_refused_add_changes_nothing) {
    struct buf b;

    buf_init(&b, 5);
    cr_expect_eq(buf_add_str(&b, "abc"), 0);
    cr_expect_eq(buf_add_str(&b, "def"), -EMSGSIZE);
    cr_expect_eq(buf_printf(&b, "%d", 12), 0);
    cr_expect_str_eq(b.data, "abc12");
    buf_consume(&b, 3);
    cr_expect_str_eq(b.data, "12");
    buf_deinit(&b);
}

Test(arena, limit_is_hard_and_memory_is_zeroed) {
    struct arena a;

    arena_init(&a, 10000);
    char *p = arena_alloc(&a, 6000);
    cr_assert(p);
    for (int i = 0; i < 6000; i++)
        cr_assert_eq(p[i], 0);
    cr_expect_null(arena_alloc(&a, 6000));
    cr_expect_null(arena_alloc(&a, SIZE_MAX));
    cr_expect_null(arena_alloc_array(&a, SIZE_MAX / 2, 4));
    cr_expect_str_eq(arena_strndup(&a, "hello", 3), "hel");
    arena_deinit(&a);
}

Test(mathx, agrees_with_libm) {
    for (float x = -86.0f; x < 87.0f; x += 0.0137f)
        cr_assert_float_eq(mx_expf(x) / exp((double)x), 1.0, 3e-7, "expf(%g)", (double)x);
    for (double x = 1e-12; x < 1e12; x *= 1.037)
        cr_assert_float_eq(mx_log(x), log(x), 1e-15 + 4e-16 * fabs(log(x)), "log(%g)", x);
    for (double x = -600; x < 600; x += 0.377)
        cr_assert_float_eq(mx_exp(x) / exp(x), 1.0, 1e-15, "exp(%g)", x);
    for (double x = -3e6; x < 3e6; x += 1234.567) {
        double s, c;

        mx_sincos(x, &s, &c);
        cr_assert_float_eq(s, sin(x), 1e-15, "sin(%g)", x);
        cr_assert_float_eq(c, cos(x), 1e-15, "cos(%g)", x);
    }
}

__extension__ typedef _Float16 compiler_half;

Test(mathx, half_conversions_agree_with_the_compiler) {
    for (uint32_t h = 0; h < 65536; h++) {
        compiler_half f;
        uint16_t bits = (uint16_t)h;

        memcpy(&f, &bits, 2);
        float expect = (float)f, got = mx_half_to_float(bits);
        if (expect != expect) {
            cr_assert(got != got);
            continue;
        }
        cr_assert_eq(mx_bits_of(got), mx_bits_of(expect));
        cr_assert_eq(mx_float_to_half(got), bits);
    }
    struct rng r = {1};
    for (int i = 0; i < 1000000; i++) {
        float f = mx_float_of((uint32_t)rng_next(&r));
        compiler_half h = (compiler_half)f;
        uint16_t bits;

        memcpy(&bits, &h, 2);
        if (f == f)
            cr_assert_eq(mx_float_to_half(f), bits, "%a", (double)f);
    }
}

Test(rng, philox_known_answers) {
    /* Random123 kat_vectors, philox4x32-10 */
    struct rng_block b = rng_philox(0, 0, 0, 0, 0);
    cr_expect_eq(b.v[0], 0x6627e8d5u);
    cr_expect_eq(b.v[3], 0x9b00dbd8u);
    b = rng_philox(~0ull, ~0u, ~0u, ~0u, ~0u);
    cr_expect_eq(b.v[0], 0x408f276du);
    cr_expect_eq(b.v[1], 0x41c83b0eu);
    cr_expect_eq(b.v[2], 0xa20bc7c6u);
    cr_expect_eq(b.v[3], 0x6d5451fdu);
}

Test(note, a_list_is_cut_off_at_its_end) {
    char note[12] = "";

    note_add(note, sizeof(note), ", ", "%d", 1);
    cr_expect_str_eq(note, "1");
    note_add(note, sizeof(note), ", ", "%s", "two");
    cr_expect_str_eq(note, "1, two");
    note_add(note, sizeof(note), ", ", "%s", "three");
    cr_expect_str_eq(note, "1, two, thr");
    note_add(note, sizeof(note), ", ", "4");
    cr_expect_str_eq(note, "1, two, thr");
}

Test(files, are_read_with_their_permissions) {
    char path[] = "/tmp/weft-file-XXXXXX";
    CLEANUP(buf_deinit) struct buf out = {.max = 3};
    mode_t mode = 0;
    int fd = mkstemp(path);

    cr_assert(fd >= 0 && write(fd, "abc", 3) == 3 && fchmod(fd, 0640) == 0);
    cr_expect_eq(files_read(path, &out, &mode), 0);
    cr_expect_str_eq(out.data, "abc");
    cr_expect_eq(mode & 0777, 0640);
    cr_expect_eq(files_read(path, &out, NULL), -EFBIG);
    close(fd);
    unlink(path);
    cr_expect_eq(files_read(path, &out, &mode), -ENOENT);
}

Test(log, level_is_told_by_the_environment) {
    static const struct {
        const char *text;
        enum log_level level;
    } cases[] = {
        {"3", WLOG_ERROR}, {"7", WLOG_DEBUG}, {"2", WLOG_INFO}, {"8", WLOG_INFO}, {"", WLOG_INFO}};

    unsetenv("WEFT_LOG_LEVEL");
    cr_expect_eq(log_requested_level(), WLOG_INFO);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setenv("WEFT_LOG_LEVEL", cases[i].text, 1);
        cr_expect_eq(log_requested_level(), cases[i].level, "%s", cases[i].text);
    }
    log_set_level(WLOG_WARN);
    cr_expect_str_eq(log_level_variable(), "WEFT_LOG_LEVEL=4");
    cr_expect(log_enabled(WLOG_WARN) && !log_enabled(WLOG_INFO) && log_enabled(WLOG_NOTICE));
}

static int n_woken;

static void count_wake(struct mbox *m) {
    (void)m;
    n_woken++;
}

Test(mbox, hands_over_in_order_and_wakes_once) {
    struct mbox_link link[2] = {0};
    struct mbox m;

    mbox_init(&m, count_wake);
    cr_expect_null(mbox_receive(&m));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++)
            mbox_post(&m, &link[i]);
        cr_expect(link[0].queued && link[1].queued);
        cr_expect_eq(mbox_receive(&m), &link[0]);
        cr_expect_eq(mbox_wait(&m), &link[1]);
        cr_expect_null(mbox_receive(&m));
        cr_expect(!link[0].queued && !link[1].queued);
    }
    cr_expect_eq(n_woken, 2);
    mbox_deinit(&m);
}

Test(list, removal_inside_a_walk) {
    struct node {
        int v;
        struct list link;
    } n[4];
    struct list l;
    int sum = 0;

    list_init(&l);
    for (int i = 0; i < 4; i++) {
        n[i].v = i;
        list_push_back(&l, &n[i].link);
    }
    LIST_FOREACH(it, &l) {
        struct node *x = LIST_ENTRY(it, struct node, link);

        if (x->v % 2)
            list_remove(it);
    }
    LIST_FOREACH(it, &l)
    sum += LIST_ENTRY(it, struct node, link)->v;
    cr_expect_eq(sum, 2);
}

/* ---- sha256 ---- */

static const char *sum_of(const char *text, size_t step) {
    static char hex[65];
    struct sha256 s;

    sha256_init(&s);
    for (size_t i = 0, len = strlen(text); i < len; i += step)
        sha256_add(&s, text + i, MIN(step, len - i));
    sha256_hex(&s, hex);
    return hex;
}

Test(sha256, vectors_of_the_standard) {
    char million[1000001];

    cr_assert_str_eq(sum_of("", 1),
                     "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    cr_assert_str_eq(sum_of("abc", 3),
                     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    cr_assert_str_eq(sum_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 64),
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', 1000000);
    million[1000000] = 0;
    for (size_t step = 1; step < 300; step += 37)
        cr_assert_str_eq(sum_of(million, step),
                         "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
