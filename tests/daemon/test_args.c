#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "daemon/front/args.h"
#include "daemon/front/environment.h"
#include "daemon/front/llama_options.h"

#define MOST 48

/* Splits @line at spaces and translates it, after the lines of @pairs. */
static struct args translated_after(const char *line, struct args_pairs *pairs) {
    static char texts[16][300]; /* @pairs refer to earlier ones */
    static uint32_t n;
    char *text = texts[n++ % ARRAY_SIZE(texts)], *argv[MOST + 1] = {(char *)(uintptr_t) "weftd"},
         *rest = NULL;
    struct args a;
    int argc = 1;

    cr_assert_lt(strlen(line), sizeof(texts[0]));
    strcpy(text, line);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    cr_assert_leq(argc, MOST);
    cr_assert_eq(args_translate(&a, pairs, argc, argv), 0);
    return a;
}

static struct args translated(const char *line) {
    return translated_after(line, &(struct args_pairs){0});
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

/* Appends @text behind @word to what @out has, with ';' in place of the ends of lines. */
static void add_told(char *out, size_t size, const char *word, const struct buf *text) {
    size_t n = strlen(out);

    if (!text->len)
        return;
    snprintf(out + n, size - n, " (%s) %s", word, text->data);
    for (char *end = out + n; (end = strchr(end, '\n'));)
        *end = ';';
}

/* Returns what becomes of a command line: weftd's own options, and all that is told; static. */
static const char *outcome_of(const struct args *a) {
    static char text[2000];

    text[0] = 0;
    for (int k = 1; k < a->n; k++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), " %s", a->v[k]);
    add_told(text, sizeof(text), "ignored", &a->here);
    add_told(text, sizeof(text), "noted", &a->noted);
    add_told(text, sizeof(text), "refused", &a->refused);
    return text + (*text == ' ');
}

/* Says what weftd answers where several options are alike. */
#define CUDA_DEVICES "--devices 0,1 names CUDA devices, --backend cpu none;"
#define HOST_LAYERS                                                                                \
    "--device-layers N leaves the FFNs of further layers in host memory, --host-experts N "        \
    "experts;"
#define HOST_EXPERTS                                                                               \
    "weftd leaves as many experts in host memory as do not fit; --host-experts N leaves those of " \
    "N layers there;"
#define SHARE "--devices 0,1 names the devices that share the model;"
#define UNKNOWN "unknown option (weftd --help lists all);"
#define NO_OPTION "not an option; a model is given with --model FILE;"
#define COMMAND "a command of weftctl, not an option;"

/* Options are translated, ignored, noted or refused: all that becomes of each line, with ';' at the
 * ends of the lines that are told. */
