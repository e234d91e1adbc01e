#include "api/anthropic/search.h"

#include <errno.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/http/json.h"
#include "base/json_value.h"
#include "base/try.h"

static struct search *search_of(const struct writer *w) {
    return w->job.state;
}

int search_open(struct prompt_job *job, struct exchange *x, struct writer *w) {
    struct search *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->writer = w;
    job->state = s;
    return 0;
}

void search_close(struct prompt_job *job) {
    struct search *s = job->state;

    for (uint32_t i = 0; i < s->n_results; i++)
        buf_deinit(&s->results[i]);
    free(s->results);
    yyjson_doc_free(s->body);
    yyjson_doc_free(s->chat);
    free(s);
}

bool search_begin_state(struct prompt_job *job, const bool offered[TOOL_SEARCH_KINDS],
                        yyjson_doc *body) {
    struct search *s = job->state;

    if (s)
        s->cache = anthropic_cache_wish(yyjson_doc_get_root(body));
    job->goes_on = s && (offered[TOOL_SEARCH_REGEX] || offered[TOOL_SEARCH_BM25]);
    if (!job->goes_on)
        return false;
    memcpy(s->offered, offered, sizeof(s->offered));
    yyjson_doc_free(s->body); /* the job was tried on the loop before */
    s->body = body;
    return true;
}

/* ---- calls ---- */

/* Returns the search that @call asks for; TOOL_SEARCH_KINDS: it is none. */
static enum tool_search_kind search_kind_of_call(const struct writer *w,
                                                 const struct output_call *call) {
    const struct search *s = search_of(w);

    for (enum tool_search_kind k = 0; k < TOOL_SEARCH_KINDS; k++)
        if (s->offered[k] && strcmp(call->name, tool_search_names[k]) == 0)
            return k;
    return TOOL_SEARCH_KINDS;
}

bool search_is_call(const struct writer *w, const struct output_call *call) {
    return search_kind_of_call(w, call) != TOOL_SEARCH_KINDS;
}

bool search_has_other_call(const struct writer *w, const struct gen *g) {
    for (uint32_t i = 0; i < g->output->n_calls; i++)
        if (g->output->calls[i].complete && !search_is_call(w, &g->output->calls[i]))
            return true;
    return false;
}

uint32_t search_n_run(const struct writer *w) {
    return search_of(w)->n_results;
}

/* Returns the next search of @g from call *@i on, and moves *@i behind it; NULL: there is none. A
 * call that was cut off is none. */
static const struct output_call *next_search(const struct writer *w, const struct gen *g,
                                             uint32_t *i) {
    while (*i < g->output->n_calls) {
        const struct output_call *call = &g->output->calls[(*i)++];

        if (call->complete && search_is_call(w, call))
            return call;
    }
    return NULL;
}

bool search_asks(const struct writer *w) {
    uint32_t i = 0;

    return next_search(w, w->choices[w->n_choices - 1].gen, &i) != NULL;
}

void search_put_results(const struct writer *w, uint32_t i,
                        void (*put)(void *to, const struct output_call *call,
                                    const struct buf *content),
                        void *to) {
    const struct search *s = search_of(w);
    const struct output_call *call;
    uint32_t at = 0;

    for (uint32_t k = 0; k <= i && i < s->n_rounds; k++)
        for (uint32_t c = 0; (call = next_search(w, w->choices[k].gen, &c)); at++)
            if (k == i)
                put(to, call, &s->results[at]);
}

/* ---- running searches, on the pool ---- */

static void search_put_error(struct json *j, int r) {
    json_print(j, "type:'tool_search_tool_result_error', error_code:%s, error_message:%s",
               r == -ETIME ? "execution_time_exceeded" : "invalid_tool_input",
               r == -ETIME ? "The search took too long. Use a simpler pattern."
                           : "The search needs a query; a pattern has at most 200 characters, "
                             "no counted repetition, back reference or lookaround.");
}

