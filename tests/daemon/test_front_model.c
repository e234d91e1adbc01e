#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/rng.h"
#include "base/sha256.h"
#include "base/util.h"
#include "checkpoint/checkpoint.h"
#include "daemon/models/front_model.h"
#include "tests/support/synth/synth.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"
#include "text/template.h"

/* The pooling of vectors if the request has none: llama.cpp's numbers in the file. */
Test(front_model, vectors_are_pooled_as_the_file_says) {
    static const struct {
        const char *arch;
        uint32_t in_file, pool;
        const char *option;
    } cases[] = {
        {"bert", 1, SUBMIT_POOL_MEAN, "model"},       {"bert", 2, SUBMIT_POOL_CLS, "model"},
        {"bert", 3, SUBMIT_POOL_LAST, "model"},       {"bert", 0, SUBMIT_POOL_CLS, "model"},
        {"nomic-bert", 1, SUBMIT_POOL_MEAN, "model"}, {"bert", 1, SUBMIT_POOL_MEAN, "mean"},
        {"bert", 1, SUBMIT_POOL_CLS, "cls"},          {"bert", 1, SUBMIT_POOL_LAST, "last"},
        {"bert", 1, SUBMIT_POOL_NONE, "none"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tiny_model t = {.arch = cases[i].arch, .pooling = cases[i].in_file};
        struct front_model m = {0};
        struct msg_open room = {0};
        struct config c;
        struct err err = {0};
        char path[64];

        tiny_model_temp(&t, path);
        cr_assert_eq(config_init(&c), 0);
        free(c.model);
        c.model = strdup(path);
        cr_assert_eq(config_set(&c, "pooling", cases[i].option, &err), 0, "%s", err.message);
        cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
        cr_expect_eq(m.api.pool, cases[i].pool, "%s %u: %u", cases[i].arch, cases[i].in_file,
                     m.api.pool);
        front_model_deinit(&m);
        config_deinit(&c);
        unlink(path);
    }
}

/* Opens the file @path by the name @named, a link that it makes. */
static void open_named(struct front_model *m, struct config *c, const char *path,
                       const char *named) {
    struct msg_open room = {0};
    struct err err = {0};

    *m = (struct front_model){0};
    cr_assert_eq(symlink(path, named), 0);
    cr_assert_eq(config_init(c), 0);
    cr_assert_eq(config_set(c, "model", named, &err), 0, "%s", err.message);
    cr_assert_eq(front_model_open(m, c, &room, &err), 0, "%s", err.message);
}

static void close_named(struct front_model *m, struct config *c, const char *named) {
    front_model_deinit(m);
    config_deinit(c);
    unlink(named); /* the next one may have this name as a folder */
}

/* The name is the file's, without the number of a part. */
Test(front_model, its_name_is_that_of_its_file) {
    static const char *const cases[][2] = {
        {"a.gguf", "a"},
        {"a-00001-of-00001.gguf", "a"},
        {"a-0001-of-00001.gguf", "a-0001-of-00001"},
        {"a-00001_of-00001.gguf", "a-00001_of-00001"},
        {".gguf", ".gguf"},
        {"a b\n.gguf", "a b\\n"},
        {"model", "model"},
        {"-00001-of-00001.gguf", "-00001-of-00001"},
        {"ab-00002-of-00009.gguf", "ab"},
        {"b-00001-oF-00001.gguf", "b-00001-oF-00001"},
        {"x.ggu", "x.ggu"},
        {"xxxx.ggu", "xxxx.ggu"},
    };
    const struct tiny_model t = {.arch = "bert", .n_layer = 1};
    char dir[] = "/tmp/weft-names-XXXXXX", path[64], named[100];

    cr_assert(mkdtemp(dir));
    tiny_model_temp(&t, path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m;
        struct config c;

        snprintf(named, sizeof(named), "%s/%s", dir, cases[i][0]);
        open_named(&m, &c, path, named);
        cr_expect_str_eq(m.name, cases[i][1]);
        cr_expect_str_eq(m.api.file, cases[i][0]);
        close_named(&m, &c, named);
    }
    unlink(path);
    rmdir(dir);
}

/* A snapshot in the hub's cache, whose folder is a commit, has the name of its repository. */
Test(front_model, the_name_of_a_snapshot_is_that_of_its_repository) {
    static const char *const cases[][2] = {
        {"models--owner--My-Model/snapshots/0a1b", "My-Model"},
        {"models--gpt2/snapshots/0a1b", "gpt2"},
        {"models--owner--My-Model/snapshots/0a1b/x.gguf", "x"},
        {"models--owner--My-Model/blobs/0a1b", "0a1b"},
        {"owner--My-Model/snapshots/0a1b", "0a1b"},
        {"models--a--b--c/snapshots/0a1b", "c"},
        {"models--a--/snapshots/0a1b", "a--"},
    };
    const struct tiny_model t = {.arch = "bert", .n_layer = 1};
    char dir[] = "/tmp/weft-names-XXXXXX", path[64], named[100], command[400];

    cr_assert(mkdtemp(dir));
    tiny_model_temp(&t, path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m;
        struct config c;

        snprintf(named, sizeof(named), "%s/%s", dir, cases[i][0]);
        snprintf(command, sizeof(command), "mkdir -p $(dirname %s)", named);
        cr_assert_eq(system(command), 0);
        open_named(&m, &c, path, named);
        cr_expect_str_eq(m.name, cases[i][1], "%s: %s", named, m.name);
        close_named(&m, &c, named);
    }
    unlink(path);
    snprintf(command, sizeof(command), "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
}

/* Query and document of a reranker that is an encoder have its separator between them. */
Test(front_model, a_rerankers_texts_are_separated) {
    const struct tiny_model t = {.arch = "bert", .n_layer = 1, .pooling = 4, .n_labels = 1};
    struct front_model m = {0};
    struct msg_open room = {0};
    struct config c;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", path, &err), 0);
    cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
    cr_assert_not_null(m.api.pair.before);
    cr_expect_str_eq(m.api.pair.before, "");
    cr_expect_str_eq(m.api.pair.between, "[SEP]");
    cr_expect_str_eq(m.api.pair.behind, "");
    front_model_deinit(&m);
    config_deinit(&c);
    unlink(path);
}

/* "auto" looks for loops in chats alone, with the number that suits the size of the model. */
Test(front_model, loops_are_looked_for_as_the_option_says) {
    static const struct {
        const char *value;
        uint32_t n;
        bool of_chats;
    } cases[] = {{"auto", REPEATS_DEFAULT, true}, {"7", 7, false}, {"0", 0, false}};
    const struct tiny_model t = {.arch = "bert", .n_layer = 1};
    char path[64];

    tiny_model_temp(&t, path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m = {0};
        struct msg_open room = {0};
        struct config c;
        struct err err = {0};

        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(config_set(&c, "model", path, &err), 0, "%s", err.message);
        cr_assert_eq(config_set(&c, "loop-breaker", cases[i].value, &err), 0, "%s", err.message);
        cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
        cr_expect_eq(m.api.loops_of_chats, cases[i].of_chats, "%s", cases[i].value);
        cr_expect_eq(m.api.loop_tokens, cases[i].n, "%s", cases[i].value);
        front_model_deinit(&m);
        config_deinit(&c);
    }
    unlink(path);
}

/* Clients ask before a worker is ready. */
Test(front_model, the_header_is_told_at_once) {
    struct tiny_model t = {.arch = "bert"};
    struct front_model m = {0};
    struct model_header h;
    struct msg_open room = {0};
    struct config c;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(config_init(&c), 0);
    free(c.model);
    c.model = strdup(path);
    c.engine.max_context = 100;
    cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
    cr_expect_eq(m.api.max_context, 100);
    cr_expect_gt(m.api.n_ctx_train, 100);
    cr_expect_eq(m.api.vocab_type, VOCAB_WPM);
    cr_expect_eq(model_header_open(&h, path), 0);
    cr_expect_eq(h.n_ctx_train, m.api.n_ctx_train);
    cr_expect_eq(h.n_vocab, m.api.n_vocab);
    cr_expect_eq(h.n_params, m.api.n_params);
    cr_expect(h.n_embd > 0 && h.n_embd == m.api.n_embd);
    cr_expect(h.tensor_bytes > h.n_params && h.tensor_bytes < m.api.n_bytes);
    cr_expect_eq(model_header_context(&h, &c), 100);
    c.engine.max_context = 0;
    cr_expect_eq(model_header_context(&h, &c), h.n_ctx_train);
    front_model_deinit(&m);
    config_deinit(&c);
    unlink(path);
    cr_expect_lt(model_header_open(&h, path), 0);
    cr_expect_eq(model_header_context(&h, &c), 0);
}

/* The api has what the worker says, and the copy for a new model has the same. */
Test(front_model, what_a_worker_has_room_for_is_told) {
    const struct msg_ready ready = {
        .max_context = 500, .n_pages = 9, .page_tokens = 32, .n_embd = 64};
    struct api_model copy = {.max_context = 1};
    struct front_model m = {0}, none = {0};
    struct msg_open room = {0};
    struct config c;
    struct err err = {0};
    char path[256];

    cr_assert(getenv("WEFT_DATA"));
    snprintf(path, sizeof(path), "%s/models/stories260K-f32.gguf", getenv("WEFT_DATA"));
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", path, &err), 0);
    cr_assert_eq(config_set(&c, "draft-model", path, &err), 0);
    cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
    cr_expect_eq(memcmp(m.keep_key[0], m.keep_key[1], sizeof(m.keep_key[0])), 0, "the same file");
    cr_expect_neq(memcmp(m.keep_key[0], none.keep_key[0], sizeof(m.keep_key[0])), 0);
    front_model_ready(&m, &ready, &copy);
    cr_expect(m.api.max_context == 500 && m.api.n_pages == 9 && m.api.page_tokens == 32);
    cr_expect(copy.max_context == 500 && copy.n_embd == 64);
    cr_expect_str_eq(copy.fingerprint, m.api.fingerprint);
    cr_expect(strlen(m.api.fingerprint) == 17 && *m.api.fingerprint == 'b');
    front_model_deinit(&m);
    config_deinit(&c);
}

/* Returns what is logged of a model that was trained for @trained tokens and whose worker has room
 * for 600, if the option asks for @asked. */
static const char *warning_of(uint32_t asked, uint32_t trained) {
    static char text[400];
    const struct front_model m = {.header.n_ctx_train = trained, .api.max_context = 600};
    FILE *log = tmpfile();
    int fd = dup(STDERR_FILENO);

    cr_assert(log && dup2(fileno(log), STDERR_FILENO) >= 0);
    front_model_warn_of_context(&m, asked);
    dup2(fd, STDERR_FILENO);
    close(fd);
    rewind(log);
    text[fread(text, 1, sizeof(text) - 1, log)] = 0;
    fclose(log);
    return text;
}

Test(front_model, a_context_below_what_was_asked_for_is_told) {
    cr_expect(strstr(warning_of(601, 1000), "asked=601 max_context=600"));
    cr_expect_str_eq(warning_of(600, 1000), "");
    cr_expect(strstr(warning_of(0, 601), "max_context=600 model=601"));
    cr_expect_str_eq(warning_of(0, 600), "");
}

/* Opens the model with the chat template at @template. Returns what front_model_open() returns. */
static int open_with(const char *model, const char *template, struct err *err) {
    struct front_model m = {0};
    struct msg_open room = {0};
    struct config c;

    *err = (struct err){0};
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", model, err), 0);
    cr_assert_eq(config_set(&c, "chat-template", template, err), 0);
    int r = front_model_open(&m, &c, &room, err);
    front_model_deinit(&m);
    config_deinit(&c);
    return r;
}

/* Opens @model with the file @system of @size bytes as its system message. */
static int open_with_system(const char *model, const char *system, size_t size) {
    struct front_model m = {0};
    struct msg_open room = {0};
    struct config c;
    struct err err = {0};

    cr_assert_eq(truncate(system, (off_t)size), 0);
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", model, &err), 0);
    cr_assert_eq(config_set(&c, "system-prompt", system, &err), 0);
    int r = front_model_open(&m, &c, &room, &err);
    cr_expect(r < 0 || (size == 0 ? !m.api.system : strlen(m.api.system) == size));
    cr_expect(r == 0 || strstr(err.message, "larger than 1 MiB"), "%s", err.message);
    front_model_deinit(&m);
    config_deinit(&c);
    return r;
}

Test(front_model, a_system_message_has_at_most_1_mib) {
    static char text[(1 << 20) + 1];
    char path[256], system[] = "/tmp/weft-test-system-XXXXXX";

    cr_assert(getenv("WEFT_DATA"));
    snprintf(path, sizeof(path), "%s/models/stories260K-f32.gguf", getenv("WEFT_DATA"));
    int fd = mkstemp(system);
    memset(text, 'a', sizeof(text));
    cr_assert_eq(write(fd, text, sizeof(text)), sizeof(text));
    close(fd);
    cr_expect_eq(open_with_system(path, system, sizeof(text)), -EINVAL);
    cr_expect_eq(open_with_system(path, system, sizeof(text) - 1), 0);
    cr_expect_eq(open_with_system(path, system, 0), 0);
    unlink(system);
}

/* Opens a model with the option @key, whose value is @value. Returns the error, or "" with the
 * variables of its template in @kwargs as JSON; static. */
static const char *open_option(const char *key, const char *value, char kwargs[100]) {
    static struct err err;
    struct front_model m = {0};
    struct msg_open room = {0};
    char path[TEST_DATA_PATH];
    struct config c;

    err = (struct err){0};
    test_data_file(path, "models", "stories260K-f32", ".gguf");
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", path, &err), 0);
    cr_assert_eq(config_set(&c, key, value, &err), 0, "%s", err.message);
    int r = front_model_open(&m, &c, &room, &err);
    cr_expect_eq(r < 0, *err.message != 0);
    char *text = yyjson_val_write(m.api.template_kwargs, 0, NULL);
    snprintf(kwargs, 100, "%s", text ? text : "");
    free(text);
    front_model_deinit(&m);
    config_deinit(&c);
    return err.message;
}

Test(front_model, a_system_message_is_utf8) {
    char system[] = "/tmp/weft-test-system-XXXXXX", kwargs[100];
    int fd = mkstemp(system);

    cr_assert_eq(write(fd, "\xC3\xA9\xC3", 3), 3);
    const char *why = open_option("system-prompt", system, kwargs);
    cr_expect(strncmp(why, "system-prompt: /tmp/", 20) == 0 && strstr(why, ": is no text in UTF-8"),
              "%s", why);
    cr_assert_eq(ftruncate(fd, 2), 0);
    cr_expect_str_eq(open_option("system-prompt", system, kwargs), "");
    close(fd);
    unlink(system);
}

Test(front_model, variables_of_templates_are_an_object) {
    char kwargs[100];

    cr_expect_str_eq(open_option("chat-template-kwargs", R"({"a":false})", kwargs), "");
    cr_expect_str_eq(kwargs, R"({"a":false})");
    const char *why = open_option("chat-template-kwargs", R"([1])", kwargs);
    cr_expect(strstr(why, "chat-template-kwargs: must be a JSON object"), "%s", why);
    cr_expect_str_eq(open_option("chat-template-kwargs", "", kwargs), "");
    cr_expect_str_eq(kwargs, "");
}

/* Shortages that may be temporary are distinguished from a wrong configuration, after which systemd
 * does not try again. */
Test(front_model, a_template_that_cannot_be_opened_now_is_no_wrong_one) {
    struct rlimit files, few;
    char path[256], template[] = "/tmp/weft-test-template-XXXXXX";
    struct err err;

    cr_assert(getenv("WEFT_DATA"));
    snprintf(path, sizeof(path), "%s/models/stories260K-f32.gguf", getenv("WEFT_DATA"));
    int fd = mkstemp(template);
    cr_assert_eq(write(fd, "{{ 1 }}", 7), 7);
    close(fd);
    cr_expect_eq(open_with(path, template, &err), 0, "%s", err.message);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = files;
    few.rlim_cur = (rlim_t)fd + 1; /* leaves a descriptor for the model only */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = open_with(path, template, &err);
    setrlimit(RLIMIT_NOFILE, &files);
    cr_expect_eq(r, -EMFILE, "%d %s", r, err.message);
    cr_expect(strstr(err.message, "chat-template: /tmp/weft-test"), "%s", err.message);
    unlink(template);
    /* neither a file nor a name of a template */
    cr_expect_eq(open_with(path, template, &err), -EINVAL);
    cr_assert_eq(mkfifo(template, 0600), 0);
    cr_expect_eq(open_with(path, template, &err), -EAGAIN, "a FIFO without a writer");
    unlink(template);
    cr_expect_eq(open_with(path, "/dev/zero", &err), -EINVAL);
    cr_expect(strstr(err.message, "larger than 1 MiB"), "%s", err.message);
}

/* Expects that front_model_open() refuses these files with @message. */
static void expect_refusal(const char *model, const char *draft, const char *message) {
    struct front_model m = {0};
    struct msg_open room = {0};
    struct config c;
    struct err err = {0};

    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", model, &err), 0);
    cr_assert_eq(config_set(&c, "draft-model", draft, &err), 0);
    cr_expect_lt(front_model_open(&m, &c, &room, &err), 0);
    cr_expect_str_eq(err.message, message);
    cr_expect_eq(err.status, 0, "who answers a client chooses the status");
    front_model_deinit(&m);
    config_deinit(&c);
}

Test(front_model, what_is_mistaken_for_a_model_is_named) {
    static const struct {
        const char *key, *message;
    } cases[] = {
        {"general.type=str:adapter", "this file is a LoRA adapter, not a model; merge it into its "
                                     "model first"},
        {"general.type=str:mmproj",
         "this file is the image encoder of a model: name it with mmproj, "
         "and the file of the model itself with model"},
    };
    const struct tiny_model t = {.arch = "bert", .n_layer = 1};
    char path[64], want[300];

    tiny_model_temp(&t, path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m = {0};
        struct msg_open room = {0};
        struct config c;
        struct err err = {0};

        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(config_set(&c, "model", path, &err), 0);
        cr_assert_eq(config_set(&c, "override-kv", cases[i].key, &err), 0);
        cr_expect_lt(front_model_open(&m, &c, &room, &err), 0);
        snprintf(want, sizeof(want), "model: %s: %s", path, cases[i].message);
        cr_expect_str_eq(err.message, want);
        front_model_deinit(&m);
        config_deinit(&c);
    }
    unlink(path);
}

Test(front_model, a_refusal_names_the_option_and_its_file) {
    const struct tiny_model bert = {.arch = "bert", .n_layer = 1};
    char path[256], other[64], why[300];

    cr_assert(getenv("WEFT_DATA"));
    snprintf(path, sizeof(path), "%s/models/stories260K-f32.gguf", getenv("WEFT_DATA"));
    expect_refusal("/none.gguf", "/other.gguf", "model: /none.gguf: No such file or directory");
    expect_refusal(path, "/none.gguf", "draft-model: /none.gguf: No such file or directory");
    tiny_model_temp(&bert, other);
    snprintf(why, sizeof(why), "draft-model: %s: %s", other,
             R"(its vocabulary differs from the model's: token 0 is "[PAD]", not "<unk>")");
    expect_refusal(path, other, why);
    unlink(other);
}

static char folder[40];

/* Makes the projector file @name in the folder, whose rows have @n_out values. */
static void make_projector(const char *name, const char *n_out) {
    char path[100], shape[40];
    const char *args[] = {
        "synth", "--projector", "qwen3vl_merger", "--shape", shape, "--format", "F16", "-o",
        path,    NULL};

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    snprintf(shape, sizeof(shape), "tiny,n_out=%s", n_out);
    cr_assert_eq(synth_main(ARRAY_SIZE(args) - 1, (char **)args), 0);
}

/* Opens the model of the folder, whose rows have 64 values, with the option mmproj. Returns the
 * result of front_model_open(); after an error the model takes no pictures. */
static int open_beside(const char *mmproj, struct err *err) {
    struct front_model m = {0};
    struct msg_open room = {0};
    char path[100];
    struct config c;

    *err = (struct err){0};
    snprintf(path, sizeof(path), "%s/model-Q8_0.gguf", folder);
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", path, err), 0);
    cr_assert_eq(config_set(&c, "mmproj", mmproj, err), 0);
    int r = front_model_open(&m, &c, &room, err);
    cr_expect_null(m.projector.file);
    cr_expect_null(m.api.projector);
    front_model_deinit(&m);
    config_deinit(&c);
    return r;
}

/* A projector that an option names must fit the model; one that is only beside it is ignored if it
 * does not fit. */
Test(front_model, a_projector_that_does_not_fit_is_refused_if_it_was_asked_for) {
    static const struct {
        const char *file, *part;
    } cases[] = {
        {"none.gguf", "none.gguf: No such file or directory"},
        {"model-Q8_0.gguf", "model-Q8_0.gguf: "},
        {"narrow.gguf",
         "narrow.gguf: its rows have 32 values, and those of the model have 64: it is "
         "the projector of another model"},
        {"mmproj-F16.gguf", "the model's vocabulary lacks the tokens around pictures of projector "
                            "'qwen3vl_merger'"},
    };
    char path[256], model[100];
    struct err err;

    strcpy(folder, "/tmp/weft-projectors-XXXXXX");
    cr_assert(mkdtemp(folder) && getenv("WEFT_DATA"));
    snprintf(path, sizeof(path), "%s/models/stories260K-f32.gguf", getenv("WEFT_DATA"));
    snprintf(model, sizeof(model), "%s/model-Q8_0.gguf", folder);
    cr_assert_eq(symlink(path, model), 0);
    cr_expect_eq(open_beside("", &err), 0, "%s", err.message);
    make_projector("narrow.gguf", "32");
    make_projector("mmproj-F16.gguf", "64");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].file);
        cr_expect_lt(open_beside(path, &err), 0);
        cr_expect(strncmp(err.message, "mmproj: /tmp/", 13) == 0, "%s", err.message);
        cr_expect(strstr(err.message, cases[i].part), "%s", err.message);
        cr_expect(!strstr(strstr(err.message, path) + 1, path), "twice: %s", err.message);
    }
    cr_expect_eq(open_beside("", &err), 0, "%s", err.message);
    cr_expect_eq(open_beside("none", &err), 0, "%s", err.message);
    for (size_t i = 1; i < ARRAY_SIZE(cases); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].file);
        unlink(path);
    }
    rmdir(folder);
}

