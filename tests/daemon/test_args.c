#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/front/args.h"
#include "daemon/front/environment.h"
#include "daemon/front/llama_options.h"

#define MOST 48

/* Splits @line at spaces and translates it. */
static struct args translated(const char *line) {
    static char text[1000];
    char *argv[MOST + 1] = {(char *)(uintptr_t) "weftd"}, *rest = NULL;
    struct args a;
    int argc = 1;

    snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    cr_assert_leq(argc, MOST);
    cr_assert_eq(args_translate(&a, &(struct args_pairs){0}, argc, argv), 0);
    return a;
}

/* Translates @line and reads the result. Returns the text of refusals, or "". */
static const char *read_line(const char *line, struct config *c) {
    static char refused[4000];
    CLEANUP(args_deinit) struct args a = translated(line);
    struct err err = {0};

    snprintf(refused, sizeof(refused), "%s", a.n_refused ? a.refused.data : "");
    cr_assert_eq(config_init(c), 0);
    cr_assert_eq(config_read_args(c, a.n, a.v, &err), 0, "%s: %s", line, err.message);
    return refused;
}

Test(args, a_line_for_llama_server_is_ours) {
    struct config c;
    const char *refused = read_line(
        "-m /x.gguf -c 32768 -ngl 99 -fa on --jinja --host 0.0.0.0 --port 9000 -np 4 --alias "
        "b,a,ab "
        "--cache-type-k q8_0 -ctv q8_0 --slots --metrics --temp 0.7 --top-p=0.9 --seed -1 --mlock "
        "-t -1 -ub 256 -b 2048 -n -1 --no-mmap --tags chat,small",
        &c);

    cr_expect_str_eq(refused, "");
    cr_expect_str_eq(c.model, "/x.gguf");
    cr_expect_eq(c.engine.max_context, 8192);
    cr_expect(c.engine.max_seqs == 4 && c.api.max_running == 4);
    cr_expect_str_eq(c.listen[0], "0.0.0.0:9000");
    cr_expect_str_eq(c.model_name, "a");
    cr_expect(strcmp(c.aliases[0], "b") == 0 && strcmp(c.aliases[1], "ab") == 0 && !c.aliases[2]);
    cr_expect(strcmp(c.tags[0], "chat") == 0 && strcmp(c.tags[1], "small") == 0 && !c.tags[2]);
    cr_expect(c.kv_type == 0 && c.kv_type_k == 2 && c.kv_type_v == 2);
    cr_expect(strcmp(c.sampling[0], "temperature=0.7") == 0 &&
              strcmp(c.sampling[1], "top_p=0.9") == 0 && !c.sampling[2]);
    cr_expect_eq(c.engine.n_threads, 0);
    cr_expect_eq(c.engine.max_rows, 256);
    cr_expect_eq(c.api.default_max_tokens, 0);
    config_deinit(&c);
}

