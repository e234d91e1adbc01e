/* Members in any order, whatever their number, against lists of names. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/util.h"
#include "tests/grammar/grammar_support.h"

#define NAMES 200
#define WORDS 64

/* An object of names that are prefixes of each other and their neighbours, each 0. */
struct object {
    char name[NAMES][8];
    bool must[NAMES];
    uint32_t n;
    /* other names are there, too */
    bool open;
    char schema[32768];
};

static bool add_name(struct object *o, struct rng *r) {
    char name[8] = "";
    uint32_t len = 1 + rng_below(r, 6);

    for (uint32_t i = 0; i < len; i++)
        name[i] = R"(ab"\)"[rng_below(r, 20) ? rng_below(r, 2) : 2 + rng_below(r, 2)];
    for (uint32_t i = 0; i < o->n; i++) {
        if (strcmp(o->name[i], name) == 0)
            return false;
    }
    memcpy(o->name[o->n++], name, sizeof(name));
    return true;
}

static void add_text(struct buf *b, const char *name) {
    buf_add(b, R"(")", 1);
    for (; *name; name++)
        buf_printf(b, "%s%c", *name == 'a' || *name == 'b' ? "" : R"(\)", *name);
    buf_add(b, R"(")", 1);
}

static void write_schema(struct object *o) {
    struct buf b;
    bool first = true;

    buf_init(&b, sizeof(o->schema));
    buf_printf(&b, R"({"type":"object","properties":{)");
    for (uint32_t i = 0; i < o->n; i++) {
        buf_add(&b, ",", i > 0);
        add_text(&b, o->name[i]);
        buf_printf(&b, R"(:{"const":0})");
    }
    buf_printf(&b, R"(},"additionalProperties":%s,"required":[)",
               o->open ? R"({"const":0})" : "false");
    for (uint32_t i = 0; i < o->n; i++) {
        if (!o->must[i])
            continue;
        buf_add(&b, ",", !first);
        add_text(&b, o->name[i]);
        first = false;
    }
    buf_printf(&b, "]}");
    cr_assert_lt(b.len, sizeof(o->schema));
    memcpy(o->schema, b.data, b.len);
    o->schema[b.len] = '\0';
    buf_deinit(&b);
}

static void object_make(struct object *o, uint32_t n, struct rng *r) {
    *o = (struct object){.open = rng_below(r, 2)};
    while (o->n < n)
        add_name(o, r);
    for (uint32_t i = 0; i < n; i++)
        o->must[i] = rng_below(r, 4) == 0;
    write_schema(o);
}

/* All that must be there and some of the others, in any order; *@twice: one of them once more. */
static void write_text(const struct object *o, struct rng *r, bool twice, bool lacking,
                       struct buf *out) {
    uint32_t order[NAMES + 1], n = 0, some = rng_below(r, 3), lack = UINT32_MAX;

    for (uint32_t i = 0; lacking && i < o->n; i++)
        lack = o->must[i] ? i : lack;
    for (uint32_t i = 0; i < o->n; i++) {
        if (i != lack && (o->must[i] || rng_below(r, 2) < some))
            order[n++] = i;
    }
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = rng_below(r, i), x = order[i - 1];

        order[i - 1] = order[k];
        order[k] = x;
    }
    if (twice && n) {
        order[n] = order[rng_below(r, n)];
        n++;
    }
    buf_printf(out, "{");
    for (uint32_t i = 0; i < n; i++) {
        buf_add(out, ",", i > 0);
        add_text(out, o->name[order[i]]);
        buf_printf(out, ":0");
    }
    buf_printf(out, "}");
}

static const uint32_t COUNTS[] = {1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 150, NAMES};

Test(grammar_members, any_order_and_each_once) {
    static struct object o;
    struct rng r = {5};

    for (size_t i = 0; i < 4 * ARRAY_SIZE(COUNTS); i++) {
        object_make(&o, COUNTS[i % ARRAY_SIZE(COUNTS)], &r);
        CLEANUP(grammar_freep)
        struct grammar *g =
            test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT, o.schema);
        bool some = false;

        for (uint32_t k = 0; k < o.n; k++)
            some = some || o.must[k];
        for (int k = 0; k < 6; k++) {
            bool twice = k % 3 == 1, lacking = k % 3 == 2;
            struct buf b;

            buf_init(&b, 1 << 16);
            write_text(&o, &r, twice, lacking, &b);
            bool want = !(twice && strchr(b.data, ':')) && !(lacking && some);

            cr_expect_eq(test_fits(g, b.data, b.len), want, "%s: %s", o.schema, b.data);
            buf_deinit(&b);
        }
    }
}

