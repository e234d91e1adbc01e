#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/tenants.h"

static struct api_tenant *row;
static uint32_t n;
static struct err err;
static char path[64];

static int read_text(const char *text) {
    strcpy(path, "/tmp/weft-tenants-XXXXXX");
    int fd = mkstemp(path);

    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    free(row);
    row = NULL;
    n = 0;
    int r = tenants_read(path, &row, &n, &err);
    unlink(path);
    return r;
}

/* Asserts that the error is about @param and that its text is @message. No client is to blame. */
static void expect_told(const char *param, const char *message) {
    cr_expect_str_eq(err.message, message);
    cr_expect_str_eq(err.param, param, "%s", message);
    cr_expect(err.status == 0 && !*err.code);
}

/* Asserts that @text is refused with "FILE:LINE: @rest", about @param. */
static void expect_error(const char *text, int line, const char *param, const char *rest) {
    char message[500];

    cr_assert_eq(read_text(text), -EINVAL, "%s is accepted", text);
    snprintf(message, sizeof(message), "%s:%d: %s", path, line, rest);
    expect_told(param, message);
    cr_expect(!row && n == 0);
}

static void tear_down(void) {
    free(row);
    row = NULL;
}

TestSuite(tenants, .fini = tear_down);

Test(tenants, a_section_is_a_tenant_and_default_fills_what_it_leaves_out) {
    cr_assert_eq(read_text("[a]\nweight = 2.5\nclass = batch\nkeys = x, y\nuids=1000\n"
                           "[default]\nrequests-per-minute = 60\nweight = 4\nshare = all\n"
                           "[b]\ntokens-per-minute = 100000\nrequests-per-minute = 0\n"),
                 0, "%s", err.message);
    cr_assert_eq(n, 3);
    cr_expect_str_eq(row[0].name, "a");
    cr_expect_eq(row[0].weight, 2.5);
    cr_expect_eq(row[0].class, 2);
    cr_expect_eq(row[0].requests_per_minute, 60);
    cr_expect(row[0].n_keys == 2 && strcmp(row[0].keys[1], "y") == 0);
    cr_expect(row[0].n_uids == 1 && row[0].uids[0] == 1000);
    cr_expect_str_eq(row[0].share, "", "a group is joined, not inherited");
    cr_expect_eq(row[2].weight, 4);
    cr_expect_eq(row[2].requests_per_minute, 0);
    cr_expect_eq(row[2].tokens_per_minute, 100000);
}