Test(args, what_depends_on_each_other) {
    static const struct {
        const char *line, *listen;
        uint32_t max_context;
    } cases[] = {
        {"-c 100", "127.0.0.1:8080", 100},
        {"-np 3 -c 100 --port 1", "127.0.0.1:1", 34},
        {"-np 3 -c 100 -kvu --host ::1", "[::1]:8080", 100},
        {"--host /tmp/x.sock -c 0", "unix:/tmp/x.sock", 0},
        {"--host 127.0.0.1,::1 --port 2", "127.0.0.1:2", 0},
        {"--ssl-cert-file c --ssl-key-file k", "tls:127.0.0.1:8080", 0},
        {"--listen 127.0.0.1:5", "127.0.0.1:5", 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct config c;

        cr_expect_str_eq(read_line(cases[i].line, &c), "", "%s", cases[i].line);
        cr_expect_str_eq(c.listen[0], cases[i].listen);
        cr_expect_eq(c.engine.max_context, cases[i].max_context, "%s", cases[i].line);
        config_deinit(&c);
    }
}

/* Returns what is told of @a, or ""; static. */
static const char *told_of(const struct args *a) {
    static char text[400];

    text[0] = 0;
    if (a->here.len)
        snprintf(text, sizeof(text), "ignored %s", a->here.data);
    else if (a->noted.len)
        snprintf(text, sizeof(text), "noted %s", a->noted.data);
    else if (a->refused.len)
        snprintf(text, sizeof(text), "refused %s", a->refused.data);
    return text;
}

/* Values of llama-server and vLLM that are others here. */
Test(args, values_are_translated_or_told) {
    static const struct {
        const char *line, *ours, *told;
    } cases[] = {
        {"--draft-max 8", " --max-draft=8", ""},
        {"--draft-max 0", " --speculation=off", ""},
        {"--draft-max -1", " --speculation=off", ""},
        {"--draft-max 4x", "", R"(refused --draft-max: "4x" is not)"},
        {"--draft-max 32", " --max-draft=32", ""},
        {"--draft-max 33", " --max-draft=32", "noted --draft-max: 33 is more than weftd uses: 32"},
        {"--max-num-seqs 0", "", ""},
        {"--max-model-len 4096", " --max-context=4096", ""},
        {"--max-model-len 32k", " --max-context=32000", ""},
        {"--max-model-len 32K", " --max-context=32768", ""},
        {"--max-model-len auto", "", ""},
        {"--max-model-len -1", "", ""},
        {"--max-model-len k", "", R"(refused --max-model-len: "k" is not)"},
        {"--max-model-len 1M", "", R"(refused --max-model-len: "1M" is not)"},
        {"-tp 1", "", ""},
        {"-tp 3", " --devices=0,1,2", ""},
        {"-pp 16", " --devices=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", ""},
        {"-tp 17", "", "refused -tp: --devices 0,1 names"},
        {"-tp 0", "", "refused -tp: --devices 0,1 names"},
        {"-tp x", "", R"(refused -tp: "x" is not)"},
        {"-dp 1", "", "ignored -dp"},
        {"-dp 2", "", "refused -dp: start one weftd for each"},
        {"-dev none", " --backend=cpu", ""},
        {"-dev CPU", " --backend=cpu", ""},
        {"-dev CUDA1,cuda0,2", " --devices=1,0,2", ""},
        {"-dev 255", " --devices=255", ""},
        {"-dev 1000", "", "refused -dev: --devices 0,1 names CUDA devices"},
        {"-dev CUDA", "", "refused -dev: --devices 0,1 names CUDA devices"},
        {"-dev 0x", "", "refused -dev: --devices 0,1 names CUDA devices"},
        {"-ngl 0", " --backend=cpu", ""},
        {"-ngl 1", "", "ignored -ngl"},
        {"-ot .ffn_.*_exps.=CPU", "", "noted -ot: weftd leaves as many experts"},
        {"-ot a=CUDA0,ffn_exps=cpu", "", "noted -ot: weftd leaves as many experts"},
        {"-ot exps=CUDA0,a=CUDA1", "", "ignored -ot"},
        {"-ot ffn=CPU,exps=CPU", "", "refused -ot: --device-layers N leaves"},
        {"-ot exps", "", "refused -ot: --device-layers N leaves"},
        {"--gpt-oss-20b-default", " --model=hf:ggml-org/gpt-oss-20b-GGUF --listen=127.0.0.1:8013",
         ""},
        {"--port 1 --gpt-oss-20b-default",
         " --model=hf:ggml-org/gpt-oss-20b-GGUF --listen=127.0.0.1:1", ""},
        {"--uvicorn-log-level critical", " --log-level=error", ""},
        {"--uvicorn-log-level WARNING", " --log-level=warn", ""},
        {"--uvicorn-log-level trace", " --log-level=debug", ""},
        {"--uvicorn-log-level all", "", "refused --uvicorn-log-level: use --log-level error, warn"},
        {"--kv-cache-dtype auto", "", "ignored --kv-cache-dtype"},
        {"--kv-cache-dtype bfloat16", "", "ignored --kv-cache-dtype"},
        {"--kv-cache-dtype fp8", "",
         "refused --kv-cache-dtype: format fp8 does not exist here: use --kv-type q8_0"},
        {"--served-model-name a", " --model-name=a", ""},
        {"--served-model-name a b c --port 2", " --model-name=a --aliases=b,c --listen=127.0.0.1:2",
         ""},
        {"--served-model-name a b -ngl 0", " --model-name=a --aliases=b --backend=cpu", ""},
        {"--mirostat 0", "", "ignored --mirostat"},
        {"--adaptive-target -1.0", "", "ignored --adaptive-target"},
        {"--mirostat 2", "", "refused --mirostat: this sampler is not implemented"},
        {"--mirostat off", "", "refused --mirostat: this sampler is not implemented"},
        {"--swap-space 4.5", " --host-kv-memory=4G", ""},
        {"--swap-space 0", "", ""},
        {"-cram 100", " --host-kv-memory=100M", ""},
        {"-cram 0", "", ""},
        {"-cram -1", "", ""},
        {"--reasoning-budget 0", " --reasoning=off", ""},
        {"--reasoning-budget -1", "", ""},
        {"--reasoning-budget 5", "",
         "refused --reasoning-budget: send it in requests as thinking_budget"},
        {"-hf o/r:Q8_0", " --model=hf:o/r:Q8_0", ""},
        {"-hf hf:o/r", " --model=hf:o/r", ""},
        {"--cpu-offload-gb 4", "", "noted --cpu-offload-gb: what does not fit is left"},
        {"--model", " --model", ""}, /* whose lack of a value config_read_args() tells */
        {"-fa --no-slots", " --slots=no", "ignored -fa"},
        {"-fa=off --no-slots", " --slots=no", "ignored -fa"},
        {"--flash_attn auto --no-slots", " --slots=no", "ignored --flash_attn"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(args_deinit) struct args a = translated(cases[i].line);
        char ours[200] = "";

        for (int k = 1; k < a.n; k++)
            snprintf(ours + strlen(ours), sizeof(ours) - strlen(ours), " %s", a.v[k]);
        cr_expect_str_eq(ours, cases[i].ours, "%s: %s", cases[i].line, ours);
        cr_expect(strncmp(told_of(&a), cases[i].told, strlen(cases[i].told)) == 0 &&
                      *told_of(&a) == *cases[i].told,
                  "%s: %s", cases[i].line, told_of(&a));
        cr_expect_eq(a.n_refused, *cases[i].told == 'r');
    }
}

/* The list of addresses is longer than other texts: 60,000 hosts, each with the port. */
Test(args, hosts_may_be_as_many_as_the_command_line_has) {
    static char hosts[120000];
    char *argv[] = {"weftd", "--host", hosts, "--port", "65535", NULL};
    CLEANUP(args_deinit) struct args a = {0};

    for (size_t i = 0; i + 1 < sizeof(hosts); i++)
        hosts[i] = i % 2 ? ',' : 'a';
    cr_assert_eq(args_translate(&a, &(struct args_pairs){0}, 5, argv), 0);
    cr_expect(a.n == 2 && a.n_refused == 0);
    cr_expect_eq(strlen(a.v[1]), strlen("--listen=") + 8 * sizeof(hosts) / 2 - 1);
}

/* weftd splits no model unless devices are named. */
Test(args, how_a_model_is_split_is_told_unless_it_is_not) {
    CLEANUP(args_deinit) struct args whole = translated("-sm none");
    CLEANUP(args_deinit) struct args parts = translated("-sm layer");

    cr_expect_str_eq(whole.here.data, "-sm");
    cr_expect_eq(whole.noted.len, 0);
    cr_expect_eq(parts.here.len, 0);
    cr_expect(strstr(parts.noted.data, "--devices"), "%s", parts.noted.data);
}

/* The options with which llama.cpp's own server tests start their server; each line begins with the
 * options common to all. */
Test(args, lines_of_llama_cpps_server_tests_start) {
    static const char *const here[] = {"--offline",
                                       "--model /d.gguf",
                                       "--model-draft /d.gguf",
                                       "--hf-repo o/r",
                                       "--models-dir /d",
                                       "--cors-origins https://a.example",
                                       "--batch-size 32",
                                       "--ubatch-size 128",
                                       "--threads 2",
                                       "--n-gpu-layers 99",
                                       "--cont-batching",
                                       "--embedding",
                                       "--reranking",
                                       "--metrics",
                                       "--kv-unified",
                                       "--swa-full",
                                       "--slots",
                                       "--pooling mean",
                                       "--alias tinyllama-2,fim",
                                       "--tags chat,small",
                                       "--ctx-size 512",
                                       "--parallel 2",
                                       "-ctk q8_0",
                                       "-ctv q8_0",
                                       "-fa on",
                                       "--n-predict 64",
                                       "--verbose",
                                       "--spec-type draft-simple",
                                       "--api-key sk-test",
                                       "--spec-draft-n-max 8",
                                       "--spec-draft-n-min 4",
                                       "--no-ui",
                                       "--no-webui",
                                       "--jinja",
                                       "--reasoning-format none",
                                       "--reasoning off",
                                       "--chat-template chatml",
                                       "--chat-template-file /t.jinja",
                                       "--no-mmproj",
                                       "--sleep-idle-seconds 1",
                                       "--cache-ram 100",
                                       "--cache-reuse-hybrid 32",
                                       "--cache-reuse-hybrid-min-share 0.5",
                                       "--no-cache-idle-slots",
                                       "--backend_sampling"};
    /* Features that weftd does not have, so it must not start with these options. */
    static const char *const refused[] = {"--model-url http://m.example/m.gguf",
                                          "--hf-file m.gguf",
                                          "--models-max 2",
                                          "--models-preset p.ini",
                                          "--no-models-autoload",
                                          "--slot-save-path /s",
                                          "--grp-attn-n 4",
                                          "--grp-attn-w 8",
                                          "--lora l.gguf",
                                          "--context-shift",
                                          "--spec-synth-len 4",
                                          "--spec-synth-rates 0.5,0.2",
                                          "--mmproj-url http://m.example/m.gguf",
                                          "--media-path /m",
                                          "--tools all",
                                          "--tools-runtime r",
                                          "--mcp-servers-config c.json",
                                          "--mcp-servers-json {}",
                                          "--ui-mcp-proxy"};
    static const char common[] = "--port 8080 --temp 0.8 --seed 42 --host 127.0.0.1 --no-slots "
                                 "--no-jinja";
    char line[300];
    struct config c;

    for (size_t i = 0; i < ARRAY_SIZE(here); i++) {
        snprintf(line, sizeof(line), "%s %s", common, here[i]);
        cr_expect_str_eq(read_line(line, &c), "", "%s", line);
        cr_expect(!c.api.slots && strcmp(c.listen[0], "127.0.0.1:8080") == 0, "%s", line);
        config_deinit(&c);
    }
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        snprintf(line, sizeof(line), "%s %s", common, refused[i]);
        const char *said = read_line(line, &c);
        cr_expect(strstr(said, ": ") && !strstr(said, "unknown option"), "%s: %s", line, said);
        cr_expect_eq(memcmp(said, refused[i], strcspn(refused[i], " ")), 0, "%s", said);
        config_deinit(&c);
    }
}

Test(args, all_that_cannot_be_used_is_told_at_once) {
    static const char *const parts[] = {
        "--mmproj-url: download the file",
        "--lora: adapters are not supported: merge it",
        "--no-such: unknown option (weftd",
        "--thread: unknown option; is --threads meant?",
        "x.gguf: not an option; a model is given with --model FILE",
        "-ctk: format q5_1 does not exist here: use --kv-type-k f16|q8_0|q4_0",
        R"(-c: "4x" is not a whole number)",
        R"(-c: "-4" is not a whole number)",
        R"(-c: "18446744073709551615" is too large)",
        R"(--port: "http" is not a whole number)",
        "-m: needs a value",
    };
    CLEANUP(args_deinit)
    struct args a =
        translated("--mmproj-url p.gguf --lora l.gguf --no-such --thread=3 --jinja x.gguf "
                   "-ctk q5_1 -c 4x -c -4 -c 18446744073709551615 --port http -m");

    cr_expect_eq(a.n_refused, ARRAY_SIZE(parts), "%u", a.n_refused);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        cr_expect(strstr(a.refused.data, parts[i]), "%s in %s", parts[i], a.refused.data);
    cr_expect_str_eq(a.here.data, "--jinja");
}

Test(args, options_list_each_format_of_pages) {
    char names[100] = "";

    for (size_t i = 0; i < ARRAY_SIZE(kv_types); i++)
        if (!kv_types[i].judges)
            snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
                     names[0] ? "|" : "", kv_types[i].name);
    cr_expect_str_eq(names, KV_TYPE_NAMES);
}

