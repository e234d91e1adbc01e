#include "tests/api/toolcall_random.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/toolcall/parser.h"

#define TEXT_MAX 6000

/* Markers that are special tokens of one of the two vocabularies; in the other they are plain
 * text. */
static const char *const specials[] = {
    "<tool_call>",       "</tool_call>",  "<|tool_call>",  "<tool_call|>",
    R"(<|"|>)",          "<arg_key>",     "</arg_key>",    "<arg_value>",
    "</arg_value>",      "[TOOL_CALLS]",  "[ARGS]",        "<|channel|>",
    "<|message|>",       "<|constrain|>", "<|start|>",     "<|python_tag|>",
    "<|open|>",          "<|close|>",     "<|sep|>",       "<|tool_call_start|>",
    "<|tool_call_end|>", "<tool_calls>",  "</tool_calls>",
};

uint32_t random_n_tokens(bool special) {
    return 257 + (special ? ARRAY_SIZE(specials) : 0);
}

struct grammar_vocab *random_vocab(bool special) {
    return random_vocab_with(special, NULL, 0);
}

struct grammar_vocab *random_vocab_with(bool special, const struct grammar_token *more,
                                        uint32_t n) {
    static char bytes[256];
    struct grammar_token t[257 + ARRAY_SIZE(specials) + RANDOM_MORE] = {0};
    static const int32_t ends[] = {RANDOM_END};
    struct grammar_vocab *v = NULL;
    uint32_t n_tokens = random_n_tokens(special);

    cr_assert_leq(n, RANDOM_MORE);

    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){.bytes = &bytes[i], .len = 1};
    }
    for (size_t i = 0; i < ARRAY_SIZE(specials); i++)
        t[257 + i] = (struct grammar_token){specials[i], strlen(specials[i]), true};
    for (uint32_t i = 0; i < n; i++)
        t[n_tokens + i] = more[i];
    cr_assert_eq(grammar_vocab_new(&v, t, n_tokens + n, ends, 1), 0);
    return v;
}

/* ---- random tools */

static uint32_t below(struct schema_writer *w, uint32_t n) {
    return rng_below(&w->r, n);
}

static void write_schema(struct schema_writer *w, int depth);

static void write_string(struct schema_writer *w) {
    static const char *const rules[] = {
        "",
        "",
        R"(,"minLength":1)",
        R"(,"minLength":2,"maxLength":5)",
        R"(,"maxLength":7)",
        R"(,"enum":["on","off","o\"f","<b>","\u00e9\n"])",
        R"(,"pattern":"^[a-f]+$")",
        R"(,"pattern":"^[^a-z]{1,3}x?$")",
        R"(,"pattern":"^.{2}[ -~]$")",
        R"(,"description":"D.")",
    };

    buf_printf(&w->b, R"({"type":"string"%s})", rules[below(w, ARRAY_SIZE(rules))]);
}

void random_object(struct schema_writer *w, int depth, const char *more) {
    static const char *const names[] = {"a", "city", "B_2", "max.it", "Zone", "is-it"};
    uint32_t n = below(w, 5), first = below(w, ARRAY_SIZE(names));
    bool any = false;

    buf_add_str(&w->b, R"({"type":"object","properties":{)");
    for (uint32_t i = 0; i < n; i++) {
        buf_printf(&w->b, R"(%s"%s":)", i ? "," : "", names[(first + i) % ARRAY_SIZE(names)]);
        write_schema(w, depth - 1);
    }
    buf_add_str(&w->b, R"(},"required":[)");
    for (uint32_t i = 0; i < n; i++) {
        if (below(w, 2)) {
            buf_printf(&w->b, R"(%s"%s")", any ? "," : "", names[(first + i) % ARRAY_SIZE(names)]);
            any = true;
        }
    }
    buf_printf(&w->b, R"(],"additionalProperties":false%s})", more);
}

static void write_schema(struct schema_writer *w, int depth) {
    static const char *const fixed[] = {
        R"({"type":"integer"})",
        R"({"type":"integer","minimum":-3,"maximum":120})",
        R"({"type":"number"})",
        R"({"type":"boolean"})",
        R"({"type":["string","null"]})",
        R"({"anyOf":[{"type":"string"},{"type":"null"}],"default":null})",
        R"({"type":["integer","string"]})",
        R"({"anyOf":[{"type":"string","maxLength":3},{"type":"null"}]})",
        R"({"$ref":"#/$defs/kind"})",
        R"({"$ref":"#/$defs/point"})",
        R"({"enum":["x",1,null,false]})",
        R"({"const":"this"})",
    };
    uint32_t kind = below(w, depth > 0 ? 10 : 6);

    if (kind < 3) {
        write_string(w);
    } else if (kind < 7) {
        buf_add_str(&w->b, fixed[below(w, ARRAY_SIZE(fixed))]);
    } else if (kind == 7) {
        random_object(w, depth, "");
    } else {
        buf_add_str(&w->b, R"({"type":"array","items":)");
        write_schema(w, depth - 1);
        buf_printf(&w->b, R"(,"minItems":%u,"maxItems":%u})", below(w, 2), 2 + below(w, 3));
    }
}

