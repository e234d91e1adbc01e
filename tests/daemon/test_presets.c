/* Presets: the models of a folder of presets and a folder of files, and presets that clients
 * make. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "daemon/models/front_model.h"
#include "daemon/models/models_find.h"
#include "daemon/models/models_presets.h"
#include "tests/support/tiny_model.h"

static char top[] = "/tmp/weft_presets_XXXXXX";
static struct config own; /* options of the daemon */
static char found[2000];  /* models of models_find_all(): "NAME MODEL BYTES ALIASES;" */

static char *full(const char *name) {
    static char path[300];

    snprintf(path, sizeof(path), "%s/%s", top, name);
    return path;
}

static void put(const char *name, const char *text) {
    FILE *f = fopen(full(name), "w");

    cr_assert(f, "%s", name);
    fputs(text, f);
    fclose(f);
}

static const char *text_of(const char *name) {
    static char text[4096];
    FILE *f = fopen(full(name), "r");

    if (!f)
        return NULL;
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    fclose(f);
    return text;
}

static void set(struct config *c, const char *key, const char *value) {
    struct err err = {0};

    cr_assert_eq(config_set(c, key, value, &err), 0, "%s", err.message);
}

static void begin(void) {
    cr_assert(mkdtemp(top));
    cr_assert_eq(mkdir(full("presets"), 0755), 0);
    cr_assert_eq(config_init(&own), 0);
    set(&own, "models", full("presets"));
    set(&own, "models-dir", full("files"));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    return remove(path);
}

static void end(void) {
    config_deinit(&own);
    nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(presets, .init = begin, .fini = end);

/* Implements models_find_cb. */
static int note(void *ctx, struct config *c, const char *name, uint64_t file_bytes) {
    size_t n = strlen(found);
    const char *slash = strrchr(c->model, '/');

    snprintf(found + n, sizeof(found) - n, "%s %s %u", name, slash ? slash + 1 : c->model,
             (unsigned)file_bytes);
    cr_expect_str_eq(c->model_name, name);
    for (char *const *a = c->aliases; *a; a++)
        snprintf(found + strlen(found), sizeof(found) - strlen(found), " %s", *a);
    cr_expect_not(c->pinned);
    cr_expect_str_eq(c->system_prompt, "");
    strcat(found, c->engine.max_context == 77 ? ";" : " with its own context;");
    return 0;
}

/* Implements models_bad_cb. */
static int note_bad(void *ctx, const char *name, const struct err *why) {
    size_t n = strlen(found);

    snprintf(found + n, sizeof(found) - n, "bad %s: %s;", name, why->message);
    return 0;
}

static int find(models_bad_cb bad, struct err *err) {
    *found = 0;
    *err = (struct err){0};
    return models_find_all(&own, note, bad, NULL, err);
}

/* A preset hides the file of its name, also if the preset is bad. */
Test(presets, models_are_those_of_presets_then_those_of_files) {
    static const char *const taken[] = {"z", "one", "two"};
    char text[1100];
    struct err err;

    set(&own, "pinned", "yes");
    set(&own, "max-context", "77");
    set(&own, "aliases", "x,y");
    set(&own, "system-prompt", full("system"));
    mkdir(full("files"), 0755);
    put("files/a.gguf", "1");
    put("files/b.gguf", "22");
    put("files/c.gguf", "333");
    put("files/d-00001-of-00002.gguf", "a shard is missing");
    put("presets/z.conf", "model = b\nmax-context = 5\n");
    put("presets/a.conf", "model = a\naliases = one,two\n");
    put("presets/.hidden.conf", "nonsense");
    put("presets/.conf", "nonsense");
    put("presets/a.conf.new", "nonsense");
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    cr_expect_str_eq(found,
                     "a a.gguf 1 one two;z b.gguf 2 with its own context;b b.gguf 2;c c.gguf 3;");
    put("presets/c.conf", "model = none\n");
    cr_expect_lt(find(NULL, &err), 0);
    cr_expect_str_eq(err.message, "models: c.conf: model: none: there is no such file");
    cr_expect_eq(find(note_bad, &err), 0);
    cr_expect_str_eq(found,
                     "a a.gguf 1 one two;bad c: models: c.conf: model: none: there is no such "
                     "file;z b.gguf 2 with its own context;b b.gguf 2;");
    cr_expect_str_eq(err.message, "");
    put("presets/c.conf", "max-context = 5\n");
    cr_expect_eq(find(note_bad, &err), 0);
    cr_expect(strstr(found, "bad c: models: c.conf: the key model is missing;"), "%s", found);
    put("presets/c.conf", "model = c\nmodel-name = other\n");
    cr_expect_eq(find(note_bad, &err), 0);
    cr_expect(strstr(found, "bad c: models: c.conf: model-name: cannot be set"), "%s", found);
    snprintf(text, sizeof(text), "model = %s\n", full("files"));
    put("presets/c.conf", text);
    cr_expect_eq(find(note_bad, &err), 0);
    cr_expect(strstr(found, "bad c: models: c.conf: model: "), "%s", found);
    cr_expect(strstr(found, "several models; name the file of one: a, b, c, d"), "%s", found);
    for (size_t i = 0; i < ARRAY_SIZE(taken); i++) {
        snprintf(text, sizeof(text), "model = c\naliases = other, %s\n", taken[i]);
        put("presets/c.conf", text);
        cr_expect_lt(find(NULL, &err), 0, "%s", taken[i]);
        snprintf(text, sizeof(text), "%s:2: aliases: another model has the name %s",
                 full("presets/c.conf"), taken[i]);
        cr_expect_str_eq(err.message, text);
        cr_expect_eq(find(note_bad, &err), 0);
        cr_expect(strstr(found, "bad c: ") && strstr(found, ";z b.gguf 2"), "%s", found);
    }
    put("presets/c.conf", "model = c\naliases = c, three\n");
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    mkdir(full("one"), 0755);
    put("one/only.gguf", "4444");
    snprintf(text, sizeof(text), "model = %s\n", full("one"));
    put("presets/c.conf", text);
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    cr_expect(strstr(found, "c only.gguf 4;"), "%s", found);
    unlink(full("presets/c.conf"));
    set(&own, "models", full("none"));
    cr_expect_lt(find(note_bad, &err), 0, "a folder that cannot be read is no preset");
    cr_expect(strstr(err.message, "cannot be read: No such file"), "%s", err.message);
    set(&own, "models", "");
    set(&own, "models-dir", "");
    cr_expect_eq(find(NULL, &err), 0);
    cr_expect_str_eq(found, "");
}

/* Makes a change of preset "mine", based on a model with the daemon's options. */
static struct preset_change change(void) {
    struct preset_change p = {.name = "mine", .from = "base"};

    cr_assert_eq(config_clone(&p.own, &own), 0);
    cr_assert_eq(config_clone(&p.base, &own), 0);
    set(&p.base, "model", full("a.gguf"));
    return p;
}

static void drop(struct preset_change *p) {
    config_deinit(&p->own);
    config_deinit(&p->base);
}

/* A comma would end a name in the list of aliases. */
Test(presets, files_of_the_hub_have_its_names) {
    static const char *const folders[] = {"files", "files/o", "files/o/r", "files/o,p",
                                          "files/o,p/r"};
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(folders); i++)
        cr_assert_eq(mkdir(full(folders[i]), 0755), 0);
    put("files/o/r/a-Q4_K_M.gguf", "1");
    put("files/o/r/b.gguf", "22");
    put("files/o,p/r/c-Q8_0.gguf", "333");
    set(&own, "max-context", "77");
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    cr_expect(strstr(found, "a-Q4_K_M a-Q4_K_M.gguf 1 hf.co/o/r hf.co/o/r:Q4_K_M;"), "%s", found);
    cr_expect(strstr(found, "b b.gguf 2 hf.co/o/r;"), "%s", found);
    cr_expect(strstr(found, "c-Q8_0 c-Q8_0.gguf 3;"), "%s", found);
}