Test(args, our_own_options_are_untouched) {
    struct config c;

    cr_expect_str_eq(read_line("--model -fa --threads 3 --reasoning off --kv-type=q4_0", &c), "");
    cr_expect_str_eq(c.model, "-fa");
    cr_expect_eq(c.engine.n_threads, 3);
    cr_expect(c.kv_type == 2 && c.kv_type_k == 0);
    config_deinit(&c);
}

/* Reads @line after the variables @envp. */
static void read_with(char **envp, const char *line, struct config *c) {
    CLEANUP(environment_deinit) struct environment e = {0};
    CLEANUP(args_deinit) struct args first = {0}, a = {0};
    struct args_pairs pairs = {0};
    char *argv[] = {(char *)(uintptr_t) "weftd", (char *)(uintptr_t)line};
    struct err err = {0};

    cr_assert_eq(config_init(c), 0);
    cr_assert_eq(environment_read(&e, envp), 0);
    cr_assert_eq(args_translate(&first, &pairs, e.n, e.v), 0);
    cr_assert_eq(config_read_args(c, first.n, first.v, &err), 0, "%s", err.message);
    cr_assert_eq(args_translate(&a, &pairs, *line ? 2 : 1, argv), 0);
    cr_assert_eq(config_read_args(c, a.n, a.v, &err), 0, "%s", err.message);
}