/* Names that appear after the folder was read are not seen, and another folder is read anew. */
Test(front_model, a_folder_is_read_once_for_the_projectors_of_its_models) {
    static const char *const files[] = {"mmproj-a.gguf", "mmproj-b.gguf"};
    static const char *const models[] = {"a-Q8_0.gguf", "b-Q8_0.gguf"};
    struct projector_folder names = {0};
    struct err err = {0};
    char path[256];
    struct config c;

    strcpy(folder, "/tmp/weft-projectors-XXXXXX");
    cr_assert(mkdtemp(folder));
    cr_assert_eq(config_init(&c), 0);
    for (int i = 0; i < 4; i++) {
        if (i < 2) {
            snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
            cr_assert_eq(mknod(path, S_IFREG | 0600, 0), 0);
        }
        if (i == 2)
            projector_folder_deinit(&names);
        snprintf(path, sizeof(path), "%s/%s", folder, models[i % 2]);
        cr_assert_eq(config_set(&c, "model", path, &err), 0);
        cr_expect_eq(projector_file_is_there(&c, &names), i != 1, "%d", i);
    }
    cr_assert_eq(config_set(&c, "model", "/nonexistent/a-Q8_0.gguf", &err), 0);
    cr_expect(!projector_file_is_there(&c, &names));
    projector_folder_deinit(&names);
    config_deinit(&c);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* A device does not compute pictures of every kind; a projector that is only beside such a model
 * must not prevent it from serving. */
Test(front_model, a_projector_for_the_cpu_is_ignored_on_a_device) {
    static const struct {
        const char *name, *backend, *mmproj;
        bool sees;
    } cases[] = {
        {"gemma3", "cpu", "", true},       {"gemma3", "cuda", "", false},
        {"gemma4", "cuda", "", false},     {"qwen3vl", "cuda", "", true},
        {"gemma3", "cuda", "x", true},     {"gemma3", "cpu", "none", false},
        {"gemma3", "reference", "", true},
    };
    char data[TEST_DATA_PATH], model[100], beside[100], projector[32];

    strcpy(folder, "/tmp/weft-projectors-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(model, sizeof(model), "%s/model-F16.gguf", folder);
    snprintf(beside, sizeof(beside), "%s/mmproj-F16.gguf", folder);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m = {0};
        struct msg_open room = {0};
        struct err err = {0};
        struct config c;

        test_data_file(data, "golden-vision", cases[i].name, ".gguf");
        cr_assert_eq(symlink(data, model), 0);
        snprintf(projector, sizeof(projector), "mmproj-%s", cases[i].name);
        test_data_file(data, "golden-vision", projector, ".gguf");
        cr_assert_eq(symlink(data, beside), 0);
        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(config_set(&c, "model", model, &err), 0);
        cr_assert_eq(config_set(&c, "backend", cases[i].backend, &err), 0);
        const char *given = *cases[i].mmproj == 'x' ? beside : cases[i].mmproj;
        cr_assert_eq(config_set(&c, "mmproj", given, &err), 0);
        cr_expect_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
        cr_expect_eq(m.projector.file != NULL, cases[i].sees, "%zu", i);
        cr_expect_eq(m.api.projector != NULL, cases[i].sees, "%zu", i);
        front_model_deinit(&m);
        config_deinit(&c);
        unlink(model);
        unlink(beside);
    }
    rmdir(folder);
}

/* ---- all that follows from a file and the options ---- */

/* Options of a test: keys and values, ended by NULL. */
static void set_all(struct config *c, const char *const *options) {
    struct err err = {0};

    cr_assert_eq(config_init(c), 0);
    for (; *options; options += 2)
        cr_assert_eq(config_set(c, options[0], options[1], &err), 0, "%s", err.message);
}

/* Expects that these options are refused with all of this error. */
static void expect_refused(const char *const *options, int result, const char *param,
                           const char *message) {
    struct front_model m = {0};
    struct msg_open room = {0};
    struct err err = {0};
    struct config c;

    set_all(&c, options);
    cr_expect_eq(front_model_open(&m, &c, &room, &err), result, "%s: %s", message, err.message);
    cr_expect_str_eq(err.message, message);
    cr_expect_str_eq(err.param, param);
    cr_expect_eq(err.status, 0);
    cr_expect_str_eq(err.code, "");
    front_model_deinit(&m);
    config_deinit(&c);
}

static void open_all(struct front_model *m, struct config *c, const char *const *options) {
    struct msg_open room = {0};
    struct err err = {0};

    *m = (struct front_model){0};
    set_all(c, options);
    cr_assert_eq(front_model_open(m, c, &room, &err), 0, "%s", err.message);
}

static void close_all(struct front_model *m, struct config *c) {
    front_model_deinit(m);
    config_deinit(c);
}

static char stories[TEST_DATA_PATH];

static void find_stories(void) {
    test_data_file(stories, "models", "stories260K-f32", ".gguf");
}

Test(front_model, texts_are_refused_with_option_and_file, .init = find_stories) {
    char file[] = "/tmp/weft-test-text-XXXXXX", why[600], names[300] = "";
    int fd = mkstemp(file);

    for (size_t i = 0; template_name(i); i++) {
        strcat(names, " ");
        strcat(names, template_name(i));
    }
    snprintf(why, sizeof(why),
             "chat-template: /none is neither a file nor one of the built-in templates:%.200s",
             names);
    expect_refused((const char *[]){"model", stories, "chat-template", "/none", NULL}, -EINVAL,
                   "chat-template", why);
    expect_refused((const char *[]){"model", stories, "chat-template", "/dev/zero", NULL}, -EINVAL,
                   "chat-template", "chat-template: /dev/zero: larger than 1 MiB");
    expect_refused((const char *[]){"model", stories, "system-prompt", "/dev/zero", NULL}, -EINVAL,
                   "system-prompt", "system-prompt: /dev/zero: larger than 1 MiB");
    expect_refused((const char *[]){"model", stories, "system-prompt", "/none", NULL}, -ENOENT,
                   "system-prompt",
                   "system-prompt: /none: cannot be read: No such file or directory");
    cr_assert_eq(write(fd, "{{ 1 }}\xC3", 8), 8);
    snprintf(why, sizeof(why), "system-prompt: %s: is no text in UTF-8", file);
    expect_refused((const char *[]){"model", stories, "system-prompt", file, NULL}, -EINVAL,
                   "system-prompt", why);
    snprintf(why, sizeof(why), "chat-template: %s: is no text in UTF-8", file);
    expect_refused((const char *[]){"model", stories, "chat-template", file, NULL}, -EINVAL,
                   "chat-template", why);
    close(fd);
    unlink(file);
    expect_refused((const char *[]){"model", "/none.gguf", NULL}, -ENOENT, "model",
                   "model: /none.gguf: No such file or directory");
    expect_refused((const char *[]){"model", stories, "draft-model", "/none.gguf", NULL}, -ENOENT,
                   "draft-model", "draft-model: /none.gguf: No such file or directory");
}

/* A template that cannot be read is named by its file: its own, or the model's. */
Test(front_model, a_wrong_template_is_that_of_a_file, .init = find_stories) {
    char file[] = "/tmp/weft-test-text-XXXXXX", begin[300];
    int fd = mkstemp(file);

    cr_assert_eq(write(fd, "{% if", 5), 5);
    close(fd);
    const char *const cases[][5] = {
        {"model", stories, "chat-template", file, NULL},
        {"model", stories, "override-kv", "tokenizer.chat_template=str:{% if", NULL}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m = {0};
        struct msg_open room = {0};
        struct err err = {0};
        struct config c;

        set_all(&c, cases[i]);
        cr_expect_eq(front_model_open(&m, &c, &room, &err), -EINVAL);
        snprintf(begin, sizeof(begin), "%s: %.150s: ", i ? "model" : "chat-template",
                 i ? stories : file);
        cr_expect_eq(strncmp(err.message, begin, strlen(begin)), 0, "%s", err.message);
        cr_expect_gt(strlen(err.message), strlen(begin) + 5);
        cr_expect_str_eq(err.param, i ? "model" : "chat-template");
        close_all(&m, &c);
    }
    unlink(file);
}

/* The option's template comes first, then the file's, then the usual one; a built-in one begins
 * with the token that the vocabulary asks for. */
Test(front_model, the_template_is_the_first_there_is, .init = find_stories) {
    static const char own[] = "{{ 1 }}";
    char file[] = "/tmp/weft-test-text-XXXXXX", want[20000];
    int fd = mkstemp(file);
    struct front_model m;
    struct config c;

    cr_assert_eq(write(fd, own, 7), 7);
    close(fd);
    for (int adds = 0; adds < 2; adds++) {
        const char *bos = adds ? "tokenizer.ggml.add_bos_token=bool:true"
                               : "tokenizer.ggml.add_bos_token=bool:false";

        for (size_t i = 0; template_name(i); i++) {
            const char *name = template_name(i), *source = template_named(name);

            open_all(&m, &c,
                     (const char *[]){"model", stories, "override-kv", bos, "chat-template", name,
                                      NULL});
            snprintf(want, sizeof(want), "%s%s",
                     adds && !strstr(source, "bos_token") ? "{{- bos_token -}}" : "", source);
            cr_expect_eq(m.api.template_len, strlen(want), "%s", name);
            cr_expect_eq(memcmp(m.api.template_source, want, strlen(want)), 0, "%s", name);
            cr_expect(m.template && m.api.template == m.template);
            close_all(&m, &c);
        }
        open_all(&m, &c, (const char *[]){"model", stories, "override-kv", bos, NULL});
        snprintf(want, sizeof(want), "%s%s", adds ? "{{- bos_token -}}" : "",
                 template_named("chatml"));
        cr_expect_eq(m.api.template_len, strlen(want));
        cr_expect_eq(memcmp(m.api.template_source, want, strlen(want)), 0);
        close_all(&m, &c);
    }
    open_all(&m, &c, (const char *[]){"model", stories, "chat-template", file, NULL});
    cr_expect(m.api.template_len == 7 && memcmp(m.api.template_source, own, 7) == 0);
    close_all(&m, &c);
    open_all(&m, &c,
             (const char *[]){"model", stories, "override-kv",
                              "tokenizer.chat_template=str:{{ 2 }}", NULL});
    cr_expect(m.api.template_len == 7 && memcmp(m.api.template_source, "{{ 2 }}", 7) == 0);
    close_all(&m, &c);
    cr_assert_eq(truncate(file, 0), 0);
    open_all(&m, &c, (const char *[]){"model", stories, "chat-template", file, NULL});
    cr_expect_eq(m.api.template_len, 0);
    close_all(&m, &c);
    unlink(file);
}

Test(front_model, the_system_message_is_the_files, .init = find_stories) {
    char file[] = "/tmp/weft-test-text-XXXXXX";
    int fd = mkstemp(file);
    struct front_model m;
    struct config c;

    cr_assert_eq(write(fd, "Be\nbrief.", 9), 9);
    open_all(&m, &c, (const char *[]){"model", stories, "system-prompt", file, NULL});
    cr_assert_not_null(m.api.system);
    cr_expect_str_eq(m.api.system, "Be\nbrief.");
    close_all(&m, &c);
    cr_assert_eq(pwrite(fd, "\0", 1, 0), 1);
    open_all(&m, &c, (const char *[]){"model", stories, "system-prompt", file, NULL});
    cr_expect_null(m.api.system, "it begins with its end");
    close_all(&m, &c);
    open_all(&m, &c, (const char *[]){"model", stories, NULL});
    cr_expect_null(m.api.system);
    close_all(&m, &c);
    close(fd);
    unlink(file);
}

/* The api has what the options say, in the members that its requests read. */
Test(front_model, the_api_has_all_options, .init = find_stories) {
    struct model_header h;
    struct front_model m;
    struct config c;
    struct stat st;

    cr_assert_eq(stat(stories, &st), 0);
    cr_assert_eq(model_header_open(&h, stories), 0);
    open_all(&m, &c, (const char *[]){"model", stories, NULL});
    cr_expect_str_eq(m.api.id, "stories260K-f32");
    cr_expect(m.api.id == m.name && m.api.aliases == (const char *const *)c.aliases);
    cr_expect(m.api.tags == (const char *const *)c.tags && m.api.keep_alive_s == 0);
    cr_expect(!m.api.encoder && !m.api.ranks && m.api.pool == SUBMIT_POOL_LAST);
    cr_expect(m.api.tokenizer == m.tokenizer && m.api.n_vocab == h.n_vocab);
    cr_expect_str_eq(m.api.arch, "llama");
    cr_expect_str_eq(m.api.file, "stories260K-f32.gguf");
    cr_expect_eq(m.api.n_bytes, (uint64_t)st.st_size);
    cr_expect(m.api.n_embd == h.n_embd && m.api.n_ctx_train == h.n_ctx_train);
    cr_expect(m.api.vocab_type == h.vocab_type && m.api.n_params == h.n_params);
    cr_expect(m.api.tensor_bytes == h.tensor_bytes && m.api.max_context == h.n_ctx_train);
    cr_expect(m.api.thinking == 0 && !m.api.inline_reasoning && !m.api.template_kwargs);
    cr_expect(m.api.sampling == &m.sampling.values && !m.api.seed && !m.api.fingerprint);
    cr_expect_eq(m.api.sampling_source, (const char *)m.sampling.source);
    cr_expect(!m.api.projector && !m.api.pair.before && !m.pair && !m.draft);
    /* There is no memory for pages: the worker will say why. */
    cr_expect(m.fit.weight_bytes == 0 && *m.fit_why.message && m.memory_bytes == m.api.n_bytes);
    close_all(&m, &c);
    open_all(&m, &c,
             (const char *[]){"model", stories, "model-name", "other", "keep-alive-s", "7",
                              "reasoning", "on", "reasoning-format", "none", "sampling",
                              "seed=5,top_k=3", "aliases", "x", "pooling", "mean", NULL});
    cr_expect_str_eq(m.api.id, "other");
    cr_expect(m.api.keep_alive_s == 7 && m.api.inline_reasoning);
    cr_expect(m.api.thinking == c.reasoning && c.reasoning != 0);
    cr_assert_not_null(m.api.seed);
    cr_expect(*m.api.seed == 5 && m.api.sampling->top_k == 3);
    cr_expect_str_eq(m.api.sampling_source, "option");
    cr_expect_str_eq(m.api.aliases[0], "x");
    cr_expect_eq(m.api.pool, SUBMIT_POOL_MEAN);
    close_all(&m, &c);
}

/* A draft model takes memory of its own, unless there is no speculation. */
Test(front_model, the_memory_is_that_of_both_models, .init = find_stories) {
    static const struct {
        const char *draft, *speculation;
        bool counts;
    } cases[] = {{"", "auto", false}, {stories, "auto", true}, {stories, "off", false}};
    uint64_t alone = 0;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m;
        struct config c;

        open_all(&m, &c,
                 (const char *[]){"model", stories, "draft-model", cases[i].draft, "speculation",
                                  cases[i].speculation, "kv-memory", "8M", "draft-kv-memory", "1M",
                                  NULL});
        if (i == 0)
            alone = m.memory_bytes;
        cr_expect_eq(m.fit.weight_bytes + m.fit.buffer_bytes + m.fit.kv_bytes, alone, "%zu", i);
        if (cases[i].counts)
            cr_expect(m.memory_bytes > alone + m.fit.weight_bytes &&
                          m.memory_bytes < alone + m.fit.weight_bytes + (64 << 20),
                      "%llu %llu", (unsigned long long)m.memory_bytes, (unsigned long long)alone);
        else
            cr_expect_eq(m.memory_bytes, alone, "%zu", i);
        cr_expect_eq(m.draft != NULL, i > 0);
        close_all(&m, &c);
    }
}

