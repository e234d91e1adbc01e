/* ---- settings ---- */

#include "api/openai/raw_answer.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/timings.h"
#include "api/http/json.h"
#include "api/openai/choices.h"
#include "api/openai/openai.h"

static void raw_put_bias(struct json *j, int32_t token, double bias) {
    if (isfinite(bias))
        json_print(j, "{bias:%g, token:%d}", bias, token);
    else
        json_print(j, "{bias:null, token:%d}", token);
}

/* Writes the end tokens as banned: with ignore_eos the model never writes them. */
static void raw_put_banned_ends(struct json *j, const struct tokenizer *t) {
    size_t n;
    const int32_t *id = tokenizer_end_ids(t, &n);

    for (size_t i = 0; i < n; i++)
        raw_put_bias(j, id[i], -INFINITY);
}

void raw_answer_put_settings(struct json *j, const struct api_model *m, const struct gen_request *r,
                             uint64_t seed, uint32_t max_new) {
    struct sampling s;
    int64_t n_predict = max_new < GEN_REQUEST_NO_LIMIT ? (int64_t)max_new : -1;

    if (r)
        s = r->submit.sampling;
    else if (m->sampling)
        s = *m->sampling;
    else
        params_init(&s);
    /* Samplers that this server does not have are turned off. */
    json_print(j,
               "{seed:%lu, temperature:%g, top_k:%ld, top_p:%g, min_p:%g, repeat_last_n:-1, "
               "repeat_penalty:%g, presence_penalty:%g, frequency_penalty:%g, top_n_sigma:%g, "
               "xtc_probability:%g, xtc_threshold:%g, typical_p:%g, dry_multiplier:%g, "
               "dry_base:%g, dry_allowed_length:%ld, dry_penalty_last_n:%ld, dynatemp_range:0, "
               "mirostat:0, adaptive_target:-1, adaptive_decay:0, stop:[",
               seed, s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty,
               s.presence_penalty, s.frequency_penalty, s.top_n_sigma, s.xtc_probability,
               s.xtc_threshold, s.typical_p, s.dry_multiplier, s.dry_base, s.dry_allowed_length,
               s.dry_penalty_last_n);
    for (uint32_t i = 0; r && i < r->submit.n_stops; i++)
        json_string(j, r->submit.stops[i].data, r->submit.stops[i].len);
    json_print(j,
               "], max_tokens:%ld, n_predict:%ld, ignore_eos:%i, stream:%i, n_probs:%u, "
               "logit_bias:[",
               n_predict, n_predict, s.ignore_eos != 0, r && r->answer.stream,
               r ? r->answer.n_top : 0);
    for (uint32_t i = 0; r && i < r->submit.n_bias; i++)
        raw_put_bias(j, r->submit.bias[i].token, (double)r->submit.bias[i].bias);
    if (s.ignore_eos && m->tokenizer)
        raw_put_banned_ends(j, m->tokenizer);
    json_print(j, "]}");
}

static void raw_put_tokens(struct json *j, const struct piece *p) {
    const struct gen *g = p->choice->gen;

    assert(p->from <= p->to && p->to <= g->n_out);
    json_print(j, "tokens:[");
    for (uint32_t i = p->from; i < p->to; i++)
        json_int(j, g->tokens[g->n_prompt + i]);
    json_close(j, ']');
}

static void raw_put_prompt(struct json *j, const struct writer *w, const struct gen *g) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};

    for (uint32_t i = 0; i < g->n_prompt; i++) {
        size_t len;
        const char *text = tokenizer_piece(w->job.model->info->tokenizer, g->tokens[i], true, &len);

        if (buf_add(&b, text, len) < 0)
            j->error = -ENOMEM;
    }
    json_print(j, "prompt:%.*s", (int)b.len, b.data);
}

/* Returns true if the output of @g ended because the context was full. */
static bool raw_is_truncated(const struct writer *w, const struct gen *g) {
    if (g->finish != FINISH_LENGTH || g->repeats)
        return false;
    return (uint64_t)g->n_prompt + g->n_out >= w->job.context;
}

static void raw_put_end(struct json *j, const struct writer *w, const struct gen *g) {
    const struct str *stop =
        g->stopped && g->finish == FINISH_STOP ? &g->m.stops[g->stop_index] : NULL;
    const char *stop_type = stop ? "word" : "eos";

    assert(g->state == GEN_DONE);
    if (g->score_only || g->finish == FINISH_LENGTH)
        stop_type = "limit";
    json_print(j,
               "model:%s, tokens_predicted:%u, tokens_evaluated:%u, tokens_cached:%u, "
               "generation_settings:",
               w->job.model->info->id, g->n_out, g->n_prompt, g->n_cached);
    raw_answer_put_settings(j, w->job.model->info, &w->job.request, g->m.seed,
                            w->job.request.input.max_new);
    raw_put_prompt(j, w, g);
    json_print(j, "has_new_line:%i, truncated:%i, stop_type:%s, stopping_word:%.*s",
               g->ready && memchr(g->text.data, '\n', g->ready), raw_is_truncated(w, g), stop_type,
               stop ? (int)stop->len : 0, stop ? stop->data : "");
    if (g->repeats)
        json_print(j, "loop_ended:true");
    timings_put(j, g);
}

void raw_answer_put(struct json *j, const struct writer *w, const struct piece *p,
                    const struct raw_form *form) {
    const struct gen *g = p->choice->gen;

    assert(!p->last || g->state == GEN_DONE);
    json_print(j, "{index:%u, content:%.*s", p->index, (int)p->len, p->text);
    raw_put_tokens(j, form->tokens ? p : &(struct piece){.choice = p->choice});
    json_print(j, "id_slot:-1, stop:%i", p->last);
    if (w->job.request.answer.n_top && form->probs) {
        json_print(j, "completion_probabilities:");
        choices_put_logprobs(j, w, g, p->from, p->to, true);
    }
    if (form->progress)
        choices_put_progress(j, w, g, choices_begins(p));
    if (p->last)
        raw_put_end(j, w, g);
    else if (form->timings && choices_begins(p))
        timings_put_begin(j);
    else if (form->timings)
        timings_put(j, g);
    json_close(j, '}');
}

/* The raw answer has no log probabilities: a stream ends on the loop, where they take too long. */
void raw_answer_put_figures(struct json *j, const struct writer *w) {
    static const struct raw_form raw = {0};

    assert(w->n_choices > 0);
    if (!openai_is_llama_server(w->route))
        return;
    if (w->job.request.answer.verbose) {
        struct piece p = writer_whole_piece(&w->choices[0], 0);

        json_print(j, "__verbose:");
        raw_answer_put(j, w, &p, &raw);
    }
    timings_put(j, w->choices[0].gen);
}