Test(args, the_environment_is_below_the_command_line) {
    char *envp[] = {"LLAMA_ARG_HOST=0.0.0.0",
                    "LLAMA_ARG_CTX_SIZE=400",
                    "LLAMA_ARG_N_PARALLEL=4",
                    "LLAMA_ARG_FLASH_ATTN=on",
                    "LLAMA_ARG_NO_WEBUI=0",
                    "LLAMA_ARG_LOG_VERBOSE=1",
                    "OLLAMA_KEEP_ALIVE=1h",
                    "OLLAMA_KV_CACHE_TYPE=q8_0",
                    "OLLAMA_LOAD_TIMEOUT=2m",
                    "OLLAMA_DEBUG=",
                    "UNRELATED=1",
                    NULL};
    struct config c;

    read_with(envp, "", &c);
    cr_expect_str_eq(c.listen[0], "0.0.0.0:8080");
    cr_expect(c.engine.max_context == 100 && c.engine.max_seqs == 4);
    cr_expect(c.api.web_page, "a variable that is off");
    cr_expect_eq(c.keep_alive_s, 3600);
    cr_expect_eq(c.load_timeout_ms, 120000);
    cr_expect_eq(c.kv_type, 1);
    config_deinit(&c);
    read_with(envp, "--port=9000", &c); /* completes the host */
    cr_expect_str_eq(c.listen[0], "0.0.0.0:9000");
    cr_expect_eq(c.engine.max_context, 100);
    config_deinit(&c);
    read_with(envp, "-c=800", &c); /* is divided as in the variable's own line */
    cr_expect_eq(c.engine.max_context, 200);
    config_deinit(&c);
    read_with(envp, "--listen=127.0.0.1:1", &c);
    cr_expect_str_eq(c.listen[0], "127.0.0.1:1");
    config_deinit(&c);
}

