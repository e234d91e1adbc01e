/*
 * The grammar must allow for reasoning that may come first:
 *
 *      the prompt ends inside reasoning free until the closing marker (a trigger), then the grammar
 *      the model may open it itself      the grammar begins with a block of it that may be missing
 *      the prompt has closed it, or the  the grammar alone
 *      model has none
 */

#include "api/generation/constrain.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/custom.h"
#include "api/generation/env.h"
#include "api/generation/loosen.h"
#include "api/generation/output_spec.h"
#include "api/http/siphash.h"
#include "api/limits/auth.h"
#include "api/limits/tenant.h"
#include "api/toolcall/grammar_ir.h"
#include "base/jobs.h"
#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"
#include "grammar/constraint.h"

#define WORK_MAX 36000000 /* limit of one compilation, in the units of grammar.h */
#define WORK_OF_TOOL 3000000
#define WORK_OF_TOOLS 64000000 /* limit of several tools together */
#define QUICK_WORK 100000 /* limit of a compilation on the loop's thread: below a millisecond */
#define AFTER_REASONING "[ \\n]{0,4}" /* white space that models write there; it is dropped again */

enum thinking { THINKS_NOT, MAY_THINK, THINKS };

/*
 * Work: all compilations of one request have twice WORK_MAX, or with several tools twice
 * WORK_OF_TOOLS, together. The whole grammar may take half of that. When it is refused, the tools
 * are looked at one by one with half of what is left: each may take an even part of the rest, or
 * WORK_OF_TOOL where there is more. When each is fine and all together are not, the largest ones
 * may have any arguments. What a text takes is the same whether it is compiled or remembered, so
 * which tools are held depends on the request alone.
 */
struct draft {
    struct prompt_job *job;
    /* left */
    uint64_t work;
    struct nodes n;
    enum thinking thinking;
    bool quick;
    /* several tools are checked: they have the limits of a constraint */
    bool many;
    /* work of the last check */
    uint64_t spent;
    /* subject of the last refusal */
    char place[GRAMMAR_PLACE_MAX];
};

/* ---- what the request wants ---- */

static yyjson_mut_val *form_node(struct draft *d) {
    const struct gen_request_form *f = &d->job->request.input.form;
    yyjson_mut_doc *doc = d->n.doc;
    yyjson_mut_val *o;

    if (strcmp(f->kind, "json_schema") == 0) {
        o = ir_json(&d->n, yyjson_val_mut_copy(doc, f->value), f->param);
    } else {
        yyjson_mut_val *value;

        if (strcmp(f->kind, "json_object") == 0)
            value = yyjson_mut_true(doc);
        else
            value = yyjson_val_mut_copy(doc, f->value);
        o = ir_of(&d->n, f->kind, value);
        yyjson_mut_obj_add_strcpy(doc, o, "param", f->param);
    }
    if (f->compact)
        yyjson_mut_obj_add_bool(doc, o, "compact", true);
    if (f->any_order)
        yyjson_mut_obj_add_bool(doc, o, "any_order", true);
    return o;
}

/* ---- reasoning ---- */

static bool constrain_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool ends_with(const char *text, size_t len, const char *end) {
    size_t n = strlen(end);

    return len >= n && memcmp(text + len - n, end, n) == 0;
}

static enum thinking thinking_of(const struct prompt_job *job) {
    const struct toolcall_reasoning *r = job->parses ? job->parse.reasoning : NULL;

    const struct toolcall_format *f = job->parses ? job->parse.format : NULL;
    bool own = f && f->own.begin;

    if ((!r && !own) || job->request.made.prefill.len || (own && !job->parse.in_reasoning))
        return THINKS_NOT;
    const char *text = job->prompts[0].text;
    size_t len = job->prompts[0].len;

    if (job->parse.in_reasoning)
        return THINKS;
    while (len && constrain_is_space(text[len - 1]))
        len--;
    if (ends_with(text, len, r->close))
        return THINKS_NOT;
    return MAY_THINK;
}

/* Makes the node of an optional block of reasoning. */
static yyjson_mut_val *block(struct draft *d, const char *open, const char *stop,
                             const char *close) {
    return ir_optional(&d->n,
                       ir_make(&d->n, "{sequence:[{literal:%}, {free_text:%}, {literal:%}]}",
                               ir_str(&d->n, open), ir_str(&d->n, stop), ir_str(&d->n, close)));
}

