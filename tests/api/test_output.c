/* The queue of bytes that a connection has to send. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "api/http/output.h"
#include "base/rng.h"

#define MAX_BYTES (1u << 20)

/* Fills @text with bytes that tell their place. */
static void fill(char *text, size_t n, size_t from) {
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + (from + i) % 23);
}

/* Adds @n bytes at the end, which is byte @at of all, in the way that @way chooses. */
static void add(struct output *o, uint32_t way, size_t n, size_t at) {
    struct buf text = {.max = MAX_BYTES};

    cr_assert_eq(buf_reserve(&text, n + 2), 0);
    fill(text.data + 1, n, at);
    text.len = n + 1;
    if (way == 0) {
        cr_assert_eq(output_add(o, text.data + 1, n), 0);
    } else {
        struct blob *b = blob_new(&text);

        cr_assert_eq(output_refer(o, b, 1, n), 0);
        blob_unref(b); /* the output has a reference of its own */
    }
    buf_deinit(&text);
}

/* Whatever is added and sent in whatever pieces, the bytes come in their order, and those that are
 * being sent stay where they are while others are added. */
Test(output, bytes_keep_their_order_and_their_place) {
    struct rng rng = {7};
    struct output o;
    size_t n_in = 0, n_out = 0;

    output_init(&o, MAX_BYTES);
    for (int i = 0; i < 20000; i++) {
        uv_buf_t parts[OUTPUT_PIECES];
        size_t n, most = 1 + rng_below(&rng, 9000);
        unsigned n_parts = output_first(&o, most, parts, &n);

        cr_assert(n <= most && (n > 0) == (o.len > 0) && n_parts <= OUTPUT_PIECES);
        if (o.len < MAX_BYTES / 2) {
            size_t len = rng_below(&rng, 5) ? rng_below(&rng, 200) : rng_below(&rng, 20000);

            add(&o, rng_below(&rng, 2), len, n_in);
            n_in += len;
        }
        for (unsigned k = 0; k < n_parts; k++)
            for (size_t b = 0; b < parts[k].len; b++)
                cr_assert_eq(parts[k].base[b], (char)('a' + n_out++ % 23), "byte %zu", n_out);
        output_consume(&o, n);
        cr_assert(o.len == n_in - n_out && o.charged >= o.len);
    }
    output_deinit(&o);
}

Test(output, it_is_bounded_and_counts_a_piece_until_its_last_byte) {
    char text[5000] = {0};
    struct output o;
    struct buf whole = {.max = MAX_BYTES};
    struct blob *blob;

    output_init(&o, 10000);
    cr_assert_eq(output_add(&o, text, sizeof(text)), 0);
    cr_assert_eq(buf_add(&whole, text, sizeof(text)), 0);
    cr_assert_not_null(blob = blob_new(&whole));
    cr_assert_eq(output_refer(&o, blob, 0, 5000), 0);
    blob_unref(blob);
    cr_expect_eq(output_add(&o, text, 1), -EMSGSIZE);
    output_consume(&o, 7000);
    cr_expect(o.len == 3000 && o.charged == 5000, "%zu %zu", o.len, o.charged);
    output_consume(&o, 3000);
    cr_expect(o.len == 0 && o.charged == 0);
    output_deinit(&o);
}

/* What is cut off is freed, also the reference to what others hold. */
Test(output, what_is_cut_off_gives_its_references_back) {
    struct buf text = {.max = MAX_BYTES};
    struct output o;

    cr_assert_eq(buf_reserve(&text, 50000), 0);
    memset(text.data, 'x', text.len = 50000);
    struct blob *b = blob_new(&text);
    output_init(&o, MAX_BYTES);
    cr_assert_eq(output_refer(&o, b, 0, 50000), 0);
    cr_assert_eq(output_refer(&o, b, 0, 50000), 0);
    cr_expect_eq(atomic_load(&b->refs), 3);
    output_cut(&o, 1000);
    cr_expect(o.len == 1000 && atomic_load(&b->refs) == 2);
    output_consume(&o, 1000);
    cr_expect(o.len == 0 && atomic_load(&b->refs) == 1);
    output_deinit(&o);
    blob_unref(b);
}