Test(tenants, what_is_wrong_is_named_with_its_line) {
    static const struct {
        const char *text;
        int line;
        const char *param, *rest;
    } all[] = {
        {"[a]\nweight = 0\n", 2, "weight",
         R"(weight: must be a number from 0.01 to 1000, not "0")"},
        {"[a]\nweight = 1x\n", 2, "weight",
         R"(weight: must be a number from 0.01 to 1000, not "1x")"},
        {"[a]\nweight = nan\n", 2, "weight",
         R"(weight: must be a number from 0.01 to 1000, not "nan")"},
        {"[a]\nweight = 0.0099\n", 2, "weight",
         R"(weight: must be a number from 0.01 to 1000, not "0.0099")"},
        {"[a]\nweight = 1000.1\n", 2, "weight",
         R"(weight: must be a number from 0.01 to 1000, not "1000.1")"},
        {"[a]\nweight =\n", 2, "weight", R"(weight: must be a number from 0.01 to 1000, not "")"},
        {"[a]\n\nclass = fast\n", 3, "class",
         R"(class: must be one of interactive|normal|batch, not "fast")"},
        {"[a]\nmax-running = -1\n", 2, "max-running",
         R"(max-running: must be a whole number from 0 (no limit) to 100000, not "-1")"},
        {"[a]\nmax-running = 100001\n", 2, "max-running",
         R"(max-running: must be a whole number from 0 (no limit) to 100000, not "100001")"},
        {"[a]\nmax-running = 18446744073709551616\n", 2, "max-running",
         "max-running: must be a whole number from 0 (no limit) to 100000, not "
         R"("18446744073709551616")"},
        {"[a]\nmax-running = -18446744073709551615\n", 2, "max-running",
         "max-running: must be a whole number from 0 (no limit) to 100000, not "
         R"("-18446744073709551615")"},
        {"[a]\nmax-queued =\n", 2, "max-queued",
         R"(max-queued: must be a whole number from 0 (no limit) to 100000, not "")"},
        {"[a]\nloop-breaker = 1x\n", 2, "loop-breaker",
         R"(loop-breaker: must be a whole number from 0 (no limit) to 4096, not "1x")"},
        {"[a]\nkv-tokens = 99999999999999999999\n", 2, "kv-tokens",
         "kv-tokens: must be a whole number from 0 (no limit) to 1000000000000, not "
         R"("99999999999999999999")"},
        {"[a]\nspeed = 1\n", 2, "speed",
         "speed: unknown key (weight, class, share, keys, uids, models, requests-per-minute, "
         "tokens-per-minute, requests-per-day, requests-per-month, tokens-per-day, "
         "tokens-per-month, max-running, max-queued, kv-tokens, max-context, loop-breaker)"},
        {"weight = 1\n", 1, "", "a key must stand in a section: [default] or [NAME]"},
        {"[a b]\nweight = 1\n", 2, "section",
         R"(section: must be 1 to 63 letters, digits, '-', '_', '.' or '@', not "a b")"},
        {"[a]\nkeys = k\n[b]\nkeys = l, k\n", 4, "keys",
         R"(keys: "k" belongs to tenant a already)"},
        {"[a]\nkeys = j k\n[b]\nkeys = l, k\n", 4, "keys",
         R"(keys: "k" belongs to tenant a already)"},
        {"[a]\nuids = 5 6 7\n[b]\nuids = 7\n", 4, "uids",
         R"(uids: "7" belongs to tenant a already)"},
        {"[a]\nkeys = j\n[b]\nkeys = k\n[c]\nkeys = k\n", 6, "keys",
         R"(keys: "k" belongs to tenant b already)"},
        {"[a]\nkeys = a/b\n", 2, "keys",
         R"(keys: must be 1 to 63 letters, digits, '-', '_', '.' or '@', not "a/b")"},
        {"[a]\nuids = 7\n[b]\nuids = 7\n", 4, "uids", R"(uids: "7" belongs to tenant a already)"},
        {"[a]\nuids = 6\n[b]\nuids = 7\n[c]\nuids = 8 7 9\n", 6, "uids",
         R"(uids: "7" belongs to tenant b already)"},
        {"[a]\nuids = root\n", 2, "uids", R"(uids: must be user ids (numbers), not "root")"},
        {"[a]\nuids = +5\n", 2, "uids", R"(uids: must be user ids (numbers), not "+5")"},
        {"[a]\nuids = /\n", 2, "uids", R"(uids: must be user ids (numbers), not "/")"},
        {"[a]\nuids = :\n", 2, "uids", R"(uids: must be user ids (numbers), not ":")"},
        {"[a]\nuids = 4294967295\n", 2, "uids",
         R"(uids: must be user ids (numbers), not "4294967295")"},
        {"[a]\nuids = 3 1x\n", 2, "uids", R"(uids: must be user ids (numbers), not "1x")"},
        {"[a]\nuids = 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\n", 2, "uids",
         "uids: at most 16 entries"},
        {"[a]\nmodels = q*n\n", 2, "models",
         R"(models: must be names of at most 127 characters, with "*" only at their ends, not )"
         R"("q*n")"},
        {"[a]\nmodels = a *b c\n", 2, "models",
         R"(models: must be names of at most 127 characters, with "*" only at their ends, not )"
         R"("*b")"},
        {"[a]\nshare =\n", 2, "share",
         R"(share: must be 1 to 63 letters, digits, '-', '_', '.' or '@', not "")"},
        {"[default]\nkeys = k\n", 2, "keys",
         "keys: cannot be set in [default], which applies to all other clients"},
        {"[default]\nuids = 1\n", 2, "uids",
         "uids: cannot be set in [default], which applies to all other clients"},
        {"[a]\nweight = 1\nweight = 2\n", 3, "weight", "weight: given twice in [a]"},
        {"[a]\nweight = 1\n[b]\nweight = 2\n[a]\nweight = 1\n", 6, "weight",
         "weight: given twice in [a]"},
        {"[a]\nnonsense\n", 2, "tenants", "must be a [section] or key = value"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        expect_error(all[i].text, all[i].line, all[i].param, all[i].rest);
    char message[120];
    snprintf(message, sizeof(message), "%s: cannot be read: No such file or directory", path);
    cr_expect_eq(tenants_read(path, &row, &n, &err), -ENOENT);
    expect_told("tenants", message);
}

Test(tenants, the_shipped_file_is_right_also_with_its_examples) {
    const char *file = getenv("WEFT_TENANTS_CONF");
    char text[8192];

    cr_assert(file);
    cr_assert_eq(tenants_read(file, &row, &n, &err), 0, "%s", err.message);
    FILE *f = fopen(file, "re");
    size_t len = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[len] = 0;
    /* Removes the '#' before every key, which leaves the defaults. */
    for (char *at = text; (at = strchr(at, '#'));)
        at[0] = at[1] >= 'a' && at[1] <= 'z' && strncmp(at, "#share", 6) != 0 ? '\n' : ';';
    cr_assert_eq(read_text(text), 0, "%s", err.message);
    cr_assert_eq(n, 1);
    cr_expect_eq(row[0].weight, 1);
}

Test(tenants, numbers_are_taken_up_to_their_limits_and_no_further) {
    static const struct {
        const char *key;
        uint64_t most;
    } keys[] = {{"requests-per-minute", 1000000},
                {"tokens-per-minute", 1000000000000},
                {"requests-per-day", 1000000000000},
                {"requests-per-month", 1000000000000},
                {"tokens-per-day", 1000000000000000},
                {"tokens-per-month", 1000000000000000},
                {"max-running", 100000},
                {"max-queued", 100000},
                {"kv-tokens", 1000000000000},
                {"max-context", 100000000}};
    char text[100];

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        for (uint64_t extra = 0; extra < 2; extra++) {
            snprintf(text, sizeof(text), "[a]\n%s = %llu\n", keys[i].key,
                     (unsigned long long)(keys[i].most + extra));
            cr_expect_eq(read_text(text), extra ? -EINVAL : 0, "%s", text);
            if (!extra) {
                const struct api_tenant *t = row;
                const uint64_t is[] = {t->requests_per_minute, t->tokens_per_minute,
                                       t->requests_per_day,    t->requests_per_month,
                                       t->tokens_per_day,      t->tokens_per_month,
                                       t->max_running,         t->max_queued,
                                       t->kv_tokens,           t->max_context};

                for (size_t k = 0; k < ARRAY_SIZE(is); k++)
                    cr_expect_eq(is[k], k == i ? keys[i].most : 0, "%s", text);
            }
        }
        snprintf(text, sizeof(text), "[a]\n%s = 0\n", keys[i].key);
        cr_expect_eq(read_text(text), 0, "%s", text);
    }
    for (const char *const *bad = (const char *const[]){"", "1x", "/", ":", "+1", "1 2", NULL};
         *bad; bad++) {
        snprintf(text, sizeof(text), "[a]\nmax-running = %s\n", *bad);
        cr_expect_eq(read_text(text), -EINVAL, "%s", text);
    }
    for (const char *const *w = (const char *const[]){"0.01", "1000", NULL}; *w; w++) {
        snprintf(text, sizeof(text), "[a]\nweight = %s\n", *w);
        cr_expect_eq(read_text(text), 0, "%s", text);
        cr_expect_eq(row[0].weight, strtod(*w, NULL));
    }
}

Test(tenants, names_have_63_letters_at_most_and_classes_numbers) {
    static const char *const classes[] = {"normal", "interactive", "batch"};
    char text[200];

    for (int n = 63; n < 65; n++) {
        snprintf(text, sizeof(text), "[%0*d]\nweight = 1\n", n, 0);
        cr_expect_eq(read_text(text), n < 64 ? 0 : -EINVAL, "%s", text);
        cr_expect(n == 64 || strlen(row[0].name) == 63);
        snprintf(text, sizeof(text), "[a]\nkeys = %0*d\n", n, 0);
        cr_expect_eq(read_text(text), n < 64 ? 0 : -EINVAL, "%s", text);
        snprintf(text, sizeof(text), "[a]\nshare = %0*d\n", n, 0);
        cr_expect_eq(read_text(text), n < 64 ? 0 : -EINVAL, "%s", text);
    }
    for (uint32_t i = 0; i < ARRAY_SIZE(classes); i++) {
        snprintf(text, sizeof(text), "[a]\nclass = %s\n", classes[i]);
        cr_expect_eq(read_text(text), 0);
        cr_expect_eq(row[0].class, i);
    }
    cr_expect_eq(read_text("[a]\nuids = 0 4294967294\nkeys = a-Z_0.9@\nshare = g\n"), 0, "%s",
                 err.message);
    cr_expect(row[0].n_uids == 2 && row[0].uids[0] == 0 && row[0].uids[1] == UINT32_MAX - 1);
    cr_expect_str_eq(row[0].share, "g");
    cr_expect_eq(read_text("[a]\nuids = 7\n[b]\nuids = 0\n"), 0, "%s", err.message);
}

/* A section has its own models, or those of [default]. */
Test(tenants, models_are_names_with_a_star_at_their_ends) {
    char text[6000] = "[a]\nmodels = ";

    cr_expect_eq(read_text("[a]\nweight = 1\n[b]\nmodels = qwen*, llama\n[default]\nmodels = *\n"),
                 0, "%s", err.message);
    cr_expect(row[0].n_models == 1 && strcmp(row[0].models[0], "*") == 0);
    cr_expect(row[1].n_models == 2 && strcmp(row[1].models[0], "qwen*") == 0 &&
              strcmp(row[1].models[1], "llama") == 0);
    for (int i = 0; i < 33; i++) {
        sprintf(text + strlen(text), "%s%d", i ? "," : "", i);
        cr_expect_eq(read_text(text), i < 32 ? 0 : -EINVAL, "%s", text);
    }
    for (int n = 127; n < 129; n++) {
        snprintf(text, sizeof(text), "[a]\nmodels = %0*d\n", n, 0);
        cr_expect_eq(read_text(text), n < 128 ? 0 : -EINVAL, "%s", text);
    }
}

Test(tenants, there_are_at_most_1024_and_sections_go_on) {
    static char text[1024 * 32];

    for (int i = 0; i < 1024; i++)
        sprintf(text + strlen(text), "[t%d]\nmax-queued = 1\n", i);
    cr_expect_eq(read_text(text), 0, "%s", err.message);
    cr_expect_eq(n, 1024);
    cr_expect_str_eq(row[1023].name, "t1023");
    strcat(text, "[t7]\nmax-running = 2\n");
    cr_expect_eq(read_text(text), 0, "%s", err.message);
    cr_expect(row[7].max_running == 2 && row[7].max_queued == 1 && row[7].weight == 1);
    strcat(text, "[t1024]\nweight = 1\n");
    expect_error(text, 2052, "", "the file has more sections than the limit: at most 1024 tenants");
}

/* [default] fills each kind of key that a section leaves out, and none that it has. */
Test(tenants, each_kind_of_key_is_filled_once) {
    char text[4000] = "[a]\nkeys = ";

    cr_assert_eq(read_text("[default]\nclass = batch\nmax-running = 3\nkv-tokens = 5000000000\n"
                           "weight = 0.5\nmodels = x y\nloop-breaker = 9\n"
                           "[a]\n[b]\nclass = normal\nmax-running = 0\nkv-tokens = 0\nweight = 2\n"
                           "models =\nloop-breaker = 0\n[c]\nmax-queued = 1\n"),
                 0, "%s", err.message);
    cr_assert_eq(n, 3); /* a section without a key is none */
    cr_expect_str_eq(row[1].name, "b");
    cr_expect(row[1].class == 0 && row[1].max_running == 0 && row[1].kv_tokens == 0);
    cr_expect(row[1].weight == 2 && row[1].n_models == 0 && row[1].loop_tokens == 0);
    cr_expect(row[2].class == 2 && row[2].max_running == 3 && row[2].kv_tokens == 5000000000);
    cr_expect(row[2].weight == 0.5 && row[2].n_models == 2 && row[2].loop_tokens == 9);
    cr_expect(row[2].max_queued == 1 && row[0].max_queued == 0);
    cr_expect_str_eq(row[2].models[1], "y");
    for (int i = 0; i <= API_TENANT_KEYS; i++) {
        sprintf(text + strlen(text), " ,k%d", i);
        cr_expect_eq(read_text(text), i < API_TENANT_KEYS ? 0 : -EINVAL, "%d", i);
        cr_expect(i == API_TENANT_KEYS || row[0].n_keys == (uint32_t)i + 1);
    }
    cr_assert_eq(read_text("[a]\nkeys = k k\nuids = 5, 5,\n[b]\nuids = 6\n"), 0, "%s", err.message);
    cr_expect(row[0].n_keys == 2 && row[0].n_uids == 2 && row[1].n_uids == 1);
}