/* The numbers 0 and 4 and those beyond, which have no pooling, stand for the usual one. */
Test(front_model, unknown_poolings_are_the_usual_one) {
    static const struct {
        const char *kv;
        uint32_t pool;
    } cases[] = {{"bert.pooling_type=int:0", SUBMIT_POOL_CLS},
                 {"bert.pooling_type=int:1", SUBMIT_POOL_MEAN},
                 {"bert.pooling_type=int:3", SUBMIT_POOL_LAST},
                 {"bert.pooling_type=int:5", SUBMIT_POOL_CLS},
                 {"bert.pooling_type=int:200", SUBMIT_POOL_CLS}};
    const struct tiny_model t = {.arch = "bert", .n_layer = 1};
    char path[64];

    tiny_model_temp(&t, path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct front_model m;
        struct config c;

        open_all(&m, &c, (const char *[]){"model", path, "override-kv", cases[i].kv, NULL});
        cr_expect_eq(m.api.pool, cases[i].pool, "%s: %u", cases[i].kv, m.api.pool);
        cr_expect(m.api.encoder && !m.template && !m.api.template_source);
        close_all(&m, &c);
    }
    struct front_model m;
    struct config c;
    open_all(&m, &c,
             (const char *[]){"model", path, "override-kv", "general.type=str:adapters", NULL});
    close_all(&m, &c);
    char want[300];
    snprintf(want, sizeof(want),
             "model: %s: this file is the image encoder of a model: name it with mmproj, and the "
             "file of the model itself with model",
             path);
    expect_refused(
        (const char *[]){"model", path, "override-kv", "general.architecture=str:clip", NULL},
        -EINVAL, "model", want);
    unlink(path);
}

