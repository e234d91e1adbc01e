/*
 * Calls as the grammar shares their parts, against the same calls written out: for every format and
 * random tools, a node of members and the sequences that it stands for have the same masks, at
 * every token of random texts, with tokens that cross all borders between names, keys and values.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "tests/api/toolcall_random.h"
#include "tests/support/few.h"

#define WORDS_MAX 16
#define PIECE_MAX 9 /* bytes of a token */
#define TOKENS_MAX 3000

/* ---- members written out */

static yyjson_mut_val *written_out(yyjson_mut_doc *d, yyjson_val *node);

static yyjson_mut_val *of(yyjson_mut_doc *d, const char *key, yyjson_mut_val *v) {
    yyjson_mut_val *o = yyjson_mut_obj(d);

    yyjson_mut_obj_add_val(d, o, key, v);
    return o;
}

/* Returns BEFORE KEY VALUE of a member. */
static yyjson_mut_val *member(yyjson_mut_doc *d, yyjson_val *node, yyjson_val *m) {
    yyjson_mut_val *list = yyjson_mut_arr(d);

    yyjson_mut_arr_append(list, written_out(d, yyjson_obj_get(node, "before")));
    yyjson_mut_arr_append(list, of(d, "literal", yyjson_val_mut_copy(d, yyjson_obj_get(m, "key"))));
    yyjson_mut_arr_append(list, written_out(d, yyjson_obj_get(m, "value")));
    return of(d, "sequence", list);
}

static yyjson_mut_val *optional(yyjson_mut_doc *d, yyjson_mut_val *what) {
    yyjson_mut_val *o = of(d, "repeat", what);

    yyjson_mut_obj_add_uint(d, o, "max", 1);
    return o;
}

static yyjson_mut_val *members(yyjson_mut_doc *d, yyjson_val *node) {
    yyjson_mut_val *all = yyjson_mut_arr(d);
    yyjson_val *m;
    size_t i, max;

    yyjson_arr_foreach(yyjson_obj_get(node, "members"), i, max, m) {
        yyjson_mut_val *one = member(d, node, m);
        bool may = yyjson_get_bool(yyjson_obj_get(m, "optional"));

        yyjson_mut_arr_append(all, may ? optional(d, one) : one);
    }
    return of(d, "sequence", all);
}

static yyjson_mut_val *written_out(yyjson_mut_doc *d, yyjson_val *node) {
    static const char *const lists[] = {"sequence", "either"}, *const nodes[] = {"repeat",
                                                                                 "separator"};
    yyjson_mut_val *copy;
    yyjson_val *item;
    size_t i, max;

    if (yyjson_obj_get(node, "members"))
        return members(d, node);
    copy = yyjson_val_mut_copy(d, node);
    for (size_t k = 0; k < 2; k++) {
        yyjson_val *list = yyjson_obj_get(node, lists[k]), *v = yyjson_obj_get(node, nodes[k]);
        yyjson_mut_val *out = yyjson_mut_arr(d);

        yyjson_arr_foreach(list, i, max, item) yyjson_mut_arr_append(out, written_out(d, item));
        if (list)
            return of(d, lists[k], out);
        if (v)
            yyjson_mut_obj_put(copy, yyjson_mut_str(d, nodes[k]), written_out(d, v));
    }
    return copy;
}

static char *write_out(const char *text) {
    yyjson_doc *in = yyjson_read(text, strlen(text), 0);
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    char *out = yyjson_mut_val_write(written_out(d, yyjson_doc_get_root(in)), 0, NULL);

    yyjson_mut_doc_free(d);
    yyjson_doc_free(in);
    return out;
}

/* ---- masks */

static struct constraint *compiled(const struct grammar_vocab *v, const char *text) {
    struct constraint *c = NULL;
    struct err err = {0};

    cr_assert_eq(constraint_new(&c, v, text, strlen(text), "", 0, NULL, &err), 0, "%s: %s", text,
                 err.message);
    return c;
}

/* Makes a vocabulary with pieces of texts under @c, so that tokens cross the borders of parts. */
static struct grammar_vocab *vocab_of_pieces(struct constraint *c, const struct toolcall_format *f,
                                             bool special, struct rng *r) {
    static char bytes[RANDOM_MORE][PIECE_MAX];
    struct grammar_token t[RANDOM_MORE];
    struct buf text = {.max = 1 << 20};

    for (uint32_t i = 0; i < RANDOM_MORE; i++) {
        if (i % 20 == 0)
            random_text(c, f, r, random_n_tokens(special), &text);
        uint32_t len = 2 + rng_below(r, PIECE_MAX - 1);

        cr_assert_gt(text.len, PIECE_MAX);
        memcpy(bytes[i], text.data + rng_below(r, (uint32_t)text.len - len + 1), len);
        t[i] = (struct grammar_token){.bytes = bytes[i], .len = len};
    }
    buf_deinit(&text);
    return random_vocab_with(special, t, RANDOM_MORE);
}

/* Returns a random token of @bits, if possible one of the longer ones. */
static int32_t choose(struct rng *r, const uint32_t *bits, uint32_t n) {
    uint32_t from = rng_below(r, 2) ? n - RANDOM_MORE : 0, start = from + rng_below(r, n - from);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = (start + i) % n;

        if (bits[id / 32] >> (id % 32) & 1)
            return (int32_t)id;
    }
    return -1;
}

