#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/keyfile.h"

static char path[64], heard[8400];
static struct err err;

/* Records its calls; refuses a key called "bad", and fails with -ENOMEM for "full". */
static int on_pair(void *ctx, uint32_t line, const char *section, const char *name,
                   const char *value, struct err *e) {
    size_t n = strlen(heard);

    cr_assert_eq(ctx, heard);
    if (strcmp(name, "bad") == 0)
        return err_set(e, 0, name, "%s: no", name);
    if (strcmp(name, "full") == 0)
        return -ENOMEM;
    snprintf(heard + n, sizeof(heard) - n, "[%s]%s=%s;", section, name, value);
    return 0;
}

static int read_bytes(const char *text, size_t len) {
    strcpy(path, "/tmp/weft-keyfile-XXXXXX");
    int fd = mkstemp(path);

    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, len), (ssize_t)len);
    close(fd);
    *heard = 0;
    err = (struct err){0};
    int r = keyfile_read(path, "file", on_pair, heard, &err);
    unlink(path);
    return r;
}

static int read_text(const char *text) {
    return read_bytes(text, strlen(text));
}

/* Asserts that the error is about @param and says "@file@rest". It blames no client. */
static void expect_told(const char *param, const char *file, const char *rest) {
    char message[400];

    snprintf(message, sizeof(message), "%s%s", file, rest);
    cr_expect_str_eq(err.message, message);
    cr_expect_str_eq(err.param, param);
    cr_expect(err.status == 0 && !*err.code);
}

/* Asserts that reading fails with @code and "FILE@rest", after the pairs @before. */
static void expect(const char *text, int code, const char *param, const char *rest,
                   const char *before) {
    cr_assert_eq(read_text(text), code);
    expect_told(param, path, rest);
    cr_expect_str_eq(heard, before);
}

Test(keyfile, pairs_come_with_their_section) {
    cr_assert_eq(read_text("a = 1\n[one]\n; a comment\nb = 2 3 \n\n[two]\nc =\nb=4"), 0);
    cr_expect_str_eq(heard, "[]a=1;[one]b=2 3;[two]c=;[two]b=4;");
    cr_assert_eq(read_text("[one]\n\ta = 1\n\tb = 2\n  [two]\r\n \t\n    c = 3\r\n  # d = 4\n"), 0);
    cr_expect_str_eq(heard, "[one]a=1;[one]b=2;[two]c=3;");
    cr_assert_eq(read_text(""), 0);
    cr_expect_str_eq(heard, "");
}

Test(keyfile, the_first_bad_pair_ends_it_with_its_line) {
    expect("[s]\na = 1\n\nbad = 2\nbad = 3\nb = 4\n", -EINVAL, "bad", ":4: bad: no", "[s]a=1;");
    expect("a = 1\nfull = 2\n", -ENOMEM, "", ":2: out of memory", "[]a=1;");
}

Test(keyfile, what_is_no_pair_is_named_by_its_line) {
    expect("[s]\na = 1\nnothing\n", -EINVAL, "file", ":3: must be a [section] or key = value",
           "[s]a=1;");
    expect("[s\n", -EINVAL, "file", ":1: must be a [section] or key = value", "");
    expect("[s] a = 1\nb = 2\n", -EINVAL, "file", ":1: must be a [section] or key = value", "");
    cr_assert_eq(read_text("[s]# a = 1\nb = 2\n[t]\t;\nc = 3\n"), 0);
    cr_expect_str_eq(heard, "[s]b=2;[t]c=3;");
}

Test(keyfile, a_section_has_its_whole_name) {
    char text[200], want[200];

    for (int n = 48; n < 70; n++) {
        snprintf(text, sizeof(text), "\xEF\xBB\xBF [%0*d] ; a comment ]\nb = 2\n[]\nc = 3\n", n, 0);
        cr_assert_eq(read_text(text), 0, "%s", err.message);
        snprintf(want, sizeof(want), "[%0*d]b=2;[]c=3;", n, 0);
        cr_expect_str_eq(heard, want);
    }
}

Test(keyfile, comments_and_colons_are_read) {
    cr_assert_eq(read_text("[one] ; x\n;a = 1\nb : 2 ; y\nc = d;e ;f\nd = ;g\ne = h # i\n"), 0);
    cr_expect_str_eq(heard, "[one]b=2;[one]c=d;e;[one]d=;[one]e=h # i;");
    expect("a = 1\nb ; = 2\n", -EINVAL, "file", ":2: must be a [section] or key = value", "[]a=1;");
    expect("[a ; b]\n", -EINVAL, "file", ":1: must be a [section] or key = value", "");
}

/* Paths of the hub's cache, and lists of keys, have several hundred characters. */
Test(keyfile, a_line_may_have_a_long_path) {
    char text[4200], want[4200];

    snprintf(text, sizeof(text), "a = /%04000d\nb = 2\n", 0);
    snprintf(want, sizeof(want), "[]a=/%04000d;[]b=2;", 0);
    cr_assert_eq(read_text(text), 0, "%s", err.message);
    cr_expect_str_eq(heard, want);
}

