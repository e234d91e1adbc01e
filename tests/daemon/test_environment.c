/* Variables of the environment as a command line: each test compares the whole line and both lists
 * of names. */

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "daemon/front/environment.h"

static struct environment e;

/* Returns the command line that the variables @envp stand for, without the program's name. */
static const char *line_of(char **envp) {
    static char text[1000];

    mallopt(M_PERTURB, 0xa5); /* memory is not 0 before it is set */
    cr_assert_eq(environment_read(&e, envp), 0);
    cr_assert(e.n > 0 && e.v[e.n] == NULL);
    cr_expect_str_eq(e.v[0], "weftd");
    *text = 0;
    for (int i = 1; i < e.n; i++) {
        size_t len = strlen(text);

        snprintf(text + len, sizeof(text) - len, "%s%s", i > 1 ? " " : "", e.v[i]);
    }
    return text;
}

static const char *list(const struct buf *b) {
    return b->data ? b->data : "";
}

static void expect_line(const char *variable, const char *line) {
    char *envp[] = {(char *)(uintptr_t)variable, NULL};
    const char *got = line_of(envp);

    cr_expect_str_eq(got, line, "%s: %s", variable, got);
    environment_deinit(&e);
    environment_deinit(&e); /* it is empty */
    cr_expect(!e.v && e.n == 0 && !e.used.data && !e.unread.data);
}

