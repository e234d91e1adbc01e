#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/config/config.h"
#include "tests/support/tiny_model.h"

static struct config config;
static struct err err;
static char path[64];

static void set_up(void) {
    memset(&err, 0, sizeof(err));
    cr_assert_eq(config_init(&config), 0);
}

static void tear_down(void) {
    config_deinit(&config);
    if (*path)
        unlink(path);
}

TestSuite(config, .init = set_up, .fini = tear_down);

/* Reads @text as a configuration file. */
static int read_text(const char *text) {
    strcpy(path, "/tmp/weft-config-XXXXXX");
    int fd = mkstemp(path);

    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return config_read_file(&config, path, &err);
}

/* Asserts that the error is about @param, which may be cut, that its text is @message, and that it
 * blames no client. */
static void expect_told(const char *param, const char *message) {
    cr_expect_str_eq(err.message, message);
    cr_expect_eq(strncmp(err.param, param, sizeof(err.param) - 1), 0, "%s: %s", message, err.param);
    cr_expect(err.status == 0 && !*err.code);
}

/* Asserts that the file @text is refused with "FILE:LINE: @rest", about @param. */
static void expect_error(const char *text, int line, const char *param, const char *rest) {
    char message[500];

    cr_assert_eq(read_text(text), -EINVAL, "%s is accepted", text);
    snprintf(message, sizeof(message), "%s:%d: %s", path, line, rest);
    expect_told(param, message);
    unlink(path);
}

static char *slurp(FILE *f) {
    char *text = calloc(1, 1 << 17);

    cr_assert(f && text);
    rewind(f);
    cr_assert(fread(text, 1, (1 << 17) - 1, f) > 0);
    fclose(f);
    return text;
}

Test(config, shipped_file_is_the_table_printed) {
    FILE *printed = tmpfile();

    config_print(printed);
    CLEANUP(freep) char *is = slurp(fopen(getenv("WEFT_CONF"), "re"));
    CLEANUP(freep) char *should = slurp(printed);
    cr_expect_str_eq(is, should, "conf/weft.conf of the build");
}

/* With the comment sign of every line removed, the file has the default values. */
Test(config, shipped_file_uncommented_changes_nothing) {
    CLEANUP(freep) char *text = slurp(fopen(getenv("WEFT_CONF"), "re"));
    CLEANUP(freep) char *plain = calloc(1, strlen(text) + 1);
    char *out = plain;

    for (char *p = text; *p; p++)
        if (!(*p == '#' && p[1] != ' '))
            *out++ = *p;
    cr_assert_eq(read_text(plain), 0, "%s", err.message);
    struct config initial;
    cr_assert_eq(config_init(&initial), 0);
    for (uint32_t i = 0; i < config_table_n; i++) {
        char a[1024], b[1024];

        config_value(&config, &config_table[i], a, sizeof(a));
        config_value(&initial, &config_table[i], b, sizeof(b));
        cr_expect_str_eq(a, b, "%s", config_table[i].key);
    }
    config_deinit(&initial);
}

Test(config, every_key_is_a_flag_with_the_same_check) {
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char flag[80];
        char *argv[] = {"weftd", flag, NULL};

        snprintf(flag, sizeof(flag), "--%s=%s", o->key, o->initial);
        cr_expect_eq(config_read_args(&config, 2, argv, &err), 0, "%s: %s", flag, err.message);
        snprintf(flag, sizeof(flag), "--%s=%s", o->key, "\x01nonsense");
        if (o->type != OPTION_STRING && o->type != OPTION_LIST)
            cr_expect_eq(config_read_args(&config, 2, argv, &err), -EINVAL, "%s", o->key);
    }
}

Test(config, every_word_of_a_choice_is_kept) {
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char words[200], value[200], *at = words;

        if (!o->choices)
            continue;
        snprintf(words, sizeof(words), "%s", o->choices);
        for (char *word; (word = strsep(&at, "|"));) {
            cr_expect_eq(config_set(&config, o->key, word, NULL), 0, "%s %s", o->key, word);
            config_value(&config, o, value, sizeof(value));
            cr_expect_str_eq(value, word, "%s", o->key);
        }
    }
}

Test(config, flag_wins_over_file) {
    cr_assert_eq(read_text("[engine]\nthreads = 3\ndepth = 1\n"), 0);
    char *argv[] = {"weftd", "--threads", "5", "--config", path, NULL};

    cr_assert_eq(config_read_args(&config, 5, argv, &err), 0, "%s", err.message);
    cr_expect_eq(config.engine.n_threads, 5);
    cr_expect_eq(config.sched.depth, 1);
}

Test(config, repeated_list_flag_adds) {
    char *argv[] = {"weftd", "--listen", "127.0.0.1:1", "--listen", "unix:/tmp/s", NULL};

    cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
    cr_expect_str_eq(config.listen[0], "127.0.0.1:1");
    cr_expect_str_eq(config.listen[1], "unix:/tmp/s");
    cr_expect_null(config.listen[2]);
}

Test(config, a_key_given_twice_in_a_file_is_refused) {
    expect_error("[listen]\nlisten = 127.0.0.1:1\nlisten = 127.0.0.1:2\n", 3, "listen",
                 "listen: is set by an earlier line, too; give all values in one, separated by "
                 "commas");
    expect_error("[engine]\nthreads = 1\ndepth = 1\n[engine]\nthreads = 1\n", 5, "threads",
                 "threads: is set by an earlier line, too; remove one of them");
    cr_expect_eq(config.engine.n_threads, 1);
}

Test(config, unknown_key_is_named_with_file_and_line) {
    static const char name[] = "a-name-of-64-characters-is-cut-in-messages-behind-60-of-them-xxx";
    char line[100];

    expect_error("[engine]\nthreads = 1\nthread = 2\n", 3, "thread",
                 "thread: unknown key; is threads meant?");
    expect_error("[engine]\nport = 2\n", 2, "port", "port: unknown key; is listen meant?");
    snprintf(line, sizeof(line), "%s = 1\n", name);
    expect_error(line, 1, name,
                 "a-name-of-64-characters-is-cut-in-messages-behind-60-of-them: unknown key (weftd "
                 "--help lists all)");
    cr_expect_eq(config.engine.n_threads, 1);
}