Test(presets, one_that_a_client_makes_says_what_differs) {
    struct preset_change p = change();
    struct err err = {0};
    char want[600];

    set(&p.base, "sampling", "top_k=3,min_p=0.5");
    set(&p.base, "aliases", "alias");
    set(&p.base, "pinned", "yes");
    set(&p.base, "model-name", "base");
    p.sampling = "top_k=4";
    p.max_context = 512;
    p.system = "You are\nMario.";
    p.template = "{{ 1 }}";
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    snprintf(want, sizeof(want),
             "# made by a client\nmodel = %s/a.gguf\nmax-context = 512\n"
             "chat-template = %s/presets/mine.jinja\nsystem-prompt = %s/presets/mine.system\n"
             "sampling = min_p=0.5,top_k=4\n",
             top, top, top);
    const char *is = text_of("presets/mine.conf");
    cr_assert(is);
    for (char *line = strtok(want, "\n"); line; line = strtok(NULL, "\n"))
        cr_expect(strstr(is, line), "%s is not in\n%s", line, is);
    cr_expect_eq(strncmp(is, "# made by a client\n", 19), 0);
    cr_expect_not(strstr(is, "alias") || strstr(is, "pinned") || strstr(is, "model-name"), "%s",
                  is);
    cr_expect_str_eq(text_of("presets/mine.system"), p.system);
    cr_expect_str_eq(text_of("presets/mine.jinja"), p.template);
    cr_expect_null(text_of("presets/mine.conf.checked"));
    cr_expect_eq(preset_remove(&p, &err), 0, "%s", err.message);
    for (const char *const *end = (const char *const[]){"conf", "system", "jinja", NULL}; *end;
         end++) {
        char name[40];

        snprintf(name, sizeof(name), "presets/mine.%s", *end);
        cr_expect_null(text_of(name), "%s", name);
    }
    cr_expect_eq(preset_remove(&p, &err), PRESET_NONE);
    drop(&p);
}

/* A preset that is made from itself again and again has each parameter once. */
Test(presets, a_parameter_replaces_that_of_the_base) {
    struct preset_change p = change();
    struct err err = {0};

    set(&p.base, "sampling", "openai,top_k=1,top_p=0.5,seed=1,xtc_probability=0.5");
    for (int i = 0; i < 20; i++) {
        p.sampling = "seed=7,top_p=1,temperature=0";
        cr_expect_eq(preset_make(&p, &err), 0, "%d: %s", i, err.message);
        config_deinit(&p.base);
        cr_assert_eq(config_clone(&p.base, &own), 0);
        cr_assert_eq(config_read_preset(&p.base, full("presets/mine.conf"), &err), 0);
    }
    const char *is = text_of("presets/mine.conf");
    cr_assert(is);
    cr_expect(strstr(is, "sampling = openai,top_k=1,xtc_probability=0.5,seed=7,top_p=1,"
                         "temperature=0\n"),
              "%s", is);
    drop(&p);
}

/* A failed write or read leaves no file, and its error names no folder of the operator. */
Test(presets, files_that_are_in_the_way_are_named) {
    struct preset_change p = change();
    struct err err = {0};

    mkdir(full("presets/mine.jinja"), 0755);
    p.template = "{{ 1 }}";
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_str_eq(err.message,
                     "The service cannot write the file mine.jinja of the preset: Is a directory.");
    cr_expect_eq(err.status, 500);
    cr_expect_null(text_of("presets/mine.jinja.new"));
    p.name = "other";
    mkdir(full("presets/other.jinja.new"), 0755);
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_str_eq(
        err.message,
        "The service cannot write the file other.jinja of the preset: Is a directory.");
    p.name = "mine";
    p.template = NULL;
    err = (struct err){0};
    set(&p.base, "chat-template", full("presets/mine.jinja"));
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_str_eq(err.message,
                     "The service cannot read a file of model 'base': Is a directory.");
    cr_expect_eq(err.status, 500);
    cr_expect_null(text_of("presets/mine.conf"));
    drop(&p);
}

