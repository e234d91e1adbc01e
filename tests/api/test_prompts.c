/* Prompts as the model files and their templates want them. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "stream.h"
#include "tiny.h"

#define USER(s) "{\"role\":\"user\",\"content\":\"" s "\"}"

static void begin(struct world *w, const char *source) {
    world_init(w);
    world_use_template(w, source, strlen(source));
    world_start(w);
}

/* Asks for the prompt of @body, and compares it with @want. */
static void expect_prompt(struct world *w, const char *body, const char *want) {
    char whole[600];
    struct reply r;

    snprintf(whole, sizeof(whole), "{\"prompt\":\"%s\"}", want);
    world_ask(w, "/apply-template", body, &r);
    cr_expect_eq(r.status, 200, "%s: %s", body, r.body.data);
    cr_expect_str_eq(r.body.data, whole, "%s", body);
    reply_deinit(&r);
}

/* ---- BOS */

/* Asks @path and compares the ids of its prompt. */
static void expect_ids(struct world *w, const char *path, const char *body, const char *ids) {
    char part[100];
    struct reply r;

    snprintf(part, sizeof(part), "\"token_ids\":[%s]", ids);
    world_ask(w, path, body, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(strstr(r.body.data, part), "%s: %s, not %s", body, r.body.data, ids);
    reply_deinit(&r);
}

static void begin_bos(struct world *w, const char *source) {
    world_init(w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w->model.tokenizer);
    w->model.tokenizer = tiny_bos_tokenizer();
    world_use_template(w, source, strlen(source));
    world_start(w);
}

/* TINY_EOT, 258, is BOS here; 104 and 105 are the letters of "hi". */
Test(prompts, begin_with_one_bos_where_the_file_says_so) {
    struct world w;

    begin_bos(&w, "{{ messages[0].content }}");
    expect_ids(&w, CHAT "/render", "{" HI "}", "258,104,105");
    /* What a user writes is no BOS. */
    expect_ids(&w, CHAT "/render", "{\"messages\":[" USER("<s>") "]}", "258,60,115,62");
    expect_prompt(&w, "{" HI "}", "hi");
    expect_ids(&w, TEXT "/render", "{\"prompt\":\"hi\"}", "258,104,105");
    expect_ids(&w, TEXT "/render", "{\"prompt\":\"<s>hi\"}", "258,104,105");
    expect_ids(&w, TEXT "/render", "{\"prompt\":\"<s>hi\",\"add_special_tokens\":false}",
               "258,104,105");
    expect_ids(&w, TEXT "/render", "{\"prompt\":\"hi\",\"add_special_tokens\":false}", "104,105");
    world_stop(&w);
    begin_bos(&w, "{{ bos_token + messages[0].content }}");
    expect_ids(&w, CHAT "/render", "{" HI "}", "258,104,105");
    expect_prompt(&w, "{" HI "}", "hi");
    world_stop(&w);
    /* A tokenizer that adds none. */
    begin(&w, "{{ messages[0].content }}");
    expect_ids(&w, CHAT "/render", "{" HI "}", "104,105");
    world_stop(&w);
}