/* Returns @v, preceded by optional reasoning if the model may reason. */
static yyjson_mut_val *after_reasoning(struct draft *d, yyjson_mut_val *v) {
    const struct toolcall_reasoning *r = d->job->parse.reasoning;
    const struct toolcall_format *f = d->job->parse.format;
    yyjson_mut_val *list = ir_list(&d->n, "sequence");

    if (f && f->own.begin && d->thinking == THINKS)
        return v;
    if (f && f->own.begin)
        ir_add(&d->n, list, block(d, f->own.begin, f->own.stop, f->own.end));
    else if (d->thinking == THINKS_NOT)
        return v;
    else if (d->thinking == MAY_THINK)
        ir_add(&d->n, list, block(d, r->open, r->close, r->close));
    if (r && r->then)
        ir_add(&d->n, list, ir_optional(&d->n, ir_text(&d->n, "literal", r->then)));
    if (r)
        ir_add(&d->n, list, ir_text(&d->n, "regex", AFTER_REASONING));
    ir_add(&d->n, list, v);
    return list;
}

/* ---- tools ---- */

#define PARAM_MAX 48

struct tools {
    /* tools that may be called; they and their params lie in the request's arena */
    struct toolcall_tool *tool;
    bool *strict;
    /* number of schemas from which something was left out */
    yyjson_doc **doc;
    /* bytes that each takes alone; 0 until loosen() */
    uint64_t *work;
    uint32_t n;
};

static void constrain_tools_deinit(struct tools *t) {
    for (uint32_t i = 0; i < t->n; i++)
        yyjson_doc_free(t->doc[i]);
}

/* Returns true if the model must follow the tool's grammar or schema. */
static bool is_strict(yyjson_val *f, bool custom) {
    yyjson_val *text;

    if (custom)
        return custom_syntax(f, &text) != NULL;
    return yyjson_get_bool(yyjson_obj_get(f, "strict"));
}

static int constrain_collect(struct prompt_job *job, struct tools *t) {
    size_t most = yyjson_arr_size(job->request.input.tools);

    t->tool = arena_alloc_array(&job->request.arena, most + 1, sizeof(*t->tool));
    t->strict = arena_alloc_array(&job->request.arena, most + 1, sizeof(*t->strict));
    t->doc = arena_alloc_array(&job->request.arena, most + 1, sizeof(yyjson_doc *));
    t->work = arena_alloc_array(&job->request.arena, most + 1, sizeof(*t->work));
    if (!t->tool || !t->strict || !t->doc || !t->work)
        return -ENOMEM;
    JSON_EACH_AT(i, item, job->request.input.tools) {
        yyjson_val *f = output_spec_function(item);
        const char *name = json_cstr(yyjson_obj_get(f, "name"));
        char *param;

        if (!f || !name || !output_spec_tool(&job->request, name))
            continue;
        if (!(param = arena_alloc(&job->request.arena, PARAM_MAX)))
            return -ENOMEM;
        struct toolcall_tool *tool = &t->tool[t->n];
        bool custom = f == custom_tool(item);

        snprintf(param, PARAM_MAX, "tools[%zu].%s", i,
                 custom ? "custom.format" : "function.parameters");
        *tool = (struct toolcall_tool){
            .name = name, .parameters = yyjson_obj_get(f, "parameters"), .param = param};
        tool->takes_text = custom;
        tool->syntax = custom ? custom_syntax(f, &tool->text) : NULL;
        t->strict[t->n++] = is_strict(f, custom);
    }
    return 0;
}

/* ---- what is remembered of grammars: api.checked and api.refused ----
 *
 * Agents send the same tools again and again, so a valid grammar is remembered by its hash with the
 * work that compiling it took. An invalid one is remembered for callers that do not ask for the
 * reason. (If two hashes were equal, the worker would still refuse an invalid grammar.) The hash is
 * keyed by tenant and cache salt, so that the time of a request tells nothing about grammars of
 * another. */

#define WORK_BITS 27
#define WORK_MASK ((1ull << WORK_BITS) - 1)
/* refused because of its work: a larger limit may be enough */
#define SPENT ((uint64_t)1 << (WORK_BITS - 1))