Test(args, ollamas_address_has_many_forms) {
    static const char *const cases[][2] = {
        {"OLLAMA_HOST=0.0.0.0", "0.0.0.0:11434"},
        {"OLLAMA_HOST=http://127.0.0.1:99/", "127.0.0.1:99"},
        {"OLLAMA_HOST=:80", "127.0.0.1:80"},
        {"OLLAMA_HOST=[::1]", "[::1]:11434"},
        {"OLLAMA_HOST=[::1]:7", "[::1]:7"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *envp[] = {(char *)(uintptr_t)cases[i][0], NULL};
        struct config c;

        read_with(envp, "", &c);
        cr_expect_str_eq(c.listen[0], cases[i][1], "%s: %s", cases[i][0], c.listen[0]);
        config_deinit(&c);
    }
}

Test(args, ollamas_times_have_units) {
    static const struct {
        const char *value;
        uint32_t seconds;
    } cases[] = {{"90", 90}, {"5m", 300}, {"1.5h", 5400}, {"2500ms", 2}, {"300ms", 1},
                 {"0", 1},   {"0.0h", 1}, {"-1", 0},      {"-5m", 0},    {"7s", 7}};
    char variable[60];
    struct config c;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *envp[] = {variable, "OLLAMA_DEBUG=1", "OLLAMA_NOHISTORY=1", NULL};

        snprintf(variable, sizeof(variable), "OLLAMA_KEEP_ALIVE=%s", cases[i].value);
        read_with(envp, "", &c);
        cr_expect_eq(c.keep_alive_s, cases[i].seconds, "%s: %u", variable, c.keep_alive_s);
        cr_expect_eq(config_log_level(&c), WLOG_DEBUG);
        config_deinit(&c);
    }
    char *envp[] = {"OLLAMA_KEEP_ALIVE=5x", "OLLAMA_DEBUG=0", NULL};
    CLEANUP(environment_deinit) struct environment e = {0};
    cr_assert_eq(environment_read(&e, envp), 0);
    cr_expect(e.n == 2 && strcmp(e.v[1], "--keep-alive-s=5x") == 0, "%d", e.n);
}

