/*
 * Mutated texts, with a fixed seed. For any text the parser ends, its events are in order, complete
 * calls have valid JSON (toolcall_tell() checks both), and cuts have no effect.
 */

#include <criterion/criterion.h>
#include <string.h>

#include "tests/api/toolcall_support.h"

#define ROUNDS 2000
#define TEXT_MAX 4096u

static uint64_t state = 42;

static uint32_t draw(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static void copy_piece(char *text, size_t *len) {
    const char *from = toolcall_cases[draw((uint32_t)n_toolcall_cases)].in;
    size_t n = strlen(from), at = draw((uint32_t)n), take = 1 + draw(40);
    size_t to = draw((uint32_t)*len + 1);

    take = MIN(take, n - at);
    if (*len + take > TEXT_MAX)
        return;
    memmove(text + to + take, text + to, *len - to);
    memcpy(text + to, from + at, take);
    *len += take;
}

static void mutate(char *text, size_t *len) {
    static const char bytes[] = "<>{}[]()\"'\\|:=,;/ \n\tae019_-.\x00\x01\x7f\x80\xff";
    size_t at = draw((uint32_t)*len + 1);

    switch (draw(5)) {
    case 0:
        if (at < *len)
            text[at] = bytes[draw(sizeof(bytes) - 1)];
        break;
    case 1:
        if (at < *len) {
            size_t n = 1 + draw(12);

            n = MIN(n, *len - at);
            memmove(text + at, text + at + n, *len - at - n);
            *len -= n;
        }
        break;
    case 2:
        *len = draw(4) ? *len : at;
        break;
    default:
        copy_piece(text, len);
    }
}

/* Returns true for formats with markers besides those of calls; these markers are dropped. */
static bool drops(const struct toolcall_case *c) {
    static const char *const names[] = {
        "harmony",     "atem",          "kimi-k3",      "solar",        "llama3",
        "functionary", "command-r7b",   "hyperclova",   "hunyuan-a13b", "ernie",
        "llama4",      "llama4-python", "hunyuan-dense"};
    bool yes = c->reasoning;

    for (size_t i = 0; c->format && i < ARRAY_SIZE(names); i++)
        yes |= strcmp(c->format, names[i]) == 0;
    return yes;
}

static void check(const struct toolcall_case *c, const char *text, size_t len) {
    struct toolcall_run r = toolcall_run_of(c);
    size_t cuts[4] = {0};

    r.opts.whole_calls = draw(2);
    r.opts.max_held = r.opts.max_whole = draw(3) ? 0 : 1 + draw(300);
    r.opts.in_reasoning = c->reasoning && draw(2);
    CLEANUP(freep) char *one = toolcall_tell(&r, text, len);

    size_t n_one = r.n_line;

    if (r.opts.whole_calls && r.n_calls == 0 && len && !drops(c))
        cr_expect(n_one == len + 3 && memcmp(one + 2, text, len) == 0,
                  "%s: what is no call comes back unchanged: %s", c->format, one);
    for (int i = 0; i < 4; i++) {
        cuts[i] = (i ? cuts[i - 1] : 0) + draw((uint32_t)len / 2 + 2);
        cuts[i] = MIN(cuts[i], len);
    }
    r.cuts = cuts;
    r.n_cuts = 4;
    CLEANUP(freep) char *two = toolcall_tell(&r, text, len);

    cr_expect(n_one == r.n_line && memcmp(one, two, n_one) == 0,
              "%s at %zu %zu %zu %zu:\n%.*s\n%s\n%s", c->format, cuts[0], cuts[1], cuts[2], cuts[3],
              (int)len, text, one, two);
}

Test(toolcall_fuzz, mutated_texts_are_harmless) {
    static char text[TEXT_MAX];

    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < n_toolcall_cases; i++) {
            const struct toolcall_case *c = &toolcall_cases[i];
            size_t len = strlen(c->in);

            memcpy(text, c->in, len);
            for (uint32_t n = 1 + draw(6); n; n--)
                mutate(text, &len);
            check(c, text, len);
        }
}