Test(presets, fifos_are_not_waited_for) {
    struct preset_change p = change();
    struct err err = {0};

    cr_assert_eq(mkfifo(full("presets/mine.conf"), 0600), 0);
    cr_expect_lt(preset_remove(&p, &err), 0);
    cr_expect(strstr(err.message, "belongs to the operator"), "%s", err.message);
    cr_assert_eq(unlink(full("presets/mine.conf")), 0);
    cr_assert_eq(mkfifo(full("presets/base.jinja"), 0600), 0);
    set(&p.base, "chat-template", full("presets/base.jinja"));
    err = (struct err){0};
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect(strstr(err.message, "cannot read a file of model 'base': Resource temporarily"), "%s",
              err.message);
    set(&p.base, "chat-template", "");
    cr_assert_eq(mkfifo(full("presets/mine.conf.checked.new"), 0600), 0);
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    drop(&p);
}

/* The next start may be in another folder. */
Test(presets, a_models_path_becomes_absolute) {
    struct preset_change p = change();
    struct err err = {0};
    char want[300];

    set(&p.base, "model", "a.gguf");
    cr_assert_eq(chdir(top), 0);
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    snprintf(want, sizeof(want), "# made by a client\nmodel = %s/a.gguf\n", top);
    cr_expect_str_eq(text_of("presets/mine.conf"), want);
    drop(&p);
}

/* Presets begin without these options of the daemon's own model, so one that is made of that model
 * names them. */
Test(presets, what_the_daemons_own_model_has_is_named) {
    static const char *const files[][2] = {{"chat-template", "t.jinja"},
                                           {"system-prompt", "system"},
                                           {"draft-model", "draft.gguf"},
                                           {"mmproj", "eye.gguf"}};
    struct preset_change p;
    struct err err = {0};
    char want[300];

    cr_assert_eq(chdir(top), 0);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        put(files[i][1], "{{ 1 }}");
        set(&own, files[i][0], files[i][1]);
    }
    p = change();
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    const char *is = text_of("presets/mine.conf");
    cr_assert(is);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        snprintf(want, sizeof(want), "\n%s = %s/%s\n", files[i][0], top, files[i][1]);
        cr_expect(strstr(is, want), "%s is not in\n%s", want, is);
    }
    set(&p.base, "chat-template", "chatml");
    set(&p.base, "mmproj", "none");
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    is = text_of("presets/mine.conf");
    cr_expect(strstr(is, "\nchat-template = chatml\n") && strstr(is, "\nmmproj = none\n"), "%s",
              is);
    drop(&p);
}

/* The client's texts of the base are copied; the operator's files are named directly. */
Test(presets, a_copy_outlives_what_it_was_made_of) {
    struct preset_change p = change();
    struct err err = {0};

    put("presets/base.jinja", "{{ 2 }}");
    put("system", "the operator's");
    set(&p.base, "chat-template", full("presets/base.jinja"));
    set(&p.base, "system-prompt", full("system"));
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    cr_expect_str_eq(text_of("presets/mine.jinja"), "{{ 2 }}");
    cr_expect_null(text_of("presets/mine.system"));
    const char *is = text_of("presets/mine.conf");
    cr_expect(strstr(is, full("system")), "%s", is);
    unlink(full("presets/base.jinja"));
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    cr_expect_eq(err.status, 404);
    drop(&p);
}

Test(presets, what_is_no_name_or_the_operators_is_refused) {
    static const char *const good[] = {"a", "0", "a.b_c-d:e"}, *const bad[] = {
                                                                   "",   ".a",  "-a",  "a/b",
                                                                   "..", "a b", "a\n", "\xC3\xA9"};
    char longest[102];
    struct preset_change p = change();
    struct err err;

    memset(longest, 'a', sizeof(longest));
    longest[100] = 0;
    for (size_t i = 0; i <= ARRAY_SIZE(good); i++) {
        p.name = i < ARRAY_SIZE(good) ? (char *)good[i] : longest;
        err = (struct err){0};
        cr_expect_eq(preset_make(&p, &err), 0, "%s: %s", p.name, err.message);
    }
    longest[100] = 'a';
    longest[101] = 0;
    for (size_t i = 0; i <= ARRAY_SIZE(bad); i++) {
        p.name = i < ARRAY_SIZE(bad) ? (char *)bad[i] : longest;
        err = (struct err){0};
        cr_expect_lt(preset_make(&p, &err), 0, "%s", p.name);
        cr_expect(err.status == 400 && strstr(err.message, "is not a valid model name"));
    }
    p.name = "mine";
    put("presets/mine.conf", "# made by an operator\nmodel = a\n");
    for (int i = 0; i < 2; i++) { /* with a preset and with a file of that name */
        err = (struct err){0};
        cr_expect_lt(preset_make(&p, &err), 0);
        cr_expect(strstr(err.message, "a client cannot change it"), "%s", err.message);
        if (i == 0) {
            cr_expect_lt(preset_remove(&p, &err), 0);
            cr_expect(strstr(err.message, "a client cannot delete it"), "%s", err.message);
            unlink(full("presets/mine.conf"));
            p.served = true;
        }
    }
    p.served = false;
    for (size_t i = 0; i < 2; i++) { /* a text that perhaps another preset names */
        const char *file = i ? "presets/mine.system" : "presets/mine.jinja";

        put(file, "the operator's");
        err = (struct err){0};
        cr_expect_lt(preset_make(&p, &err), 0);
        cr_expect(strstr(err.message, "belongs to the operator"), "%s", err.message);
        cr_expect_str_eq(err.code, "not_made");
        cr_expect_str_eq(err.param, "model");
        cr_expect_str_eq(text_of(file), "the operator's");
        unlink(full(file));
    }
    p.template = "{% if";
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect(strstr(err.message, "template: must be a Jinja chat template"), "%s", err.message);
    p.template = NULL;
    p.max_context = UINT32_MAX;
    err = (struct err){0};
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_eq(err.status, 400);
    cr_expect_null(text_of("presets/mine.conf"), "nothing that is wrong is left");
    drop(&p);
}

Test(presets, there_are_at_most_1024) {
    struct preset_change p = change();
    struct err err = {0};
    char name[40];

    for (int i = 0; i < 1023; i++) {
        snprintf(name, sizeof(name), "presets/%d.conf", i);
        put(name, "model = a\n");
    }
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    cr_expect_eq(preset_make(&p, &err), 0, "one that is there may be made anew");
    p.name = "more";
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_str_eq(err.message, "there are 1024 presets, which is the limit; delete one first");
    cr_expect_eq(err.status, 400);
    cr_expect_str_eq(err.code, "too_many");
    cr_expect_str_eq(err.param, "model");
    drop(&p);
}

