#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/fim.h"
#include "api/generation/model.h"
#include "api/generation/prompt_steps.h"
#include "api/generation/read_request.h"
#include "base/json_value.h"
#include "base/try.h"

/* Writes how long the prompt is, as far as it is known. */
static void prompt_put_length(char *out, size_t size, const char *place, size_t n, bool more) {
    if (n > 0)
        snprintf(out, size, "your %s resulted in %s%zu tokens", place, more ? "more than " : "", n);
    else
        snprintf(out, size, "your %s are too many or too long for its chat template", place);
}

int prompt_exceeds(const struct prompt_job *job, const char *place, size_t n, bool more,
                   uint32_t context, struct err *err) {
    char length[120];

    prompt_put_length(length, sizeof(length), place, n, more);
    if (context && job->endpoint->too_long)
        job->endpoint->too_long(place, MAX(n, context), context, err);
    else if (context)
        err_set_code(err, 400, "context_length_exceeded", place,
                     "This model's maximum context length is %u tokens. However, %s. Please reduce "
                     "the length of the %s%s.",
                     context, length, place, job->request.made.functions ? " or tools" : "");
    else
        err_set_code(err, 400, "context_length_exceeded", place,
                     "The model's maximum context length is exceeded: %s. Please reduce the length "
                     "of the %s%s.",
                     length, place, job->request.made.functions ? " or tools" : "");
    return err_add_lengths(err, MAX(n, context), context);
}

int prompt_too_long(const struct prompt_job *job, const char *place, size_t n, struct err *err) {
    return prompt_exceeds(job, place, n, true, job->context, err);
}

#define INSTRUCT "<Instruct>: " /* before the instruction in the template of Qwen3-Reranker */

bool prompt_pair_is_instructed(const struct api_model *m) {
    return strstr(m->pair.before, INSTRUCT) != NULL;
}

/* Adds what stands before the query. The client's instruction, text [@user], takes the place of the
 * template's. */
static int add_before_query(const struct prompt_job *job, struct buf *b, struct text_range *user) {
    struct str instruction = job->request.input.instruction;
    const char *before = job->model->info->pair.before, *own = strstr(before, INSTRUCT);

    if (!instruction.len || !own)
        return buf_add_str(b, before);
    own += strlen(INSTRUCT);
    TRY(buf_add(b, before, (size_t)(own - before)));
    user->begin = b->len;
    TRY(buf_add(b, instruction.data, instruction.len));
    user->end = b->len;
    return buf_add_str(b, own + strcspn(own, "\n"));
}

/* Encodes pair @i. Each pair contains the query, so the first pair that is too long ends the
 * request. */
static int encode_pair(struct prompt_job *job, uint32_t i) {
    const struct api_model *m = job->model->info;
    CLEANUP(buf_deinit) struct buf b = {.max = SIZE_MAX / 2};
    struct prompt *p = &job->prompts[i];
    struct text_range user[3] = {0};

    TRY(add_before_query(job, &b, &user[0]));
    user[1].begin = b.len;
    user[1].end = b.len + p->query_len;
    TRY(buf_add(&b, p->query, p->query_len));
    TRY(buf_add_str(&b, m->pair.between));
    user[2].begin = b.len;
    user[2].end = b.len + p->len;
    TRY(buf_add(&b, p->text, p->len));
    TRY(buf_add_str(&b, m->pair.behind));
    p->tokens.max = job->context ? job->context : job->max_tokens;
    size_t first = user[0].end == 0; /* no instruction */
    int r = tokenizer_encode(m->tokenizer, b.data, b.len,
                             TOKENIZE_SPECIAL | (m->encoder ? TOKENIZE_BOS : 0), user + first,
                             ARRAY_SIZE(user) - first, &p->tokens);
    if (r == -EMSGSIZE) {
        err_set_code(
            &job->err, 400, "context_length_exceeded", prompt_place(job, i).s,
            "This model's maximum context length is %zu tokens. However, %s has more than %zu "
            "together with its query and the model's special tokens.",
            p->tokens.max, prompt_place(job, i).s, p->tokens.max - 1);
        return err_add_lengths(&job->err, p->tokens.max, (uint32_t)p->tokens.max);
    }
    return r;
}

size_t prompt_bos_bytes(const struct prompt_job *job, const struct prompt *p) {
    const struct tokenizer *t = job->model->info->tokenizer;
    struct gguf_str bos = {"", 0};

    if (tokenizer_adds_bos(t))
        bos = tokenizer_text(t, tokenizer_bos(t));
    bool begins = bos.len && p->len >= bos.len && memcmp(p->text, bos.data, bos.len) == 0;
    bool own = p->n_user == 0 || p->user[0].begin >= bos.len;
    if (!begins || !own)
        return 0;
    return bos.len;
}

/* Tokenizes a prompt. BOS begins each one if the file's tokenizer adds it, as models were trained;
 * where a template, or a client that has rendered one, has written it, no second one is added. A
 * tokenizer that ends texts with EOS does so for plain prompts alone: a chat's end is open. Text to
 * be embedded is data and never gives special tokens. */
static int tokenise(struct prompt_job *job, uint32_t i) {
    const struct tokenizer *t = job->model->info->tokenizer;
    struct prompt *p = &job->prompts[i];
    bool is_data = job->request.input.pool || (job->request.input.no_special_names && !job->chat);
    unsigned flags = is_data ? 0 : TOKENIZE_SPECIAL;
    bool begun = !job->request.input.pool && prompt_bos_bytes(job, p);

    p->tokens.max = job->max_tokens;
    if (job->chat && !begun && tokenizer_adds_bos(t))
        TRY(tokens_add(&p->tokens, tokenizer_bos(t)));
    if (!job->chat && !begun && !job->request.input.no_special_tokens)
        flags |= TOKENIZE_BOS;
    int r;

    if (job->request.input.suffix)
        r = fim_encode(&job->model->fim, job->model->info->tokenizer, p->text, p->len,
                       json_text(job->request.input.suffix), json_len(job->request.input.suffix),
                       &p->tokens);
    else
        r = tokenizer_encode(job->model->info->tokenizer, p->text, p->len, flags, p->user,
                             p->n_user, &p->tokens);
    if (r == -EMSGSIZE)
        return prompt_too_long(job, prompt_place(job, i).s, job->max_tokens, &job->err);
    return r;
}

int prompt_encode(struct prompt_job *job, uint32_t i) {
    if (job->prompts[i].query)
        return encode_pair(job, i);
    return tokenise(job, i);
}

int prompt_decode(struct prompt_job *job) {
    int32_t *ids = NULL;
    uint32_t n = 0;

    buf_init(&job->text, API_SEND_MAX);
    if (yyjson_arr_size(job->request.input.tokens) > job->max_tokens)
        return err_set_code(&job->err, 400, "invalid_value", "tokens",
                            "tokens must have at most %u entries.", job->max_tokens);
    if (yyjson_arr_size(job->request.input.tokens))
        TRY(gen_request_ids(&job->request, job->model, job->request.input.tokens, "tokens", &ids,
                            &n, &job->err));
    return tokenizer_decode(job->model->info->tokenizer, ids, n, true, &job->text);
}
