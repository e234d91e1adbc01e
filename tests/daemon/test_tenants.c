#include <criterion/criterion.h>
#include <errno.h>
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

static void expect_error(const char *text, int line, const char *part) {
    char start[128];

    cr_assert_eq(read_text(text), -EINVAL, "%s is accepted", text);
    snprintf(start, sizeof(start), "%s:%d: ", path, line);
    cr_expect(strncmp(err.message, start, strlen(start)) == 0, "%s", err.message);
    cr_expect(strstr(err.message, part), "%s has no %s", err.message, part);
    cr_expect_null(strchr(err.message, '\n'));
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
    expect_error("[a]\nweight = 0\n", 2, "weight: must be a number from 0.01 to 1000");
    expect_error("[a]\nweight = 1x\n", 2, "\"1x\"");
    expect_error("[a]\nweight = nan\n", 2, "weight");
    expect_error("[a]\n\nclass = fast\n", 3, "class: must be one of interactive|normal|batch");
    expect_error("[a]\nmax-running = -1\n", 2, "max-running: must be a whole number from 0");
    expect_error("[a]\nmax-running = 100001\n", 2, "to 100000");
    expect_error("[a]\nkv-tokens = 99999999999999999999\n", 2, "kv-tokens");
    expect_error("[a]\nspeed = 1\n", 2, "speed: unknown key");
    expect_error("weight = 1\n", 1, "a key must stand in a section");
    expect_error("[a b]\nweight = 1\n", 2, "section: must be 1 to 63 letters");
    expect_error("[a]\nkeys = k\n[b]\nkeys = l, k\n", 4, "\"k\" belongs to tenant a");
    expect_error("[a]\nuids = 7\n[b]\nuids = 7\n", 4, "\"7\" belongs to tenant a");
    expect_error("[a]\nuids = root\n", 2, "user ids");
    expect_error("[a]\nuids = 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\n", 2, "at most 16");
    expect_error("[default]\nkeys = k\n", 2, "cannot be set in [default]");
    expect_error("[a]\nweight = 1\nweight = 2\n", 3, "given twice");
    expect_error("[a]\nnonsense\n", 2, "must be a [section] or key = value");
    cr_expect_lt(tenants_read("/nonexistent", &row, &n, &err), 0);
    cr_expect(strstr(err.message, "cannot be read"));
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
    /* Every key with its default, without the '#' before it. */
    for (char *at = text; (at = strchr(at, '#'));)
        at[0] = at[1] >= 'a' && at[1] <= 'z' && strncmp(at, "#share", 6) != 0 ? '\n' : ';';
    cr_assert_eq(read_text(text), 0, "%s", err.message);
    cr_assert_eq(n, 1);
    cr_expect_eq(row[0].weight, 1);
}