/* Another daemon may change the presets: it is waited for, but not at a start. */
Test(presets, one_daemon_changes_them_at_a_time, .timeout = 60) {
    struct preset_change p = change();
    struct err err = {0};
    int fd = open(full("presets"), O_RDONLY | O_DIRECTORY);

    cr_assert_eq(flock(fd, LOCK_EX), 0);
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_eq(err.status, 503);
    cr_expect_str_eq(err.code, "busy");
    cr_expect_str_eq(err.param, "model");
    cr_expect_str_eq(err.message, "Another daemon changes the presets.");
    put("presets/mine.conf.checked", "# made by a client\n");
    presets_recover(&own);
    cr_expect(text_of("presets/mine.conf.checked"), "the other daemon's");
    unlink(full("presets/mine.conf.checked"));
    close(fd);
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    drop(&p);
}

/* Returns true if the stopped process begins a call that changes files. */
static bool changes_files(pid_t pid) {
    static const long calls[] = {SYS_renameat, SYS_renameat2, SYS_unlinkat, SYS_linkat,
                                 SYS_openat,   SYS_write,
#ifdef SYS_rename
                                 SYS_rename,   SYS_unlink,    SYS_link
#endif
    };
    struct __ptrace_syscall_info info = {0};

    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) < 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return false;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if ((long)info.entry.nr == calls[i])
            return true;
    return false;
}

/* Changes a preset in a process that is killed before its call @n that changes files. Returns true
 * if it ended before, which it does with @code: 1 if the change is refused. */
static bool killed_at(int n, int (*act)(const struct preset_change *, struct err *),
                      const struct preset_change *p, int code) {
    struct err err = {0};
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(act(p, &err) == 0 ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    if (ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD) < 0)
        cr_skip_test("processes cannot be traced here");
    while (WIFSTOPPED(status) && n > 0) {
        cr_assert_eq(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        n -= WIFSTOPPED(status) && changes_files(pid);
    }
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return false;
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == code, "%x", (unsigned)status);
    return true;
}

/* Returns the sampling, the system message and the template of "mine". */
static const char *mine(void) {
    static char out[300];
    const char *conf = text_of("presets/mine.conf"), *text;
    bool hot = conf && strstr(conf, "temperature=1");

    if (!conf)
        return text_of("presets/mine.system") || text_of("presets/mine.jinja") ? "rest" : "none";
    text = text_of("presets/mine.system");
    size_t n =
        (size_t)snprintf(out, sizeof(out), "%s %s ", hot ? "hot" : "cold", text ? text : "lost");
    text = text_of("presets/mine.jinja");
    snprintf(out + n, sizeof(out) - n, "%s", text ? text : "lost");
    return out;
}

/* Kills a daemon before each call of a change that changes files. Afterwards the preset is the one
 * from before or the new one as a whole, and the name can be used. */
static void check_kills(struct preset_change *old, struct preset_change *p,
                        int (*act)(const struct preset_change *, struct err *), const char *before,
                        const char *after) {
    int n_before = 0, n_after = 0;
    bool ended = false;

    for (int n = 1; !ended; n++) {
        struct err err = {0};

        preset_remove(p, &err);
        err = (struct err){0};
        if (old)
            cr_assert_eq(preset_make(old, &err), 0, "%s", err.message);
        cr_assert_str_eq(mine(), before);
        ended = killed_at(n, act, p, 0);
        presets_recover(&own);
        const char *is = mine();
        n_before += strcmp(is, before) == 0;
        n_after += strcmp(is, after) == 0;
        cr_assert_eq(n_before + n_after, n, "stop %d: %s", n, is);
        cr_assert_null(text_of("presets/mine.conf.checked"), "stop %d", n);
        cr_assert_eq(preset_make(p, &err), 0, "stop %d: %s", n, err.message);
        cr_assert_null(text_of("presets/mine.system.kept"), "stop %d", n);
    }
    cr_expect(n_before > 5 && n_after > 0, "%d %d", n_before, n_after);
}

Test(presets, a_kill_during_a_change_leaves_the_old_one_or_the_new_one) {
    struct preset_change old = change(), p = change();

    old.sampling = "temperature=0";
    old.system = "old";
    old.template = "{{ 1 }}";
    p.sampling = "temperature=1";
    p.system = "new";
    p.template = "{{ 2 }}";
    check_kills(&old, &p, preset_make, "cold old {{ 1 }}", "hot new {{ 2 }}");
    check_kills(NULL, &p, preset_make, "none", "hot new {{ 2 }}");
    check_kills(&old, &p, preset_remove, "cold old {{ 1 }}", "none");
    drop(&old);
    drop(&p);
}

/* Kills a daemon before each call of a change that is refused, which changes nothing then. */
static void check_refused_kills(const struct preset_change *old, const struct preset_change *p,
                                const char *before) {
    bool ended = false;
    int n;

    for (n = 1; !ended; n++) {
        struct err err = {0};

        if (old)
            cr_assert_eq(preset_make(old, &err), 0, "%s", err.message);
        ended = killed_at(n, preset_make, p, 1);
        presets_recover(&own);
        cr_assert_str_eq(mine(), before, "stop %d: %s", n, mine());
        cr_assert_null(text_of("presets/mine.conf.checked"), "stop %d", n);
    }
    cr_expect_gt(n, 10);
}

Test(presets, a_kill_during_a_refused_change_changes_nothing) {
    struct preset_change old = change(), p = change();

    old.sampling = "temperature=0";
    old.system = "old";
    old.template = "{{ 1 }}";
    p.system = "new";
    p.template = "{{ 2 }}";
    set(&p.base, "model", "a #1.gguf"); /* is refused when the file is read, behind the texts */
    check_refused_kills(NULL, &p, "none");
    check_refused_kills(&old, &p, "cold old {{ 1 }}");
    drop(&old);
    drop(&p);
}

