#pragma once

/*
 * bench_target - the server under test: the options that name it, its model, and how many words of
 * the load make a token in its vocabulary.
 */

#include "base/lib_types.h"
#include "cmd/bench_http.h"
#include "cmd/bench_load.h"
#include "cmd/cli.h"

#define TARGET_USAGE                                                                               \
    "the server:\n"                                                                                \
    "  --url URL             http://host:port, with or without /v1\n"                              \
    "  --model NAME          default: the first model of /v1/models\n"                             \
    "  --api-key K           default: the environment's OPENAI_API_KEY\n"                          \
    "  --endpoint E          chat or completions (chat)\n"                                         \
    "  --no-ignore-eos       do not send ignore_eos, which OpenAI does not have\n"                 \
    "  --temperature T       sampling temperature (0)\n"                                           \
    "  --seed N              seed of the load (1)\n"                                               \
    "  --timeout S           seconds until a request fails (600)\n"                                \
    "  --words-per-token X   words per token of prompts (default: measured by two requests)\n"

struct bench_target {
    const char *url, *api_key, *endpoint, *model_option;
    double timeout_s;
    char model[256];
    struct load_opts load;
};

/* Sets the defaults of the options above. */
void bench_target_init(struct bench_target *t);
/* Parses @options and the target's own options with cli_parse(). */
int bench_target_parse(struct bench_target *t, int argc, char **argv,
                       const struct cli_option *options, size_t n, const char *usage);
/* Asks the server for its model and measures words_per_token. Returns CLI_OK or an exit code. */
int bench_target_open(struct bench_target *t, struct bench_http **out);
/* Lets the first SIGINT end the measurement (bench_interrupted()); the second one ends the
 * process. */
void bench_watch_interrupts(void);
bool bench_interrupted(void);
/* Adds the options as fields of @config. */
void bench_target_json(const struct bench_target *t, yyjson_mut_doc *d, yyjson_mut_val *config);