Test(keyfile, a_long_line_is_refused_and_not_cut) {
    char text[9000];

    memset(text, 'x', sizeof(text));
    memcpy(text, "a = 1\nb = ", 10);
    text[sizeof(text) - 1] = 0;
    expect(text, -EINVAL, "", ":2: line is longer than 8190 characters", "[]a=1;");
}

Test(keyfile, text_of_wide_characters_is_named) {
    static const char text[] = "\xff\xfe[\0s\0]\0\n\0a\0=\0";

    cr_assert_eq(read_bytes(text, sizeof(text) - 1), -EINVAL);
    expect_told("", path, ":1: has a NUL byte; save the file as UTF-8");
    cr_expect_str_eq(heard, "");
    cr_assert_eq(read_bytes("a = 1\nb = 2\0\n", 14), -EINVAL);
    expect_told("", path, ":2: has a NUL byte; save the file as UTF-8");
    cr_expect_str_eq(heard, "[]a=1;");
}

Test(keyfile, a_file_that_cannot_be_read_is_named) {
    static const struct {
        const char *path;
        int error;
        const char *rest;
    } all[] = {
        {"/nowhere/weft.conf", ENOENT, ": cannot be read: No such file or directory"},
        {"/", EISDIR, ": cannot be read: Is a directory"},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        cr_expect_eq(keyfile_read(all[i].path, "file", on_pair, heard, &err), -all[i].error);
        expect_told("file", all[i].path, all[i].rest);
    }
    cr_expect_eq(keyfile_read("/nowhere", "file", on_pair, heard, NULL), -ENOENT);
}

Test(keyfile, a_line_has_8190_characters_at_most) {
    static const struct {
        int len;
        const char *end;
        int code;
    } cases[] = {{8190, "\n", 0}, {8191, "\n", -EINVAL}, {8190, "", 0}, {8191, "", -EINVAL}};
    char text[9000];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        snprintf(text, sizeof(text), "a=%0*d%s", cases[i].len - 2, 0, cases[i].end);
        cr_expect_eq(read_text(text), cases[i].code, "%zu", i);
        if (cases[i].code < 0)
            expect_told("", path, ":1: line is longer than 8190 characters");
        else
            cr_expect_eq(strlen(heard), (size_t)cases[i].len + strlen("[];"));
    }
}

/* Signs that begin a comment, an end or a mark elsewhere are text where they have no meaning. */
Test(keyfile, signs_have_a_meaning_at_their_places_only) {
    cr_assert_eq(read_text("a==1\nb=:2\nc:=3\nd = [x]\ne = ]\n=5\nf;=6\n[a]b]\n"), -EINVAL);
    cr_expect_str_eq(heard, "[]a==1;[]b=:2;[]c==3;[]d=[x];[]e=];[]=5;[]f;=6;");
    cr_assert_eq(read_text("a\t=\v1\f\nb=2\t; c\n[ s ]\nc=3\n[]\nd=4\n"), 0);
    cr_expect_str_eq(heard, "[]a=1;[]b=2;[ s ]c=3;[]d=4;");
    expect("a=1\n\xEF\xBB\xBF[s]\n", -EINVAL, "file", ":2: must be a [section] or key = value",
           "[]a=1;");
    cr_assert_eq(read_text("\xEF\xBB\xBF"
                           "ab=1\n"),
                 0);
    cr_expect_str_eq(heard, "[]ab=1;");
    cr_assert_eq(read_text("a=;x\nb:;\n"), 0);
    cr_expect_str_eq(heard, "[]a=;x;[]b=;;");
    cr_expect(!*err.message && !*err.param, "no error is left behind");
    cr_assert_eq(read_text("\xEF\xBB\xBF"), 0);
    expect("a=1\n#b\n ;c\nbad=1", -EINVAL, "bad", ":4: bad: no", "[]a=1;");
}

/* Records pairs with their lines; refuses that of line 5 with a long reason. */
static int on_number(void *ctx, uint32_t line, const char *section, const char *name,
                     const char *value, struct err *e) {
    char *out = ctx;

    (void)section;
    sprintf(out + strlen(out), "%u %s=%s;", line, name, value);
    return line == 5 ? err_set(e, 0, name, "%0400d", 0) : 0;
}

Test(keyfile, lines_are_counted_and_files_are_closed) {
    char out[200] = "", want[400];
    int before = dup(0);

    close(before);
    cr_assert_eq(read_text("a=1\n\n[s]\nb=2\n"), 0);
    int fd = mkstemp(strcpy(path, "/tmp/weft-keyfile-XXXXXX"));
    dprintf(fd, "\na=1\n# x\n[s]\nb=2\nc=3\n");
    close(fd);
    cr_expect_eq(keyfile_read(path, "file", on_number, out, &err), -EINVAL);
    cr_expect_str_eq(out, "2 a=1;5 b=2;");
    snprintf(want, sizeof(want), ":5: %0300d", 0);
    expect_told("b", path, want);
    *out = 0;
    cr_expect_eq(keyfile_read(path, "file", on_number, out, NULL), -EINVAL, "without an error");
    unlink(path);
    int after = dup(0);
    cr_expect_eq(after, before);
    close(after);
}