const char random_defs[] =
    R"(,"$defs":{"kind":{"type":"string","enum":["big","small"]},"point":{"type":)"
    R"("object","properties":{"x":{"type":"integer"},"k":{"$ref":"#/$defs/kind"}},)"
    R"("required":["x"],"additionalProperties":false}})";

yyjson_doc *random_tools(struct schema_writer *w, uint32_t n) {
    static const char *const names[] = {"get_weather", "f", "mcp__a-b.c", "ping"};

    buf_clear(&w->b);
    buf_add_char(&w->b, '[');
    for (uint32_t i = 0; i < n; i++) {
        buf_printf(&w->b, R"(%s{"type":"function","function":{"name":"%s")", i ? "," : "",
                   names[i]);
        if (below(w, 8)) {
            buf_add_str(&w->b, R"(,"parameters":)");
            random_object(w, 3, random_defs);
        }
        buf_add_str(&w->b, "}}");
    }
    buf_add_char(&w->b, ']');
    yyjson_doc *doc = yyjson_read(w->b.data, w->b.len, 0);

    cr_assert(doc, "%s", w->b.data);
    return doc;
}

/* ---- random texts */

/* Texts that close something, in any format: without a preference for them random texts would
 * rarely end. */
struct wish {
    const char *text[9];
    size_t n;
    const char *now;
    /* single characters that are chosen often */
    const char *liked;
    /* an end is chosen once in this many times */
    uint32_t patience;
};

static void set_wishes(struct wish *w, const struct toolcall_format *f, const char *trigger) {
    const char *all[] = {trigger,
                         f->shape.value_end,
                         f->shape.value_end,
                         f->shape.call_end,
                         f->shape.section_end,
                         R"(")",
                         "}",
                         R"(<|"|>)",
                         "]"};

    const char *separator = f->shape.separator;

    w->n = 0;
    w->now = trigger;
    w->liked = R"(abx01 "</>)"
               "\n"
               R"({}[]:,.-\)";
    /* Only the name tells a further call from the end. */
    if (separator && strcmp(separator, "\n") == 0 && !f->shape.call_begin)
        w->liked = R"(fgabx01 "</>)"
                   "\n"
                   R"({}[]:,.-\)";
    w->patience = 3;
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        if (all[i] && *all[i])
            w->text[w->n++] = all[i];
}

static bool allowed(const uint32_t *bits, uint32_t id) {
    return bits[id / 32] >> (id % 32) & 1;
}

/* Returns the token that continues @text; RANDOM_END: none. */
static uint32_t token_at(const uint32_t *bits, const char *text, uint32_t n_tokens, size_t *len) {
    for (uint32_t i = 257; i < n_tokens; i++) {
        *len = strlen(specials[i - 257]);
        if (strncmp(text, specials[i - 257], *len) == 0 && allowed(bits, i))
            return i;
    }
    *len = 1;
    return *text && allowed(bits, (unsigned char)*text) ? (unsigned char)*text : RANDOM_END;
}

static uint32_t pick(struct rng *r, struct wish *w, const uint32_t *bits, uint32_t n_tokens) {
    size_t len, n_liked = strlen(w->liked);

    if (allowed(bits, RANDOM_END) && rng_below(r, w->patience) == 0)
        return RANDOM_END;
    if (!w->now && rng_below(r, 5) == 0)
        w->now = w->text[rng_below(r, (uint32_t)w->n)];
    if (w->now) {
        uint32_t id = token_at(bits, w->now, n_tokens, &len);

        w->now = id != RANDOM_END && w->now[len] ? w->now + len : NULL;
        if (id != RANDOM_END)
            return id;
    }
    for (int i = 0; i < 12; i++) {
        uint32_t id = (unsigned char)w->liked[rng_below(r, (uint32_t)n_liked)];

        if (allowed(bits, id))
            return id;
    }
    for (uint32_t from = rng_below(r, n_tokens), i = 0; i < n_tokens; i++)
        if (allowed(bits, (from + i) % n_tokens))
            return (from + i) % n_tokens;
    cr_assert_fail("nothing is allowed");
    return RANDOM_END;
}

static void add_token(struct buf *out, uint32_t id) {
    char byte = (char)id;

    buf_add(out, id < 256 ? &byte : specials[id - 257], id < 256 ? 1 : strlen(specials[id - 257]));
}

