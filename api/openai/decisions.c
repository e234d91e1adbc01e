/*
 * Typed questions about a text, answered by probabilities: OpenAI's /v1/decisions and System One's
 * /v1/systemone, which differ only in the names of their members.
 *
 * Each question is one prompt: a message of the user with the text, then the question, its options
 * with a label each, and the request to answer by a label. One token is generated. The answer is
 * how likely each label is in its place, so nothing has to be parsed. The text comes first: only
 * the first question computes it, the others find it in the prefix cache.
 *
 * Probabilities are those of the labels among the likeliest SUBMIT_TOP_MAX tokens, with a space
 * before them or not, divided by their sum. Confidence is 0 when all options are as likely as each
 * other and 1 when one has all.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/generation/endpoint.h"
#include "api/generation/model.h"
#include "api/generation/read_request.h"
#include "api/generation/writer.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "api/openai/choices.h"
#include "api/openai/openai.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

#define QUESTIONS_MAX 64u
#define OPTIONS_MAX 26u /* labels A to Z */
#define LEVELS_MAX 10u  /* labels 0 to 9 */
#define MARKER "[[weft:question]]"

enum kind { CHOICE, SCORE, YES_NO };

struct option {
    /* value NULL: of yes and no; description NULL: none */
    yyjson_val *value, *description;
};

struct question {
    enum kind kind;
    /* or NULL */
    yyjson_val *name;
    yyjson_val *instructions;
    struct option option[OPTIONS_MAX];
    uint32_t n;
};

/* The state of a job. Invariant: the values of the questions are in `body`. */
struct decisions {
    yyjson_doc *body;
    /* the request has System One's form */
    bool system_one;
    struct question *question;
    uint32_t n;
};

static struct decisions *decisions_of_job(const struct prompt_job *job) {
    return job->state;
}

/* ---- life ---- */

static int open_job(struct prompt_job *job, struct exchange *x, struct writer *w) {
    return (job->state = calloc(1, sizeof(struct decisions))) ? 0 : -ENOMEM;
}

static void decisions_forget(struct decisions *d) {
    yyjson_doc_free(d->body);
    free(d->question);
    *d = (struct decisions){0};
}

static void close_job(struct prompt_job *job) {
    decisions_forget(decisions_of_job(job));
    free(job->state);
}

/* ---- questions ---- */

/* Adds a text, or any other JSON value as text. */
static int add_value(struct buf *out, yyjson_val *v) {
    size_t len;

    if (yyjson_is_str(v))
        return json_add_text(out, v);
    CLEANUP(freep) char *text = yyjson_val_write(v, 0, &len);
    if (!text)
        return -ENOMEM;
    return buf_add(out, text, len);
}

/* Writes the label of option @i: "A", "0" or "yes". */
static void decisions_label(const struct question *q, uint32_t i, char out[4]) {
    if (q->kind == YES_NO)
        snprintf(out, 4, "%s", i ? "no" : "yes");
    else
        snprintf(out, 4, "%c", (char)((q->kind == CHOICE ? 'A' : '0') + (int)i));
}

/* Reads OpenAI's lists: [{"value" or "label", "description"}]. */
static int decisions_read_list(struct question *q, yyjson_val *list, const char *key,
                               const char *place, struct err *err) {
    uint32_t most = q->kind == CHOICE ? OPTIONS_MAX : LEVELS_MAX;

    if (!yyjson_is_arr(list) || yyjson_arr_size(list) < 2 || yyjson_arr_size(list) > most)
        return json_refuse(err, place,
                           q->kind == CHOICE ? "must be an array of 2 to 26 choices"
                                             : "must be an array of 2 to 10 levels");
    JSON_EACH(one, list) {
        yyjson_val *value = yyjson_obj_get(one, key);
        yyjson_val *description = json_given(one, "description");

        if (!yyjson_is_str(value) && !(q->kind == CHOICE && yyjson_is_bool(value)))
            return json_refuse(
                err, place,
                q->kind == CHOICE ? "must have choices with a value that is a string, true or false"
                                  : "must have levels with a label that is a string");
        if (description && !yyjson_is_str(description))
            return json_refuse(err, place, "must have descriptions that are strings");
        q->option[q->n++] = (struct option){value, description};
    }
    return 0;
}

