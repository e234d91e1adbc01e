/* Outputs of models: the first byte chooses the format, the second one options, the third one where
 * the text is cut. Calls are in order, arguments of complete calls are JSON, and the cut has no
 * effect. */

#include <string.h>

#include "tests/api/toolcall_support.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    if (len < 3)
        return -1;
    size_t i = 0, n = 0, cut = data[2];
    const char *text = (const char *)data + 3;

    while (toolcall_at(n))
        n++;
    len -= 3;
    i = data[0] % n;
    struct toolcall_run whole = {.format = toolcall_at(i),
                                 .ended = data[0] / n & 1,
                                 .reasoning =
                                     data[1] & 64 ? toolcall_find_reasoning("think") : NULL,
                                 .opts = {.whole_calls = data[1] & 1,
                                          .only_calls = data[1] & 2,
                                          .in_reasoning = data[1] & 4,
                                          .max_calls = data[1] & 8 ? 1 : 0,
                                          .joined = data[1] & 128,
                                          .max_held = data[1] & 16 ? 40 : 0,
                                          .max_whole = data[1] & 32 ? 40 : 0}};
    struct toolcall_run cuts = whole;
    size_t at[2] = {MIN(cut, len), MIN(cut + 1, len)};

    cuts.cuts = at;
    cuts.n_cuts = 2;
    CLEANUP(freep) char *one = toolcall_tell(&whole, text, len);
    CLEANUP(freep) char *two = toolcall_tell(&cuts, text, len);
    FUZZ_ASSERT(whole.n_line == cuts.n_line && memcmp(one, two, whole.n_line) == 0);
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    size_t format = 0;

    if (i >= n_toolcall_cases)
        return false;
    const struct toolcall_case *c = &toolcall_cases[i];
    while (c->format && toolcall_at(format) != toolcall_find(c->format))
        format++;
    FUZZ_ASSERT(buf_add_char(out, (char)format) == 0 && buf_add(out, "\0\5", 2) == 0);
    return buf_add_str(out, c->in) == 0;
}