/* The fingerprint is of file and program, and stays the first worker's. */
Test(front_model, the_fingerprint_is_of_file_and_program, .init = find_stories) {
    const struct msg_ready ready = {
        .max_context = 500, .n_pages = 9, .page_tokens = 32, .n_embd = 64};
    const struct msg_ready later = {
        .max_context = 400, .n_pages = 8, .page_tokens = 16, .n_embd = 63};
    struct api_model copy = {0};
    struct front_model m;
    struct config c;
    struct rng r;
    char want[24];

    open_all(&m, &c, (const char *[]){"model", stories, NULL});
    memcpy(&r.state, m.print, sizeof(r.state));
    for (const char *s = WEFT_VERSION; *s; s++)
        r.state = rng_next(&r) ^ (unsigned char)*s;
    snprintf(want, sizeof(want), "b%016" PRIx64, rng_next(&r));
    front_model_ready(&m, &ready, &copy);
    cr_expect_str_eq(m.api.fingerprint, want);
    cr_expect_eq(copy.fingerprint, m.api.fingerprint);
    memset(m.print, 0, sizeof(m.print));
    front_model_ready(&m, &later, &copy);
    cr_expect_str_eq(m.api.fingerprint, want);
    const struct api_model *const both[] = {&m.api, &copy};
    for (size_t i = 0; i < 2; i++)
        cr_expect(both[i]->max_context == 400 && both[i]->n_pages == 8 &&
                      both[i]->page_tokens == 16 && both[i]->n_embd == 63,
                  "%zu", i);
    close_all(&m, &c);
}