static void search_put_found(struct json *j, yyjson_val *const found[], uint32_t n) {
    json_print(j, "type:'tool_search_tool_search_result', tool_references:[");
    for (uint32_t i = 0; i < n; i++) {
        json_print(j, "{type:'tool_reference', tool_name:%.*s}", (int)json_len(found[i]),
                   json_text(found[i]));
    }
    json_close(j, ']');
}

/* Runs one search; its result is the last of s->results. */
static int search_run(struct search *s, const struct gen *g, const struct output_call *call) {
    const char *args = g->output->text[OUTPUT_CALL].data;
    CLEANUP(json_doc_freep)
    yyjson_doc *doc = yyjson_read(args + call->begin, call->end - call->begin, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *query = yyjson_obj_get(root, "query");
    yyjson_val *found[TOOL_SEARCH_MOST], *pattern = yyjson_obj_get(root, "pattern");

    if (!array_resize(&s->results, s->n_results + 1, sizeof(*s->results)))
        return -ENOMEM;
    struct buf *out = &s->results[s->n_results++];
    buf_init(out, API_SEND_MAX);
    const char *text = json_cstr(query ? query : pattern);
    int r = text ? tool_search(search_kind_of_call(s->writer, call), text,
                               s->writer->job.request.input.tools, found)
                 : -EINVAL;
    if (r == -ENOMEM || r == -ECANCELED)
        return r;
    struct json j = {.out = out};
    json_open(&j, '{');
    if (r < 0)
        search_put_error(&j, r);
    else
        search_put_found(&j, found, (uint32_t)r);
    json_close(&j, '}');
    return j.error;
}

/* Adds the assistant's message of round @i to the body. */
static int search_add_message(struct search *s, uint32_t i,
                              void (*put_blocks)(struct json *j, const struct writer *w,
                                                 uint32_t i)) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_copy(s->body, &failed);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
    CLEANUP(json_doc_freep) yyjson_doc *said = NULL;
    yyjson_doc *body = NULL;
    struct json j = {.out = &b};

    json_print(&j, "{role:'assistant', content:[");
    put_blocks(&j, s->writer, i);
    json_print(&j, "]}");
    if (j.error < 0 || !(said = yyjson_read(b.data, b.len, 0)))
        return -ENOMEM;
    yyjson_mut_arr_append(yyjson_mut_obj_get(root, "messages"),
                          yyjson_val_mut_copy(doc, yyjson_doc_get_root(said)));
    TRY(json_doc_seal(doc, root, &body));
    yyjson_doc_free(s->body);
    s->body = body;
    return 0;
}

/* Returns true if the answer can continue here with a further round. Otherwise the client has to
 * send the conversation back itself: a picture's rows belong to the first prompt, a begun answer to
 * the client's message, and another call to the client's tool. */
static bool can_go_on(const struct prompt_job *job, const struct gen *last) {
    const struct search *s = job->state;

    return job->goes_on && job->request.made.n_pictures == 0 &&
           job->request.made.prefill.len == 0 && !search_has_other_call(s->writer, last);
}

int search_again(struct prompt_job *job, yyjson_val **messages,
                 void (*put_blocks)(struct json *j, const struct writer *w, uint32_t i)) {
    struct search *s = job->state;
    uint32_t round = s->writer->n_choices - 1, i = 0;
    const struct gen *last = s->writer->choices[round].gen;
    CLEANUP(buf_deinit) struct buf prefill = {.max = UINT32_MAX};
    const struct output_call *call;
    yyjson_doc *chat = NULL;

    while ((call = next_search(s->writer, last, &i)))
        TRY(search_run(s, last, call));
    s->n_rounds = round + 1;
    if (!can_go_on(job, last))
        return 0;
    TRY(search_add_message(s, round, put_blocks));
    TRY(anthropic_translate(job->env, s->body, false, &chat, &prefill, NULL, &job->err));
    yyjson_doc_free(s->chat);
    s->chat = chat;
    *messages = yyjson_obj_get(yyjson_doc_get_root(chat), "messages");
    return 0;
}