/* Each row leads to options that exist. */
Test(args, every_row_can_be_typed) {
    static const char *const names[] = {"-m",
                                        "-hf",
                                        "-fa",
                                        "--no-mmproj",
                                        "-ngl",
                                        "--temp",
                                        "-cmoe",
                                        "--sleep-idle-seconds",
                                        "--reasoning-budget",
                                        "-cram"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        CLEANUP(args_deinit) struct args a = {0};
        char *argv[] = {(char *)(uintptr_t) "weftd", (char *)(uintptr_t)names[i],
                        (char *)(uintptr_t) "1"};

        cr_assert_not_null(llama_option_find(names[i], strlen(names[i])), "%s", names[i]);
        cr_assert_eq(args_translate(&a, &(struct args_pairs){0}, 3, argv), 0);
        for (int k = 1; k < a.n; k++)
            cr_expect(config_has(a.v[k] + 2, strcspn(a.v[k] + 2, "=")), "%s", a.v[k]);
    }
}

Test(args, keys_lie_in_a_file_that_only_we_can_read) {
    CLEANUP(args_deinit) struct args a = translated("--api-key one,two --api-key three");
    char text[64] = "";
    struct stat st;

    cr_assert_geq(a.n, 2);
    const char *path = strchr(a.v[1], '=') + 1;
    FILE *f = fopen(path, "r");
    cr_assert(f && fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    cr_expect_str_eq(text, "one\ntwo\nthree\n");
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0600);
    CLEANUP(args_deinit) struct args again = translated("--api-key four");
    cr_expect_str_eq(again.v[1], a.v[1]);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_size, 5, "a reload has no keys of the former arguments");
}

