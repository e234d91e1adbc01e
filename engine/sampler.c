#include "engine/sampler.h"

#include <assert.h>
#include <errno.h>

int sampler_init(struct sampler *s, uint32_t n_vocab) {
    size_t padded = round_up(n_vocab, 64);

    assert(n_vocab > 0);
    *s = (struct sampler){
        .n_vocab = n_vocab,
        .z = malloc(padded * sizeof(float)),
        .count = calloc(n_vocab, sizeof(uint32_t)),
        .bins = malloc(4096 * sizeof(uint64_t)),
        .rank = malloc(n_vocab * sizeof(uint64_t)),
        .recent = malloc(SAMPLER_RECENT_MAX * sizeof(int32_t)),
        .repeat_length = malloc(SAMPLER_RECENT_MAX * sizeof(uint32_t)),
    };
#ifdef SAMPLER_WIDE
    s->wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    if (!s->z || !s->count || !s->bins || !s->rank || !s->recent || !s->repeat_length) {
        sampler_deinit(s);
        return -ENOMEM;
    }
    return 0;
}

void sampler_deinit(struct sampler *s) {
    free(s->z);
    free(s->count);
    free(s->bins);
    free(s->rank);
    free(s->recent);
    free(s->repeat_length);
    *s = (struct sampler){0};
}

void sampler_run(struct sampler *s, const struct sample_job *job, struct engine_out *out,
                 struct engine_top *top) {
#ifdef SAMPLER_WIDE
    if (s->wide) {
        sampler_run_wide(s, job, out, top);
        return;
    }
#endif
    sampler_run_plain(s, job, out, top);
}
