/* Measures how fast the server reads prompts, by three chats with one token of output each: the
 * first waits until the model is loaded, the second is short and the third longer. The rate is the
 * difference of their tokens over the difference of their times. The longer prompt consists of
 * numbers that were not sent before, so that the prefix cache has no part of it. */

#include <string.h>
#include <yyjson.h>

#include "base/clock.h"
#include "cmd/ctl.h"
#include "cmd/ctl_chat.h"
#include "cmd/ctl_launch.h"

#define PROBE_NUMBERS 150 /* number of words of the longer prompt, a few hundred tokens */

/* Measures the time of an answer to @text and the number of prompt tokens that were computed for
 * it. Returns false if the server does not report them. */
static bool launch_probe(struct chat_server *server, const char *model, const char *text,
                         double *seconds, double *n_tokens) {
    struct chat_talk talk = {0};
    struct chat_answer answer = {0};
    struct err err = {0};
    size_t len = 0;
    bool known = false;

    if (chat_talk_init(&talk) == 0 && (talk.model = strdup(model)) &&
        chat_talk_set(&talk, "max_tokens", "1") == 0 &&
        chat_talk_add(&talk, "user", text, strlen(text), NULL) == 0) {
        CLEANUP(freep) char *body = NULL;

        known = chat_talk_body(&talk, &body, &len) == 0 &&
                chat_ask(server, body, len, &(struct chat_sink){0}, &answer, &err) == CTL_OK;
    }
    yyjson_val *usage = yyjson_obj_get(yyjson_doc_get_root(answer.usage), "usage");
    yyjson_val *cached =
        yyjson_obj_get(yyjson_obj_get(usage, "prompt_tokens_details"), "cached_tokens");
    *n_tokens = yyjson_get_num(yyjson_obj_get(usage, "prompt_tokens")) - yyjson_get_num(cached);
    *seconds = answer.total_s;
    chat_answer_deinit(&answer);
    chat_talk_deinit(&talk);
    return known && usage;
}

double launch_prompt_rate(struct chat_server *server, const char *model) {
    char text[PROBE_NUMBERS * 8];
    size_t n = 0;
    double short_s, long_s, n_short, n_long;
    uint64_t x = (uint64_t)clock_now(clock_monotonic());

    for (int i = 0; i < PROBE_NUMBERS; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%u ", (unsigned)(x >> 44) % 100000);
    }
    if (!launch_probe(server, model, "Hi", &short_s, &n_short) ||
        !launch_probe(server, model, "Hello", &short_s, &n_short) ||
        !launch_probe(server, model, text, &long_s, &n_long) || n_long <= n_short ||
        long_s <= short_s)
        return 0;
    return (n_long - n_short) / (long_s - short_s);
}