static_assert(REQUEST_TOOLS_MAX <= CONSTRAINT_STARTS_MAX, "calls of all tools may begin a message");
static_assert(WORK_MAX < SPENT && WORK_OF_TOOLS < SPENT, "the work of a compilation fits");

static bool recall(_Atomic uint64_t *table, uint64_t hash, uint64_t *work) {
    uint64_t v = atomic_load_explicit(&table[hash % CONSTRAIN_CHECKED], memory_order_relaxed);

    *work = v & WORK_MASK;
    return v != 0 && (v | WORK_MASK) == (hash | WORK_MASK);
}

static void constrain_remember(_Atomic uint64_t *table, uint64_t hash, uint64_t work) {
    assert(work <= WORK_MASK);
    atomic_store_explicit(&table[hash % CONSTRAIN_CHECKED], (hash & ~WORK_MASK) | work,
                          memory_order_relaxed);
}

/* Returns the hash of a grammar under the tenant and the cache salt of its request. */
static uint64_t constrain_hash(const struct prompt_job *job, const char *text, size_t len) {
    char name[AUTH_ISOLATION_NAME] = "";
    uint8_t bytes[16];
    uint64_t key[2];

    snprintf(name, sizeof(name), "grammars:%u", job->tenant->number);
    auth_isolation_key(job->env->secret, name, job->request.input.cache_salt.data,
                       job->request.input.cache_salt.len, bytes);
    memcpy(key, bytes, sizeof(key));
    return siphash(key, text, len);
}

/* Looks up the result of an earlier compilation of a grammar with a limit of @max work. Returns 0,
 * -EINVAL, or -ENOENT if it is not remembered. Sets *work to the work that the compilation
 * takes. */
static int constrain_look_up(struct gen_env *env, uint64_t hash, uint64_t max, bool why,
                             uint64_t *work) {
    if (recall(env->grammars.checked, hash, work) && (*work <= max || !why)) {
        int r = *work <= max ? 0 : -EINVAL;

        *work = MIN(*work, max);
        return r;
    }
    if (why || !recall(env->grammars.refused, hash, work))
        return -ENOENT;
    bool spent = *work & SPENT;

    *work &= ~SPENT;
    if (spent && *work < max)
        return -ENOENT;
    *work = MIN(*work, max);
    return -EINVAL;
}

/* Checks that the grammar @text can be compiled with @max of work, which is charged. */
static int check_text(struct draft *d, const char *text, size_t len, uint64_t max,
                      struct err *err) {
    struct gen_env *env = d->job->env;
    uint64_t hash = constrain_hash(d->job, text, len), work = 0;
    struct grammar_limits limits = d->many ? CONSTRAINT_LIMITS : (struct grammar_limits){0};
    struct grammar *g = NULL;
    struct err why = {0};

    limits.max_work = MIN(max, d->work);
    limits.work = &work;
    limits.place = d->place;
    int r = constrain_look_up(env, hash, limits.max_work, err != NULL, &work);

    if (r == -ENOENT) {
        work = 0;
        if (d->quick)
            limits.max_work = MIN(limits.max_work, QUICK_WORK);
        if (limits.max_work)
            r = constraint_compile(&g, NULL, text, len, &limits, &why);
        else
            r = err_set_code(&why, 400, "grammar_too_complex", NULL,
                             "the grammars of this request take too much work to compile");
        grammar_free(g);
        bool too_much = r == -EINVAL && strcmp(why.code, "grammar_too_complex") == 0;

        if (job_pause() < 0)
            return -ECANCELED;
        if (too_much && d->quick)
            return -EAGAIN;
        if (r == 0)
            constrain_remember(env->grammars.checked, hash, work);
        else if (r == -EINVAL && limits.max_work)
            constrain_remember(env->grammars.refused, hash,
                               work | (work == limits.max_work ? SPENT : 0));
    }
    assert(work <= d->work);
    d->work -= work;
    d->spent = work;
    if (r == -EINVAL && err)
        *err = why;
    return r;
}

/* Checks the grammar @v with at most @max work. If @err is NULL, the reason of a refusal is not
 * needed. */
