#include "cmd/bench_target.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/try.h"

#define OPTIONS_MAX 40u

void bench_target_init(struct bench_target *t) {
    *t = (struct bench_target){
        .endpoint = "chat",
        .timeout_s = 600,
        .api_key = getenv("OPENAI_API_KEY"),
        .load = {.chat = true, .stream = true, .ignore_eos = true, .seed = 1},
    };
}

int bench_target_parse(struct bench_target *t, int argc, char **argv,
                       const struct cli_option *options, size_t n, const char *usage) {
    const struct cli_option own[] = {
        {"url", CLI_TEXT, &t->url, 0, 0},
        {"model", CLI_TEXT, &t->model_option, 0, 0},
        {"api-key", CLI_TEXT, &t->api_key, 0, 0},
        {"endpoint", CLI_TEXT, &t->endpoint, 0, 0},
        {"no-ignore-eos", CLI_FALSE, &t->load.ignore_eos, 0, 0},
        {"temperature", CLI_DOUBLE, &t->load.temperature, 0, 10},
        {"seed", CLI_U64, &t->load.seed, 0, 0x1p64},
        {"timeout", CLI_DOUBLE, &t->timeout_s, 0.001, 1e6},
        {"words-per-token", CLI_DOUBLE, &t->load.words_per_token, 0.01, 100},
    };
    struct cli_option all[OPTIONS_MAX];
    int n_args;

    assert(n + ARRAY_SIZE(own) <= OPTIONS_MAX);
    memcpy(all, options, n * sizeof(*all));
    memcpy(all + n, own, sizeof(own));
    int code = cli_parse(argc, argv, all, n + ARRAY_SIZE(own), usage, &n_args);
    if (code >= 0)
        return code;
    if (n_args)
        return cli_usage("unexpected argument \"%s\"", argv[1]);
    if (!t->url)
        return cli_usage("--url is missing: the address of the server");
    t->load.chat = strcmp(t->endpoint, "chat") == 0;
    if (!t->load.chat && strcmp(t->endpoint, "completions") != 0)
        return cli_usage("--endpoint must be chat or completions");
    return -1;
}

static void do_nothing(struct bench_request *q) {}

/* Runs one request with @n_words words to its end. */
static int ask_once(struct bench_http *h, const struct load_opts *o, uint32_t n_words,
                    struct bench_request *q) {
    CLEANUP(session_deinit) struct session session = {0};

    TRY(session_init(&session, o, n_words));
    TRY(session_ask(&session, o, n_words, 1, &q->body));
    TRY(bench_http_start(h, q));
    while (bench_http_n_running(h))
        TRY(bench_http_run(h, 1000));
    return 0;
}

/* Asks the server for the number of prompt tokens in @n_words words; -1: it does not report them.
 * Returns CLI_OK or an exit code. */
static int count_tokens(struct bench_target *t, struct bench_http *h, uint32_t n_words,
                        int64_t *n_tokens) {
    struct load_opts o = t->load;
    struct bench_request q;
    int code = CLI_OK;

    o.words_per_token = 1;
    o.shared_prefix = 0;
    o.stream = false;
    bench_request_init(&q);
    q.done = do_nothing;
    int r = ask_once(h, &o, n_words, &q);
    if (r < 0)
        code = cli_fail("%s: %s", t->url, strerror(-r));
    else if (q.outcome != OUTCOME_OK)
        code = cli_fail("%s: %s: %s", t->url, outcome_name(q.outcome), q.error);
    *n_tokens = q.prompt_tokens;
    bench_http_stop(h); /* after an error q may still run, and ends here */
    bench_request_deinit(&q);
    return code;
}

/* Returns the number of tokens of @n_words words by /tokenize; -1: the server has no such route. */
static int64_t tokenize_words(struct bench_target *t, struct bench_http *h, uint32_t n_words) {
    struct load_opts o = {.words_per_token = 1};
    struct rng rng = {t->load.seed};
    int64_t n = -1;
    struct buf text = {.max = (size_t)1 << 20};

    if (load_words(&text, &o, n_words, &rng) == 0)
        n = bench_http_tokenize(h, t->model, text.data);
    buf_deinit(&text);
    return n;
}

/* Measures words_per_token by the difference of two prompts, which leaves out the tokens that the
 * chat template adds. The prompts are short, because the context of a small model is soon full. */
static int calibrate(struct bench_target *t, struct bench_http *h) {
    int64_t few = tokenize_words(t, h, 16), many = tokenize_words(t, h, 1040);
    int code;

    if (few >= 0 && many > few) {
        t->load.words_per_token = 1024.0 / (double)(many - few);
        return CLI_OK;
    }
    code = count_tokens(t, h, 16, &few);

    if (code == CLI_OK)
        code = count_tokens(t, h, 144, &many);
    if (code != CLI_OK)
        return code;
    if (few >= 0 && many > few) {
        t->load.words_per_token = 128.0 / (double)(many - few);
    } else {
        t->load.words_per_token = 1;
        fprintf(stderr, "the server does not count prompt tokens: each word counts as one\n");
    }
    return CLI_OK;
}

int bench_target_open(struct bench_target *t, struct bench_http **out) {
    const struct bench_http_opts o = {t->url, t->api_key, t->load.chat, t->timeout_s};
    CLEANUP(bench_http_freep) struct bench_http *h = NULL;
    struct err err = {0};
    int r = bench_http_new(&h, &o, &err);

    if (r < 0)
        return cli_fail_err(t->url, &err, r);
    if (t->model_option) {
        snprintf(t->model, sizeof(t->model), "%s", t->model_option);
    } else {
        r = bench_http_model(h, t->model, &err);
        if (r < 0)
            return cli_fail_err(t->url, &err, r);
    }
    t->load.model = t->model; /* stays valid because *t is not moved */
    int code = t->load.words_per_token > 0 ? CLI_OK : calibrate(t, h);
    if (code == CLI_OK)
        *out = STEAL(h);
    return code;
}

static volatile sig_atomic_t interrupted;

static void target_on_interrupt(int sig) {
    interrupted = 1;
}

void bench_watch_interrupts(void) {
    struct sigaction action = {.sa_handler = target_on_interrupt, .sa_flags = (int)SA_RESETHAND};

    sigaction(SIGINT, &action, NULL);
}

bool bench_interrupted(void) {
    return interrupted != 0;
}

void bench_target_json(const struct bench_target *t, yyjson_mut_doc *d, yyjson_mut_val *config) {
    yyjson_mut_obj_add_str(d, config, "url", t->url);
    yyjson_mut_obj_add_strcpy(d, config, "model", t->model);
    yyjson_mut_obj_add_str(d, config, "endpoint", t->endpoint);
    yyjson_mut_obj_add_bool(d, config, "ignore_eos", t->load.ignore_eos);
    yyjson_mut_obj_add_real(d, config, "temperature", t->load.temperature);
    yyjson_mut_obj_add_uint(d, config, "seed", t->load.seed);
    yyjson_mut_obj_add_real(d, config, "words_per_token", t->load.words_per_token);
}
