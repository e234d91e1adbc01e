/* build - the state of one compilation: its memory, its work, its first error and its rules. */

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/jobs.h"
#include "base/try.h"
#include "grammar/expr/expr.h"

#define PAUSE_WORK 8192 /* some 40 us */

static const struct grammar_limits DEFAULTS = {
    .max_source = 1 << 20,
    .max_depth = 64,
    .max_states = 200000,
    .max_work = 36000000,
    .max_memory = (size_t)20 << 20,
    .max_bytes = (size_t)48 << 20,
    .max_indent = 40,
};

#define TAKE(field)                                                                                \
    if (l && l->field)                                                                             \
    b->limits.field = l->field

void build_init(struct build *b, const struct grammar_vocab *v, const struct grammar_limits *l,
                struct err *err) {
    *b = (struct build){.vocab = v, .limits = DEFAULTS, .err = err};
    b->number = b->integer = NO_RULE;
    for (size_t i = 0; i < ARRAY_SIZE(b->any_key); i++)
        b->any_key[i] = NO_RULE;
    for (size_t i = 0; i < ARRAY_SIZE(b->any_value); i++)
        b->any_value[i] = b->any_object[i] = NO_RULE;
    TAKE(max_source);
    TAKE(max_depth);
    TAKE(max_states);
    TAKE(max_work);
    TAKE(max_memory);
    TAKE(max_bytes);
    TAKE(max_indent);
    TAKE(work);
    TAKE(place);
    arena_init(&b->arena, b->limits.max_memory);
    b->pause_at = MIN(PAUSE_WORK, b->limits.max_work + 1);
}

void build_deinit(struct build *b) {
    if (b->limits.work)
        *b->limits.work += MIN(b->work, b->limits.max_work);
    free(b->rule);
    hash_index_deinit(&b->bodies);
    arena_deinit(&b->arena);
    *b = (struct build){0};
}

int build_fail(struct build *b, const char *code, const char *fmt, ...) {
    char text[400];
    va_list ap;

    if (b->failed)
        return b->failed;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return b->failed = err_set_code(b->err, 400, code, b->param, "%s", text);
}

/* Makers of expressions return NULL for three reasons: too much work, a full arena, and a lack of
 * memory in the machine. Their callers end up here and leave it to this function to tell which one
 * it was. */
int build_no_memory(struct build *b) {
    if (b->work > b->limits.max_work)
        return build_work(b, 0);
    if (!b->failed && !b->arena.full)
        b->failed = -ENOMEM; /* the machine lacks memory; the grammar may be right */
    return build_too_complex(b, "the grammar needs too much memory");
}

void *build_alloc(struct build *b, size_t n, size_t size) {
    void *p = arena_alloc_array(&b->arena, n, size);

    if (!p)
        return failed(build_no_memory(b));
    return p;
}

int build_grow(struct build *b, void *v, uint32_t n, uint32_t *cap, uint32_t first, size_t size) {
    uint32_t bigger = *cap ? *cap * 2 : first;
    void *old, *w;

    if (n < *cap)
        return 0;
    memcpy(&old, v, sizeof(old));
    w = build_alloc(b, bigger, size);
    if (!w)
        return b->failed;
    if (n)
        memcpy(w, old, n * size);
    memcpy(v, &w, sizeof(w));
    *cap = bigger;
    return 0;
}

int build_pause(struct build *b) {
    if (job_pause() < 0)
        b->limits.max_work = 0; /* the job was abandoned: the next build_work() anywhere fails */
    if (b->work > b->limits.max_work)
        return build_too_complex(b, "the grammar takes too much work to compile");
    b->pause_at = MIN(b->work + PAUSE_WORK, b->limits.max_work + 1);
    return 0;
}

int build_rule(struct build *b, const char *name, uint32_t *rule) {
    if (b->n_rules >= b->limits.max_states)
        return build_too_complex(b, "the grammar has more than %u rules", b->limits.max_states);
    if (!ARRAY_GROW(b->rule, b->n_rules, b->cap_rules, 64))
        return build_no_memory(b);
    b->rule[b->n_rules] = (struct rule){.name = name};
    *rule = b->n_rules++;
    return 0;
}

int build_rule_of(struct build *b, struct expr *body, uint32_t *rule) {
    assert(body);
    uint32_t h = (uint32_t)(((uintptr_t)body * 0x9E3779B97F4A7C15u) >> 32);

    HASH_INDEX_EACH(b->bodies, h, i) {
        if (b->rule[i].body == body) {
            *rule = i;
            return build_work(b, 1);
        }
    }
    TRY(build_rule(b, NULL, rule));
    b->rule[*rule].body = body;
    if (hash_index_add(&b->bodies, h, *rule) < 0)
        return build_no_memory(b);
    return 0;
}