/* Reads System One's criteria of a choice: names with descriptions. */
static int decisions_read_map(struct question *q, yyjson_val *map, const char *place,
                              struct err *err) {
    if (!yyjson_is_obj(map) || yyjson_obj_size(map) < 1 || yyjson_obj_size(map) > OPTIONS_MAX)
        return json_refuse(err, place, "must be an object of 1 to 26 options");
    JSON_MEMBERS(key, value, map) {
        q->option[q->n++] = (struct option){key, yyjson_is_null(value) ? NULL : value};
    }
    return 0;
}

/* Reads System One's criteria of a score: names of levels, the lowest first. */
static int read_levels(struct question *q, yyjson_val *list, const char *place, struct err *err) {
    if (!yyjson_is_arr(list) || yyjson_arr_size(list) < 2 || yyjson_arr_size(list) > LEVELS_MAX)
        return json_refuse(err, place, "must be an array of 2 to 10 levels");
    JSON_EACH(one, list) {
        q->option[q->n++] = (struct option){one, NULL};
    }
    return 0;
}

static int decisions_read_options(struct question *q, yyjson_val *v, bool system_one,
                                  const char *place, struct err *err) {
    yyjson_val *criteria = json_given(v, "criteria");

    if (q->kind == YES_NO) {
        q->n = 2;
        if (!system_one || !criteria)
            return 0;
        if (!yyjson_is_obj(criteria))
            return json_refuse(err, place, "must have criteria that are an object");
        q->option[0].description = json_given(criteria, "true");
        q->option[1].description = json_given(criteria, "false");
        return 0;
    }
    if (!system_one && q->kind == CHOICE)
        return decisions_read_list(q, yyjson_obj_get(v, "choices"), "value", place, err);
    if (!system_one)
        return decisions_read_list(q, yyjson_obj_get(v, "levels"), "label", place, err);
    if (q->kind == CHOICE)
        return decisions_read_map(q, criteria, place, err);
    return read_levels(q, criteria, place, err);
}

static int read_question(struct decisions *d, yyjson_val *name, yyjson_val *v, const char *place,
                         struct err *err) {
    const char *types[] = {"choice", "score", d->system_one ? "noul" : "predicate"};
    struct question *q = &d->question[d->n];
    uint32_t kind = 0;

    if (!yyjson_is_obj(v))
        return json_refuse(err, place, "must be an object");
    while (kind < ARRAY_SIZE(types) && !json_has(v, "type", types[kind]))
        kind++;
    if (kind == ARRAY_SIZE(types))
        return json_refuse(err, place,
                           d->system_one ? "must have the type choice, score or noul"
                                         : "must have the type choice, score or predicate");
    if (!json_given(v, "instructions"))
        return json_refuse(err, place, "must have instructions");
    if (name && !yyjson_is_str(name))
        return json_refuse(err, place, "must have a name that is a string");
    *q = (struct question){
        .kind = (enum kind)kind, .name = name, .instructions = yyjson_obj_get(v, "instructions")};
    d->n++;
    return decisions_read_options(q, v, d->system_one, place, err);
}

static int read_questions(struct decisions *d, yyjson_val *v, struct err *err) {
    size_t n = yyjson_arr_size(v) + yyjson_obj_size(v);
    bool fits = n >= 1 && n <= QUESTIONS_MAX;
    char place[32];

    if (d->system_one && !(yyjson_is_obj(v) && fits))
        return json_refuse(err, "questions", "must be an object of 1 to 64 questions");
    if (!d->system_one && !(yyjson_is_arr(v) && fits))
        return json_refuse(err, "questions", "must be an array of 1 to 64 questions");
    if (!(d->question = calloc(n, sizeof(*d->question))))
        return -ENOMEM;
    JSON_EACH(value, v) {
        snprintf(place, sizeof(place), "questions[%u]", d->n);
        TRY(read_question(d, json_given(value, "name"), value, place, err));
    }
    JSON_MEMBERS(key, value, v) {
        const char *name = json_cstr(key);

        snprintf(place, sizeof(place), "questions.%.20s", text_or(name, ""));
        TRY(read_question(d, key, value, place, err));
    }
    return 0;
}

/* ---- prompts ---- */

static int add_option(struct buf *out, const struct question *q, uint32_t i) {
    const struct option *o = &q->option[i];
    char label[4];

    decisions_label(q, i, label);
    if (!o->value && !o->description)
        return 0;
    TRY(buf_printf(out, "%s: ", label));
    if (yyjson_is_bool(o->value))
        TRY(buf_add_str(out, yyjson_is_true(o->value) ? "true" : "false"));
    else if (o->value)
        TRY(add_value(out, o->value));
    if (o->value && o->description)
        TRY(buf_add_str(out, " - "));
    if (o->description)
        TRY(add_value(out, o->description));
    return buf_add_char(out, '\n');
}