Test(config, names_of_other_servers_and_slips_are_answered_with_ours) {
    static const struct {
        const char *said, *meant;
    } names[] = {{"kvpages", "kv-pages"},
                 {"modle", "model"},
                 {"port", "listen"},
                 {"alias", "model-name"},
                 {"ssl-certificate-key", "tls-key"},
                 {"ctx-size", "max-context"},
                 {"thread", "threads"}};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        cr_assert_not_null(config_meant(names[i].said), "%s", names[i].said);
        cr_expect_str_eq(config_meant(names[i].said), names[i].meant);
    }
    cr_expect_null(config_meant("nothing-of-the-kind"));
    cr_expect_null(config_meant(""));
    cr_expect_null(config_meant("a-name-that-is-much-longer-than-any-key-that-there-could-be"));
}

Test(config, what_a_shell_would_have_done_is_refused) {
    /* NULL: the value is taken */
    static const char *const values[][2] = {
        {R"("/m.gguf")", R"(model: must be written without quotes, not "/m.gguf")"},
        {"'m'", "model: must be written without quotes, not 'm'"},
        {R"("")", R"(model: must be written without quotes, not "")"},
        {"~", R"(model: ~ is not expanded here: write the whole path, not "~")"},
        {"~/m", R"(model: ~ is not expanded here: write the whole path, not "~/m")"},
        {"m #1", "model: a comment needs a line of its own"},
        {R"(")", NULL},
        {"'", NULL},
        {R"("m')", NULL},
        {"m'", NULL},
        {"'m", NULL},
        {"mm", NULL},
        {"m~", NULL},
        {"m# 1", NULL},
    };
    char text[100], flag[100], *argv[] = {"weftd", flag, NULL};

    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        bool taken = !values[i][1], is_comment = strchr(values[i][0], '#');

        snprintf(text, sizeof(text), "[model]\nmodel = %s\n", values[i][0]);
        snprintf(flag, sizeof(flag), "--model=%s", values[i][0]);
        if (!taken)
            expect_error(text, 2, "model", values[i][1]);
        else
            cr_expect_eq(read_text(text), 0, "%s", text);
        unlink(path);
        cr_expect_str_eq(config.model, taken ? values[i][0] : "");
        cr_expect_eq(config_read_args(&config, 2, argv, &err), taken || is_comment ? 0 : -EINVAL);
        if (!taken && !is_comment)
            expect_told("model", values[i][1]);
        cr_expect_eq(config_set(&config, "model", values[i][0], &err), 0, "from no user");
        cr_expect_str_eq(config.model, values[i][0]);
        cr_expect_eq(config_set(&config, "model", "", &err), 0);
    }
    expect_error("threads = 4\n", 1, "threads", "threads: needs the line [engine] above it");
}

Test(config, address_without_host_or_port_says_how_one_looks) {
    static char *const wrong[] = {
        "8080",    ":8080",      "127.0.0.1",    "127.0.0.1:",     "127.0.0.1:65536", "localhost:x",
        "[::1:80", "[::1]x:80",  "[1.2.3.4]:80", "300.1.1.1:80",   "127.1:80",        "::1:80",
        "host:80", "tls:::1:80", "localhost2:1", "127.0.0.1%lo:80"};
    char message[300];

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        char *argv[] = {"weftd", "--model", "m.gguf", "--listen", wrong[i], NULL};

        cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
        cr_expect_eq(config_check(&config, &err), -EINVAL, "%s", wrong[i]);
        snprintf(message, sizeof(message),
                 "listen: must be ADDRESS:PORT, such as 127.0.0.1:8080, [IPv6]:PORT, "
                 R"(tls:ADDRESS:PORT or unix:PATH, with a port of at most 65535, not "%s")",
                 wrong[i]);
        expect_told("listen", message);
    }
}

Test(config, name_of_a_model_is_text) {
    static const struct {
        const char *name;
        int r;
    } all[] = {{"mod\xc3\xa8le 1", 0}, {"mod\xe8le", -EINVAL}, {"a\nb", -EINVAL}, {R"(~"x")", 0}};

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        cr_assert_eq(config_set(&config, "model", "m.gguf", &err), 0);
        cr_assert_eq(config_set(&config, "model-name", all[i].name, &err), 0, "%s", err.message);
        cr_expect_eq(config_check(&config, &err), all[i].r, "%s", all[i].name);
        if (all[i].r < 0)
            expect_told("model-name",
                        "model-name: must be text in UTF-8 without control characters");
    }
}

Test(config, socket_without_a_path_is_refused) {
    char *argv[] = {"weftd", "--model", "m.gguf", "--listen", "unix:", NULL};

    cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    expect_told("listen", "listen: unix: needs the path of a socket");
}

/* A path of 108 bytes leaves no room for the NUL in struct sockaddr_un. */
Test(config, paths_of_sockets_have_a_limit) {
    static const char *const keys[] = {"listen", "admin-socket"};

    for (int n = 107; n <= 108; n++)
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
            char flag[32], at[160], message[100];
            char *argv[] = {"weftd", "--model", "m.gguf", flag, at, NULL};

            config_deinit(&config);
            set_up();
            snprintf(flag, sizeof(flag), "--%s", keys[i]);
            snprintf(at, sizeof(at), "%s/%0*d", i == 0 ? "unix:" : "", n - 1, 0);
            cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
            cr_expect_eq(config_check(&config, &err), n == 107 ? 0 : -EINVAL, "%s", at);
            snprintf(message, sizeof(message),
                     "%s: the path of a socket has at most 107 bytes, not 108", keys[i]);
            if (n == 108)
                expect_told(keys[i], message);
        }
}

Test(config, file_without_its_flag_is_pointed_to_the_flag) {
    char *argv[] = {"weftd", "m.gguf", NULL};

    cr_expect_eq(config_read_args(&config, 2, argv, &err), -EINVAL);
    expect_told("", "m.gguf: not an option; a model is given with --model FILE");
}

Test(config, key_in_the_wrong_section_is_named) {
    expect_error("[log]\nthreads = 1\n", 2, "threads",
                 "threads: belongs in section [engine], not [log]");
}

