/* weft-bench identity - compares greedy texts of a server alone and under load. Every prompt is
 * sent alone first; then all together, beside other requests with other prompts, lengths and
 * temperatures. A server whose arithmetic depends on the batch returns different texts. */

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/try.h"
#include "cmd/bench_cmd.h"
#include "cmd/bench_json.h"
#include "cmd/bench_target.h"

static const char usage[] =
    "usage: weft-bench identity --url URL [options]\n"
    "Prints the share of requests whose greedy text is the same alone and under load.\n"
    "  --prompts K           number of prompts (16)\n"
    "  --rounds R            times that all are sent together (1)\n"
    "  --noise N             other requests that run meanwhile (8)\n"
    "  --prompt-tokens DIST  tokens of a prompt (8-256)\n"
    "  --output-tokens N     tokens of an answer (64)\n"
    "  --strict              exit with 1 if a text differs or a request fails\n"
    "  --json FILE           write the result as JSON (-: stdout)\n" TARGET_USAGE;

/* A prompt, sent alone first and then in each round beside all others. `running` is set while its
 * request is under way. */
struct probe {
    struct bench_request q;
    struct identity *owner;
    /* text of the answer when the prompt was sent alone */
    char *alone;
    size_t n_alone;
    bool running;
};

struct identity {
    struct bench_target target;
    const char *prompt_text, *json;
    struct dist prompt;
    uint32_t n_prompts, n_rounds, n_noise, n_output;
    bool strict;

    struct bench_http *http;
    /* [n_prompts] prompts, then [n_noise] neighbours */
    struct probe *probe;
    uint64_t n_noise_started;
    /* number of probes of this round that are not answered */
    uint32_t n_open;
    uint64_t n_same, n_different, n_failed, n_empty;
    /* smallest offset at which a text differed */
    size_t first_difference;
    char first_error[200];
};

/* Sends a request. @number of the conversation: the same number gives the same request. */
static int identity_send(struct probe *p, uint64_t number, double temperature, uint32_t n_output,
                         void (*done)(struct bench_request *)) {
    struct identity *id = p->owner;
    struct load_opts o = id->target.load;
    CLEANUP(session_deinit) struct session session = {0};

    assert(!p->running);
    o.temperature = temperature;
    o.stream = false;
    bench_request_init(&p->q);
    p->q.keep_text = true;
    p->q.done = done;
    p->q.ctx = p;
    p->running = true;
    TRY(session_init(&session, &o, number));
    TRY(session_ask(&session, &o, dist_draw(&id->prompt, &session.rng), n_output, &p->q.body));
    return bench_http_start(id->http, &p->q);
}

static void identity_forget(struct probe *p) {
    assert(p->running);
    bench_request_deinit(&p->q);
    p->running = false;
}

/* Keeps the text of the answer, which every round must repeat. */
static void on_alone(struct bench_request *q) {
    struct probe *p = q->ctx;

    assert(!p->alone);
    if (q->outcome == OUTCOME_OK) {
        p->n_alone = q->text.len;
        p->alone = STEAL(q->text.data);
        p->owner->n_empty += p->n_alone == 0;
        q->text = (struct buf){.max = q->text.max};
    } else {
        snprintf(p->owner->first_error, sizeof(p->owner->first_error), "%s", q->error);
    }
    identity_forget(p);
}

/* Compares the text with that of the request sent alone. */
static void on_together(struct bench_request *q) {
    struct probe *p = q->ctx;
    struct identity *id = p->owner;
    size_t i = 0;

    assert(id->n_open > 0);
    id->n_open--;
    if (q->outcome != OUTCOME_OK) {
        id->n_failed++;
        if (!id->first_error[0])
            snprintf(id->first_error, sizeof(id->first_error), "%s", q->error);
    } else if (q->text.len == p->n_alone &&
               (!p->n_alone || memcmp(q->text.data, p->alone, p->n_alone) == 0)) {
        id->n_same++;
    } else {
        while (i < q->text.len && i < p->n_alone && q->text.data[i] == p->alone[i])
            i++;
        id->first_difference = id->n_different++ ? MIN(i, id->first_difference) : i;
    }
    identity_forget(p);
}

static void on_noise(struct bench_request *q) {
    identity_forget(q->ctx);
}

/* Sends one prompt after the other. Returns an exit code. */
static int run_alone(struct identity *id) {
    for (uint32_t i = 0; i < id->n_prompts; i++) {
        int r = identity_send(&id->probe[i], i, 0, id->n_output, on_alone);

        while (r == 0 && bench_http_n_running(id->http))
            r = bench_http_run(id->http, 1000);
        if (r < 0)
            return cli_fail("%s: %s", id->target.url, strerror(-r));
        if (!id->probe[i].alone && id->first_error[0])
            return cli_fail("prompt %u alone: %s", i, id->first_error);
    }
    return CLI_OK;
}

/* Keeps noise requests running. They never repeat and have all lengths, so the batch around a
 * probe changes all the time. */
static int keep_noise(struct identity *id) {
    for (uint32_t i = 0; i < id->n_noise; i++) {
        struct probe *p = &id->probe[id->n_prompts + i];
        uint64_t n = id->n_noise_started;

        if (p->running)
            continue;
        id->n_noise_started++;
        TRY(identity_send(p, (1ull << 32) + n, n % 2 ? 1 : 0,
                          1 + (uint32_t)(n * 37 % (2 * id->n_output)), on_noise));
    }
    return 0;
}

