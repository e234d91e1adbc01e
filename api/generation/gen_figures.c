#include "api/generation/gen.h"
#include "api/generation/output_parser.h"
#include "api/generation/model.h"
#include "proto/flight.h"

/* Figures of a generation that are reported beside its text. */

#define STORY_MAX 256u /* decisions of the scheduler about a request that are read */

/* Returns the finish reason. Complete tool calls are a reason of their own, but not in an output
 * that was cut off. */
const char *gen_finish_name(const struct gen *g) {
    if (g->output && g->finish == FINISH_STOP && output_parser_has_call(g->output))
        return "tool_calls";
    if (g->finish == FINISH_LENGTH && g->repeats)
        return "repetition";
    return g->score_only || g->finish == FINISH_LENGTH ? "length" : "stop";
}

static enum metrics_outcome figures_outcome(const struct gen *g) {
    if (g->finish != FINISH_STOP && g->finish != FINISH_LENGTH)
        return METRICS_ABORT;
    if (g->repeats)
        return METRICS_REPETITION;
    if (g->finish == FINISH_LENGTH)
        return METRICS_LENGTH;
    return *gen_finish_name(g) == 't' ? METRICS_TOOL_CALLS : METRICS_STOP;
}

struct metrics_gen gen_metrics(const struct gen *g) {
    struct metrics_gen m = {
        .arrived_ns = g->m.arrived_ns,
        .first_step_ns = g->first_step_ns,
        .first_token_ns = g->first_token_ns,
        .last_token_ns = g->last_token_ns,
        .done_ns = g->done_ns,
        .n_prompt = g->n_prompt,
        .n_output = g->n_out,
        .max_new = g->m.max_new,
        .outcome = figures_outcome(g),
        .embeds = g->vector != NULL,
    };

    return m;
}

uint32_t gen_prompt_done(const struct gen *g) {
    struct flight_record r[STORY_MAX];
    const struct api_port *p = g->model->port;
    uint64_t done = 0;

    if (g->n_out > 0)
        return g->n_prompt;
    uint32_t n = p->story ? p->story(g->model->port, g->m.id, r, STORY_MAX) : 0;
    for (uint32_t i = 0; i < n; i++)
        if (r[i].why == WHY_ADMITTED)
            done = r[i].detail;
        else if (r[i].why == WHY_PREEMPTED)
            done = 0;
        else if (r[i].why == WHY_PROMPT)
            done += r[i].n_rows;
    return (uint32_t)MIN(done, g->n_prompt);
}