/* A daemon may be started without a standard input: its first file has the number 0 then. */
Test(presets, changes_are_undone_without_a_standard_input, .timeout = 60) {
    FILE *f = fopen(full("presets/mine.conf.checked"), "w");

    cr_assert(f);
    fputs("# made by a client\n", f);
    fclose(f);
    close(STDIN_FILENO);
    presets_recover(&own);
    cr_expect_null(text_of("presets/mine.conf.checked"));
    presets_recover(&own); /* waits for ever if the first one has kept the lock */
    cr_expect_eq(open("/dev/null", O_RDONLY), STDIN_FILENO);
}

/* ---- refusals as a whole ---- */

/* Expects the error of a refusal, and clears it. */
static void expect_error(struct err *err, int status, const char *code, const char *param,
                         const char *message) {
    cr_expect_eq(err->status, status, "%s: %d", message, err->status);
    cr_expect_str_eq(err->code, code);
    cr_expect_str_eq(err->param, param);
    cr_expect_str_eq(err->message, message);
    *err = (struct err){0};
}

Test(presets, a_refusal_says_all) {
    static const char made[] = "# made by a client\n", theirs[] = "model = a\n";
    struct preset_change p = change();
    struct err err = {0};

    p.name = "a b";
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    expect_error(&err, 400, "invalid_value", "model",
                 "'a b' is not a valid model name; use letters, digits, '.', '_', '-' and ':', at "
                 "most 100");
    p.name = "mine";
    put("presets/mine.conf", theirs);
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    expect_error(&err, 400, "not_made", "model",
                 "model 'mine' belongs to the operator; a client cannot change it");
    cr_expect_eq(preset_remove(&p, &err), -EINVAL);
    expect_error(&err, 400, "not_made", "model",
                 "model 'mine' belongs to the operator; a client cannot delete it");
    unlink(full("presets/mine.conf"));
    put("presets/mine.jinja", "theirs");
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    expect_error(&err, 400, "not_made", "model",
                 "the file mine.jinja in the folder of presets belongs to the operator; choose "
                 "another name");
    unlink(full("presets/mine.jinja"));
    put("presets/mine.system", "theirs");
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    expect_error(&err, 400, "not_made", "model",
                 "the file mine.system in the folder of presets belongs to the operator; choose "
                 "another name");
    unlink(full("presets/mine.system"));
    p.template = "{% if";
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    cr_expect_eq(strncmp(err.message, "template: must be a Jinja chat template: ", 41), 0);
    strcpy(err.message, "a template");
    expect_error(&err, 400, "invalid_value", "template", "a template");
    p.template = NULL;
    p.max_context = UINT32_MAX;
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_eq(err.status, 400);
    cr_expect_str_eq(err.param, "max-context");
    err = (struct err){0};
    p.max_context = 0;

    set(&p.base, "chat-template", full("presets/gone.jinja"));
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    expect_error(&err, 404, "model_not_found", "from",
                 "model 'base' was removed while the preset was being made from it");
    mkdir(full("presets/folder.jinja"), 0755);
    set(&p.base, "chat-template", full("presets/folder.jinja"));
    cr_expect_eq(preset_make(&p, &err), -EINVAL);
    expect_error(&err, 500, "not_read", "from",
                 "The service cannot read a file of model 'base': Is a directory.");
    set(&p.base, "chat-template", "");
    mkdir(full("presets/mine.conf.checked"), 0755);
    cr_expect_eq(preset_make(&p, &err), -EISDIR);
    expect_error(&err, 500, "not_written", "model",
                 "The service cannot write the file mine.conf.checked of the preset: Is a "
                 "directory.");
    put("presets/mine.conf", made);
    cr_expect_eq(preset_remove(&p, &err), -EINVAL);
    expect_error(&err, 500, "not_written", "model",
                 "The service cannot write the file mine.conf of the preset: Is a directory.");
    cr_expect_str_eq(text_of("presets/mine.conf"), made);
    cr_expect_eq(rmdir(full("presets/mine.conf.checked")), 0);
    set(&p.own, "models", full("none"));
    cr_expect_eq(preset_make(&p, &err), -ENOENT);
    expect_error(&err, 500, "not_written", "model",
                 "The service cannot write the file mine.conf.checked of the preset: No such file "
                 "or directory.");
    cr_expect_eq(preset_remove(&p, &err), PRESET_NONE);
    set(&p.own, "models", "");
    cr_expect_eq(preset_remove(&p, &err), PRESET_NONE);
    expect_error(&err, 0, "", "", "");
    drop(&p);
}