static int write_question(struct buf *out, const struct question *q) {
    char first[4], last[4];

    TRY(buf_add_str(out, "Question: "));
    TRY(add_value(out, q->instructions));
    TRY(buf_add_char(out, '\n'));
    for (uint32_t i = 0; i < q->n; i++)
        TRY(add_option(out, q, i));
    decisions_label(q, 0, first);
    decisions_label(q, q->n - 1, last);
    if (q->kind == YES_NO)
        return buf_add_str(out, "Answer with the word yes or no and nothing else.");
    return buf_printf(out, "Answer with one label from %s to %s and nothing else.", first, last);
}

/* Sets the questions' texts, each of which takes the place of MARKER in one prompt. */
static int set_variants(struct prompt_job *job) {
    const struct decisions *d = decisions_of_job(job);
    struct gen_request *r = &job->request;

    r->made.variants = arena_alloc_array(&r->arena, d->n, sizeof(*r->made.variants));
    if (!r->made.variants)
        return -ENOMEM;
    r->made.marker = MARKER;
    for (uint32_t i = 0; i < d->n; i++) {
        CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

        TRY(write_question(&text, &d->question[i]));
        char *kept = arena_strndup(&r->arena, text.data, text.len);
        if (!kept)
            return -ENOMEM;
        r->made.variants[i] = (struct str){kept, (uint32_t)text.len};
    }
    r->made.n_variants = d->n;
    return 0;
}

/* Adds OpenAI's input: a string, or messages of the user. */
static int add_input(struct buf *out, yyjson_val *v, struct err *err) {
    static const char must[] = "must be a string or an array of messages of the user with text";

    if (yyjson_is_str(v))
        return json_add_text(out, v);
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) == 0)
        return json_refuse(err, "input", must);
    JSON_EACH_AT(i, message, v) {
        yyjson_val *content = yyjson_obj_get(message, "content");

        if (!json_has(message, "role", "user") ||
            !(yyjson_is_str(content) || yyjson_is_arr(content)))
            return json_refuse(err, "input", must);
        if (i > 0)
            TRY(buf_add_str(out, "\n\n"));
        TRY(json_add_text(out, content));
        JSON_EACH(part, content) {
            yyjson_val *text = yyjson_obj_get(part, "text");

            if (!json_has(part, "type", "input_text") || !yyjson_is_str(text))
                return json_refuse(err, "input", must);
            TRY(json_add_text(out, text));
        }
    }
    return 0;
}

static int decisions_add_content(const struct decisions *d, yyjson_val *root, struct buf *out,
                                 struct err *err) {
    yyjson_val *state = json_given(root, "state");
    yyjson_val *instructions = json_given(root, "instructions");

    if (d->system_one && instructions) {
        TRY(add_value(out, instructions));
        TRY(buf_add_str(out, "\n\n"));
    }
    if (!d->system_one)
        TRY(add_input(out, yyjson_obj_get(root, "input"), err));
    else if (state)
        TRY(add_value(out, state));
    else
        return json_refuse(err, "state", "is missing");
    return buf_add_str(out, "\n\n" MARKER);
}

/* ---- the chat ---- */

/* Returns chat_template_kwargs with reasoning turned off, because the first token has to be the
 * label. */
static yyjson_mut_val *without_thinking(yyjson_mut_doc *doc, yyjson_val *given) {
    yyjson_mut_val *kwargs;

    if (yyjson_is_obj(given))
        kwargs = yyjson_val_mut_copy(doc, given);
    else
        kwargs = yyjson_mut_obj(doc);

    if (!yyjson_obj_get(given, "enable_thinking"))
        yyjson_mut_obj_add_bool(doc, kwargs, "enable_thinking", false);
    return kwargs;
}

static int decisions_build(const struct decisions *d, yyjson_val *root, yyjson_doc **out,
                           struct err *err) {
    static const char *const passed[] = {"model", "cache_salt", "safety_identifier", "priority"};
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&failed);

    TRY(decisions_add_content(d, root, &text, err));
    yyjson_mut_val *chat = json_make(
        doc,
        "{messages:[{role:'user', content:%}], max_tokens:1, temperature:0, ignore_eos:true, "
        "logprobs:true, top_logprobs:%, chat_template_kwargs:%, reasoning_effort:'none'}",
        json_text_of(doc, &text), yyjson_mut_uint(doc, SUBMIT_TOP_MAX),
        without_thinking(doc, yyjson_obj_get(root, "chat_template_kwargs")));
    for (size_t i = 0; i < ARRAY_SIZE(passed); i++)
        json_put_copy(doc, chat, passed[i], yyjson_obj_get(root, passed[i]));
    return json_doc_seal(doc, chat, out);
}