static int constrain_check_grammar(struct draft *d, yyjson_mut_val *v, uint64_t max,
                                   struct err *err) {
    size_t len = 0;
    char *text = d->n.failed ? NULL : yyjson_mut_val_write(v, 0, &len);
    int r = text ? check_text(d, text, len, max, err) : -ENOMEM;

    free(text);
    return r;
}

static int check_tools(struct draft *d, const struct toolcall_force *given, uint64_t max,
                       yyjson_mut_val **out, struct err *err) {
    struct toolcall_force o = *given;
    struct err unused;

    o.place = d->place;
    d->place[0] = 0;
    d->many = o.n_tools > 1;
    TRY(toolcall_force(out, &d->n, &o, err ? err : &unused));
    return constrain_check_grammar(d, *out, max, err);
}

/* Names the tool in the message: not every API has a member for the field, and the numbers of
 * tools are not everywhere those of the client. */
static void name_tool(struct err *err, const char *name) {
    struct err old = *err;

    err_set_code(err, old.status, old.code, old.param, "function \"%.80s\": %s", name, old.message);
}

#define DROPS_MAX 48 /* parts that are left out of one schema before all of it is */

/* Puts the schema of @l in the place of tool @i's. */
static int constrain_set_schema(struct tools *t, uint32_t i, struct loosener *l) {
    struct toolcall_tool *tool = &t->tool[i];
    yyjson_doc *doc = yyjson_mut_val_imut_copy(l->schema, NULL);

    if (!doc)
        return -ENOMEM;
    tool->sent = tool->sent ? tool->sent : tool->parameters;
    yyjson_doc_free(t->doc[i]);
    t->doc[i] = doc;
    tool->parameters = yyjson_doc_get_root(doc);
    return 0;
}

/* Leaves out of the schema of tool @i what cannot be written, or compiled with @max of work: the
 * parts that the refusals name, or in the end all of it. @err and d->place are those of the first
 * refusal. */
static int loosen_tool(struct draft *d, struct tools *t, uint32_t i, const struct toolcall_force *o,
                       uint64_t max, struct err *err) {
    struct toolcall_tool *tool = &t->tool[i];
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    struct loosener l = {.doc = doc,
                         .arena = &d->job->request.arena,
                         .tool = tool->name,
                         .list = &d->job->request.made.loosened};
    uint64_t end = d->work - MIN(max, d->work);
    yyjson_mut_val *v;
    int r = -EINVAL;

    l.schema = doc ? yyjson_val_mut_copy(doc, tool->parameters) : NULL;
    if (!doc)
        return -ENOMEM;
    for (uint32_t n = 0; r == -EINVAL && n < DROPS_MAX && d->work > end; n++) {
        if (!loosen_schema(&l, d->place))
            break;
        TRY(constrain_set_schema(t, i, &l));
        r = check_tools(d, o, d->work - end, &v, err);
    }
    if (r == -EINVAL) {
        tool->loose = true;
        loosen_note_all(&l);
        r = 0;
    }
    return r;
}

/* Leaves out of the tools' schemas what the format, or a grammar, cannot hold. */
static int loosen(struct draft *d, struct tools *t, const struct toolcall_force *o) {
    struct err err = {0};
    yyjson_mut_val *v;
    uint64_t kept = d->work / 2; /* for all tools together again */

    for (uint32_t i = 0; i < t->n; i++) {
        struct toolcall_force one = *o;
        uint64_t left = d->work - MIN(kept, d->work);
        uint64_t max = MAX(left / (t->n - i), MIN(left, WORK_OF_TOOL));

        one.tools = &t->tool[i];
        one.n_tools = 1;
        int r = check_tools(d, &one, max, &v, &err);

        if (r == -EINVAL && !t->strict[i])
            r = loosen_tool(d, t, i, &one, max, &err);
        if (r == -EINVAL)
            name_tool(&err, t->tool[i].name);
        t->work[i] = d->spent;
        if (r < 0) {
            d->job->err = err;
            return r;
        }
    }
    return 0;
}

#define LARGEST_ROUNDS 3

static int by_work(const void *a, const void *b, void *ctx) {
    const struct tools *t = ctx;
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;

    if (t->work[i] != t->work[k]) {
        if (t->work[i] < t->work[k])
            return 1;
        return -1;
    }
    if (i < k)
        return -1;
    return 1;
}

