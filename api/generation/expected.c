#include "api/generation/expected.h"

#include <errno.h>

#include "api/generation/model.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/try.h"

static int add_parts(yyjson_val *content, struct buf *out) {
    JSON_EACH(part, content) {
        TRY(json_add_text(out, yyjson_obj_get(part, "text")));
    }
    return 0;
}

int expected_take(struct prompt_job *job) {
    CLEANUP(buf_deinit) struct buf all = {.max = REQUEST_PREDICTION_MAX};
    CLEANUP(tokens_deinit) struct tokens t = {.max = job->model->info->max_context};
    yyjson_val *v = job->request.input.expected;
    bool plain = yyjson_is_str(v);
    int r = plain ? 0 : add_parts(v, &all);

    if (r == 0)
        r = tokenizer_encode(job->model->info->tokenizer, plain ? json_text(v) : all.data,
                             plain ? json_len(v) : all.len, 0, NULL, 0, &t);
    /* A prediction only makes the answer faster, so one that is too long is ignored. */
    if (r < 0 || t.n == 0)
        return r == -EMSGSIZE ? 0 : r;
    size_t size = t.n * sizeof(*t.id);
    const char *kept = arena_strndup(&job->request.arena, (const char *)t.id, size);
    job->request.submit.prediction = (struct str){kept, kept ? (uint32_t)size : 0};
    return kept ? 0 : -ENOMEM;
}
