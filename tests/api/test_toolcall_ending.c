/*
 * Calls that are cut at a limit are complete in every format, both forced calls and calls after
 * free text.
 */

#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "tests/api/toolcall_random.h"
#include "tests/support/few.h"

#define TOOLS FEWER(10, 4) /* number of sets of tools for each format */
#define TEXTS 6

struct counts {
    uint32_t texts, cut, calls;
};

/* Writes all strings behind which a call has begun, as the front does. */
static void write_triggers(const struct toolcall_format *f, char *out, size_t size) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *o = yyjson_mut_obj(d), *after = yyjson_mut_obj_add_arr(d, o, "after");

    for (size_t i = 0; toolcall_after(f, i); i++)
        yyjson_mut_arr_add_str(d, after, toolcall_after(f, i));
    yyjson_mut_obj_add_bool(d, o, "repeat", true);
    CLEANUP(freep) char *text = yyjson_mut_val_write(o, 0, NULL);

    snprintf(out, size, "%s", text);
    yyjson_mut_doc_free(d);
}

static uint32_t distance_of(const struct constraint *c) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

    cr_assert_eq(constraint_state_new(&s, c), 0);
    return constraint_distance(s);
}

/* Asserts that with fewer tokens than the distance no call can begin. */
static void expect_refused_below(const struct constraint *c, uint32_t distance) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    uint32_t bits[16];

    cr_assert_eq(constraint_state_new(&s, c), 0);
    cr_expect(distance < 2 || constraint_mask_within(s, bits, distance - 1) == 0, "%u", distance);
}

/* Returns how many bytes a format writes around a call's name and arguments. */
static uint32_t markers_of(const struct toolcall_format *f) {
    const char *markers[] = {f->shape.section_begin, f->shape.call_begin, f->shape.name_end,
                             f->shape.call_end, f->shape.section_end};
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(markers); i++)
        n += markers[i] ? strlen(markers[i]) : 0;
    return (uint32_t)n;
}

/* Draws how far a limit is behind the least one: the first three limits are as tight as can be.
 * Free text has room for the markers of calls, since those of PLaMo 3 take 270 bytes. */
static uint32_t draw_limit(const struct toolcall_format *f, struct rng *r, bool triggered,
                           uint32_t i) {
    if (i < TEXTS / 2)
        return i;
    return rng_below(r, triggered ? 400 + 2 * markers_of(f) : 150);
}

static void check_tools(const struct toolcall_format *f, struct schema_writer *w, bool special,
                        bool triggered, struct counts *sum) {
    struct grammar_vocab *v = random_vocab(special);
    yyjson_doc *doc = random_tools(w, 1 + rng_below(&w->r, 3));
    struct buf text = {.max = 1 << 20};
    char triggers[1024] = "";

    if (triggered)
        write_triggers(f, triggers, sizeof(triggers));
    CLEANUP(constraint_freep)
    struct constraint *c =
        random_constraint(f, yyjson_doc_get_root(doc), v, false, triggered, triggers);

    cr_assert(c, "%s", f->name);
    uint32_t least = distance_of(c);

    cr_expect_eq(least == 0, triggered, "%s: %u", f->name, least);
    expect_refused_below(c, least);
    for (uint32_t i = 0; i < TEXTS; i++) {
        struct random_cut cut = {c, f, triggered ? toolcall_after(f, 0) : NULL,
                                 random_n_tokens(special),
                                 least + draw_limit(f, &w->r, triggered, i)};

        sum->texts++;
        sum->cut += random_text_within(&cut, &w->r, &text);
        sum->calls += random_calls_fit(f, yyjson_doc_get_root(doc), &text,
                                       (struct random_reading){.content = triggered});
    }
    buf_deinit(&text);
    yyjson_doc_free(doc);
    constraint_free(STEAL(c));
    grammar_vocab_free(v);
}

static void check_formats(bool triggered) {
    struct schema_writer w = {.b = {.max = 1 << 20}, .r = {7 + triggered}};

    setlocale(LC_CTYPE, "C.UTF-8"); /* for regexec() */
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);
        struct counts sum = {0};

        for (uint32_t k = 0; k < TOOLS; k++)
            check_tools(f, &w, k % 2, triggered, &sum);
        cr_expect_gt(sum.cut, sum.texts / 10, "%s: %u of %u cut", f->name, sum.cut, sum.texts);
        cr_expect_geq(sum.calls, triggered ? TOOLS / 2 : sum.texts, "%s: %u", f->name, sum.calls);
    }
    buf_deinit(&w.b);
}

Test(toolcall_ending, forced_calls_are_whole_at_any_limit) {
    check_formats(false);
}

Test(toolcall_ending, calls_in_free_output_are_whole_at_any_limit) {
    check_formats(true);
}