/* Makes the first tools of @order, which has all, loose until the others take at most @most work.
 * Returns their number. */
static uint32_t loosen_down_to(struct draft *d, struct tools *t, const uint32_t *order,
                               uint64_t most) {
    struct gen_request *request = &d->job->request;
    uint64_t sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++)
        sum += t->tool[i].loose ? 0 : t->work[i];
    for (uint32_t k = 0; k < t->n && sum > most; k++) {
        uint32_t i = order[k];

        if (t->strict[i] || t->tool[i].loose)
            continue;
        t->tool[i].loose = true;
        loosen_note_all(&(struct loosener){
            .arena = &request->arena, .tool = t->tool[i].name, .list = &request->made.loosened});
        sum -= t->work[i];
        n++;
    }
    return n;
}

/* Makes the node of tools of which each fits, but which are too much together: the largest ones may
 * have any arguments. */
static int check_largest(struct draft *d, struct tools *t, const struct toolcall_force *o,
                         yyjson_mut_val **out) {
    struct err *err = &d->job->err;
    uint32_t *order = arena_alloc_array(&d->job->request.arena, t->n + 1, sizeof(*order));
    uint64_t sum = 0;
    int r = order ? -EINVAL : -ENOMEM;

    for (uint32_t i = 0; i < t->n && order; i++) {
        order[i] = i;
        sum += t->work[i];
    }
    if (order)
        qsort_r(order, t->n, sizeof(*order), by_work, t);
    for (int round = 0; round < LARGEST_ROUNDS && r == -EINVAL; round++) {
        bool last = round == LARGEST_ROUNDS - 1;

        if (strcmp(err->code, "grammar_too_complex") != 0)
            break;
        if (loosen_down_to(d, t, order, last ? 0 : sum >> (2 * round + 1)) > 0)
            r = check_tools(d, o, WORK_OF_TOOLS, out, err);
    }
    return r;
}

/* Makes the node of the tools with what can be held of each. */
static int check_loosened(struct draft *d, struct tools *t, const struct toolcall_force *o,
                          yyjson_mut_val **out) {
    TRY(loosen(d, t, o));
    int r = check_tools(d, o, WORK_OF_TOOLS, out, &d->job->err);

    if (r != -EINVAL)
        return r;
    return check_largest(d, t, o, out);
}

#define EQUAL_MAX 8 /* tools with one name, of which the schemas are held */

static int by_name(const void *a, const void *b, void *ctx) {
    const struct tools *t = ctx;
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    int c = strcmp(t->tool[i].name, t->tool[k].name);

    if (c)
        return c;
    return (i > k) - (i < k);
}

/* Leaves one of the @n tools @same, which have one name, and makes it loose; strict ones stay as
 * they are. The others lose their names. */
static void loosen_same(struct draft *d, struct tools *t, const uint32_t *same, uint32_t n) {
    struct gen_request *request = &d->job->request;
    struct loosener l = {
        .arena = &request->arena, .tool = t->tool[same[0]].name, .list = &request->made.loosened};
    bool kept = false;

    for (uint32_t i = 0; i < n; i++) {
        struct toolcall_tool *tool = &t->tool[same[i]];

        if (t->strict[same[i]] || tool->takes_text)
            continue;
        if (kept)
            tool->name = NULL;
        else
            loosen_note_all(&l);
        tool->loose = kept = true;
    }
}

/* Makes many tools with one name one with any arguments: what may come next would depend on all of
 * their schemas at once, which is too much for a mask. */
static int loosen_equal(struct draft *d, struct tools *t) {
    uint32_t *order = arena_alloc_array(&d->job->request.arena, t->n + 1, sizeof(*order));

    if (!order)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->n; i++)
        order[i] = i;
    qsort_r(order, t->n, sizeof(*order), by_name, t);
    for (uint32_t i = 0, end; i < t->n; i = end) {
        const char *name = t->tool[order[i]].name;

        for (end = i + 1; end < t->n && strcmp(t->tool[order[end]].name, name) == 0;)
            end++;
        if (end - i > EQUAL_MAX)
            loosen_same(d, t, order + i, end - i);
    }
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->tool[i].name)
            continue;
        t->tool[n] = t->tool[i];
        t->strict[n++] = t->strict[i];
    }
    t->n = n;
    return 0;
}