Test(config, what_all_models_share_is_no_key_of_a_preset) {
    static const char *const refused[] = {
        "any-model-name", "models", "models-dir", "models-memory", "kv-disk", "prewarm", "listen"};
    static const struct {
        const char *text;
        /* "": the text is accepted */
        const char *param, *told;
    } all[] = {
        {"max-context = 4096\npinned = yes\n", "", ""},
        {"pinned = yes\n[engine]\nmax-context = 4096\n", "", ""},
        {"[log]\nmax-context = 4096\n", "max-context",
         ":2: max-context: belongs in section [engine], not [log]"},
        {"max-contex = 4096\n", "max-contex", ":1: max-contex: unknown key; is max-context meant?"},
        {"[x]\nnothing-of-the-kind = 4096\n", "nothing-of-the-kind",
         ":2: nothing-of-the-kind: unknown key (weftd --help lists all)"},
        {"pinned\n", "models", ":1: must be a [section] or key = value"},
    };
    char line[64], message[300];

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        snprintf(line, sizeof(line), "%s = x\n", refused[i]);
        read_text(line);
        cr_expect_eq(config_read_preset(&config, path, &err), -EINVAL, "%s", line);
        snprintf(message, sizeof(message),
                 "%s:1: %s: cannot be set in a preset; set it in the configuration of weftd", path,
                 refused[i]);
        expect_told(refused[i], message);
        unlink(path);
    }
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        bool taken = !*all[i].told;

        config_deinit(&config);
        set_up();
        read_text(all[i].text);
        err = (struct err){0};
        cr_expect_eq(config_read_preset(&config, path, &err), taken ? 0 : -EINVAL, "%s",
                     err.message);
        snprintf(message, sizeof(message), "%s%s", taken ? "" : path, all[i].told);
        expect_told(all[i].param, message);
        cr_expect(!taken || (config.pinned && config.engine.max_context == 4096));
        unlink(path);
    }
    cr_expect_eq(config_read_preset(&config, path, &err), -ENOENT);
    snprintf(message, sizeof(message), "%s: cannot be read: No such file or directory", path);
    expect_told("models", message);
}

Test(config, wrong_types_and_ranges_say_what_is_allowed) {
    static const struct {
        const char *section, *key, *value, *allowed;
    } all[] = {
        {"engine", "threads", "many", "a whole number from 0 to 1024"},
        {"engine", "threads", "1025", "a whole number from 0 to 1024"},
        {"engine", "threads", "-1", "a whole number from 0 to 1024"},
        {"engine", "threads", "4K", "a whole number from 0 to 1024"},
        {"engine", "host-experts", "none", "a whole number from 0 to 4294967295"},
        {"limits", "max-body", "99999999999999999999G",
         "a size from 1K to 1G, such as 512M or 4G,"},
        {"limits", "max-body", "4GB", "a size from 1K to 1G, such as 512M or 4G,"},
        {"limits", "max-body", "1023", "a size from 1K to 1G, such as 512M or 4G,"},
        {"limits", "stream-buffer", "65M", "a size from 4K to 64M, such as 512M or 4G,"},
        {"engine", "kv-disk-size", "1K", "a size from 1M to 65536G, such as 512M or 4G,"},
        {"engine", "kv-memory", "", "a size from 0 to 4096G, such as 512M or 4G,"},
        {"engine", "backend", "gpu", "one of auto|cpu|cuda|reference,"},
        {"engine", "backend", "aut", "one of auto|cpu|cuda|reference,"},
        {"engine", "backend", "cpux", "one of auto|cpu|cuda|reference,"},
        {"engine", "backend", "", "one of auto|cpu|cuda|reference,"},
        {"engine", "kv-type", "f16|q8_0", "one of f16|q8_0|q4_0|auto,"},
        {"engine", "logits-digest", "maybe", "yes or no,"},
    };
    char text[100], told[200];

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        size_t n = strlen(all[i].allowed);

        snprintf(text, sizeof(text), "\n[%s]\n%s = %s\n", all[i].section, all[i].key, all[i].value);
        snprintf(told, sizeof(told), R"(%s: must be %s%s not "%s")", all[i].key, all[i].allowed,
                 all[i].allowed[n - 1] == ',' ? "" : ",", all[i].value);
        expect_error(text, 3, all[i].key, told);
        cr_expect_eq(config_set(&config, all[i].key, all[i].value, &err), -EINVAL);
        expect_told(all[i].key, told);
    }
}

Test(config, sizes_take_units) {
    cr_assert_eq(read_text("[limits]\nmax-body = 2M\nstream-buffer = 64k\n"), 0, "%s", err.message);
    cr_expect_eq(config.api.max_body_bytes, 2u << 20);
    cr_expect_eq(config.api.stream_buffer_bytes, 64u << 10);
}

/* Packed options come in the order of the table, and only a whole number of them is read. */
Test(config, packed_section_is_read_back_whole) {
    static const char packed[] =
        "log-level\0warn\0log-format\0text\0log-requests\0007\0otlp-endpoint\0\0kv-events\0a\0"
        "kv-events-replay\0\0kv-events-topic\0\0fault-dir\0\0state-file\0/s\0usage-file";
    struct config other;
    struct buf b;

    cr_assert_eq(read_text("[log]\nlog-level = warn\nlog-requests = 7\nkv-events = a\n"
                           "state-file = /s\n[limits]\nmax-n = 3\n"),
                 0, "%s", err.message);
    for (uint32_t room = 1; room <= sizeof(packed) + 1; room++) {
        bool fits = room == sizeof(packed) + 1;

        buf_init(&b, room);
        cr_expect_eq(config_pack(&config, "log", &b), fits ? 0 : -EMSGSIZE, "%u", room);
        if (!fits)
            buf_deinit(&b);
    }
    cr_assert_eq(b.len, sizeof(packed) + 1);
    cr_expect_eq(memcmp(b.data, packed, sizeof(packed)), 0);
    cr_expect_eq(b.data[b.len - 1], 0);
    for (size_t len = 0, n_nul = 0; len <= b.len; len++) {
        bool whole = n_nul % 2 == 0 && (len == 0 || !b.data[len - 1]);

        cr_assert_eq(config_init(&other), 0);
        cr_expect_eq(config_unpack(&other, b.data, len), whole ? 0 : -EPROTO, "%zu", len);
        cr_expect_eq(other.log_level, n_nul < 2 ? 2 : 1);
        cr_expect_eq(other.api.log_lines, n_nul < 6 ? 50 : 7);
        cr_expect_str_eq(other.kv_events, n_nul < 10 ? "" : "a");
        cr_expect_str_eq(other.state_file, n_nul < 18 ? "" : "/s");
        cr_expect_eq(other.api.max_n, 8, "of another section");
        config_deinit(&other);
        n_nul += len < b.len && !b.data[len];
    }
    buf_deinit(&b);
    cr_expect_eq(config_unpack(&config, "threads\0many", 13), -EPROTO);
    cr_expect_eq(config_unpack(&config, "thread\0001", 9), -EPROTO);
    cr_expect_eq(config_unpack(&config, NULL, 0), 0);
    cr_expect_eq(config_unpack(&config, "draft-sources\0oracle", 21), -EPROTO);
}