/* The text of a client may have as many bytes as a template may have, and one. */
Test(presets, texts_and_lists_have_a_limit) {
    static char text[(1 << 20) + 3], list[CONFIG_VALUE_MAX + 1];
    struct preset_change p = change();
    struct err err = {0};
    struct stat st;

    memset(text, 'a', sizeof(text) - 1);
    p.system = text;
    cr_expect_eq(preset_make(&p, &err), -EMSGSIZE);
    expect_error(&err, 0, "", "", "");
    cr_expect_null(text_of("presets/mine.system"));
    text[sizeof(text) - 2] = 0;
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    cr_assert_eq(stat(full("presets/mine.system"), &st), 0);
    cr_expect_eq((size_t)st.st_size, (1 << 20) + 1);
    cr_expect_eq(st.st_mode & 0777, 0644);
    cr_assert_eq(stat(full("presets/mine.conf"), &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0644);
    memset(list, '1', sizeof(list) - 1);
    memcpy(list, "top_k=", 6);
    p.sampling = list;
    cr_expect_eq(preset_make(&p, &err), -E2BIG);
    expect_error(&err, 0, "", "", "");
    list[CONFIG_VALUE_MAX - 1] = 0;
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    cr_assert_eq(config_set(&p.base, "sampling", "min_p=0.5", &err), 0);
    memset(list, '1', CONFIG_VALUE_MAX - 10); /* "min_p=0.5," is before it */
    list[CONFIG_VALUE_MAX - 10] = 0;
    memcpy(list, "top_k=", 6);
    p.sampling = list;
    cr_expect_eq(preset_make(&p, &err), -E2BIG);
    drop(&p);
}

/* Options of the daemon or of one name are not copied. */
Test(presets, a_new_one_has_the_options_of_its_base_alone) {
    static const char *const never[][2] = {{"any-model-name", "yes"}, {"models-memory", "1G"},
                                           {"kv-disk", "/tmp"},       {"prewarm", "no"},
                                           {"aliases", "x,y"},        {"tags", "t"},
                                           {"model-name", "other"},   {"pinned", "yes"}};
    struct preset_change p = change();
    struct err err = {0};
    char want[600];

    for (size_t i = 0; i < ARRAY_SIZE(never); i++)
        set(&p.base, never[i][0], never[i][1]);
    set(&p.base, "models", full("elsewhere"));
    set(&p.base, "models-dir", full("elsewhere"));
    set(&p.base, "sampling", "top_k=3");
    set(&p.base, "threads", "3");
    set(&p.base, "max-context", "99");
    p.system = "Be brief.";
    mkdir(full("presets-too"), 0755);
    put("presets-too/t.jinja", "{{ 3 }}");
    set(&p.base, "chat-template", full("presets-too/t.jinja")); /* is not in the folder */
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    snprintf(want, sizeof(want),
             "# made by a client\nmodel = %s/a.gguf\nthreads = 3\nmax-context = 99\n"
             "chat-template = %s/presets-too/t.jinja\nsystem-prompt = %s/presets/mine.system\n"
             "sampling = top_k=3\n",
             top, top, top);
    const char *is = text_of("presets/mine.conf");
    cr_assert(is);
    cr_expect_eq(strlen(is), strlen(want), "%s", is);
    for (char *line = strtok(want, "\n"); line; line = strtok(NULL, "\n"))
        cr_expect(strstr(is, line), "%s is not in\n%s", line, is);
    cr_expect_null(text_of("presets/mine.jinja"));
    drop(&p);
}

/* Only marks with the name of a preset tell of a change. */
Test(presets, marks_have_names) {
    static const char made[] = "# made by a client\n";
    char mark[200], longest[200];

    snprintf(longest, sizeof(longest), "presets/%0100d.conf.checked", 0);
    snprintf(mark, sizeof(mark), "presets/%0101d.conf.checked", 0);
    put(longest, made);
    put(mark, made);
    put("presets/.conf.checked", made);
    put("presets/a.conf.checked", made);
    put("presets/b.conf.checked", "# made by an operator\n");
    put("presets/c.conf.checked.more", made);
    for (const char *const *name = (const char *const[]){"conf.checked.new", "jinja.new", "jinja",
                                                         "system.new", "system", "other", NULL};
         *name; name++) {
        char file[60];

        snprintf(file, sizeof(file), "presets/a.%s", *name);
        put(file, "1");
        snprintf(file, sizeof(file), "presets/b.%s", *name);
        put(file, "1");
    }
    presets_recover(&own);
    cr_expect_null(text_of(longest));
    cr_expect(text_of(mark) && text_of("presets/.conf.checked"));
    cr_expect(text_of("presets/b.conf.checked") && text_of("presets/c.conf.checked.more"));
    for (const char *const *name =
             (const char *const[]){"conf.checked", "conf.checked.new", "jinja.new", "jinja",
                                   "system.new", "system", NULL};
         *name; name++) {
        char file[60];

        snprintf(file, sizeof(file), "presets/a.%s", *name);
        cr_expect_null(text_of(file), "%s", file);
        snprintf(file, sizeof(file), "presets/b.%s", *name);
        cr_expect_not_null(text_of(file), "%s", file);
    }
    cr_expect_not_null(text_of("presets/a.other"));
}

/* Leaves the files of a change of "mine" that was killed behind its texts. */
static void leave_a_change(const struct preset_change *old) {
    struct err err = {0};

    cr_assert_eq(preset_make(old, &err), 0, "%s", err.message);
    for (const char *const *end = (const char *const[]){"jinja", "system", NULL}; *end; end++) {
        char kept[60], text[60], path[300];

        snprintf(text, sizeof(text), "presets/mine.%s", *end);
        snprintf(kept, sizeof(kept), "presets/mine.%s.kept", *end);
        snprintf(path, sizeof(path), "%s", full(text));
        cr_assert_eq(rename(path, full(kept)), 0);
        put(text, "half");
    }
    put("presets/mine.conf.checked", "# made by a client\n");
}

/* A second kill, while what the first has left is undone, changes nothing either. */
Test(presets, a_kill_behind_a_kill_leaves_the_old_one_or_the_new_one) {
    int (*const acts[])(const struct preset_change *, struct err *) = {preset_make, preset_remove};
    struct preset_change old = change(), p = change();

    old.sampling = "temperature=0";
    old.system = "old";
    old.template = "{{ 1 }}";
    p.sampling = "temperature=1";
    p.system = "new";
    p.template = "{{ 2 }}";
    for (size_t i = 0; i < ARRAY_SIZE(acts); i++) {
        const char *after = acts[i] == preset_make ? "hot new {{ 2 }}" : "none";

        for (int n = 1; n <= 16; n++) { /* what follows is done without such a rest, too */
            struct err err = {0};

            preset_remove(&p, &err);
            err = (struct err){0};
            leave_a_change(&old);
            (void)killed_at(n, acts[i], &p, 0);
            presets_recover(&own);
            const char *is = mine();
            cr_assert(strcmp(is, "cold old {{ 1 }}") == 0 || strcmp(is, after) == 0,
                      "%zu, stop %d: %s", i, n, is);
            cr_assert_null(text_of("presets/mine.conf.checked"), "stop %d", n);
        }
    }
    drop(&old);
    drop(&p);
}

/* ---- models of the folders ---- */

Test(presets, an_alias_is_not_a_name_of_the_options_model) {
    static const struct {
        const char *model, *alias;
        bool taken;
    } cases[] = {{"/m.gguf", "first", true}, {"/m.gguf", "x", true}, {"/m.gguf", "y", true},
                 {"/m.gguf", "z", false},    {"", "first", false},   {"", "x", false}};
    char text[400];
    struct err err;

    mkdir(full("files"), 0755);
    put("files/a.gguf", "1");
    set(&own, "model-name", "first");
    set(&own, "aliases", "x,y");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        set(&own, "model", cases[i].model);
        snprintf(text, sizeof(text), "model = a\naliases = %s\n", cases[i].alias);
        put("presets/p.conf", text);
        cr_expect_eq(find(NULL, &err), cases[i].taken ? -EINVAL : 0, "%zu: %s", i, err.message);
        snprintf(text, sizeof(text), "%s:2: aliases: another model has the name %s",
                 full("presets/p.conf"), cases[i].alias);
        cr_expect_str_eq(err.message, cases[i].taken ? text : "");
        cr_expect_str_eq(err.param, cases[i].taken ? "aliases" : "");
    }
}