/* Makes the node of all calls that are allowed. Returns -EINVAL, with the error of the compilation,
 * if the format cannot hold them. */
static int calls_node(struct draft *d, bool after, yyjson_mut_val **out) {
    struct prompt_job *job = d->job;
    CLEANUP(constrain_tools_deinit) struct tools t = {0};

    TRY(constrain_collect(job, &t));
    TRY(loosen_equal(d, &t));
    struct toolcall_force o = {.format = job->parse.format,
                               .tools = t.tool,
                               .n_tools = t.n,
                               .max_calls = job->request.input.one_call ? 1 : 0,
                               .after = after};

    int r = check_tools(d, &o, t.n > 1 ? WORK_OF_TOOLS : WORK_MAX, out, NULL);
    if (r == -EINVAL)
        r = check_loosened(d, &t, &o, out);
    TRY(r);
    memset(&job->err, 0, sizeof(job->err));
    return 0;
}

/* ---- together ---- */

static int constrain_write_text(struct draft *d, yyjson_mut_val *v, struct str *out) {
    struct arena *arena = &d->job->request.arena;
    size_t len = 0;
    char *text = d->n.failed ? NULL : yyjson_mut_val_write(v, 0, &len);
    const char *kept = text && len <= UINT32_MAX ? arena_strndup(arena, text, len) : NULL;

    free(text);
    *out = (struct str){kept, kept ? (uint32_t)len : 0};
    return enomem_unless(kept);
}

/* Adds markers within reasoning: calls that a model mentions while it thinks are not calls; in some
 * formats a call ends the reasoning. */
static void add_quiet(struct draft *d, yyjson_mut_val *triggers) {
    const struct toolcall_reasoning *r = d->job->parse.reasoning;
    const struct toolcall_format *f = d->job->parse.format;

    if (!f || f->ends_reasoning || (d->thinking == THINKS_NOT && !f->own.begin))
        return;
    yyjson_mut_obj_add_val(d->n.doc, triggers, "quiet",
                           ir_make(&d->n, "{open:%, close:%, now:%}",
                                   ir_str(&d->n, f->own.begin ? f->own.begin : r->open),
                                   ir_str(&d->n, f->own.stop ? f->own.stop : r->close),
                                   yyjson_mut_bool(d->n.doc, d->thinking == THINKS)));
}

/* Adds markers that begin a call only at the start of the message. */
static int constrain_add_starts(struct draft *d, const struct toolcall_format *f,
                                yyjson_mut_val *triggers) {
    yyjson_mut_val *list = yyjson_mut_arr(d->n.doc);
    struct tools t = {0};
    bool held = true;
    int r = constrain_collect(d->job, &t);

    for (uint32_t i = 0; r == 0 && held && i < t.n; i++) {
        char text[CONSTRAINT_TRIGGER_LEN_MAX + 1];

        if (!toolcall_start(f, t.tool[i].name, text, sizeof(text), &held))
            continue;
        yyjson_mut_val *v = ir_str(&d->n, text);
        if (held)
            v = ir_make(&d->n, "{text:%, held:%}", v, ir_str(&d->n, text));
        yyjson_mut_arr_append(list, v);
    }
    if (yyjson_mut_arr_size(list))
        yyjson_mut_obj_add_val(d->n.doc, triggers, "start", list);
    return r;
}

/* Sets the triggers of the grammar: @first, and those that the format has besides. */
static int set_triggers(struct draft *d, const char *first, const struct toolcall_format *f,
                        const char *flag) {
    yyjson_mut_val *after = yyjson_mut_arr(d->n.doc), *o = ir_of(&d->n, "after", after);

    for (size_t i = 1; first; i++) {
        yyjson_mut_arr_add_str(d->n.doc, after, first);
        first = f ? toolcall_after(f, i) : NULL;
    }
    if (flag)
        yyjson_mut_obj_add_bool(d->n.doc, o, flag, true);
    if (f)
        add_quiet(d, o);
    if (f)
        TRY(constrain_add_starts(d, f, o));
    return constrain_write_text(d, o, &d->job->request.submit.triggers);
}