/* Values of the option replace those of a file, up to the first that does not suit it. */
Test(config, values_of_a_model_file_are_replaced) {
    static const char *const keys[] = {"a.b", "a.c", "a.d"};
    struct tiny_model t = {.n_layer = 1};
    char file[64];
    struct gguf *g;
    struct gguf_str value;

    tiny_model_temp(&t, file);
    cr_assert_eq(gguf_open(&g, file, &err), 0, "%s", err.message);
    cr_expect_eq(config_override(&config, g, &err), 0);
    cr_assert_eq(config_set(&config, "override-kv", "a.b=str:x,a.c=str:y", &err), 0);
    cr_expect_eq(config_override(&config, g, &err), 0, "%s", err.message);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(gguf_string(g, keys[i], &value), i < 2 ? 0 : -ENOENT, "%s", keys[i]);
        cr_expect(i == 2 || (value.len == 1 && *value.data == "xy"[i]));
    }
    cr_assert_eq(config_set(&config, "override-kv", "a.b=str:z,a.c=x:y,a.d=str:z", &err), 0);
    cr_expect_eq(config_override(&config, g, &err), -EINVAL);
    expect_told("override-kv", "override-kv: a.c: the type must be int, float, bool or str");
    cr_expect(gguf_string(g, "a.b", &value) == 0 && *value.data == 'z');
    cr_expect_eq(gguf_string(g, "a.d", &value), -ENOENT);
    gguf_free(g);
    unlink(file);
}

/* Bits stand for draft sources in the order of the messages between daemon and worker. */
Test(config, draft_sources_that_are_missing_are_bits) {
    static const char *const names[] = {"forced", "prediction", "suffix", "recent", "model", "mtp"};
    static const struct {
        const char *sources;
        uint32_t missing;
    } all[] = {{"forced", 0x3E},
               {"prediction", 0x3D},
               {"suffix", 0x3B},
               {"recent", 0x37},
               {"model", 0x2F},
               {"mtp", 0x1F},
               {"", 0x3F},
               {"suffix, model", 0x2B},
               {"mtp,forced,prediction,recent,model,suffix", 0}};

    cr_assert_eq(ARRAY_SIZE(names), MSG_DRAFT_SOURCES);
    cr_expect_eq(config_no_sources(&config), 0, "the default");
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        cr_assert_eq(config_set(&config, "draft-sources", all[i].sources, &err), 0);
        cr_expect_eq(config_no_sources(&config), all[i].missing, "%s", all[i].sources);
        for (uint32_t k = 0; k < ARRAY_SIZE(names); k++)
            cr_expect_eq(config_drafts_from(&config, names[k]), !(all[i].missing >> k & 1), "%s",
                         all[i].sources);
    }
    cr_expect_not(config_drafts_from(&config, "oracle"));
}

Test(config, levels_of_the_log_have_four_words) {
    static const enum log_level levels[] = {WLOG_ERROR, WLOG_WARN, WLOG_INFO, WLOG_DEBUG};
    static const char *const words[] = {"error", "warn", "info", "debug"};

    cr_expect_eq(config_log_level(&config), WLOG_INFO);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        cr_assert_eq(config_set(&config, "log-level", words[i], &err), 0);
        cr_expect_eq(config_log_level(&config), levels[i]);
    }
}

/* Asserts that each option has the same value in @a and @b, but @key. */
static void expect_same_but(const struct config *a, const struct config *b, const char *key) {
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char in_a[CONFIG_VALUE_MAX], in_b[CONFIG_VALUE_MAX];

        config_value(a, o, in_a, sizeof(in_a));
        config_value(b, o, in_b, sizeof(in_b));
        cr_expect_eq(strcmp(in_a, in_b) == 0, strcmp(o->key, key) != 0, "%s: %s, %s", o->key, in_a,
                     in_b);
    }
}

Test(config, options_are_copied_alone_or_all) {
    struct config one, copy, initial;

    cr_assert_eq(read_text("[model]\nmodel = m\naliases = a,b\npinned = yes\n[engine]\n"
                           "kv-memory = 3G\nbackend = cpu\nkv-type = q8_0\nhost-experts = 4\n"),
                 0, "%s", err.message);
    cr_assert_eq(config_clone(&copy, &config), 0);
    expect_same_but(&copy, &config, "");
    cr_expect(!copy.file && !copy.lines);
    cr_assert_eq(config_init(&initial), 0);
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char value[CONFIG_VALUE_MAX], old[CONFIG_VALUE_MAX];

        cr_assert_eq(config_init(&one), 0);
        config_value(&config, o, value, sizeof(value));
        config_value(&initial, o, old, sizeof(old));
        cr_expect_eq(config_copy(&one, &config, o), 0);
        expect_same_but(&one, &initial, strcmp(value, old) == 0 ? "" : o->key);
        config_deinit(&one);
    }
    config_deinit(&initial);
    config_deinit(&copy);
    cr_expect(!copy.model && !copy.aliases[0] && !copy.aliases[1] && !copy.listen[0]);
    config_deinit(&config);
    cr_expect(!config.file && !config.lines && !config.model && !config.aliases[1]);
}

/* Files are read before flags, whatever their order, and a later file is above an earlier one. */
Test(config, files_are_read_in_their_order) {
    char first[64],
        *argv[] = {"weftd",     "--aliases", "x",        "--config", first, "--threads=7",
                   "--aliases", "y",         "--config", path,       NULL};

    cr_assert_eq(read_text("[model]\naliases = a\ntags = t\n[engine]\nthreads = 1\ndepth = 1\n"
                           "max-draft = 3\n"),
                 0);
    strcpy(first, path);
    cr_assert_eq(read_text("[model]\naliases = b\n[engine]\nthreads = 2\nmax-draft = 4\n"), 0);
    config_deinit(&config);
    set_up();
    cr_assert_eq(config_read_args(&config, 10, argv, &err), 0, "%s", err.message);
    cr_expect(config.engine.n_threads == 7 && config.sched.depth == 1);
    cr_expect_eq(config.sched.max_draft, 4);
    cr_expect(strcmp(config.aliases[0], "x") == 0 && strcmp(config.aliases[1], "y") == 0);
    cr_expect(!config.aliases[2] && strcmp(config.tags[0], "t") == 0);
    cr_expect_str_eq(config.file, path);
    unlink(first);
    cr_expect_eq(config_read_args(&config, 10, argv, &err), -ENOENT);
    char *without[] = {"weftd", "--threads", "3", "--config", NULL};
    cr_expect_eq(config_read_args(&config, 4, without, &err), -EINVAL);
    expect_told("config", "--config: needs a value");
    cr_expect_eq(config.engine.n_threads, 7, "files come first");
}