/* A preset names its model by a path, too; each refusal says which preset and why. */
Test(presets, the_model_of_a_preset_is_found_or_refused) {
    static const char *const cases[][2] = {
        {"max-context = 5\n", "models: p.conf: the key model is missing"},
        {"model = a\nmodel-name = other\n",
         "models: p.conf: model-name: cannot be set in a preset, "
         "which has the name of its file"},
        {"model = b\n", "models: p.conf: model: b: there is no such file"},
    };
    char text[400];
    struct err err;

    mkdir(full("files"), 0755);
    put("files/a.gguf", "1");
    set(&own, "max-context", "77");
    put("presets/\x01.conf", "nonsense");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        put("presets/p.conf", cases[i][0]);
        cr_expect_eq(find(NULL, &err), -EINVAL);
        cr_expect_str_eq(err.message, cases[i][1]);
        cr_expect_str_eq(err.param, "models");
        cr_expect_eq(err.status, 0);
    }
    mkdir(full("several"), 0755);
    put("several/x.gguf", "1");
    put("several/y.gguf", "1");
    snprintf(text, sizeof(text), "model = %s\n", full("several"));
    put("presets/p.conf", text);
    cr_expect_lt(find(NULL, &err), 0);
    cr_expect_eq(strncmp(err.message, "models: p.conf: model: ", 23), 0, "%s", err.message);
    cr_expect_str_eq(err.param, "models");
    put("other.gguf", "four");
    snprintf(text, sizeof(text), "model = %s\n", full("other.gguf"));
    put("presets/p.conf", text);
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    cr_expect_str_eq(found, "p other.gguf 4;a a.gguf 1;");
    set(&own, "models", full("none"));
    cr_expect_eq(find(NULL, &err), -EINVAL);
    snprintf(text, sizeof(text), "models: %s: cannot be read: No such file or directory",
             full("none"));
    cr_expect_str_eq(err.message, text);
    cr_expect_str_eq(err.param, "models");
}

/* Names that would be too long for a list of aliases are left out. */
Test(presets, names_of_the_hub_have_at_most_250_letters) {
    char name[300], path[400], want[600];
    struct err err;

    mkdir(full("files"), 0755);
    mkdir(full("files/o"), 0755);
    mkdir(full("files/o/r"), 0755);
    set(&own, "max-context", "77");
    for (int n = 247; n < 249; n++) {
        snprintf(name, sizeof(name), "files/o/r/%0*d.gguf", n, 0);
        put(name, "1");
        cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
        snprintf(path, sizeof(path), "%s", full(name));
        snprintf(want, sizeof(want), "%0*d %0*d.gguf 1%s;", n, 0, n, 0,
                 n == 247 ? " hf.co/o/r" : "");
        cr_expect_str_eq(found, want);
        unlink(path);
    }
}

/* Other programs' files are searched only if the option says so. */
Test(presets, files_of_all_programs_are_found_if_wanted) {
    static const char *const folders[] = {".lmstudio", ".lmstudio/models", ".lmstudio/models/o",
                                          ".lmstudio/models/o/r", "files"};
    struct err err;

    for (const char *const *var =
             (const char *const[]){"XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE",
                                   "WEFT_MODELS", "OLLAMA_MODELS", "LLAMA_CACHE", NULL};
         *var; var++)
        unsetenv(*var);
    setenv("HOME", top, 1);
    for (size_t i = 0; i < ARRAY_SIZE(folders); i++)
        cr_assert_eq(mkdir(full(folders[i]), 0755), 0);
    put(".lmstudio/models/o/r/theirs.gguf", "333");
    put("files/ours.gguf", "1");
    set(&own, "max-context", "77");
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    cr_expect_str_eq(found, "ours ours.gguf 1;");
    set(&own, "models-dir", "auto");
    cr_expect_eq(find(NULL, &err), 0, "%s", err.message);
    cr_expect(strstr(found, "theirs theirs.gguf 3"), "%s", found);
    cr_expect_null(strstr(found, "ours "));
}

/* ---- the check of options ---- */

static char checked[600];

/* Checks @c. Returns what is said of its memory; static. */
static const char *check(const struct config *c, int result, const char *message,
                         const char *param) {
    CLEANUP(buf_deinit) struct buf memory = {.max = sizeof(checked)};
    struct err err = {0};

    cr_expect_eq(models_check(c, &memory, &err), result, "%s", err.message);
    cr_expect_str_eq(err.message, message);
    cr_expect_str_eq(err.param, param);
    cr_expect_eq(err.status, 0);
    snprintf(checked, sizeof(checked), "%.*s", (int)memory.len, memory.len ? memory.data : "");
    return checked;
}

Test(presets, folders_without_a_model_are_told) {
    char why[400];

    set(&own, "models", "");
    set(&own, "models-dir", full("none"));
    snprintf(why, sizeof(why), "models-dir: %s: cannot be used: No such file or directory",
             full("none"));
    check(&own, -EINVAL, why, "models-dir");
    put("file", "1");
    set(&own, "models-dir", full("file"));
    snprintf(why, sizeof(why), "models-dir: %s: cannot be used: Not a directory", full("file"));
    check(&own, -EINVAL, why, "models-dir");
    mkdir(full("files"), 0755);
    set(&own, "models-dir", full("files"));
    check(&own, -EINVAL, "models, models-dir: the folders contain no model", "models");
    set(&own, "models-dir", "");
    check(&own, -EINVAL, "models, models-dir: the folders contain no model", "models");
    setenv("HOME", full("home"), 1);
    struct err err = {0};
    set(&own, "models-dir", "auto");
    cr_expect_eq(models_refuse_none(&own, &err), -EINVAL);
    cr_expect_str_eq(err.message, "models, models-dir: the folders contain no model");
}