static void put_file(const char *folder, const char *name, const char *text) {
    char path[200];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

/* Returns the path of the model for `--model @folder`, "" if it is refused; static. */
static const char *model_of(const char *folder, struct err *err) {
    static char path[300];
    struct config c;
    char *argv[] = {(char *)(uintptr_t) "weftd", (char *)(uintptr_t) "--model",
                    (char *)(uintptr_t)folder};

    cr_assert_eq(config_init(&c), 0);
    int r = args_read(&c, 3, argv, NULL, err);

    snprintf(path, sizeof(path), "%s", r == 0 ? c.model : "");
    config_deinit(&c);
    return path;
}

/* A folder stands for the model in it, whatever lies beside the model. */
Test(args, a_folder_stands_for_its_model) {
    char folder[] = "/tmp/weft-args-XXXXXX", name[100], want[100];
    struct err err = {0};

    cr_assert_not_null(mkdtemp(folder));
    cr_expect_str_eq(model_of(folder, &err), "");
    cr_expect(strstr(err.message, "neither a GGUF file of a model nor safetensors"), "%s",
              err.message);
    cr_expect_str_eq(err.param, "model");
    put_file(folder, "Big-Q8_0-00001-of-00002.gguf", "GGUF");
    put_file(folder, "mmproj-F16.gguf", "GGUF");
    put_file(folder, "README.md", "Big");
    cr_expect_str_eq(model_of(folder, &err), "");
    cr_expect(strstr(err.message, "Big-Q8_0: 1 of its 2 files are missing"), "%s", err.message);
    put_file(folder, "Big-Q8_0-00002-of-00002.gguf", "GGUF");
    snprintf(want, sizeof(want), "%s/Big-Q8_0-00001-of-00002.gguf", folder);
    snprintf(name, sizeof(name), "%s/", folder);
    cr_expect_str_eq(model_of(name, &err), want);
    cr_expect_str_eq(model_of(folder, &err), want);
    put_file(folder, "Big-Q4_0.gguf", "GGUF");
    cr_expect_str_eq(model_of(folder, &err), "");
    cr_expect(strstr(err.message, "several models; name the file of one: Big-Q4_0, Big-Q8_0"), "%s",
              err.message);
    snprintf(name, sizeof(name), "rm -r %s", folder);
    cr_assert_eq(system(name), 0);
}

/* A model that weftctl has downloaded is found by its names; for another one the error says how to
 * get it. */
Test(args, models_have_names) {
    char folder[] = "/tmp/weft-args-XXXXXX", path[100];
    struct config c;
    struct err err = {0};

    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/Tiny-Q8_0.gguf", folder);
    put_file(folder, "Tiny-Q8_0.gguf", "GGUF");
    setenv("WEFT_MODELS", folder, 1);
    for (const char *const *name =
             (const char *const[]){"tiny-q8_0", "Tiny", "Tiny-Q8_0-00001-of-00002", path, NULL};
         *name; name++) {
        char *argv[] = {(char *)(uintptr_t) "weftd", (char *)(uintptr_t) "-m",
                        (char *)(uintptr_t)*name};

        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(args_read(&c, 3, argv, NULL, &err), 0, "%s", err.message);
        cr_expect_str_eq(c.model, path);
        config_deinit(&c);
    }
    static const char *const absent[][2] = {
        {"hf:me/other:Q4_0", "run weftctl pull hf:me/other:Q4_0"},
        {"TIN", "is Tiny-Q8_0 meant?"},
        {"tiny-q8_0-chat", "is Tiny-Q8_0 meant?"},
        {"other", "no file and no model has this name"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(absent); i++) {
        char *argv[] = {(char *)(uintptr_t) "weftd", (char *)(uintptr_t) "--model",
                        (char *)(uintptr_t)absent[i][0]};

        cr_assert_eq(config_init(&c), 0);
        cr_expect_lt(args_read(&c, 3, argv, NULL, &err), 0);
        cr_expect(strstr(err.message, absent[i][1]), "%s", err.message);
        config_deinit(&c);
    }
    unlink(path);
    rmdir(folder);
}

/* Returns what a start with the arguments @argv says, beside its @error; static. */
static const char *notes_of(int argc, char **argv, const char *error) {
    static char text[1000];
    FILE *notes = tmpfile();
    struct err err = {0};
    struct config c;

    cr_assert_not_null(notes);
    cr_assert_eq(config_init(&c), 0);
    int r = args_read(&c, argc, argv, notes, &err);
    config_deinit(&c);
    rewind(notes);
    text[fread(text, 1, sizeof(text) - 1, notes)] = 0;
    fclose(notes);
    cr_expect_eq(r < 0, *error != 0);
    cr_expect_str_eq(err.message, error);
    return text;
}

/* Variables of the environment do not prevent a start. */
Test(args, a_start_says_what_becomes_of_options) {
    char *usable[] = {"weftd", "--jinja", "-fa", "--numa", "isolate", NULL};
    char *refused[] = {"weftd", "--lora", "a", "--jinja", "--lora", "b", NULL};

    environ = (char *[]){NULL};
    cr_expect_str_eq(
        notes_of(5, usable, ""),
        "weftd: --numa: numactl binds weftd to a node\n"
        "weftd: ignored, because it always applies or weftd decides it: --jinja, -fa\n");
    cr_expect_str_eq(notes_of(1, usable, ""), "");
    cr_expect_str_eq(
        notes_of(6, refused, "2 options of the command line cannot be used (see above)"),
        "weftd: --lora: adapters are not supported: merge it into the model\n"
        "weftd: --lora: adapters are not supported: merge it into the model\n");
    environ = (char *[]){"LLAMA_ARG_CTX_SIZE=4x", "LLAMA_ARG_LORA=a", "VLLM_X=1", "OLLAMA_X=1",
                         "LLAMA_ARG_X_Y=1",       "LLAMA_ARG_BATCH=", "HOME=/",   NULL};
    cr_expect_str_eq(
        notes_of(1, usable, ""),
        "weftd: from the environment: LLAMA_ARG_CTX_SIZE, LLAMA_ARG_LORA\n"
        "weftd: not read from the environment: VLLM_X, OLLAMA_X, LLAMA_ARG_X_Y\n"
        R"(weftd: environment: --ctx-size: "4x" is not a whole number)"
        "\n"
        "weftd: environment: --lora: adapters are not supported: merge it into the model\n");
}

/* A '-' of the table may be typed as '_', and no other letter may differ. */
Test(args, names_have_lines_of_either_kind) {
    static const struct {
        const char *typed;
        bool is_known;
    } all[] = {{"--ctx-size", true},   {"--ctx_size", true},   {"__ctx_size", true},
               {"--ctx+size", false},  {"-+ctx-size", false},  {"--c_x-size", false},
               {"--ctx-siz", false},   {"--ctx-sizes", false}, {"--CTX-SIZE", false},
               {"-c", true},           {"_c", true},           {"-", false},
               {"--root_path", true},  {"--root-path", true},  {"--middleware", true},
               {"--middlewar", false}, {"--root-path,", false}};

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        cr_expect_eq(llama_option_find(all[i].typed, strlen(all[i].typed)) != NULL, all[i].is_known,
                     "%s", all[i].typed);
    cr_expect_not_null(llama_option_find("--ctx-size=9", strlen("--ctx-size")));
    cr_expect_null(llama_option_find("", 0));
}
