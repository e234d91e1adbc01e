#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/content.h"
#include "api/generation/model.h"
#include "api/generation/prompt_steps.h"
#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/try.h"

/* Returns the name that the prompts have in the body. */
static const char *prompt_name(const struct prompt_job *job) {
    if (job->chat)
        return "messages";
    if (job->request.input.documents_name)
        return job->request.input.documents_name;
    if (job->request.input.pool)
        return "input";
    return "prompt";
}

struct prompt_place prompt_place(const struct prompt_job *job, uint32_t i) {
    struct prompt_place p;

    snprintf(p.s, sizeof(p.s), job->many ? "%s[%u]" : "%s", prompt_name(job), i);
    return p;
}

static int bad_prompt(const struct prompt_job *job, const char *place, struct err *err) {
    bool embeds = job->request.input.pool != 0;

    return err_set_code(err, 400, "invalid_value", place,
                        "%s must be a string, an array of strings, an array of token ids or an "
                        "array of such arrays, at most %u.",
                        embeds ? "input" : "prompt",
                        embeds ? REQUEST_INPUTS_MAX : REQUEST_PROMPTS_MAX);
}

static int set_ids(struct prompt_job *job, uint32_t i, yyjson_val *ids, struct err *err) {
    struct prompt *p = &job->prompts[i];
    int32_t *id;
    uint32_t n;
    TRY(gen_request_ids(&job->request, job->model, ids, prompt_place(job, i).s, &id, &n, err));
    p->tokens.id = malloc(n * sizeof(*id));
    if (!p->tokens.id)
        return -ENOMEM;
    memcpy(p->tokens.id, id, n * sizeof(*id));
    p->tokens.n = p->tokens.cap = n;
    return 0;
}

static int prompt_find_set(struct prompt_job *job, uint32_t i, yyjson_val *v, struct err *err) {
    yyjson_val *text = content_text(v);

    if (yyjson_is_arr(v))
        return set_ids(job, i, v, err);
    if (!text)
        return bad_prompt(job, prompt_place(job, i).s, err);
    if (job->request.input.pool && json_len(text) == 0)
        return json_refuse(err, prompt_place(job, i).s, "must not be empty");
    job->prompts[i].text = json_text(text);
    job->prompts[i].len = json_len(text);
    return 0;
}

/* Finds the prompts in the four forms that they may have. A text may be in an object, {"text": ..},
 * as in APIs that embed pictures, too. */
static int find_prompts(struct prompt_job *job, struct err *err) {
    yyjson_val *v = job->request.input.prompt, *first = yyjson_arr_get_first(v);
    bool many = yyjson_is_arr(v) && !yyjson_is_num(first);
    size_t n = many ? yyjson_arr_size(v) : 1;
    size_t most = job->request.input.pool ? REQUEST_INPUTS_MAX : REQUEST_PROMPTS_MAX;

    if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0 && job->request.answer.takes_none)
        return 0;
    if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0)
        return bad_prompt(job, prompt_place(job, 0).s, err);
    if (n > most || n * gen_request_made(&job->request) > most)
        return bad_prompt(job, prompt_place(job, 0).s, err);
    if (!(job->prompts = arena_alloc_array(&job->request.arena, n, sizeof(*job->prompts))))
        return -ENOMEM;
    job->n_prompts = (uint32_t)n;
    job->many = many;
    if (!many)
        return prompt_find_set(job, 0, v, err);
    JSON_EACH_AT(i, item, v) {
        bool same = yyjson_is_arr(item) == yyjson_is_arr(first);
        if (same)
            TRY(prompt_find_set(job, (uint32_t)i, item, err));
        else
            TRY(bad_prompt(job, prompt_place(job, (uint32_t)i).s, err));
    }
    return 0;
}

/* Reads a part of a pair: a text, or an object with one. */
static int pair_part(yyjson_val *v, const char *place, const char **text, size_t *len,
                     struct err *err) {
    yyjson_val *s = yyjson_is_obj(v) ? yyjson_obj_get(v, "text") : v;

    if (!yyjson_is_str(s) || json_len(s) == 0)
        return json_refuse(err, place,
                           "must be a text that is not empty, or an object with one as text");
    *text = json_text(s);
    *len = json_len(s);
    return 0;
}

/* Counts the pairs, or returns an error. */
static int count_pairs(const struct prompt_job *job, struct err *err) {
    yyjson_val *query = job->request.input.query, *documents = job->request.input.documents;
    const char *first = job->request.input.query_name, *second = job->request.input.documents_name;
    bool lists = job->request.answer.scores_texts;
    size_t n = yyjson_is_arr(documents) ? yyjson_arr_size(documents) : 1;

    if (n == 0 || n > REQUEST_INPUTS_MAX)
        return err_set_code(err, 400, "invalid_value", second, "%s must have 1 to %u entries.",
                            second, REQUEST_INPUTS_MAX);
    if (yyjson_is_arr(query) && !lists)
        return err_set_code(err, 400, "invalid_value", first, "%s must be one text.", first);
    if (yyjson_is_arr(query) && yyjson_arr_size(query) != n)
        return err_set_code(err, 400, "invalid_value", first,
                            "%s must be one text, or as many as %s has.", first, second);
    return (int)n;
}

/* Pairs the query with each document; a score may also pair texts one by one. Returns -EAGAIN when
 * there are too many pairs for the loop. */
static int find_pairs(struct prompt_job *job, struct err *err) {
    yyjson_val *query = job->request.input.query, *documents = job->request.input.documents;
    bool lists = yyjson_is_arr(query), many = yyjson_is_arr(documents);
    int n = count_pairs(job, err);
    size_t total = 0;
    char place[32];

    if (n < 0)
        return n;
    if (!(job->prompts = arena_alloc_array(&job->request.arena, (size_t)n, sizeof(*job->prompts))))
        return -ENOMEM;
    job->n_prompts = (uint32_t)n;
    job->many = many;
    yyjson_val *q = lists ? yyjson_arr_get_first(query) : query;
    yyjson_val *d = many ? yyjson_arr_get_first(documents) : documents;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        struct prompt *p = &job->prompts[i];

        snprintf(place, sizeof(place), lists ? "%s[%u]" : "%s", job->request.input.query_name, i);
        TRY(pair_part(q, place, &p->query, &p->query_len, err));
        if (p->query_len > REQUEST_QUERY_MAX)
            return err_set_code(err, 400, "invalid_value", place, "%s must have at most %u bytes.",
                                place, REQUEST_QUERY_MAX);
        TRY(pair_part(d, prompt_place(job, i).s, &p->text, &p->len, err));
        total += p->query_len + p->len;
        q = lists ? json_next(q) : q;
        d = many ? json_next(d) : d;
    }
    if (job->quick && total > PROMPT_INLINE_TEXT)
        return -EAGAIN;
    return 0;
}

static int find_chat(struct prompt_job *job, struct err *err) {
    job->chat = true;
    job->prompts = arena_alloc(&job->request.arena, sizeof(*job->prompts));
    if (!job->prompts)
        return -ENOMEM;
    job->n_prompts = 1;
    if (!job->model->info->template)
        return err_set_code(err, 400, "no_chat_template", "messages",
                            "This model has no chat template. Use /v1/completions.");
    return 0;
}

int prompt_find(struct prompt_job *job) {
    if (job->request.input.messages)
        return find_chat(job, &job->err);
    if (job->request.input.documents)
        return find_pairs(job, &job->err);
    return find_prompts(job, &job->err);
}
