/* ---- members behind the usage ---- */

#include "api/lmstudio/lmstudio.h"

#include <assert.h>

#include "api/generation/lookup.h"
#include "api/generation/model.h"
#include "api/generation/writer.h"
#include "api/http/json.h"
#include "api/openai/choices.h"
#include "api/openai/openai.h"
#include "api/openai/vectors.h"
#include "base/text.h"

static double lmstudio_seconds(int64_t from_ns, int64_t to_ns) {
    if (from_ns && to_ns > from_ns)
        return (double)(to_ns - from_ns) / 1e9;
    return 0;
}

static const char *stop_reason(const struct writer *w, const struct gen *g) {
    if (g->repeats)
        return "maxPredictedTokensReached"; /* clients know no reason for a loop */
    if (g->finish == FINISH_LENGTH) {
        if (g->n_out < w->job.request.input.max_new)
            return "contextLengthReached";
        return "maxPredictedTokensReached";
    }
    if (g->finish != FINISH_STOP)
        return "userStopped";
    if (g->output && g->output->n_calls)
        return "toolCalls";
    if (g->stopped)
        return "stopStringFound";
    return "eosFound";
}

/* Writes "stats", "model_info" and "runtime" of the first choice. The time of the generation
 * includes the time to the first token; the rate is that of the worker. */
static void lmstudio_put_figures(struct json *j, const struct writer *w) {
    const struct gen *g = w->choices[0].gen;
    const struct model *m = w->job.model;
    double first = lmstudio_seconds(g->first_step_ns, g->first_token_ns);
    double rest = lmstudio_seconds(g->first_token_ns, g->last_token_ns);
    double output = lmstudio_seconds(g->prompt_end_ns, g->computed_ns);
    char format[32];

    assert(g->state == GEN_DONE);
    json_print(j,
               "stats:{tokens_per_second:%g, time_to_first_token:%g, generation_time:%g, "
               "stop_reason:%s",
               output > 0 ? g->n_out / output : 0, first, first + rest, stop_reason(w, g));
    if (g->repeats)
        json_print(j, "loop_ended:true");
    json_print(j,
               "}, model_info:{arch:%s, quant:%s, format:'gguf', context_length:%u}, "
               "runtime:{name:'weft', version:%s, supported_formats:['gguf']}",
               text_or(m->info->arch, ""), model_format_name(m, format), m->info->max_context,
               WEFT_VERSION);
}

/* ---- requests ---- */

static const struct choices_form chat_form = {
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .has_role = true,
    .content = choices_put_message,
    .logprobs = choices_put_message_logprobs,
    .figures = lmstudio_put_figures,
};

static const struct choices_form completion_form = {
    .object = "text_completion",
    .chunk_object = "text_completion",
    .prompt_in_choice = true,
    .content = choices_put_text,
    .logprobs = choices_put_text_logprobs,
    .figures = lmstudio_put_figures,
};

static const struct endpoint chat = {
    .translate = openai_read_chat,
    .id_prefix = "chatcmpl-",
    .repeats = REPEATS_TEXT,
    CHOICES_OF(chat_form),
};

static const struct endpoint completion = {
    .translate = openai_read_completion,
    .id_prefix = "cmpl-",
    CHOICES_OF(completion_form),
};

static const struct route routes[] = {
    {"/api/v0/models", HTTP_GET, false, false, lmstudio_models_serve, NULL},
    {"/api/v0/models/*", HTTP_GET, false, false, lmstudio_model_serve, NULL},
    {"/api/v0/chat/completions", HTTP_POST, false, true, writer_serve, &chat},
    {"/api/v0/completions", HTTP_POST, false, true, writer_serve, &completion},
    {"/api/v0/embeddings", HTTP_POST, false, true, vectors_serve, &openai_embeddings},
    {"/api/v1/models", HTTP_GET, false, false, lmstudio_models_v1_serve, NULL},
    {"/api/v1/models/load", HTTP_POST, false, true, lookup_serve, &lmstudio_load},
    {"/api/v1/models/unload", HTTP_POST, false, false, lmstudio_unload_serve, NULL},
    {0},
};

static const char *const prefixes[] = {"/api/v0/", "/api/v1/", NULL};

const struct dialect lmstudio_dialect = {
    .name = "lmstudio",
    .prefixes = prefixes,
    .routes = routes,
    OPENAI_FORM,
    .stream_end = "data: [DONE]\n\n",
};
