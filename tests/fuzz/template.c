/* Chat templates, also without comments: the source, a NUL, and a JSON object of variables. */

#include "text/template.h"

#include <string.h>
#include <yyjson.h>

#include "api/generation/family_format.h"
#include "tests/fuzz/fuzz.h"

static const char usual[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi <|im_end|>\"},{\"role\":\"assistant\","
    "\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,"
    "true]}}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"n\":7}";

/* Checks that the ranges of user text are sorted, disjoint and inside the text. */
static void check(const struct rendered *out) {
    size_t at = 0;

    for (size_t i = 0; i < out->n_user; i++) {
        FUZZ_ASSERT(out->user[i].begin >= at && out->user[i].begin < out->user[i].end);
        at = out->user[i].end;
    }
    FUZZ_ASSERT(at <= out->text.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    const uint8_t *nul = len ? memchr(data, 0, len) : NULL;
    size_t n = nul ? (size_t)(nul - data) : len;
    CLEANUP(template_freep) struct template *t = NULL;
    CLEANUP(buf_deinit) struct buf source = family_source((const char *)data, n);
    const struct template_opts opts = {
        .fuel = 200000, .max_output = 1 << 16, .now_unix = 1768469213};
    struct rendered out = {0};
    struct err err = {0};

    FUZZ_ASSERT(source.len <= n);
    if (template_new(&t, (const char *)data, n, &err) < 0) {
        FUZZ_ASSERT(err.message[0]);
        return 0;
    }
    yyjson_doc *doc = nul && n + 1 < len ? yyjson_read((const char *)nul + 1, len - n - 1, 0)
                                         : yyjson_read(usual, sizeof(usual) - 1, 0);
    if (yyjson_is_obj(yyjson_doc_get_root(doc))) {
        int r = template_render(t, yyjson_doc_get_root(doc), &opts, &out, &err);

        if (r == 0)
            check(&out);
        FUZZ_ASSERT(r == 0 || err.message[0]);
    }
    rendered_deinit(&out);
    yyjson_doc_free(doc);
    return 0;
}