/* Limits of pictures come from the options; the least may not be above the most. */
Test(front_model, pictures_have_the_limits_of_the_options) {
    char model[TEST_DATA_PATH], projector[TEST_DATA_PATH], none[32] = {0};
    struct front_model m;
    struct config c;

    test_data_file(model, "golden-vision", "qwen3vl", ".gguf");
    test_data_file(projector, "golden-vision", "mmproj-qwen3vl", ".gguf");
    open_all(&m, &c,
             (const char *[]){"model", model, "mmproj", projector, "picture-min-tokens", "3",
                              "picture-max-tokens", "3", "picture-fit", "pad", "picture-background",
                              "black", NULL});
    cr_expect_eq(m.api.projector, &m.projector.projector);
    cr_expect_eq(m.api.projector_id, (const uint8_t *)m.projector.id);
    cr_expect_neq(memcmp(m.projector.id, none, sizeof(none)), 0);
    cr_expect(m.api.picture_budget.least == 3 && m.api.picture_budget.most == 3);
    cr_expect(m.api.picture_pads == c.picture_pads && c.picture_pads);
    cr_expect(m.api.picture_background == c.picture_background && c.picture_background);
    close_all(&m, &c);
    expect_refused((const char *[]){"model", model, "mmproj", projector, "picture-min-tokens", "4",
                                    "picture-max-tokens", "3", NULL},
                   -EINVAL, "picture-min-tokens",
                   "picture-min-tokens: 4: a picture has at most 3 tokens (picture-max-tokens)");
}