/* Walks a random text and compares the masks of @x and @y before each token. Returns the number of
 * tokens. */
static uint32_t same_masks(struct constraint *x, struct constraint *y, struct rng *r,
                           uint32_t n_tokens, const char *text) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL, *t = NULL;
    uint32_t bits[WORDS_MAX] = {0}, others[WORDS_MAX] = {0}, n = 0;

    cr_assert_leq(constraint_n_words(x), WORDS_MAX);
    cr_assert_eq(constraint_state_new(&s, x), 0);
    cr_assert_eq(constraint_state_new(&t, y), 0);
    for (; n < TOKENS_MAX && !constraint_is_done(s); n++) {
        int64_t allowed = constraint_mask(s, bits);
        int32_t id = choose(r, bits, n_tokens);

        cr_assert_gt(allowed, 0, "token %u of %s", n, text);
        cr_assert_eq(constraint_mask(t, others), allowed, "token %u of %s", n, text);
        cr_assert_eq(memcmp(bits, others, sizeof(bits)), 0, "token %u of %s", n, text);
        cr_assert_eq(constraint_can_end(s), constraint_can_end(t));
        cr_assert_eq(constraint_distance(s) == 0, constraint_distance(t) == 0);
        cr_assert_eq(constraint_accept(s, id), 0);
        cr_assert_eq(constraint_accept(t, id), 0);
        if (n % 7 == 6) {
            cr_assert_eq(constraint_rollback(s, 3), 0);
            cr_assert_eq(constraint_rollback(t, 3), 0);
        }
    }
    return n;
}

/* Compares @text with what it stands for. Returns the number of tokens read. */
static uint32_t check_node(const struct toolcall_format *f, const char *text, bool special,
                           struct rng *r) {
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *bytes = random_vocab(special);
    CLEANUP(constraint_freep) struct constraint *first = compiled(bytes, text);
    CLEANUP(grammar_vocab_freep)
    struct grammar_vocab *v = vocab_of_pieces(first, f, special, r);
    CLEANUP(freep) char *plain = write_out(text);
    CLEANUP(constraint_freep) struct constraint *x = compiled(v, text), *y = compiled(v, plain);
    uint32_t n = 0;

    cr_assert(strstr(text, R"("members")") == NULL || strcmp(text, plain) != 0);
    cr_assert_null(strstr(plain, R"("members")"));
    for (int i = 0; i < 3; i++)
        n += same_masks(x, y, r, random_n_tokens(special) + RANDOM_MORE, text);
    return n;
}

Test(toolcall_shared, masks_are_those_of_calls_written_out) {
    struct schema_writer w = {.b = {.max = 1 << 20}, .r = {77}};
    uint32_t n = FEWER(12, 3), n_formats = 0;

    for (size_t i = 0; toolcall_at(i); i++) {
        bool tagged = false;
        uint32_t n_tokens = 0;

        for (uint32_t k = 0; k < n; k++) {
            yyjson_doc *doc = random_tools(&w, 1 + rng_below(&w.r, 4));
            char *text = random_calls(toolcall_at(i), yyjson_doc_get_root(doc), false, false);

            tagged = tagged || (text && strstr(text, R"("members")"));
            if (text && tagged)
                n_tokens += check_node(toolcall_at(i), text, k % 2, &w.r);
            free(text);
            yyjson_doc_free(doc);
        }
        n_formats += tagged;
        cr_expect(!tagged || n_tokens > 100, "%s: %u tokens", toolcall_at(i)->name, n_tokens);
    }
    cr_expect_geq(n_formats, 10);
    buf_deinit(&w.b);
}

/* Members whose keys are odd: one is the beginning of another, equal, a special token; and
 * whose values are empty, or begin as other keys do. */
Test(toolcall_shared, masks_of_odd_members) {
    static const char *const keys[] = {"a", "ab", "abc", "b", "<tool_call>", "a", "x<sep>"};
    static const char *const values[] = {R"({"literal":""})",    R"({"regex":"b*"})",
                                         R"({"literal":"=1;"})", R"({"regex":"[ab]{1,3}"})",
                                         R"({"free_text":";"})", R"({"literal":"<tool_call>"})"};
    struct rng r = {5};

    for (uint32_t k = 0; k < FEWER(400, 100); k++) {
        struct buf b = {.max = 1 << 16};
        uint32_t n = rng_below(&r, 6);

        buf_add_str(&b, R"({"sequence":[{"literal":"begin here: "},{"members":[)");
        for (uint32_t i = 0; i < n; i++)
            buf_printf(&b, R"(%s{"key":"%s","value":%s,"optional":%s})", i ? "," : "",
                       keys[rng_below(&r, ARRAY_SIZE(keys))],
                       values[rng_below(&r, ARRAY_SIZE(values))],
                       rng_below(&r, 3) ? "true" : "false");
        buf_printf(&b, R"(],"before":{"literal":"%s"}},{"literal":"; the end"}]})",
                   rng_below(&r, 2) ? "<k=" : "");
        check_node(toolcall_find("hermes"), b.data, k % 2, &r);
        buf_deinit(&b);
    }
}