bool random_text(struct constraint *c, const struct toolcall_format *f, struct rng *r,
                 uint32_t n_tokens, struct buf *out) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    struct wish w;
    uint32_t bits[16] = {0};

    set_wishes(&w, f, NULL);
    buf_clear(out);
    cr_assert_leq(constraint_n_words(c), ARRAY_SIZE(bits));
    cr_assert_eq(constraint_state_new(&s, c), 0);
    while (out->len < TEXT_MAX) {
        cr_assert_gt(constraint_mask(s, bits), 0, "%s: stuck after %s", f->name, out->data);
        uint32_t id = pick(r, &w, bits, n_tokens);

        cr_assert_eq(constraint_accept(s, (int32_t)id), 0);
        if (id == RANDOM_END)
            return true;
        add_token(out, id);
    }
    return false;
}

void random_text_short(struct constraint *c, const struct toolcall_format *f, struct rng *r,
                       uint32_t n_tokens, uint32_t max, struct buf *out) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    struct wish w;
    uint32_t bits[16] = {0};

    set_wishes(&w, f, NULL);
    buf_clear(out);
    cr_assert_eq(constraint_state_new(&s, c), 0);
    uint32_t left = MAX(max, constraint_distance(s) + 1);

    for (uint32_t id = 0; id != RANDOM_END && !constraint_is_done(s); left--) {
        /* Far from the limit the fast mask; towards it the one that ends in time. */
        int64_t n =
            left > max / 2 ? constraint_mask(s, bits) : constraint_mask_within(s, bits, left);

        if (n == 0 && constraint_can_end(s))
            return;
        cr_assert_gt(n, 0, "%s: stuck after %s", f->name, out->data);
        id = pick(r, &w, bits, n_tokens);
        cr_assert_eq(constraint_accept(s, (int32_t)id), 0);
        if (id != RANDOM_END)
            add_token(out, id);
    }
}

bool random_text_within(const struct random_cut *cut, struct rng *r, struct buf *out) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    const char *name = cut->format->name;
    struct wish w;
    uint32_t bits[16] = {0};

    set_wishes(&w, cut->format, cut->trigger);
    w.patience = 60;
    buf_clear(out);
    cr_assert_eq(constraint_state_new(&s, cut->constraint), 0);
    for (uint32_t i = 0; i < cut->limit; i++) {
        int64_t n = constraint_mask_within(s, bits, cut->limit - i);

        cr_assert_gt(n, 0, "%s: no token %u of %u behind %s", name, i, cut->limit, out->data);
        uint32_t id = pick(r, &w, bits, cut->n_tokens);

        cr_assert_eq(constraint_accept(s, (int32_t)id), 0);
        if (id == RANDOM_END)
            return false;
        add_token(out, id);
        cr_assert_leq(constraint_distance(s), cut->limit - i - 1, "%s: %u of %u behind %s", name, i,
                      cut->limit, out->data);
    }
    cr_assert(constraint_can_end(s), "%s: cut at %u: %s", name, cut->limit, out->data);
    return true;
}

/* ---- results of the parser */

struct reading {
    const struct random_reading *with;
    yyjson_val *tools;
    struct buf args;
    char name[TOOLCALL_NAME_MAX + 1];
    uint32_t n_calls;
    const char *format;
    const struct buf *text;
};

static yyjson_val *parameters_of(yyjson_val *tools, const char *name) {
    size_t i, n;
    yyjson_val *tool;

    yyjson_arr_foreach(tools, i, n, tool) {
        yyjson_val *f = yyjson_obj_get(tool, "function");

        if (yyjson_equals_str(yyjson_obj_get(f, "name"), name))
            return f;
    }
    return NULL;
}

static void check_call(struct reading *r, bool complete) {
    yyjson_val *f = parameters_of(r->tools, r->name), *schema = yyjson_obj_get(f, "parameters");
    yyjson_doc *doc = yyjson_read(r->args.data ? r->args.data : "", r->args.len, 0);
    yyjson_val *args = yyjson_doc_get_root(doc);

    cr_assert(f && complete && yyjson_is_obj(args), "%s: %s(%s)%s of\n%s", r->format, r->name,
              r->args.data, complete ? "" : " broken", r->text->data);
    cr_assert(r->with->loose || schema || yyjson_obj_size(args) == 0);
    if (schema && !r->with->loose) {
        CLEANUP(freep) char *rules = yyjson_val_write(schema, 0, NULL);

        cr_assert(schema_allows(rules, strlen(rules), r->args.data, r->args.len),
                  "%s: %s do not fit %s\n%s", r->format, r->args.data, r->name, r->text->data);
    }
    yyjson_doc_free(doc);
    r->n_calls++;
}