/* ---- the projector beside a model ---- */

static char noted[1000];

/* Opens the model of the folder at @path. Returns what is logged of its projector; static. */
static const char *projector_of(const char *path) {
    struct front_model m = {0};
    struct msg_open room = {0};
    struct err err = {0};
    FILE *log = tmpfile();
    int fd = dup(STDERR_FILENO);
    struct config c;

    set_all(&c, (const char *[]){"model", path, "chat-template", "chatml", NULL});
    cr_assert(log && dup2(fileno(log), STDERR_FILENO) >= 0);
    int r = front_model_open(&m, &c, &room, &err);
    dup2(fd, STDERR_FILENO);
    close(fd);
    cr_expect_eq(r, 0, "%s", err.message);
    cr_expect_null(m.projector.file);
    rewind(log);
    noted[fread(noted, 1, sizeof(noted) - 1, log)] = 0;
    fclose(log);
    close_all(&m, &c);
    return noted;
}

/* The most exact name is taken, of several the first by the alphabet; here none can be used. */
Test(front_model, of_several_projectors_the_most_exact_is_tried, .init = find_stories) {
    static const struct {
        const char *names[3], *best;
    } cases[] = {
        {{"notes.gguf", "projector.gguf"}, NULL},
        {{"mmproj-F16.gguf"}, "mmproj-F16.gguf"},
        {{"MMPROJ-F16.gguf"}, "MMPROJ-F16.gguf"},
        {{"mmproj-F16.gguf", "mmproj-model-F16.gguf"}, "mmproj-model-F16.gguf"},
        {{"mmproj-model-F16.gguf", "model-mmproj-F16.gguf"}, "mmproj-model-F16.gguf"},
        {{"mmproj-other-F16.gguf"}, NULL},
        {{"mmproj-other-F16.gguf", "mmproj-F16.gguf"}, "mmproj-F16.gguf"},
        {{"mmproj-model-F16.gguf", "mmproj-F16.gguf", "mmproj-other.gguf"},
         "mmproj-model-F16.gguf"},
    };
    char model[100], path[200], want[300];

    strcpy(folder, "/tmp/weft-projectors-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(model, sizeof(model), "%s/model-Q8_0.gguf", folder);
    cr_assert_eq(symlink(stories, model), 0);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (int there = 1; there >= 0; there--) {
            if (!there && cases[i].best) {
                const char *text = projector_of(model);
                snprintf(want, sizeof(want), R"(projector_ignored file="%s/%s" reason=)", folder,
                         cases[i].best);
                cr_expect(strstr(text, want), "%zu: %s", i, text);
                cr_assert_eq(chdir(folder), 0);
                text = projector_of("model-Q8_0.gguf");
                snprintf(want, sizeof(want), R"(projector_ignored file="./%s" reason=)",
                         cases[i].best);
                cr_expect(strstr(text, want), "%zu: %s", i, text);
            } else if (!there) {
                cr_expect_null(strstr(projector_of(model), "projector_ignored"), "%zu", i);
            }
            for (size_t k = 0; k < 3 && cases[i].names[k]; k++) {
                snprintf(path, sizeof(path), "%s/%s", folder, cases[i].names[k]);
                cr_assert_eq(there ? mknod(path, S_IFREG | 0600, 0) : unlink(path), 0);
            }
        }
    }
    unlink(model);
    rmdir(folder);
}

