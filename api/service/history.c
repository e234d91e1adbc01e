#include "api/service/history.h"

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/http/json.h"

/* Returns the growth of a counter; its whole value if it began anew, as a new worker's does. */
static double grown(uint64_t before, uint64_t now) {
    return (double)(now >= before ? now - before : now);
}

void history_note(struct history *h, const struct gen_env *env, int64_t now) {
    uint64_t n_prompt = 0, n_output = env->stats.n_output_tokens;
    uint32_t n_running = 0, n_batch = 0, n_rows = 0;
    float *s = h->sample[h->n % HISTORY_MAX];

    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        uint32_t n = m->has_stats ? MIN(m->worker.n_running, m->n_running) : m->n_running;

        n_prompt += m->worker.n_prompt_tokens;
        n_running += m->n_running;
        n_batch += n;
        n_rows += n > 0 ? m->worker.last_rows : 0;
    }
    if (h->at_ns && now > h->at_ns) {
        double seconds = (double)(now - h->at_ns) / 1e9;

        s[HISTORY_OUTPUT] = (float)(grown(h->n_output, n_output) / seconds);
        s[HISTORY_PROMPT] = (float)(grown(h->n_prompt, n_prompt) / seconds);
        s[HISTORY_RUNNING] = (float)n_batch;
        s[HISTORY_WAITING] = (float)(env->admit.n_queued + n_running - n_batch);
        s[HISTORY_ROWS] = (float)n_rows;
        h->n++;
    }
    h->at_ns = now;
    h->n_output = n_output;
    h->n_prompt = n_prompt;
}

void history_put(const struct history *h, struct json *j) {
    static const char *const names[] = {"output", "prompt", "running", "waiting", "rows"};

    json_print(j, "seconds:%d", HISTORY_S);
    for (uint32_t k = 0; k < ARRAY_SIZE(names); k++) {
        json_print(j, "%s:[", names[k]);
        for (uint64_t i = h->n > HISTORY_MAX ? h->n - HISTORY_MAX : 0; i < h->n; i++)
            json_double(j, (double)(int64_t)(h->sample[i % HISTORY_MAX][k] * 10 + 0.5f) / 10);
        json_close(j, ']');
    }
}