static int on_event(void *ctx, const struct toolcall_event *e) {
    struct reading *r = ctx;

    switch (e->kind) {
    case TOOLCALL_BEGIN:
        snprintf(r->name, sizeof(r->name), "%s", e->name);
        buf_clear(&r->args);
        break;
    case TOOLCALL_ARGS:
        buf_add(&r->args, e->data, e->len);
        break;
    case TOOLCALL_END:
        check_call(r, e->complete);
        break;
    default:
        if (r->with->content)
            break;
        cr_assert_fail("%s: text outside of calls: %.*s of\n%s", r->format, (int)e->len, e->data,
                       r->text->data);
    }
    return 0;
}

/* Appends an event to one text; pieces of the same kind are joined. */
static int write_down(void *ctx, const struct toolcall_event *e) {
    struct buf *out = ctx;

    switch (e->kind) {
    case TOOLCALL_BEGIN:
        return buf_printf(out, "\n%u %s %s ", e->index, e->id, e->name);
    case TOOLCALL_END:
        return buf_printf(out, " %d\n", e->complete);
    default:
        return buf_add(out, e->data, e->len);
    }
}

/* Asserts that @text in pieces of random lengths gives the same result as in one piece. */
static void expect_any_split(const struct toolcall_format *f, yyjson_val *tools,
                             const struct buf *text) {
    struct toolcall_opts o = {.format = f, .tools = tools};
    struct buf said[4] = {{.max = 1 << 20}, {.max = 1 << 20}, {.max = 1 << 20}, {.max = 1 << 20}};
    struct rng r = {text->len};

    for (uint32_t k = 0; k < ARRAY_SIZE(said); k++) {
        CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;

        cr_assert_eq(toolcall_parser_new(&p, &o), 0);
        for (size_t at = 0, n; at < text->len; at += n) {
            n = k == 0 ? text->len : k == 1 ? 1 : 1 + rng_below(&r, 9);
            n = MIN(n, text->len - at);
            cr_assert_eq(toolcall_feed(p, text->data + at, n, write_down, &said[k]), 0);
        }
        cr_assert_eq(toolcall_finish(p, true, write_down, &said[k]), 0);
        cr_assert(said[k].len == said[0].len &&
                      (said[0].len == 0 || memcmp(said[k].data, said[0].data, said[0].len) == 0),
                  "%s: split %u of %s:\n%s\n%s", f->name, k, text->data, said[0].data,
                  said[k].data);
    }
    for (uint32_t k = 0; k < ARRAY_SIZE(said); k++)
        buf_deinit(&said[k]);
}

uint32_t random_calls_fit(const struct toolcall_format *f, yyjson_val *tools,
                          const struct buf *text, struct random_reading with) {
    CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;
    struct toolcall_opts o = {.format = f, .tools = tools};
    struct reading r = {
        .with = &with, .tools = tools, .args = {.max = 1 << 20}, .format = f->name, .text = text};

    cr_assert_eq(toolcall_parser_new(&p, &o), 0);
    cr_assert_eq(toolcall_feed(p, text->data, text->len, on_event, &r), 0);
    cr_assert_eq(toolcall_finish(p, true, on_event, &r), 0);
    cr_assert(with.content || r.n_calls > 0, "%s: no call in %s", f->name, text->data);
    buf_deinit(&r.args);
    expect_any_split(f, tools, text);
    return r.n_calls;
}

char *random_calls(const struct toolcall_format *f, yyjson_val *tools, bool loose, bool after) {
    struct toolcall_tool tool[8];
    struct toolcall_force o = {.format = f, .tools = tool, .after = after, .max_calls = 3};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root = NULL;
    struct err err = {0};
    size_t i, max;
    yyjson_val *item;

    yyjson_arr_foreach(tools, i, max, item) {
        yyjson_val *one = yyjson_obj_get(item, "function");

        tool[o.n_tools++] =
            (struct toolcall_tool){.name = yyjson_get_str(yyjson_obj_get(one, "name")),
                                   .parameters = yyjson_obj_get(one, "parameters"),
                                   .param = "tools",
                                   .loose = loose};
    }
    int r = toolcall_force(&root, &n, &o, &err);
    char *text = r == 0 ? yyjson_mut_val_write(root, 0, NULL) : NULL;

    cr_assert(r == 0 || (r == -22 && err.status == 400 && strstr("tools name", err.param)),
              "%s: %d", f->name, r);
    yyjson_mut_doc_free(n.doc);
    return text;
}

struct constraint *random_constraint(const struct toolcall_format *f, yyjson_val *tools,
                                     const struct grammar_vocab *v, bool loose, bool after,
                                     const char *triggers) {
    char *text = random_calls(f, tools, loose, after);
    struct constraint *c = NULL;
    struct err err = {0};

    if (!text)
        return NULL;
    int r = constraint_new(&c, v, text, strlen(text), triggers, strlen(triggers), NULL, &err);

    cr_assert_eq(r, 0, "%s: %d %s %s", f->name, r, err.message, text);
    free(text);
    return c;
}
