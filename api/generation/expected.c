#include "api/generation/expected.h"

#include <errno.h>

#include "api/generation/model.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"

static int add_parts(yyjson_val *content, struct buf *out) {
    JSON_EACH(part, content) {
        TRY(json_add_text(out, yyjson_obj_get(part, "text")));
    }
    return 0;
}

/* Appends the tokens of the expected text, a string or an array of parts, to @out. */
static int encode_expected(const struct prompt_job *job, struct tokens *out) {
    const struct tokenizer *t = job->model->info->tokenizer;
    CLEANUP(buf_deinit) struct buf all = {.max = REQUEST_PREDICTION_MAX};
    yyjson_val *v = job->request.input.expected;

    if (yyjson_is_str(v))
        return tokenizer_encode(t, json_text(v), json_len(v), 0, NULL, 0, out);
    TRY(add_parts(v, &all));
    return tokenizer_encode(t, all.data, all.len, 0, NULL, 0, out);
}

int expected_encode(struct prompt_job *job) {
    CLEANUP(tokens_deinit) struct tokens t = {.max = job->model->info->max_context};
    int r = encode_expected(job, &t);

    /* A prediction only makes the answer faster, so one that is too long is ignored. */
    if (r < 0 || t.n == 0) {
        if (r == -EMSGSIZE)
            return 0;
        return r;
    }
    size_t size = t.n * sizeof(*t.id);
    const char *kept = arena_strndup(&job->request.arena, (const char *)t.id, size);
    job->request.submit.prediction = (struct str){kept, kept ? (uint32_t)size : 0};
    return enomem_unless(kept);
}