Test(config, garbage_and_unreadable_files_are_one_line) {
    expect_error("[engine]\nthreads\n", 2, "config", "must be a [section] or key = value");
    cr_expect_eq(config_read_file(&config, "/nonexistent/weft.conf", &err), -ENOENT);
    expect_told("config", "/nonexistent/weft.conf: cannot be read: No such file or directory");
    cr_expect_eq(config_read_file(&config, "/", &err), -EISDIR);
    expect_told("config", "/: cannot be read: Is a directory");
}

Test(config, what_is_wrong_after_reading_names_the_line_of_its_option) {
    static const char told[] = "page-tokens: must be 16, 32 or 64, not";
    char *flag[] = {"weftd", "--page-tokens", "48", NULL}, message[200];

    err_set(&err, 0, "page-tokens", "x");
    config_add_place(&config, &err);
    expect_told("page-tokens", "x"); /* no file was read */
    cr_assert_eq(read_text("[model]\nmodel = m.gguf\n[engine]\npage-tokens = 20\n"), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    snprintf(message, sizeof(message), "%s 20", told);
    expect_told("page-tokens", message);
    snprintf(message, sizeof(message), "%s:4: %s 20", path, told);
    for (int i = 0; i < 2; i++) { /* the second time it has the place already */
        config_add_place(&config, &err);
        expect_told("page-tokens", message);
    }
    cr_assert_eq(config_read_args(&config, 3, flag, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    config_add_place(&config, &err);
    snprintf(message, sizeof(message), "%s 48", told);
    expect_told("page-tokens", message); /* a flag has no line */
    err_set(&err, 404, "thread", "x");
    config_add_place(&config, &err);
    cr_expect(err.status == 404 && strcmp(err.message, "x") == 0, "about no option");
    err_set(&err, 404, "model", "x");
    config_add_place(&config, &err);
    snprintf(message, sizeof(message), "%s:2: x", path);
    cr_expect_str_eq(err.message, message);
    cr_expect_eq(err.status, 404);
}

/* A long path is cut, so that the reason fits behind it, and is named once. */
Test(config, a_long_path_is_named_once) {
    char folder[] = "/tmp/weft-config-XXXXXX", file[300], message[600];

    cr_assert(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/%0200d", folder, 7);
    FILE *f = fopen(file, "w");
    cr_assert(f && fputs("[model]\nmodel = m\n[engine]\npage-tokens = 20\n", f) >= 0 &&
              fclose(f) == 0);
    cr_expect_eq(config_read_file(&config, file, &err), 0);
    unlink(file);
    rmdir(folder);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    snprintf(message, sizeof(message), "%.150s:4: %s", file, err.message);
    for (int i = 0; i < 2; i++) {
        config_add_place(&config, &err);
        expect_told("page-tokens", message);
    }
}

Test(config, pages_have_16_32_or_64_tokens) {
    static const struct {
        char tokens[4];
        int result;
    } table[] = {{"16", 0}, {"32", 0}, {"48", -EINVAL}, {"64", 0}};

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        char size[4], *args[] = {"weftd", "--model", "m.gguf", "--page-tokens", size, NULL};

        strcpy(size, table[i].tokens);
        cr_assert_eq(config_read_args(&config, 5, args, &err), 0, "%s", err.message);
        cr_expect_eq(config_check(&config, &err), table[i].result, "%s", size);
    }
    expect_told("page-tokens", "page-tokens: must be 16, 32 or 64, not 48");
}

Test(config, draft_sources_are_known_by_name) {
    char *wrong[] = {"weftd", "--model", "m.gguf", "--draft-sources", "suffix, oracle", NULL};
    char *right[] = {"weftd", "--draft-sources", "suffix, recent", NULL};

    cr_assert_eq(config_read_args(&config, 5, wrong, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    expect_told("draft-sources",
                "draft-sources: unknown source oracle; the sources are forced, prediction, suffix, "
                "recent, model and mtp");
    cr_assert_eq(config_read_args(&config, 3, right, &err), 0);
    cr_expect_eq(config_check(&config, &err), 0);
}

Test(config, other_machines_need_keys_or_a_word) {
    char *open[] = {"weftd", "--model", "m.gguf", "--listen", "0.0.0.0:80", NULL};
    char *said[] = {"weftd", "--anonymous", "yes", NULL};

    cr_assert_eq(config_read_args(&config, 5, open, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    expect_told("listen",
                "listen: 0.0.0.0:80 is reachable from other machines: add --api-key KEY, or "
                "--anonymous yes to serve everyone (in a file: api-keys, anonymous)");
    cr_assert_eq(config_read_args(&config, 3, said, &err), 0);
    cr_expect_eq(config_check(&config, &err), 0);
}

/* Sets @o to the number @v. */
static int set_number(const struct option *o, uint64_t v) {
    char text[32];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    return config_set(&config, o->key, text, &err);
}

Test(config, numbers_are_taken_up_to_their_limits_and_no_further) {
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        uint64_t ends[] = {o->min, o->max};
        char value[64], number[64];

        if (o->type != OPTION_UINT && o->type != OPTION_SIZE)
            continue;
        for (int k = 0; k < 2; k++) {
            cr_expect_eq(set_number(o, ends[k]), 0, "%s: %s", o->key, err.message);
            config_value(&config, o, value, sizeof(value));
            snprintf(number, sizeof(number), "%llu", (unsigned long long)ends[k]);
            if (!o->choices)
                cr_expect_str_eq(value, number, "%s", o->key);
        }
        if (o->max < UINT64_MAX)
            cr_expect_eq(set_number(o, o->max + 1), -EINVAL, "%s", o->key);
        if (o->min > 0)
            cr_expect_eq(set_number(o, o->min - 1), -EINVAL, "%s", o->key);
        char after[64];
        config_value(&config, o, after, sizeof(after));
        cr_expect_str_eq(after, value, "what is refused changes nothing");
    }
}

Test(config, a_size_has_at_most_one_unit) {
    static const struct {
        const char *text;
        /* 0: the text is not a size */
        uint64_t bytes;
    } all[] = {{"7", 7},
               {"7K", 7 << 10},
               {"7m", 7 << 20},
               {"1G", 1 << 30},
               {"7KB", 0},
               {"7T", 0},
               {"7 K", 0},
               {"K", 0},
               {"", 0},
               {"+7", 0},
               {"0x7", 0},
               {"7k7", 0},
               {":", 0},
               {"/", 0},
               {"18446744073709551616", 0},
               {"17179869184G", 0},
               {"1 ", 0}};

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        cr_expect_eq(config_set(&config, "kv-memory", all[i].text, &err),
                     all[i].bytes ? 0 : -EINVAL, "%s", all[i].text);
        if (all[i].bytes)
            cr_expect_eq(config.engine.kv_bytes, all[i].bytes, "%s", all[i].text);
    }
    expect_told("kv-memory",
                R"(kv-memory: must be a size from 0 to 4096G, such as 512M or 4G, not "1 ")");
}

Test(config, yes_and_no_have_four_words_each) {
    static const char *const words[] = {"yes", "true", "on", "1", "no", "false", "off", "0"};

    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        config.anonymous = i >= 4;
        cr_expect_eq(config_set(&config, "anonymous", words[i], &err), 0, "%s", words[i]);
        cr_expect_eq(config.anonymous, i < 4, "%s", words[i]);
    }
    cr_expect_eq(config_set(&config, "anonymous", "YES", &err), -EINVAL);
}

Test(config, a_list_has_16_entries_at_most_and_no_empty_ones) {
    char text[100] = "";

    cr_expect_eq(config_set(&config, "aliases", " a ,, b  c,d ,", &err), 0);
    cr_expect_str_eq(config.aliases[0], "a");
    cr_expect_str_eq(config.aliases[1], "b  c");
    cr_expect_str_eq(config.aliases[2], "d");
    cr_expect_null(config.aliases[3]);
    for (int i = 0; i < 17; i++) {
        sprintf(text + strlen(text), "%s%d", i ? "," : "", i);
        cr_expect_eq(config_set(&config, "aliases", text, &err), i < 16 ? 0 : -EINVAL, "%s", text);
        if (i < 16)
            cr_expect(config.aliases[i] && !config.aliases[i + 1], "%s", text);
    }
    expect_told("aliases", "aliases: at most 16 entries");
    cr_expect_eq(config_set(&config, "aliases", " , ", &err), 0);
    cr_expect_null(config.aliases[0]);
}

/* A value without room is cut, and its whole length is returned. */
Test(config, values_are_cut_where_there_is_no_room) {
    static const char *const keys[] = {"aliases", "model", "kv-memory", "backend", "anonymous"};
    char whole[64], cut[64];

    cr_assert_eq(config_set(&config, "aliases", "one,two,three", &err), 0);
    cr_assert_eq(config_set(&config, "model", "m.gguf", &err), 0);
    for (uint32_t i = 0; i < config_table_n; i++)
        for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
            const struct option *o = &config_table[i];

            if (strcmp(o->key, keys[k]) != 0)
                continue;
            size_t n = config_value(&config, o, whole, sizeof(whole));
            cr_expect_eq(n, strlen(whole), "%s", o->key);
            for (size_t size = 1; size < n + 3; size++) {
                memset(cut, 'x', sizeof(cut));
                cr_expect_eq(config_value(&config, o, cut, size), n, "%s", o->key);
                cr_expect_eq(strlen(cut), MIN(n, size - 1), "%s: %zu", o->key, size);
                cr_expect_eq(strncmp(cut, whole, size - 1), 0, "%s", o->key);
            }
        }
}

/* A repeated flag adds to the value of the earlier ones, as long as one value has room. */
Test(config, lists_of_flags_have_a_limit) {
    static char a[CONFIG_VALUE_MAX], b[CONFIG_VALUE_MAX];
    char *argv[] = {"weftd", "--aliases", a, "--aliases", b, NULL};

    for (size_t extra = 0; extra < 2; extra++) { /* a comma and the NUL take the rest */
        memset(a, 'a', 4000);
        memset(b, 'b', CONFIG_VALUE_MAX - 4000 - 2 + extra);
        cr_expect_eq(config_read_args(&config, 5, argv, &err), extra ? -EINVAL : 0, "%zu", extra);
    }
    expect_told("aliases", "--aliases: too long");
}

/* A longer value could be read and not be copied, so the daemon would not start. */
Test(config, a_value_has_a_limit) {
    static char text[CONFIG_VALUE_MAX + 1];
    struct config copy = {0};

    memset(text, 'a', CONFIG_VALUE_MAX);
    cr_expect_eq(config_set(&config, "system-prompt", text, &err), -EINVAL);
    expect_told("system-prompt", "system-prompt: is longer than 4095 bytes");
    text[CONFIG_VALUE_MAX - 1] = 0;
    cr_expect_eq(config_set(&config, "system-prompt", text, &err), 0);
    cr_expect_eq(config_clone(&copy, &config), 0);
    cr_expect_str_eq(copy.system_prompt, text);
    config_deinit(&copy);
}

Test(config, words_that_are_no_option_say_so) {
    static const struct {
        char *arg, *param, *said;
    } all[] = {
        {"--threads", "threads", "--threads: needs a value"},
        {"--", "", "--: unknown option (weftd --help lists all)"},
        {"--thread", "thread", "--thread: unknown option; is --threads meant?"},
        {"--thread=1", "thread", "--thread: unknown option; is --threads meant?"},
        {"-threads", "threads", "-threads: unknown option; is --threads meant?"},
        {"-q", "q", "-q: unknown option (weftd --help lists all)"},
        {"-", "", "-: unknown option (weftd --help lists all)"},
        {"", "", ": not an option; a model is given with --model FILE"},
        {"--config", "config", "--config: needs a value"},
        {"--a-name-of-64-characters-has-no-room-where-one-of-63-has-it-xxxxx", "",
         "--a-name-of-64-characters-has-no-room-wh...: unknown option"},
        {"--a-name-of-64-characters-has-no-room-where-one-of-63-has-it-xxxx",
         "a-name-of-64-characters-has-no-room-where-one-of-63-has-it-xxxx",
         "--a-name-of-64-characters-has-no-room-where-one-of-63-has-it-x: unknown option (weftd "
         "--help lists all)"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        char *argv[] = {"weftd", all[i].arg, NULL};

        cr_expect_eq(config_read_args(&config, 2, argv, &err), -EINVAL);
        expect_told(all[i].param, all[i].said);
    }
    cr_expect_eq(config_read_args(&config, 1, (char *[]){"weftd", NULL}, &err), 0);
    cr_expect(config_has("threads", 7) && config_has("config", 6));
    cr_expect_not(config_has("threads", 6) || config_has("thread", 6) || config_has("configs", 7));
}

Test(config, a_slip_is_one_or_two_letters) {
    static const struct {
        const char *said, *meant;
    } all[] = {{"threads", "threads"}, {"threds", "threads"},
               {"thraeds", "threads"}, {"tthreads", "threads"},
               {"thxxads", "threads"}, {"thxxxds", NULL},
               {"dept", "depth"},      {"isb", "isa"},
               {"is", "isa"},          {"i", NULL},
               {"ixb", NULL},          {"isxx", "isa"},
               {"xxxthreads", NULL}};

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        const char *meant = config_meant(all[i].said);

        if (all[i].meant)
            cr_expect(meant && strcmp(meant, all[i].meant) == 0, "%s: %s", all[i].said, meant);
        else
            cr_expect_null(meant, "%s: %s", all[i].said, meant);
    }
}

Test(config, addresses_that_are_right_are_taken) {
    static char *const right[] = {"127.0.0.1:0", "127.1.2.3:65535", "localhost:80",
                                  "[::1]:80",    "unix:/s",         "tls:127.0.0.1:1",
                                  "tls:[::1]:1", "*:8080",          "[fe80::1%eth0]:80",
                                  "0.0.0.0:1",   "[::]:1",          "tls:192.0.2.1:443"};

    for (size_t i = 0; i < ARRAY_SIZE(right); i++) {
        char *argv[] = {"weftd", "--model",   "m", "--listen", right[i], "--tls-certificate",
                        "c",     "--tls-key", "k", NULL};

        cr_assert_eq(config_read_args(&config, 9, argv, &err), 0);
        config.anonymous = false;
        cr_expect_eq(config_check(&config, &err), i < 7 ? 0 : -EINVAL, "%s", right[i]);
        cr_expect(i < 7 || strstr(err.message, "is reachable from other machines"), "%s: %s",
                  right[i], err.message);
        config.anonymous = true;
        cr_expect_eq(config_check(&config, &err), 0, "%s: %s", right[i], err.message);
    }
}

/* Options that need another one, or are of the wrong form: the key that the error names, and the
 * error behind it. NULL: there is none. */
Test(config, options_that_need_another_say_so) {
    static const struct {
        char *flags[4];
        const char *key, *why;
    } all[] = {
        {{"--model", ""},
         "model",
         "none is given (weftctl models lists those of this machine): --model FILE, or model = "
         "FILE below [model] in the file of --config"},
        {{"--allowed-hosts", "https://x.com/"},
         "allowed-hosts",
         R"(must be the name of a host alone, such as gpu.lan, not "https://x.com/")"},
        {{"--allowed-hosts", "x.com:80"},
         "allowed-hosts",
         R"(must be the name of a host alone, such as gpu.lan, not "x.com:80")"},
        {{"--allowed-hosts", "a, x/y"},
         "allowed-hosts",
         R"(must be the name of a host alone, such as gpu.lan, not "x/y")"},
        {{"--allowed-hosts", "[::1]/"},
         "allowed-hosts",
         R"(must be the name of a host alone, such as gpu.lan, not "[::1]/")"},
        {{"--allowed-hosts", "x.com, [::1], *"}, NULL, NULL},
        {{"--picture-hosts", "https://x.com"},
         "picture-hosts",
         R"(must be the name of a host, perhaps with :PORT, such as gpu.lan, not "https://x.com")"},
        {{"--picture-hosts", "x.com:444"}, NULL, NULL},
        {{"--cors-origins", "x.com"},
         "cors-origins",
         R"(must be * or SCHEME://HOST[:PORT], such as https://chat.example.com, not "x.com")"},
        {{"--cors-origins", "null, https://x.com/"},
         "cors-origins",
         "must be * or SCHEME://HOST[:PORT], such as https://chat.example.com, not "
         R"("https://x.com/")"},
        {{"--cors-origins", "https:///"},
         "cors-origins",
         "must be * or SCHEME://HOST[:PORT], such as https://chat.example.com, not "
         R"("https:///")"},
        {{"--cors-origins", "http://x/"},
         "cors-origins",
         R"(must be * or SCHEME://HOST[:PORT], such as https://chat.example.com, not "http://x/")"},
        {{"--cors-origins", "**"},
         "cors-origins",
         R"(must be * or SCHEME://HOST[:PORT], such as https://chat.example.com, not "**")"},
        {{"--cors-origins", "https://*.x.*"},
         "cors-origins",
         R"(an origin has at most one *, not as "https://*.x.*")"},
        {{"--cors-origins", "https://**"},
         "cors-origins",
         R"(an origin has at most one *, not as "https://**")"},
        {{"--cors-origins", "https://x.com:8080, *, null, localhost"}, NULL, NULL},
        {{"--cors-origins", "app://*, *://x.com, http://192.168.*"}, NULL, NULL},
        {{"--listen", ""}, "listen", "at least one address is needed, such as 127.0.0.1:8080"},
        {{"--listen", "tls:127.0.0.1:1"},
         "tls-certificate",
         "must be set, because listen has tls:127.0.0.1:1"},
        {{"--listen", "127.0.0.1:2,0.0.0.0:1"},
         "listen",
         "0.0.0.0:1 is reachable from other machines: add --api-key KEY, or --anonymous yes to "
         "serve everyone (in a file: api-keys, anonymous)"},
        {{"--listen", "0.0.0.0:1", "--api-keys", "k"}, NULL, NULL},
        {{"--listen", "0.0.0.0:1", "--anonymous", "yes"}, NULL, NULL},
        {{"--admin-socket", ""}, NULL, NULL},
        {{"--tls-certificate", "c"}, "tls-key", "must be set together with tls-certificate"},
        {{"--tls-key", "k"}, "tls-key", "must be set together with tls-certificate"},
        {{"--kv-events-replay", "ipc://r"},
         "kv-events-replay",
         "needs the address of the events: set kv-events, too"},
        {{"--kv-events", "ipc://e", "--kv-events-replay", "ipc://e"},
         "kv-events-replay",
         "must be another address than kv-events"},
        {{"--kv-events", "ipc://e"}, NULL, NULL},
        {{"--override-kv", "k=x:1"}, "override-kv", "k: the type must be int, float, bool or str"},
        {{"--override-kv", "k=int:1, l=str:a"}, NULL, NULL},
        {{"--override-kv", "k=int:1, l=int:a"},
         "override-kv",
         "l: int: must be a whole number in decimal"},
        {{"--max-seqs", "65", "--max-batch-rows", "64"},
         "max-seqs",
         "is 65, which must not be more than max-batch-rows, 64"},
        {{"--max-seqs", "64", "--max-batch-rows", "64"}, NULL, NULL},
        {{"--model", "", "--models-dir", "d"}, NULL, NULL},
        {{"--model", "", "--models", "d"}, NULL, NULL},
        {{"--kv-events-replay", "ipc://r", "--kv-events", "ipc://e"}, NULL, NULL},
        {{"--tls-certificate", "c", "--tls-key", "k"}, NULL, NULL},
        {{"--draft-sources", "mtp, x"},
         "draft-sources",
         "unknown source x; the sources are forced, prediction, suffix, recent, model and mtp"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        char *argv[8] = {"weftd", "--model", "m"}, message[400];
        int n = 3;

        config_deinit(&config);
        set_up();
        for (int k = 0; k < 4 && all[i].flags[k]; k++)
            argv[n++] = all[i].flags[k];
        cr_assert_eq(config_read_args(&config, n, argv, &err), 0, "%s", err.message);
        cr_expect_eq(config_check(&config, &err), all[i].key ? -EINVAL : 0, "%zu: %s", i,
                     err.message);
        snprintf(message, sizeof(message), "%s: %s", all[i].key, all[i].why);
        if (all[i].key)
            expect_told(all[i].key, message);
    }
}

/* Help has at most 78 columns except for longer words, and names each option once. */
Test(config, help_names_each_option_in_short_lines) {
    static const char usage[] = "usage: weftd --model FILE [--config FILE] [--KEY VALUE ...]\n";
    static const char last[] =
        "75 trying again may help; 78 configuration or model cannot be used.\n";
    static const char *const heads[] = {
        "\n  --model TEXT\n",
        "\n  --listen A,B,... (127.0.0.1:8080)\n",
        "\n  --threads N\n",
        "\n  --depth N (2)\n",
        "\n  --host-experts N (auto)\n",
        "\n  --kv-memory SIZE\n",
        "\n  --kv-disk-size SIZE (16G)\n",
        "\n  --pinned yes|no (no)\n",
        "\n  --backend auto|cpu|cuda|reference (auto)\n",
        "\n  --log-level error|warn|info|debug (info)\n",
    };
    FILE *f = tmpfile();
    char start[80];

    config_help(f);
    CLEANUP(freep) char *text = slurp(f);
    for (uint32_t i = 0; i < config_table_n; i++) {
        snprintf(start, sizeof(start), "\n  --%s ", config_table[i].key);
        char *at = strstr(text, start);
        cr_assert(at, "%s", config_table[i].key);
        cr_expect_null(strstr(at + 1, start), "%s", config_table[i].key);
        bool has_initial = *config_table[i].initial && strcmp(config_table[i].initial, "0") != 0;
        snprintf(start, sizeof(start), " (%s)\n", config_table[i].initial);
        char *end = strchr(at + 1, '\n') + 1;
        bool tells = (size_t)(end - at) > strlen(start) &&
                     strncmp(end - strlen(start), start, strlen(start)) == 0;
        cr_expect_eq(tells, has_initial, "%.*s", (int)(end - at), at);
        cr_expect(has_initial || end[-2] != ')', "%.*s", (int)(end - at), at);
        snprintf(start, sizeof(start), "\n[%s]\n", config_table[i].section);
        char *section = strstr(text, start);
        cr_expect(section && section < at && !strstr(section + 1, start), "%s", start);
        at = end; /* the help of the option, indented, up to the next option */
        cr_expect(strncmp(at, "      ", 6) == 0 && at[6] != ' ', "%.20s", at);
        for (const char *word = config_table[i].help; *word;) {
            size_t n = strcspn(word, " ");

            size_t indent = *at == '\n' ? 7 : 1;
            if (word == config_table[i].help)
                indent = 6;
            cr_expect_eq(strspn(at, " \n"), indent, "%s: %.20s", config_table[i].key, at);
            at += indent;
            cr_assert_eq(strncmp(at, word, n), 0, "%s: %.20s", config_table[i].key, word);
            at += n;
            cr_expect(*at == ' ' || *at == '\n', "%.20s", at);
            word += n + (word[n] == ' ');
        }
        cr_expect_eq(*at, '\n', "%s", config_table[i].key);
    }
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++)
        cr_expect(strstr(text, heads[i]), "%s", heads[i]);
    cr_expect_eq(strncmp(text, usage, strlen(usage)), 0, "%.80s", text);
    cr_assert_gt(strlen(text), strlen(last));
    cr_expect_str_eq(text + strlen(text) - strlen(last), last);
    for (const char *line = text, *next; *line; line = next) {
        size_t len = strcspn(line, "\n");

        next = line + len + (line[len] == '\n');
        if (strncmp(line, "      ", 6) != 0)
            continue;
        cr_expect(len <= 78 || !memchr(line + 6, ' ', len - 6), "%.100s", line);
        cr_expect(strncmp(next, "      ", 6) != 0 || len + 1 + strcspn(next + 6, " \n") > 78,
                  "the next word has room: %.100s", line);
    }
}

/* An interface makes a host as long as it may be. */
Test(config, a_host_has_at_most_255_bytes) {
    char address[400], *argv[] = {"weftd", "--model", "m", "--listen", address, NULL};

    config.anonymous = true;
    for (int n = 254; n < 258; n++) {
        snprintf(address, sizeof(address), "[fe80::1%%%0*d]:80", n - 10, 0);
        cr_assert_eq(strlen(address), (size_t)n + 3);
        cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
        cr_expect_eq(config_check(&config, &err), n < 256 ? 0 : -EINVAL, "%d", n);
    }
}

/* A host is at most 255 bytes long; what is longer, or has no end, is no address. */
Test(config, addresses_that_are_wrong_are_refused) {
    static const char *const wrong[] = {
        ":80",        "[]:80",       "[::1:80", "[:80",          "::1:80",       "[::g]:80",
        "[%eth0]:80", "localhost",   "lo:80",   "localhost:",    "127.0.0.1:-1", "127.0.0.1:65536",
        "1.2.3:80",   "1.2.3.4.5:1", "tls::80", "localhosts:80", "127.0.0.1:8K"};
    static const int long_hosts[] = {255, 256, 257, 2000};
    char address[2100], *argv[] = {"weftd", "--model", "m", "--listen", address, NULL};

    for (size_t i = 0; i < ARRAY_SIZE(wrong) + ARRAY_SIZE(long_hosts); i++) {
        if (i < ARRAY_SIZE(wrong))
            snprintf(address, sizeof(address), "%s", wrong[i]);
        else
            snprintf(address, sizeof(address), "%0*d:80", long_hosts[i - ARRAY_SIZE(wrong)], 0);
        int r = config_read_args(&config, 5, argv, &err);
        if (r == 0)
            r = config_check(&config, &err);
        cr_expect_eq(r, -EINVAL, "%s", address);
        cr_expect_str_eq(err.param, "listen", "%s: %s", address, err.param);
        config_deinit(&config);
        cr_assert_eq(config_init(&config), 0);
    }
}