Test(presets, a_check_tells_the_memory_of_the_options_model) {
    const struct tiny_model t = {.arch = "bert"};
    const struct msg_open room = {.memory_bytes = memory_available()};
    static const char *const contexts[] = {"512", "513", "0"};
    char want[600];

    tiny_model_save(&t, full("m.gguf"));
    set(&own, "models", "");
    set(&own, "models-dir", "");
    set(&own, "model", full("m.gguf"));
    set(&own, "backend", "cpu");
    set(&own, "kv-memory", "64M");
    for (size_t i = 0; i < ARRAY_SIZE(contexts); i++) {
        struct front_model f = {0};
        struct err err = {0};

        set(&own, "max-context", contexts[i]);
        cr_assert_eq(front_model_open(&f, &own, &room, &err), 0, "%s", err.message);
        const struct engine_fit *e = &f.fit;
        cr_assert(e->weight_bytes > 0 && e->context > 0 && f.header.n_ctx_train == 512);
        snprintf(want, sizeof(want),
                 "%smemory: weights %llu MiB + buffers %llu MiB + keys and values %llu MiB, a "
                 "context of %u tokens\n",
                 i == 1 ? "max-context: 513 is lowered to the model's 512 tokens\n" : "",
                 (unsigned long long)(e->weight_bytes >> 20),
                 (unsigned long long)(e->buffer_bytes >> 20),
                 (unsigned long long)(e->kv_bytes >> 20), e->context);
        cr_expect_str_eq(check(&own, 0, "", ""), want);
        front_model_deinit(&f);
    }
    set(&own, "max-context", "513");
    set(&own, "backend", "cuda"); /* a device has its own memory */
    cr_expect_str_eq(check(&own, 0, "", ""),
                     "max-context: 513 is lowered to the model's 512 tokens\n");
    set(&own, "backend", "auto");
    bool device = access("/dev/nvidiactl", F_OK) == 0;
    cr_expect_eq(strstr(check(&own, 0, "", ""), "memory: ") != NULL, !device);
    snprintf(want, sizeof(want), "model: %s: No such file or directory", full("none.gguf"));
    set(&own, "model", full("none.gguf"));
    check(&own, -ENOENT, want, "model");
}

/* More keys and values than the machine has memory for are refused. */
Test(presets, a_check_refuses_what_does_not_fit) {
    const struct tiny_model t = {.arch = "gemma-embedding"};
    struct msg_open room = {.memory_bytes = memory_available()};
    struct front_model f = {0};
    struct err err = {0};
    char why[300];

    tiny_model_save(&t, full("m.gguf"));
    set(&own, "models", "");
    set(&own, "models-dir", "");
    set(&own, "model", full("m.gguf"));
    set(&own, "backend", "cpu");
    set(&own, "kv-memory", "4096G");
    cr_assert_eq(front_model_open(&f, &own, &room, &err), 0, "%s", err.message);
    snprintf(
        why, sizeof(why),
        "kv-memory: does not fit: weights %llu MiB + keys and values 4194304 MiB, this machine "
        "has %llu MiB",
        (unsigned long long)(f.fit.weight_bytes >> 20),
        (unsigned long long)(memory_machine() >> 20));
    cr_expect_str_eq(check(&own, -EINVAL, why, "kv-memory"), "");
    front_model_deinit(&f);
}

/* A preset may ask for an instruction set that this machine lacks. */
Test(presets, a_check_looks_at_the_instruction_sets) {
    static const char *const all[] = {"amx", "neon", "i8mm", "avx512bf16"};
    const char *lacking = NULL;
    struct err why = {0};
    char text[700];

    mkdir(full("files"), 0755);
    put("files/a.gguf", "1");
    check(&own, 0, "", "");
    for (size_t i = 0; i < ARRAY_SIZE(all) && !lacking; i++) {
        set(&own, "isa", all[i]);
        why = (struct err){0};
        if (engine_check_isa(&own.engine, &why) < 0)
            lacking = all[i];
    }
    cr_assert_not_null(lacking, "no machine has both AMX and NEON");
    check(&own, -EINVAL, why.message, why.param);
    set(&own, "isa", "auto");
    snprintf(text, sizeof(text), "model = a\nisa = %s\n", lacking);
    put("presets/p.conf", text);
    snprintf(text, sizeof(text), "models: p: %.250s", why.message);
    check(&own, -EINVAL, text, "models");
}

/* Returns the number that the next file gets. */
static int next_file(void) {
    int fd = dup(STDERR_FILENO);

    close(fd);
    return fd;
}

Test(presets, a_change_leaves_no_file_open) {
    struct preset_change p = change();
    struct err err = {0};
    int before = next_file();

    p.system = "Be brief.";
    cr_expect_eq(preset_make(&p, &err), 0, "%s", err.message);
    cr_expect_eq(next_file(), before);
    p.template = "{% if";
    cr_expect_lt(preset_make(&p, &err), 0);
    cr_expect_eq(next_file(), before);
    cr_expect_eq(preset_remove(&p, &err), 0);
    cr_expect_eq(preset_remove(&p, &err), PRESET_NONE);
    presets_recover(&own);
    cr_expect_eq(next_file(), before);
    int fd = open(full("presets"), O_RDONLY | O_DIRECTORY);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    presets_recover(&own);
    close(fd);
    cr_expect_eq(next_file(), before);
    drop(&p);
}

/* A disk that is full in the middle of a text leaves no half of it. */
Test(presets, a_full_disk_leaves_nothing) {
    const struct rlimit full_disk = {40, RLIM_INFINITY}, room = {RLIM_INFINITY, RLIM_INFINITY};
    char text[100];
    struct preset_change p = change();
    struct err err = {0};

    memset(text, 'a', sizeof(text));
    text[99] = 0;
    p.system = text;
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &full_disk), 0);
    int r = preset_make(&p, &err);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &room), 0);
    cr_expect_eq(r, -EINVAL);
    expect_error(&err, 500, "not_written", "model",
                 "The service cannot write the file mine.system of the preset: File too large.");
    static const char *const ends[] = {"conf", "conf.checked", "system", "system.new"};
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        snprintf(text, sizeof(text), "presets/mine.%s", ends[i]);
        cr_expect_null(text_of(text), "%s", ends[i]);
    }
    drop(&p);
}