Test(environment, each_kind_of_variable_has_its_option) {
    static const char *const cases[][2] = {
        /* values */
        {"LLAMA_API_KEY=k", "--api-key=k"},
        {"VLLM_LOGGING_LEVEL=INFO", "--uvicorn-log-level=INFO"},
        {"OLLAMA_NUM_PARALLEL=a=b", "--max-running=a=b"},
        {"LLAMA_ARG_CTX_SIZE=4", "--ctx-size=4"},
        {"LLAMA_ARG_MAX_RUNNING=4", "--max-running=4"},
        /* flags, and what turns them off */
        {"OLLAMA_DEBUG=1", "--log-level=debug"},
        {"OLLAMA_DEBUG=FALSE", ""},
        {"OLLAMA_DEBUG=0", ""},
        {"OLLAMA_DEBUG=off", ""},
        {"OLLAMA_DEBUG=disabled", ""},
        {"OLLAMA_DEBUG=no", ""},
        {"OLLAMA_DEBUG=nothing", "--log-level=debug"},
        {"LLAMA_ARG_NO_WEBUI=1", "--no-webui"},
        {"LLAMA_ARG_NO_WEBUI=0", ""},
        /* nothing */
        {"LLAMA_OFFLINE=1", ""},
        {"OLLAMA_DEBUG=", ""},
        {"LLAMA_API_KEY=", ""},
        {"LLAMA_API_KEY", ""},
        {"HOME=/", ""},
        {"LLAMA_ARG=1", ""},
        /* times: negative is for ever; 0 is at once, for which the shortest is the nearest */
        {"OLLAMA_KEEP_ALIVE=90", "--keep-alive-s=90"},
        {"OLLAMA_KEEP_ALIVE=2s", "--keep-alive-s=2"},
        {"OLLAMA_KEEP_ALIVE=1.5m", "--keep-alive-s=90"},
        {"OLLAMA_KEEP_ALIVE=2h", "--keep-alive-s=7200"},
        {"OLLAMA_KEEP_ALIVE=2500ms", "--keep-alive-s=2"},
        {"OLLAMA_KEEP_ALIVE=999ms", "--keep-alive-s=1"},
        {"OLLAMA_KEEP_ALIVE=1ms", "--keep-alive-s=1"},
        {"OLLAMA_KEEP_ALIVE=0", "--keep-alive-s=1"},
        {"OLLAMA_KEEP_ALIVE=-1", "--keep-alive-s=0"},
        {"OLLAMA_KEEP_ALIVE=-0.5s", "--keep-alive-s=0"},
        {"OLLAMA_KEEP_ALIVE=99999999", "--keep-alive-s=99999999"},
        {"OLLAMA_LOAD_TIMEOUT=2m", "--load-timeout-ms=120000"},
        {"OLLAMA_LOAD_TIMEOUT=0", "--load-timeout-ms=1000"},
        {"OLLAMA_LOAD_TIMEOUT=-1", "--load-timeout-ms=0"},
        /* no times: the option refuses them */
        {"OLLAMA_KEEP_ALIVE=100000000", "--keep-alive-s=100000000"},
        {"OLLAMA_KEEP_ALIVE=99999h", "--keep-alive-s=99999h"},
        {"OLLAMA_KEEP_ALIVE=s", "--keep-alive-s=s"},
        {"OLLAMA_KEEP_ALIVE=5d", "--keep-alive-s=5d"},
        {"OLLAMA_KEEP_ALIVE=5 s", "--keep-alive-s=5 s"},
        {"OLLAMA_KEEP_ALIVE=nan", "--keep-alive-s=nan"},
        /* addresses */
        {"OLLAMA_HOST=0.0.0.0", "--listen=0.0.0.0:11434"},
        {"OLLAMA_HOST=a:99", "--listen=a:99"},
        {"OLLAMA_HOST=http://a", "--listen=a:11434"},
        {"OLLAMA_HOST=http://a:99/b", "--listen=a:99"},
        {"OLLAMA_HOST=a/b:1", "--listen=a:11434"},
        {"OLLAMA_HOST=a:1/]", "--listen=a:1"},
        {"OLLAMA_HOST=:80", "--listen=127.0.0.1:80"},
        {"OLLAMA_HOST=http://", "--listen=127.0.0.1:11434"},
        {"OLLAMA_HOST=/", "--listen=127.0.0.1:11434"},
        {"OLLAMA_HOST=[::1]", "--listen=[::1]:11434"},
        {"OLLAMA_HOST=[::1]:7", "--listen=[::1]:7"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        expect_line(cases[i][0], cases[i][1]);
    expect_line(NULL, "");
}

Test(environment, names_are_listed_by_whether_they_are_read) {
    char *envp[] = {"LLAMA_ARG_CTX_SIZE=1",
                    "LLAMA_ARG_NONE=1",
                    "OLLAMA_DEBUG=1",
                    "OLLAMA_NOPRUNE=1",
                    "LLAMA_ARG_NO_WEBUI=1",
                    "LLAMA_ARG_WEBUI=0",
                    "VLLM_NONE=1",
                    "OLLAMA_HOST=a",
                    "OLLAMA_NONE=1",
                    "LLAMA_NONE=1",
                    "OLLAMA_KEEP_ALIVE=1",
                    "VLLM_API_KEY=k",
                    NULL};

    cr_expect_str_eq(line_of(envp), "--ctx-size=1 --log-level=debug --no-webui --listen=a:11434 "
                                    "--keep-alive-s=1 --api-key=k");
    cr_expect_str_eq(list(&e.used), "LLAMA_ARG_CTX_SIZE, OLLAMA_DEBUG, LLAMA_ARG_NO_WEBUI, "
                                    "OLLAMA_HOST, OLLAMA_KEEP_ALIVE, VLLM_API_KEY");
    cr_expect_str_eq(list(&e.unread), "LLAMA_ARG_NONE, VLLM_NONE, OLLAMA_NONE");
    environment_deinit(&e);
}

/* Names of weftd have up to 64 bytes; a longer one is no option, and no option is made of a part of
 * it. */
Test(environment, long_names_are_left_out) {
    char most[80], more[80], argument[80], *envp[] = {most, more, argument, NULL};

    snprintf(most, sizeof(most), "OLLAMA_%057d=1", 0);
    snprintf(more, sizeof(more), "OLLAMA_%058d=1", 1);
    snprintf(argument, sizeof(argument), "LLAMA_ARG_%054d=1", 2);
    cr_expect_str_eq(line_of(envp), "");
    most[64] = argument[64] = 0;
    char both[200];
    snprintf(both, sizeof(both), "%s, %s", most, argument);
    cr_expect_str_eq(list(&e.unread), both);
    cr_expect_str_eq(list(&e.used), "");
    environment_deinit(&e);
}

/* Lists of names are for messages: one that is full does not keep other variables from being
 * read. */
Test(environment, variables_are_read_when_the_lists_are_full) {
    static char names[80][70], *envp[ARRAY_SIZE(names) + 2];

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(names[i], sizeof(names[i]), "VLLM_%059zu=1", i);
        envp[i] = names[i];
    }
    envp[ARRAY_SIZE(names)] = (char *)(uintptr_t) "OLLAMA_DEBUG=1";
    cr_expect_str_eq(line_of(envp), "--log-level=debug");
    cr_expect_str_eq(list(&e.used), "OLLAMA_DEBUG");
    cr_expect(e.unread.len > 3900 && e.unread.len <= 4096, "%zu", e.unread.len);
    environment_deinit(&e);
}