Test(args, each_line_has_one_outcome) {
    static const char *const lines[][2] = {
        {"", ""},
        {"-m x.gguf", "--model=x.gguf"},
        {"-m=x.gguf", "--model=x.gguf"},
        {"-mm p --no-mmproj --draft-max=8", "--mmproj=p --mmproj=none --max-draft=8"},
        {"-t 3", "--threads=3"},
        {"-t -1", ""},
        {"-t auto", ""},
        {"-t=-1", ""},
        {"--sleep-idle-seconds auto", ""},
        {"--temp 0.5", "--sampling=temperature=0.5"},
        {"--temp -1", "--sampling=temperature=-1"},
        {"--seed 7", "--sampling=seed=7"},
        {"--seed -1", ""},
        {"-s=-2", ""},
        {"-c 100", "--max-context=100"},
        {"-c 0", "--max-context=0"},
        {"-c 4294967295", "--max-context=4294967295"},
        {"-c 4294967296", R"((refused) -c: "4294967296" is too large;)"},
        {"-c -4", R"((refused) -c: "-4" is not a whole number;)"},
        {"-c x", R"((refused) -c: "x" is not a whole number;)"},
        {"-c /", R"((refused) -c: "/" is not a whole number;)"},
        {"-c :", R"((refused) -c: ":" is not a whole number;)"},
        {"-c 4x", R"((refused) -c: "4x" is not a whole number;)"},
        {"-c 0123456789012345678901234567890123456789012345678901234567890",
         R"((refused) -c: "012345678901234567890123456789012345678901234567890123456789" is too )"
         "large;"},
        {"-c x123456789012345678901234567890123456789012345678901234567890",
         R"((refused) -c: "x12345678901234567890123456789012345678901234567890123456789" is not a )"
         "whole number;"},
        {"-np 1", "--max-seqs=1 --max-running=1"},
        {"-np 2", "--max-seqs=2 --max-running=2"},
        {"-np 0", ""},
        {"-np -1", ""},
        {"-np x", R"((refused) -np: "x" is not a whole number;)"},
        {"-np 3 -c 100", "--max-seqs=3 --max-running=3 --max-context=34"},
        {"-np 3 -c 99", "--max-seqs=3 --max-running=3 --max-context=33"},
        {"-np 3 -c 0", "--max-seqs=3 --max-running=3 --max-context=0"},
        {"-np 1 -c 7", "--max-seqs=1 --max-running=1 --max-context=7"},
        {"-np 3 -c 100 -kvu", "--max-seqs=3 --max-running=3 --max-context=100 (ignored) -kvu"},
        {"-np 3 -c x", R"(--max-seqs=3 --max-running=3 (refused) -c: "x" is not a whole number;)"},
        {"-kvu", "(ignored) -kvu"},
        {"--host 127.0.0.1", "--listen=127.0.0.1:8080"},
        {"--host 0.0.0.0 --port 9", "--listen=0.0.0.0:9"},
        {"--port 0", "--listen=127.0.0.1:0"},
        {"--port x", R"(--listen=127.0.0.1:8080 (refused) --port: "x" is not a whole number;)"},
        {"--port 1 --port x",
         R"(--listen=127.0.0.1:8080 (refused) --port: "x" is not a whole number;)"},
        {"--host ::1", "--listen=[::1]:8080"},
        {"--host a,::1,b --port 3", "--listen=a:3,[::1]:3,b:3"},
        {"--host ,a", "--listen=:8080,a:8080"},
        {"--host a,", "--listen=a:8080"},
        {"--host a,,b", "--listen=a:8080,:8080,b:8080"},
        {"--host .sock", "--listen=.sock:8080"},
        {"--host a.sock", "--listen=unix:a.sock"},
        {"--host /x.sock,/y.sock", "--listen=unix:/x.sock,unix:/y.sock"},
        {"--host a.sock,b --port 4 --ssl-cert-file c",
         "--tls-certificate=c --listen=unix:a.sock,tls:b:4"},
        {"--host a,::1,.sock --ssl-cert-file c",
         "--tls-certificate=c --listen=tls:a:8080,tls:[::1]:8080,tls:.sock:8080"},
        {"--host a.sock:b", "--listen=[a.sock:b]:8080"},
        {"--host a.soc", "--listen=a.soc:8080"},
        {"--host ::1,a.sock,h --ssl-cert-file c",
         "--tls-certificate=c --listen=tls:[::1]:8080,unix:a.sock,tls:h:8080"},
        {"--ssl-certfile c --ssl-keyfile k",
         "--tls-certificate=c --tls-key=k --listen=tls:127.0.0.1:8080"},
        {"--api-key-file f", "--api-keys=f"},
        {"-ngl 0", "--backend=cpu"},
        {"-ngl 1", "(ignored) -ngl"},
        {"-ngl=0", "--backend=cpu"},
        {"-ctk f16", "--kv-type-k=f16"},
        {"-ctv q4_0", "--kv-type-v=q4_0"},
        {"-ctv f32",
         "(refused) -ctv: format f32 does not exist here: use --kv-type-v " KV_TYPE_NAMES ";"},
        {"-ctk 0123456789012345678901", "(refused) -ctk: format 01234567890123456789 does not "
                                        "exist here: use --kv-type-k " KV_TYPE_NAMES ";"},
        {"-ctk q8",
         "(refused) -ctk: format q8 does not exist here: use --kv-type-k " KV_TYPE_NAMES ";"},
        {"--reasoning-budget 0", "--reasoning=off"},
        {"--reasoning-budget -1", ""},
        {"--reasoning-budget 5",
         "(refused) --reasoning-budget: send it in requests as thinking_budget;"},
        {"-cram 0", ""},
        {"-cram -1", ""},
        {"-cram 100", "--host-kv-memory=100M"},
        {"-cram x", R"((refused) -cram: "x" is not a whole number;)"},
        {"-hf o/r", "--model=hf:o/r"},
        {"-hf hf:o/r:Q8_0", "--model=hf:o/r:Q8_0"},
        {"-a one", "--model-name=one"},
        {"-a b,a,ab", "--model-name=a --aliases=b,,ab"},
        {"-a a,b", "--model-name=a --aliases=,b"},
        {"-a b,a", "--model-name=a --aliases=b,"},
        {"-a ab,a", "--model-name=a --aliases=ab,"},
        {"-a a,ab", "--model-name=a --aliases=,ab"},
        {"-a b,a,a", "--model-name=a --aliases=b,,a"},
        {"-a b,,a", "--model-name=a --aliases=b,,"},
        {"-a ,b", "--model-name= --aliases=,b"},
        {"-a aa,ab,aaa", "--model-name=aa --aliases=,ab,aaa"},
        {"-b 100", "(ignored) -b"},
        {"-tb 3 -b 4 -ub 5", "--max-batch-rows=5 (ignored) -tb, -b"},
        {"--numa x", "(noted) --numa: numactl binds weftd to a node;"},
        {"--numa x -C 1 --mlock", "(ignored) --mlock (noted) --numa: numactl binds weftd to a "
                                  "node;-C: taskset and numactl bind weftd to cores;"},
        {"-fa", "(ignored) -fa"},
        {"-fa off --mlock", "(ignored) -fa, --mlock"},
        {"-fa auto --mlock", "(ignored) -fa, --mlock"},
        {"-fa 0 --mlock", "(ignored) -fa, --mlock"},
        {"-fa 1 --mlock", "(ignored) -fa, --mlock"},
        {"-fa true --mlock", "(ignored) -fa, --mlock"},
        {"-fa false --mlock", "(ignored) -fa, --mlock"},
        {"-fa True --mlock", "(ignored) -fa, --mlock"},
        {"-fa False --mlock", "(ignored) -fa, --mlock"},
        {"-fa yes", "(ignored) -fa (refused) yes: " NO_OPTION},
        {"-fa=on off", "(ignored) -fa (refused) off: " NO_OPTION},
        {"-fa=on", "(ignored) -fa"},
        {"-fit off -fa -lv 3", "(ignored) -fit, -fa, -lv"},
        {"--mlock --mmap --log-colors --metrics",
         "(ignored) --mlock, --mmap, --log-colors, --metrics"},
        {"--context-shift",
         "(refused) --context-shift: a prompt that does not fit is refused, never cut;"},
        {"--context-shift --ignore-eos",
         "(refused) --context-shift: a prompt that does not fit is refused, never "
         R"(cut;--ignore-eos: send it in requests: "ignore_eos": true;)"},
        {"--context-shift=1",
         "(refused) --context-shift: a prompt that does not fit is refused, never cut;"},
        {"--no-slots --no-webui", "--slots=no --web-page=no"},
        {"-cmoe", "--host-experts=1000000"},
        {"-v --log-disable", "--log-level=debug --log-level=error"},
        {"--draft-max", "(refused) --draft-max: needs a value;"},
        {"--draft-max 0", "--speculation=off"},
        {"--draft-max 1", "--max-draft=1"},
        {"--draft-max -1", "--speculation=off"},
        {"--draft-max 4x", R"((refused) --draft-max: "4x" is not a whole number;)"},
        {"--draft-max 32", "--max-draft=32"},
        {"--draft-max 33", "--max-draft=32 (noted) --draft-max: 33 is more than weftd uses: 32;"},
        {"--max-num-seqs 0", ""},
        {"--max-num-seqs 1000", "--max-seqs=1000"},
        {"--max-num-seqs 1001",
         "--max-seqs=1000 (noted) --max-num-seqs: 1001 is more than weftd uses: 1000;"},
        {"--max-num-seqs 4294967296", R"((refused) --max-num-seqs: "4294967296" is too large;)"},
        {"--max-num-batched-tokens 65537",
         "--max-batch-rows=65536 (noted) --max-num-batched-tokens: 65537 is more than weftd uses: "
         "65536;"},
        {"--max-model-len 4096", "--max-context=4096"},
        {"--max-model-len 32k", "--max-context=32000"},
        {"--max-model-len 32K", "--max-context=32768"},
        {"--max-model-len auto", ""},
        {"--max-model-len -1", ""},
        {"--max-model-len k", R"((refused) --max-model-len: "k" is not a whole number;)"},
        {"--max-model-len 1M", R"((refused) --max-model-len: "1M" is not a whole number;)"},
        {"--max-model-len 4294967295K", "--max-context=4398046510080"},
        {"--max-model-len 4294967296K", R"((refused) --max-model-len: "4294967296" is too large;)"},
        {"--max-model-len 00000000000000000000005k",
         R"((refused) --max-model-len: "00000000000000000000005k" is not a whole number;)"},
        {"--max-model-len 0000000000000000000005k", "--max-context=5000"},
        {"--max-model-len", "(refused) --max-model-len: needs a value;"},
        {"-tp 1", ""},
        {"-tp 3", "--devices=0,1,2"},
        {"-pp 16", "--devices=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"},
        {"-tp 17", "(refused) -tp: " SHARE},
        {"-tp 0", "(refused) -tp: " SHARE},
        {"-tp x", R"((refused) -tp: "x" is not a whole number;)"},
        {"-tp 4294967296", R"((refused) -tp: "4294967296" is too large;)"},
        {"-dp 1", "(ignored) -dp"},
        {"-dp 2", "(refused) -dp: start one weftd for each, behind a router;"},
        {"-dp 11", "(refused) -dp: start one weftd for each, behind a router;"},
        {"-dev none", "--backend=cpu"},
        {"-dev CPU", "--backend=cpu"},
        {"-dev CUDA1,cuda0,2", "--devices=1,0,2"},
        {"-dev 255", "--devices=255"},
        {"-dev 1000", "(refused) -dev: " CUDA_DEVICES},
        {"-dev CUDA", "(refused) -dev: " CUDA_DEVICES},
        {"-dev 0x", "(refused) -dev: " CUDA_DEVICES},
        {"-dev 0,", "--devices=0"},
        {"-dev ,0", "(refused) -dev: " CUDA_DEVICES},
        {"-dev 0,,1", "(refused) -dev: " CUDA_DEVICES},
        {"-dev 0,1x", "(refused) -dev: " CUDA_DEVICES},
        {"-dev 0,x", "(refused) -dev: " CUDA_DEVICES},
        {"-dev cuda0,cpu", "(refused) -dev: " CUDA_DEVICES},
        {"-dev 100,101,102,103,104,105,106,107,108,109,110,111,112,113,114",
         "--devices=100,101,102,103,104,105,106,107,108,109,110,111,112,113,114"},
        {"-dev 100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115",
         "--devices=100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115"},
        {"-dev 100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,1",
         "(refused) -dev: " CUDA_DEVICES},
        {"-dev 10,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115",
         "(refused) -dev: " CUDA_DEVICES},
        {"-sm none", "(ignored) -sm"},
        {"-sm layer", "(noted) -sm: " SHARE},
        {"-sm row -mg 1", "--devices=1 (noted) -sm: " SHARE},
        {"-ot .ffn_.*_exps.=CPU", "(noted) -ot: " HOST_EXPERTS},
        {"-ot a=CUDA0,ffn_exps=cpu", "(noted) -ot: " HOST_EXPERTS},
        {"-ot exps=CUDA0,a=CUDA1", "(ignored) -ot"},
        {"-ot ffn=CPU,exps=CPU", "(refused) -ot: " HOST_LAYERS},
        {"-ot exps=CPU,ffn=CPU", "(refused) -ot: " HOST_LAYERS},
        {"-ot exps=CPU,ffn=CUDA0", "(noted) -ot: " HOST_EXPERTS},
        {"-ot exps=CPU,x=CPU,exps=CUDA0", "(refused) -ot: " HOST_LAYERS},
        {"-ot exps", "(refused) -ot: " HOST_LAYERS},
        {"-ot a=b=CPU", "(refused) -ot: " HOST_LAYERS},
        {"-ot exps=a=CPU", "(noted) -ot: " HOST_EXPERTS},
        {"-ot exps,a=CPU", "(refused) -ot: " HOST_LAYERS},
        {"-ot ffn,", "(refused) -ot: " HOST_LAYERS},
        {"-ot =CPU", "(refused) -ot: " HOST_LAYERS},
        {"-ot exps=CP", "(ignored) -ot"},
        {"-ot ex=CPU", "(refused) -ot: " HOST_LAYERS},
        {"-ot exps=cuda,", "(ignored) -ot"},
        {"-ot exps=cpu,,x=CPU", "(refused) -ot: " HOST_LAYERS},
        {"--gpt-oss-20b-default", "--model=hf:ggml-org/gpt-oss-20b-GGUF --listen=127.0.0.1:8013"},
        {"--port 1 --gpt-oss-20b-default",
         "--model=hf:ggml-org/gpt-oss-20b-GGUF --listen=127.0.0.1:1"},
        {"--gpt-oss-20b-default --port 1",
         "--model=hf:ggml-org/gpt-oss-20b-GGUF --listen=127.0.0.1:1"},
        {"--gpt-oss-20b-default --host 0.0.0.0",
         "--model=hf:ggml-org/gpt-oss-20b-GGUF --listen=0.0.0.0:8013"},
        {"--embd-gemma-default",
         "--model=hf:ggml-org/embeddinggemma-300M-qat-q4_0-GGUF --listen=127.0.0.1:8011"},
        {"--uvicorn-log-level critical", "--log-level=error"},
        {"--uvicorn-log-level WARNING", "--log-level=warn"},
        {"--uvicorn-log-level warn", "--log-level=warn"},
        {"--uvicorn-log-level info", "--log-level=info"},
        {"--uvicorn-log-level debug", "--log-level=debug"},
        {"--uvicorn-log-level trace", "--log-level=debug"},
        {"--uvicorn-log-level all",
         "(refused) --uvicorn-log-level: use --log-level error, warn, info or debug;"},
        {"--kv-cache-dtype auto", "(ignored) --kv-cache-dtype"},
        {"--kv-cache-dtype bfloat16", "(ignored) --kv-cache-dtype"},
        {"--kv-cache-dtype fp8", "(refused) --kv-cache-dtype: format fp8 does not exist here: use "
                                 "--kv-type q8_0, which has as many bits;"},
        {"--kv-cache-dtype fp8_e4m3_and_more_than_20",
         "(refused) --kv-cache-dtype: format fp8_e4m3_and_more_th does not exist here: use "
         "--kv-type q8_0, which has as many bits;"},
        {"--served-model-name a", "--model-name=a"},
        {"--served-model-name a b c --port 2", "--model-name=a --aliases=b,c --listen=127.0.0.1:2"},
        {"--served-model-name a b -ngl 0", "--model-name=a --aliases=b --backend=cpu"},
        {"--served-model-name a -ngl 0", "--model-name=a --backend=cpu"},
        {"--served-model-name a b", "--model-name=a --aliases=b"},
        {"--served-model-name=a b", "--model-name=a --aliases=b"},
        {"--mirostat 0", "(ignored) --mirostat"},
        {"--mirostat 0.0", "(ignored) --mirostat"},
        {"--adaptive-target -1.0", "(ignored) --adaptive-target"},
        {"--mirostat 2", "(refused) --mirostat: this sampler is not implemented: leave it out;"},
        {"--mirostat 0.1", "(refused) --mirostat: this sampler is not implemented: leave it out;"},
        {"--mirostat off", "(refused) --mirostat: this sampler is not implemented: leave it out;"},
        {"--mirostat 0x", "(refused) --mirostat: this sampler is not implemented: leave it out;"},
        {"--mirostat=", "(refused) --mirostat: this sampler is not implemented: leave it out;"},
        {"--mirostat-lr 2 --samplers x --grammar g",
         "(ignored) --mirostat-lr (noted) --samplers: the order of samplers is fixed; (refused) "
         "--grammar: send it in requests;"},
        {"--swap-space 4.5", "--host-kv-memory=4608M"},
        {"--swap-space 4", "--host-kv-memory=4096M"},
        {"--swap-space 0", ""},
        {"--swap-space -1", ""},
        {"--swap-space .5", "--host-kv-memory=512M"},
        {"--swap-space 0.0001", "--host-kv-memory=1M"},
        {"--swap-space 4G", R"((refused) --swap-space: "4G" is not a number of GiB;)"},
        {"--swap-space=", R"((refused) --swap-space: "" is not a number of GiB;)"},
        {"--swap-space nan", R"((refused) --swap-space: "nan" is not a number of GiB;)"},
        {"--swap-space 4294967295", R"((refused) --swap-space: "4294967295" is not a number of )"
                                    "GiB;"},
        {"--swap-space 4294967294", "--host-kv-memory=4398046509056M"},
        {"--cpu-offload-gb 4", "(noted) --cpu-offload-gb: what does not fit is left in host "
                               "memory; --device-layers and --host-experts set how much;"},
        {"--lora=a --lora-init-without-apply",
         "(refused) --lora: adapters are not supported: merge it into the "
         "model;--lora-init-without-apply: adapters are not supported: merge it into the model;"},
        {"--lora", "(refused) --lora: needs a value;"},
        {"--model", "--model"},
        {"--model x", "--model x"},
        {"--model=/100%%.gguf --tags a%%b", "--model=/100%%.gguf --tags a%%b"},
        {"--model=x -fa", "--model=x (ignored) -fa"},
        {"--models-dir /d --threads 3", "--models-dir /d --threads=3"},
        {"--threads", "(refused) --threads: needs a value;"},
        {"--config f", "--config f"},
        {"--no-such", "(refused) --no-such: " UNKNOWN},
        {"--no-such x", "(refused) --no-such: " UNKNOWN},
        {"--no-such -fa", "(ignored) -fa (refused) --no-such: " UNKNOWN},
        {"--no-such=3 x", "(refused) --no-such: " UNKNOWN "x: " NO_OPTION},
        {"--thread 4", "(refused) --thread: unknown option; is --threads meant?;"},
        {"--thread=4", "(refused) --thread: unknown option; is --threads meant?;"},
        {"-thread", "(refused) -thread: unknown option; is --threads meant?;"},
        {"---thread", "(refused) ---thread: unknown option; is --threads meant?;"},
        {"-threads 4", "(refused) -threads: unknown option; is --threads meant?;"},
        {"-", "(refused) -: " UNKNOWN},
        {"--", "(refused) --: " UNKNOWN},
        {"x.gguf", "(refused) x.gguf: " NO_OPTION},
        {"serve", "(refused) serve: not an option; weftd serves at once: weftd --model FILE;"},
        {"start x",
         "(refused) start: not an option; weftd serves at once: weftd --model FILE;x: " NO_OPTION},
        {"run", "(refused) run: " COMMAND},
        {"pull", "(refused) pull: " COMMAND},
        {"list", "(refused) list: " COMMAND},
        {"ls", "(refused) ls: " COMMAND},
        {"ps", "(refused) ps: " COMMAND},
        {"rm", "(refused) rm: " COMMAND},
        {"show", "(refused) show: " COMMAND},
        {"stop", "(refused) stop: " COMMAND},
        {"chat", "(refused) chat: " COMMAND},
        {"models", "(refused) models: " COMMAND},
        {"help", "(refused) help: not an option; --help lists the options;"},
        {"version", "(refused) version: not an option; --version prints the version;"},
        {"serves", "(refused) serves: " NO_OPTION},
        {"Serve", "(refused) Serve: " NO_OPTION},
        {"run=", "(refused) run: " NO_OPTION},
        {"abcdefghijklm", "(refused) abcdefghijklm: " NO_OPTION},
        {"_c 5", "--max-context=5"},
        {"--ctx_size=5", "--max-context=5"},
        {"--flash_attn auto --no_slots", "--slots=no (ignored) --flash_attn"},
        {"-c 5 -c x", R"((refused) -c: "x" is not a whole number;)"},
        {"-np 4 -np -1 -c 8", "--max-seqs=4 --max-running=4 --max-context=2"},
        {"-kvu -np 2 -c 8", "--max-seqs=2 --max-running=2 --max-context=8 (ignored) -kvu"},
        {"--path /x --tools a --ui-mcp-proxy",
         "(refused) --path: put a proxy in front of weftd for other paths;--tools: tools are run "
         "by clients;--ui-mcp-proxy: tools are run by clients;"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        CLEANUP(args_deinit) struct args a = translated(lines[i][0]);
        uint32_t n = 0;

        cr_expect_str_eq(outcome_of(&a), lines[i][1], "%s: %s", lines[i][0], outcome_of(&a));
        for (const char *end = text_or(a.refused.data, ""); (end = strchr(end, '\n')); end++)
            n++;
        cr_expect_eq(a.n_refused, n, "%s", lines[i][0]);
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
    CLEANUP(args_deinit)
    struct args a =
        translated("--mmproj-url p.gguf --lora l.gguf --no-such --thread=3 --jinja x.gguf "
                   "-ctk q5_1 -c 4x -c -4 -c 18446744073709551615 --port http -m");

    cr_expect_eq(a.n_refused, 11);
    cr_expect_str_eq(a.refused.data,
                     "--mmproj-url: download the file, then give --mmproj FILE\n"
                     "--lora: adapters are not supported: merge it into the model\n"
                     "--no-such: unknown option (weftd --help lists all)\n"
                     "--thread: unknown option; is --threads meant?\n"
                     "x.gguf: not an option; a model is given with --model FILE\n"
                     "-ctk: format q5_1 does not exist here: use --kv-type-k " KV_TYPE_NAMES "\n"
                     R"(-c: "4x" is not a whole number)"
                     "\n"
                     R"(-c: "-4" is not a whole number)"
                     "\n"
                     R"(-c: "18446744073709551615" is too large)"
                     "\n"
                     R"(--port: "http" is not a whole number)"
                     "\n"
                     "-m: needs a value\n");
    cr_expect_str_eq(a.here.data, "--jinja");
    cr_expect(a.n == 2 && strcmp(a.v[1], "--listen=127.0.0.1:8080") == 0);
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

/* Reads the argument @line, or none if it is "", after the variables @envp. */
static void read_with(char **envp, const char *line, struct config *c) {
    char *argv[] = {(char *)(uintptr_t) "weftd", (char *)(uintptr_t)line};
    struct err err = {0};

    environ = envp;
    cr_assert_eq(config_init(c), 0);
    cr_assert_eq(args_read(c, *line ? 2 : 1, argv, NULL, &err), 0, "%s", err.message);
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

/* A line completes or replaces the pairs of those before it. */
Test(args, a_line_completes_the_pairs_of_an_earlier_one) {
    static const char *const lines[][2] = {
        {"--port 7", "--listen=127.0.0.1:7"},
        {"--host a -c 400 -np 4", "--listen=a:7 --max-seqs=4 --max-running=4 --max-context=100"},
        {"-m x", "--model=x"},
        {"-c 800", "--max-seqs=4 --max-running=4 --max-context=200"},
        {"--port 5", "--listen=a:5"},
        {"-np 2", "--max-seqs=2 --max-running=2 --max-context=400"},
        {"-kvu", "(ignored) -kvu"},
        {"-c 801", "--max-seqs=2 --max-running=2 --max-context=801"},
        {"--ssl-cert-file c", "--tls-certificate=c --listen=tls:a:5"},
        {"--embd-gemma-default", "--model=hf:ggml-org/embeddinggemma-300M-qat-q4_0-GGUF"},
        {"-c x", R"(--max-seqs=2 --max-running=2 (refused) -c: "x" is not a whole number;)"},
        {"--port x", R"(--listen=tls:a:8080 (refused) --port: "x" is not a whole number;)"},
        {"", ""},
    };
    struct args_pairs pairs = {0};

    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        CLEANUP(args_deinit) struct args a = translated_after(lines[i][0], &pairs);

        cr_expect_str_eq(outcome_of(&a), lines[i][1]);
    }
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
    CLEANUP(args_deinit) struct args a = translated("--api-key one,,two, --api-key ,three");
    char text[64] = "";
    struct stat st;

    cr_assert_geq(a.n, 2);
    const char *path = strchr(a.v[1], '=') + 1;
    FILE *f = fopen(path, "r");
    cr_assert(f && fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    cr_expect_str_eq(text, "one\n\ntwo\n\n\nthree\n");
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

/* Reads `--@key @text` and returns the path of the model, or what is told; static. */
static const char *found(const char *key, const char *text) {
    static char said[500];
    struct err err = {0};
    struct config c;
    char flag[32], *argv[] = {(char *)(uintptr_t) "weftd", flag, (char *)(uintptr_t)text, NULL};

    snprintf(flag, sizeof(flag), "--%s", key);
    cr_assert_eq(config_init(&c), 0);
    int r = args_read(&c, 3, argv, NULL, &err);
    cr_expect(r == 0 || (strcmp(err.param, key) == 0 && err.status == 0 && !*err.code));
    const char *path = strcmp(key, "model") == 0 ? c.model : c.draft_model;
    snprintf(said, sizeof(said), "%s", r == 0 ? path : err.message);
    config_deinit(&c);
    return said;
}

static const char *in_folder(const char *folder, const char *file) {
    static char path[200];

    snprintf(path, sizeof(path), "%s/%s", folder, file);
    return path;
}

/* A folder stands for the model in it, whatever lies beside the model; a folder of safetensors is
 * the model itself. */
Test(args, a_folder_stands_for_its_model) {
    static const char *const keys[] = {"model", "draft-model"};
    char folder[] = "/tmp/weft-args-XXXXXX", command[100], want[300];

    cr_assert_not_null(mkdtemp(folder));
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        snprintf(want, sizeof(want),
                 "%s: %s: the folder contains neither a GGUF file of a model nor safetensors",
                 keys[i], folder);
        cr_expect_str_eq(found(keys[i], folder), want);
    }
    put_file(folder, "Big-Q8_0-00001-of-00002.gguf", "GGUF");
    put_file(folder, "mmproj-F16.gguf", "GGUF");
    put_file(folder, "README.md", "Big");
    cr_expect_str_eq(found("model", folder), "model: Big-Q8_0: 1 of its 2 files are missing");
    put_file(folder, "Big-Q8_0-00002-of-00002.gguf", "GGUF");
    snprintf(want, sizeof(want), "%s/Big-Q8_0-00001-of-00002.gguf", folder);
    cr_expect_str_eq(found("model", folder), want);
    cr_expect_str_eq(found("model", in_folder(folder, "")), want);
    cr_expect_str_eq(found("draft-model", folder), want);
    put_file(folder, "Big-Q4_0.gguf", "GGUF");
    snprintf(want, sizeof(want),
             "model: %s: the folder contains several models; name the file of one: Big-Q4_0, "
             "Big-Q8_0",
             folder);
    cr_expect_str_eq(found("model", folder), want);
    snprintf(command, sizeof(command), "rm %s/*", folder);
    cr_assert_eq(system(command), 0);
    put_file(folder, "config.json", "{}");
    put_file(folder, "model.safetensors", "");
    cr_expect_str_eq(found("model", folder), folder);
    cr_expect_str_eq(found("draft-model", folder), folder);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

/* A model that weftctl has downloaded is found by its names; for another one the error says how to
 * get it. */
Test(args, models_have_names) {
    static const char *const absent[][2] = {
        {"hf:me/other:Q4_0", "hf:me/other:Q4_0 has not been downloaded: run weftctl pull "
                             "hf:me/other:Q4_0"},
        {"hf:tiny-q8_0", "hf:tiny-q8_0 has not been downloaded: run weftctl pull hf:tiny-q8_0"},
        {"TIN", "TIN: no file and no model has this name; is Tiny-Q8_0 meant? (weftctl models "
                "lists the models of this machine)"},
        {"tiny-q8_0-chat",
         "tiny-q8_0-chat: no file and no model has this name; is Tiny-Q8_0 meant? (weftctl models "
         "lists the models of this machine)"},
        {"other", "other: no file and no model has this name (weftctl models lists the models of "
                  "this machine, weftctl pull hf:OWNER/REPO downloads one)"},
    };
    static const char *const keys[] = {"model", "draft-model"};
    char folder[] = "/tmp/weft-args-XXXXXX", path[100], other[100], command[100], want[400];

    cr_assert_not_null(mkdtemp(folder));
    environ = (char *[]){NULL};
    setenv("HOME", folder, 1);
    setenv("WEFT_MODELS", folder, 1);
    snprintf(path, sizeof(path), "%s/Tiny-Q8_0.gguf", folder);
    put_file(folder, "Tiny-Q8_0.gguf", "GGUF");
    const char *names[] = {"tiny-q8_0", "Tiny", "Tiny-Q8_0-00001-of-00002", path};
    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            cr_expect_str_eq(found(keys[k], names[i]), path);
        for (size_t i = 0; i < ARRAY_SIZE(absent); i++) {
            snprintf(want, sizeof(want), "%s: %s", keys[k], absent[i][1]);
            cr_expect_str_eq(found(keys[k], absent[i][0]), want);
        }
    }
    /* Texts that can only be paths are not looked up, nor is the name of a file. */
    cr_expect_str_eq(found("model", "/Tiny"), "/Tiny");
    cr_expect_str_eq(found("model", "./Tiny"), "./Tiny");
    cr_expect_str_eq(found("model", ""), "");
    cr_assert_eq(chdir(folder), 0);
    put_file(folder, "Tiny", "GGUF");
    cr_expect_str_eq(found("model", "Tiny"), "Tiny");
    snprintf(other, sizeof(other), "%s/Tiny", folder);
    unlink(other);
    put_file(folder, "Tiny-Q4_0.gguf", "GGUF");
    cr_expect_str_eq(found("model", "Tiny"),
                     "model: Tiny matches several models; name one of them: Tiny-Q4_0, Tiny-Q8_0");
    put_file(folder, "Other-Q8_0-00001-of-00002.gguf", "GGUF");
    cr_expect_str_eq(found("draft-model", "other"),
                     "draft-model: Other-Q8_0: 1 of its 2 files are missing");
    cr_expect_str_eq(found("model", "iny-Q8"),
                     "model: iny-Q8: no file and no model has this name; is Tiny-Q8_0 meant? "
                     "(weftctl models lists the models of this machine)");
    snprintf(command, sizeof(command), "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
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
    char *one[] = {"weftd", "--numa", "x", "--no\033such", NULL};
    cr_expect_str_eq(notes_of(4, one, "1 option of the command line cannot be used (see above)"),
                     "weftd: --no\\x1bsuch: unknown option (weftd --help lists all)\n");
    char *wrong[] = {"weftd", "--numa", "x", "-fa", "--threads=x", NULL};
    cr_expect_str_eq(
        notes_of(5, wrong, R"(threads: must be a whole number from 0 to 1024, not "x")"),
        "weftd: --numa: numactl binds weftd to a node\n"
        "weftd: ignored, because it always applies or weftd decides it: -fa\n");
    environ = (char *[]){"OLLAMA_KEEP_ALIVE=5x", "LLAMA_ARG_\033=1", NULL};
    cr_expect_str_eq(notes_of(5, usable,
                              "keep-alive-s: must be a whole number from 0 to 31536000, "
                              R"(not "5x")"),
                     "weftd: from the environment: OLLAMA_KEEP_ALIVE\n"
                     "weftd: not read from the environment: LLAMA_ARG_\\x1b\n");
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

/* A reload writes no notes. */
Test(args, what_is_wrong_is_an_error_without_notes) {
    char *argv[] = {"weftd", "--lora", "a", "-fa", "--numa", "x", NULL};
    struct err err = {0};
    struct config c;

    environ = (char *[]){"LLAMA_ARG_LORA=a", "VLLM_X=1", "LLAMA_ARG_THREADS=3", NULL};
    cr_assert_eq(config_init(&c), 0);
    cr_expect_eq(args_read(&c, 6, argv, NULL, &err), -EINVAL);
    cr_expect_str_eq(err.message, "1 option of the command line cannot be used (see above)");
    cr_expect(err.status == 0 && !*err.param);
    argv[2] = argv[1] = "-fa";
    cr_expect_eq(args_read(&c, 6, argv, NULL, &err), 0, "%s", err.message);
    cr_expect_eq(c.engine.n_threads, 3);
    config_deinit(&c);
}

/* Words that are more than one to a shell, and an empty command line. */
Test(args, arguments_may_be_of_any_form) {
    static const char other[] = "not an option; a model is given with --model FILE";
    static const struct {
        const char *argument, *told;
    } all[] = {
        {"", other},
        {" ", other},
        {"abcdefghijklmn", other},
        {"run pull list ", other}, /* as long as the list, without the blank behind it */
        {"ls", "a command of weftctl, not an option"},
        {"a b.gguf", other},
    };
    CLEANUP(args_deinit) struct args none = {0};

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        char *argv[] = {"weftd", (char *)(uintptr_t)all[i].argument, NULL}, told[100];
        CLEANUP(args_deinit) struct args a = {0};

        cr_assert_eq(args_translate(&a, &(struct args_pairs){0}, 2, argv), 0);
        snprintf(told, sizeof(told), "%s: %s\n", all[i].argument, all[i].told);
        cr_expect_str_eq(a.refused.data, told);
        cr_expect(a.n_refused == 1 && a.n == 1 && !a.v[1] && strcmp(a.v[0], "weftd") == 0);
        args_deinit(&a);
        cr_expect(!a.v && a.n == 0 && !a.refused.data);
    }
    cr_assert_eq(args_translate(&none, &(struct args_pairs){0}, 0, (char *[]){NULL}), 0);
    cr_expect(none.n == 0 && none.n_refused == 0);
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