static int decisions_translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    struct decisions *d = decisions_of_job(job);
    yyjson_val *root = yyjson_doc_get_root(body);
    yyjson_doc *chat = NULL;

    decisions_forget(d); /* drops the result of an earlier try on the loop */
    d->body = body;
    d->system_one = job->endpoint == &openai_system_one;
    TRY(read_questions(d, yyjson_obj_get(root, "questions"), err));
    TRY(decisions_build(d, root, &chat, err));
    TRY(gen_request_read(&job->request, job->model, FIELDS_CHAT, chat, err));
    int r = set_variants(job);
    if (r < 0)
        gen_request_deinit(&job->request);
    return r;
}

/* Renames an error about the chat's messages, which the client has not sent: it is about the
 * text. */
static void rename_as(struct err *err, const char *name) {
    if (strncmp(err->param, "messages", strlen("messages")) == 0)
        snprintf(err->param, sizeof(err->param), "%s", name);
}

static void rename_decisions(struct err *err) {
    rename_as(err, "input");
}

static void rename_system_one(struct err *err) {
    rename_as(err, "state");
}

/* ---- answers ---- */

struct reading {
    /* probability of each option; the sum is 1 */
    double p[OPTIONS_MAX];
    /* probability of all labels together */
    double mass;
    uint32_t best;
    double confidence;
    /* the likeliest token is a label */
    bool first;
};

/* Returns the option whose label @text is, after optional white space, or q->n. A beginning of yes
 * or no counts, because not every vocabulary has the whole word. */
static uint32_t option_of(const struct question *q, const char *text, size_t len) {
    char label[4];

    while (len && (*text == ' ' || *text == '\n')) {
        text++;
        len--;
    }
    for (uint32_t i = 0; i < q->n && len > 0; i++) {
        decisions_label(q, i, label);
        if (q->kind == YES_NO ? strncasecmp(text, label, len) == 0 : len == 1 && *text == *label)
            return i;
    }
    return q->n;
}

static struct reading read_answer(const struct writer *w, uint32_t i) {
    const struct question *q = &decisions_of_job(&w->job)->question[i];
    const struct gen *g = w->choices[i].gen;
    struct reading r = {0};

    assert(q->n > 0);
    for (uint32_t k = 0; g->n_out > 0 && k < g->m.n_top && g->top[k].token >= 0; k++) {
        size_t len;
        const char *text = choices_token(w, g->top[k].token, &len);
        uint32_t option = option_of(q, text, len);

        if (option == q->n)
            continue;
        r.p[option] += exp((double)g->top[k].logprob);
        r.mass += exp((double)g->top[k].logprob);
        r.first |= k == 0;
    }
    for (uint32_t k = 0; k < q->n; k++) {
        r.p[k] = r.mass > 0 ? r.p[k] / r.mass : 1.0 / q->n;
        if (r.p[k] > r.p[r.best])
            r.best = k;
    }
    r.confidence = q->n > 1 ? (r.p[r.best] * q->n - 1) / (q->n - 1) : 1;
    return r;
}

static double score_of(const struct question *q, const struct reading *r) {
    double sum = 0;

    for (uint32_t k = 0; k < q->n; k++)
        sum += r->p[k] * k;
    return sum;
}

static void decisions_put_value(struct json *j, const char *key, yyjson_val *v) {
    if (yyjson_is_bool(v))
        json_print(j, "%s:%i", key, yyjson_is_true(v));
    else
        json_print(j, "%s:%.*s", key, (int)json_len(v), json_text(v));
}

/* Writes the key of option @k in System One's maps. */
static void decisions_put_key(struct json *j, const struct question *q, uint32_t k) {
    char number[4];

    if (q->kind == CHOICE) {
        json_string(j, json_text(q->option[k].value), json_len(q->option[k].value));
    } else {
        decisions_label(q, k, number);
        json_cstring(j, number);
    }
    json_colon(j);
}

/* ---- OpenAI's form ---- */

static void put_probabilities(struct json *j, const struct question *q, const struct reading *r) {
    json_print(j, "probabilities:[");
    for (uint32_t k = 0; k < q->n; k++) {
        json_open(j, '{');
        decisions_put_value(j, q->kind == CHOICE ? "value" : "label", q->option[k].value);
        if (q->kind == SCORE)
            json_print(j, "value:%u", k);
        json_print(j, "probability:%g}", r->p[k]);
    }
    json_close(j, ']');
}