/* How often @name is a key of @text. */
static int count_key(const char *text, const char *name) {
    char key[32] = "";
    int n = 0;
    struct buf b;

    buf_init(&b, 64);
    add_text(&b, name);
    buf_printf(&b, ":");
    cr_assert_lt(b.len, sizeof(key));
    memcpy(key, b.data, b.len);
    buf_deinit(&b);
    /* Keys begin behind `{` or `,`. */
    for (const char *p = text; (p = strstr(p, key)); p++)
        n += p[-1] == '{' || p[-1] == ',';
    return n;
}

Test(grammar_members, masks_lead_to_valid_texts_in_time) {
    static struct object o;
    static char text[1 << 16];
    struct rng r = {6};
    uint32_t bits[WORDS];

    for (size_t i = 0; i < 2 * ARRAY_SIZE(COUNTS); i++) {
        CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
        size_t len = 0;

        object_make(&o, COUNTS[i % ARRAY_SIZE(COUNTS)], &r);
        CLEANUP(grammar_freep)
        struct grammar *g =
            test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT, o.schema);
        cr_assert_eq(grammar_state_new(&s, g), 0);
        uint32_t limit = grammar_distance(s) + rng_below(&r, 300);

        cr_assert_lt(limit, 4000, "%s", o.schema);
        for (uint32_t k = 0; !grammar_is_done(s); k++) {
            size_t n_bytes;
            int64_t n = grammar_mask_within(s, bits, limit - k);
            uint32_t pick = n > 0 ? rng_below(&r, (uint32_t)n) : 0, id = 0;

            if (k == limit && grammar_can_end(s))
                break;
            cr_assert_gt(n, 0, "token %u of %u behind %.*s: %s", k, limit, (int)len, text,
                         o.schema);
            while (!(bits[id / 32] >> (id % 32) & 1) || pick-- > 0)
                id++;
            if (rng_below(&r, 40) == 0)
                test_mask_is_exact(s, g, bits);
            cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
            if (k > 3 && rng_below(&r, 10) == 0) { /* back, and the same again */
                cr_assert_eq(grammar_rollback(s, 1), 0);
                cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
            }
            const char *piece = test_token(id, &n_bytes);

            memcpy(text + len, piece, n_bytes);
            len += n_bytes;
        }
        text[len] = '\0';
        cr_expect(test_fits(g, text, len), "%s", text);
        for (uint32_t k = 0; k < o.n; k++) {
            int n = count_key(text, o.name[k]);

            cr_expect(n == 1 || (n == 0 && !o.must[k]), "%d times %s in %s", n, o.name[k], text);
        }
    }
}

Test(grammar_members, an_object_that_cannot_be_written_is_refused) {
    /* The member that must be there has an object that has a member that must be there ... */
    static const char S[] = R"({"properties": {"a": {"$ref": "#"}, "b": {}}, "required": ["a"]})";
    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = S, .len = strlen(S), .flags = GRAMMAR_ANY_ORDER};
    struct grammar *g = NULL;
    struct err err = {0};

    cr_assert_lt(grammar_compile(&g, test_vocab(), &src, NULL, &err), 0);
    cr_expect(strstr(err.message, "no text satisfies"), "%s", err.message);
}

Test(grammar_members, the_distance_counts_all_that_must_be_there) {
    static char schema[8192];
    size_t n = 0;

    /* 40 names of three digits: {"100":0,...} */
    for (int pass = 0; pass < 2; pass++) {
        n += (size_t)snprintf(schema + n, sizeof(schema) - n,
                              pass ? R"(},"required":[)" : R"({"properties":{)");
        for (int i = 0; i < 40; i++)
            n += (size_t)snprintf(schema + n, sizeof(schema) - n, R"(%s"%d"%s)", i ? "," : "",
                                  100 + i, pass ? "" : R"(:{"const":0})");
    }
    snprintf(schema + n, sizeof(schema) - n, "]}");
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT, schema);
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[WORDS];

    cr_assert_eq(grammar_state_new(&s, g), 0);
    uint32_t least = grammar_distance(s);

    cr_expect_geq(least, 2 + 40 * 3 + 39, "%u", least);
    cr_expect_leq(least, 2 + 40 * 7 + 39, "%u", least);
    cr_expect_gt(grammar_mask_within(s, bits, least), 0);
    cr_expect_eq(grammar_mask_within(s, bits, least - 1), 0);
}
