/* Choice of the best of several outputs: the one with the highest mean log probability. */

#include <math.h>

#include "api/generation/writer.h"

/* Returns the mean over a choice's tokens; a choice without tokens is the worst. */
static double score_mean(const struct choice *c) {
    double sum = 0;

    for (uint32_t i = 0; i < c->gen->n_out; i++)
        sum += (double)c->gen->logprobs[i];
    if (c->gen->n_out)
        return sum / c->gen->n_out;
    return -INFINITY;
}

void writer_sort(struct writer *w) {
    uint32_t n = gen_request_made(&w->job.request);

    for (uint32_t i = 0; i < w->n_choices; i++)
        w->choices[i].mean_logprob = score_mean(&w->choices[i]);
    for (uint32_t first = 0; first + n <= w->n_choices; first += n)
        /* sorts by insertion: choices are few, and equal ones keep their order */
        for (uint32_t i = first + 1; i < first + n; i++) {
            struct choice c = w->choices[i];
            uint32_t k = i;

            for (; k > first && w->choices[k - 1].mean_logprob < c.mean_logprob; k--)
                w->choices[k] = w->choices[k - 1];
            w->choices[k] = c;
        }
}