static void put_decision(struct json *j, const struct writer *w, uint32_t i) {
    static const char *const types[] = {"choice", "score", "predicate"};
    const struct question *q = &decisions_of_job(&w->job)->question[i];
    struct reading r = read_answer(w, i);

    json_print(j, "{type:%s", r.mass > 0 ? types[q->kind] : "refusal");
    if (q->name)
        json_print(j, "name:%.*s", (int)json_len(q->name), json_text(q->name));
    else
        json_print(j, "name:null");
    if (r.mass > 0 && q->kind == YES_NO) {
        json_print(j, "probability:%g", r.p[0]);
    } else if (r.mass > 0) {
        if (q->kind == CHOICE)
            decisions_put_value(j, "choice", q->option[r.best].value);
        else
            json_print(j, "score:%g", score_of(q, &r));
        json_print(j, "confidence:%g", r.confidence);
        put_probabilities(j, q, &r);
    }
    json_close(j, '}');
}

static void put_decisions(struct json *j, struct writer *w) {
    struct writer_usage u = writer_usage(w);

    json_print(j, "{model:%s, answers:[", w->job.model->info->id);
    for (uint32_t i = 0; i < w->n_choices; i++)
        put_decision(j, w, i);
    json_print(j,
               "], usage:{input_tokens:%u, input_tokens_details:{cache_write_tokens:0, "
               "cached_tokens:%u}, output_tokens:%u, "
               "output_tokens_details:{reasoning_tokens:0}, total_tokens:%ld}}",
               u.prompt, u.cached, u.output, (int64_t)u.prompt + u.output);
}

/* ---- System One's form ---- */

static void put_system_one_answer(struct json *j, const struct question *q,
                                  const struct reading *r) {
    static const char *const types[] = {"choice", "score", "noul"};

    json_print(j, "{type:%s", types[q->kind]);
    if (q->kind == CHOICE)
        decisions_put_value(j, "choice", q->option[r->best].value);
    else
        json_print(j, "%s:%g", types[q->kind], q->kind == SCORE ? score_of(q, r) : r->p[0]);
    if (q->kind == SCORE) {
        json_print(j, "legend:{");
        for (uint32_t k = 0; k < q->n; k++) {
            CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

            decisions_put_key(j, q, k);
            if (add_value(&text, q->option[k].value) < 0)
                j->error = -ENOMEM;
            json_print(j, "%.*s", (int)text.len, text.data);
        }
        json_close(j, '}');
    }
    json_print(j, "probabilities:{");
    for (uint32_t k = 0; k < q->n; k++) {
        decisions_put_key(j, q, k);
        json_double(j, r->p[k]);
    }
    json_print(j, "}, confidence:%g}", r->confidence);
}

static void put_system_one(struct json *j, struct writer *w) {
    const struct decisions *d = decisions_of_job(&w->job);
    struct writer_usage u = writer_usage(w);

    json_print(j, "{id:%s, object:'structured_decision', created:%ld, model:%s, answers:{", w->id,
               w->created, w->job.model->info->id);
    for (uint32_t i = 0; i < w->n_choices; i++) {
        struct reading r = read_answer(w, i);

        json_print(j, "%.*s:", (int)json_len(d->question[i].name), json_text(d->question[i].name));
        put_system_one_answer(j, &d->question[i], &r);
    }
    json_print(j, "}, usage:{input_tokens:%u, output_tokens:%u}, diagnostics:{", u.prompt,
               u.output);
    for (uint32_t i = 0; i < w->n_choices; i++) {
        struct reading r = read_answer(w, i);

        json_print(j, "%.*s:{label_mass:%g, argmax_is_label:%i}",
                   (int)json_len(d->question[i].name), json_text(d->question[i].name), r.mass,
                   r.first);
    }
    json_print(j, "}}");
}

/* ---- endpoints ---- */

/* There are no streams of decisions: decisions_translate() asks for none. */
const struct endpoint openai_decisions = {
    .open = open_job,
    .close = close_job,
    .translate = decisions_translate,
    .rename = rename_decisions,
    .id_prefix = "decision-",
    .whole = put_decisions,
};

const struct endpoint openai_system_one = {
    .open = open_job,
    .close = close_job,
    .translate = decisions_translate,
    .rename = rename_system_one,
    .id_prefix = "decision-",
    .whole = put_system_one,
};
