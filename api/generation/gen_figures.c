#include "api/generation/gen.h"
#include "api/generation/output_parser.h"
#include "api/generation/model.h"

/* Figures of a generation that are reported beside its text. */

/* Calls that are complete are a reason of their own; an output that was cut off stays that. */
const char *gen_finish_name(const struct gen *g) {
    if (g->output && g->finish == FINISH_STOP && output_parser_has_call(g->output))
        return "tool_calls";
    if (g->finish == FINISH_LENGTH && g->repeats)
        return "repetition";
    return g->score_only || g->finish == FINISH_LENGTH ? "length" : "stop";
}

struct metrics_gen gen_metrics(const struct gen *g) {
    bool ok = g->finish == FINISH_STOP || g->finish == FINISH_LENGTH;
    struct metrics_gen m = {
        .arrived_ns = g->m.arrived_ns,
        .first_step_ns = g->first_step_ns,
        .first_token_ns = g->first_token_ns,
        .last_token_ns = g->last_token_ns,
        .done_ns = g->done_ns,
        .n_prompt = g->n_prompt,
        .n_output = g->n_out,
        .max_new = g->m.max_new,
        .outcome = !ok                          ? METRICS_ABORT
                   : g->repeats                 ? METRICS_REPETITION
                   : g->finish == FINISH_LENGTH ? METRICS_LENGTH
                   : *gen_finish_name(g) == 't' ? METRICS_TOOL_CALLS
                                                : METRICS_STOP,
        .embeds = g->vector != NULL,
    };

    return m;
}