static int run_round(struct identity *id) {
    TRY(keep_noise(id));
    for (uint32_t i = 0; i < id->n_prompts; i++) {
        id->n_open++;
        TRY(identity_send(&id->probe[i], i, 0, id->n_output, on_together));
    }
    while (id->n_open) {
        TRY(bench_http_run(id->http, 1000));
        TRY(keep_noise(id));
    }
    return 0;
}

/* Sends all prompts at once, n_rounds times, while neighbours run. Returns an exit code. */
static int run_together(struct identity *id) {
    for (uint32_t round = 0; round < id->n_rounds; round++) {
        int r = run_round(id);

        if (r < 0)
            return cli_fail("%s: %s", id->target.url, strerror(-r));
    }
    return CLI_OK;
}

static int identity_report(struct identity *id) {
    uint64_t n = id->n_same + id->n_different + id->n_failed;
    bool perfect = id->n_same == n;
    FILE *f = id->json && strcmp(id->json, "-") == 0 ? stderr : stdout;
    int code = CLI_OK;

    fprintf(f, "same text alone and under load: %.2f %% (%llu of %llu, %llu failed)\n",
            100.0 * (double)id->n_same / (double)MAX(n, (uint64_t)1),
            (unsigned long long)id->n_same, (unsigned long long)n,
            (unsigned long long)id->n_failed);
    if (id->n_different)
        fprintf(f, "earliest difference at byte %zu\n", id->first_difference);
    if (id->n_failed)
        fprintf(f, "first error: %s\n", id->first_error);
    if (id->n_empty)
        fprintf(f, "%llu texts are empty and prove nothing\n", (unsigned long long)id->n_empty);
    if (id->json) {
        yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
        yyjson_mut_val *root = yyjson_mut_obj(d);

        yyjson_mut_doc_set_root(d, root);
        yyjson_mut_obj_add_str(d, root, "benchmark", "identity");
        bench_target_json(&id->target, d, yyjson_mut_obj_add_obj(d, root, "config"));
        yyjson_mut_obj_add_uint(d, root, "prompts", id->n_prompts);
        yyjson_mut_obj_add_uint(d, root, "rounds", id->n_rounds);
        yyjson_mut_obj_add_uint(d, root, "noise", id->n_noise);
        yyjson_mut_obj_add_uint(d, root, "same", id->n_same);
        yyjson_mut_obj_add_uint(d, root, "different", id->n_different);
        yyjson_mut_obj_add_uint(d, root, "failed", id->n_failed);
        yyjson_mut_obj_add_uint(d, root, "empty", id->n_empty);
        yyjson_mut_obj_add_real(d, root, "share", n ? (double)id->n_same / (double)n : 0);
        code = bench_json_write(d, id->json);
    }
    if (!files_flush() || code != CLI_OK)
        return CLI_FAILED;
    if (id->strict && (!perfect || id->n_empty))
        return CLI_FAILED;
    return CLI_OK;
}

static int identity_measure(struct identity *id) {
    int code = bench_target_open(&id->target, &id->http);

    if (code != CLI_OK)
        return code;
    id->probe = calloc(id->n_prompts + id->n_noise, sizeof(*id->probe));
    if (!id->probe)
        return cli_fail("out of memory");
    for (uint32_t i = 0; i < id->n_prompts + id->n_noise; i++)
        id->probe[i].owner = id;
    code = run_alone(id);
    if (code == CLI_OK)
        code = run_together(id);
    id->http = bench_http_free(id->http); /* ends the neighbours */
    for (uint32_t i = 0; i < id->n_prompts + id->n_noise; i++) {
        if (id->probe[i].running)
            identity_forget(&id->probe[i]);
        free(id->probe[i].alone);
    }
    free(id->probe);
    if (code != CLI_OK)
        return code;
    return identity_report(id);
}

int bench_cmd_identity(int argc, char **argv) {
    struct identity id = {
        .prompt_text = "8-256", .n_prompts = 16, .n_rounds = 1, .n_noise = 8, .n_output = 64};
    const struct cli_option options[] = {
        {"prompts", CLI_U32, &id.n_prompts, 1, 4096},
        {"rounds", CLI_U32, &id.n_rounds, 1, 1e6},
        {"noise", CLI_U32, &id.n_noise, 0, 4096},
        {"prompt-tokens", CLI_TEXT, &id.prompt_text, 0, 0},
        {"output-tokens", CLI_U32, &id.n_output, 1, LENGTH_MAX},
        {"strict", CLI_TRUE, &id.strict, 0, 0},
        {"json", CLI_TEXT, &id.json, 0, 0},
    };
    struct err err = {0};

    bench_target_init(&id.target);
    int code = bench_target_parse(&id.target, argc, argv, options, ARRAY_SIZE(options), usage);
    if (code >= 0)
        return code;
    if (dist_parse(&id.prompt, id.prompt_text, &err) < 0)
        return cli_usage("--prompt-tokens: %s", err.message);
    code = identity_measure(&id);
    bench_http_freep(&id.http);
    return code;
}