Test(front_model, a_projector_is_there_if_it_can_be_read) {
    struct projector_folder names = {0};
    struct config c;
    char path[100];

    strcpy(folder, "/tmp/weft-projectors-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/mmproj-a.gguf", folder);
    cr_assert_eq(mknod(path, S_IFREG | 0600, 0), 0);
    const struct {
        const char *model, *mmproj;
        bool is_there;
    } cases[] = {
        {"/none/a.gguf", path, true},
        {"/none/a.gguf", "/none/mmproj.gguf", false},
        {"/none/a.gguf", "", false},
        {"/none/a.gguf", "none", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        set_all(&c, (const char *[]){"model", cases[i].model, "mmproj", cases[i].mmproj, NULL});
        cr_expect_eq(projector_file_is_there(&c, &names), cases[i].is_there, "%zu", i);
        config_deinit(&c);
    }
    projector_folder_deinit(&names);
    cr_expect(!names.path && !names.name && names.n == 0);
    unlink(path);
    rmdir(folder);
}

/* Pictures are kept by the file of their projector. */
Test(front_model, a_projector_has_a_digest_of_its_own) {
    char model[TEST_DATA_PATH], projector[TEST_DATA_PATH];
    uint8_t print[16], want[32];
    struct front_model m;
    struct sha256 sum;
    struct config c;

    test_data_file(model, "golden-vision", "qwen3vl", ".gguf");
    test_data_file(projector, "golden-vision", "mmproj-qwen3vl", ".gguf");
    open_all(&m, &c, (const char *[]){"model", model, "mmproj", projector, NULL});
    uint64_t size = gguf_bytes(m.projector.file);
    close_all(&m, &c);
    struct err err;
    struct gguf *file = NULL;
    cr_assert_eq(checkpoint_open_projector(&file, projector, &err), 0);
    gguf_fingerprint(file, print);
    gguf_free(file);
    sha256_init(&sum);
    sha256_add(&sum, print, sizeof(print));
    sha256_add(&sum, &size, sizeof(size));
    sha256_end(&sum, want);
    open_all(&m, &c, (const char *[]){"model", model, "mmproj", projector, NULL});
    cr_expect_eq(memcmp(m.projector.id, want, sizeof(want)), 0);
    cr_expect_eq(m.api.picture_budget.least, 0);
    close_all(&m, &c);
}