/* Sets a grammar that holds from the output's first token, or from the end of its reasoning on. */
static int set_whole(struct draft *d, yyjson_mut_val *v) {
    struct prompt_job *job = d->job;
    struct err err = {0};
    yyjson_mut_val *whole = after_reasoning(d, v);
    bool checked =
        d->many && !job->request.input.form.kind; /* reasoning adds little to many tools */

    if (!checked) {
        int r = constrain_check_grammar(d, whole, d->many ? WORK_OF_TOOLS : WORK_MAX, &err);

        if (r == -EINVAL)
            job->err = err;
        TRY(r);
    }
    TRY(constrain_write_text(d, whole, &job->request.submit.grammar));
    if (d->thinking != THINKS)
        return 0;
    const struct toolcall_format *f = job->parse.format;
    bool own = f && f->own.begin;

    return set_triggers(d, own ? f->own.end : job->parse.reasoning->close, NULL, "required");
}

static bool any_strict(const struct prompt_job *job) {
    JSON_EACH(item, job->request.input.tools) {
        if (is_strict(output_spec_function(item), custom_tool(item)))
            return true;
    }
    return false;
}

/* Sets a grammar that holds from the beginning of a call on; until then the model is free. If the
 * format, or the tools, cannot be forced, there is no grammar. */
static int set_auto(struct draft *d) {
    struct prompt_job *job = d->job;
    const char *first = toolcall_after(job->parse.format, 0);
    yyjson_mut_val *v = NULL;
    int r = -ENOTSUP;

    if (first)
        r = calls_node(d, true, &v);
    if (r == -EINVAL && !any_strict(job)) {
        loosen_note_all(&(struct loosener){
            .arena = &job->request.arena, .tool = "*", .list = &job->request.made.loosened});
        r = -ENOTSUP;
    }
    if (r == -ENOTSUP) {
        memset(&job->err, 0, sizeof(job->err));
        return 0;
    }
    TRY(r);
    TRY(constrain_write_text(d, v, &job->request.submit.grammar));
    return set_triggers(d, first, job->parse.format, job->request.input.one_call ? NULL : "repeat");
}

/* Makes the node of the text, between the marks that the format has for it. */
static yyjson_mut_val *content_node(struct draft *d) {
    const struct toolcall_format *f = d->job->parse.format;
    yyjson_mut_val *v = form_node(d);

    if (f && f->own.answer)
        return ir_make(&d->n, "{sequence:[{literal:%}, %]}", ir_str(&d->n, f->own.answer), v);
    if (!f || !f->content_begin)
        return v;
    return ir_make(&d->n, "{sequence:[%, %, %]}",
                   ir_optional(&d->n, ir_text(&d->n, "literal", f->content_begin)), v,
                   ir_optional(&d->n, ir_text(&d->n, "literal", f->content_end)));
}

static int constrain_build_source(struct draft *d, bool tools) {
    struct prompt_job *job = d->job;
    bool form = job->request.input.form.kind,
         required = job->request.input.choice.mode == TOOLS_REQUIRED;
    yyjson_mut_val *calls = NULL;

    if (!tools) {
        if (!form)
            return 0;
        return set_whole(d, content_node(d));
    }
    if (!required && !form)
        return set_auto(d);
    TRY(calls_node(d, false, &calls));
    if (required)
        return set_whole(d, calls);
    return set_whole(d, ir_make(&d->n, "{either:[%, %]}", calls, content_node(d)));
}

int constrain(struct prompt_job *job, bool quick) {
    bool many = yyjson_arr_size(job->request.input.tools) > 1;
    struct draft d = {.job = job, .work = 2 * (many ? WORK_OF_TOOLS : WORK_MAX), .quick = quick};
    bool tools = job->request.made.functions && job->parses;
    int r;

    if (!tools && !job->request.input.form.kind)
        return 0;
    job->request.made.loosened.n = 0;
    d.n.doc = json_doc_new(&d.n.failed);
    d.thinking = thinking_of(job);
    r = constrain_build_source(&d, tools);
    yyjson_mut_doc_free(d.n.doc);
    if (r == -EAGAIN)
        memset(&job->err, 0, sizeof(job->err));
    return r;
}
