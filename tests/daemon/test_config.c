#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/config/config.h"

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

/* Asserts that the error begins with "FILE:LINE: " and contains @part. */
static void expect_error(const char *text, int line, const char *part) {
    char start[128];

    cr_assert_eq(read_text(text), -EINVAL, "%s is accepted", text);
    snprintf(start, sizeof(start), "%s:%d: ", path, line);
    cr_expect(strncmp(err.message, start, strlen(start)) == 0, "%s", err.message);
    cr_expect(strstr(err.message, part), "%s", err.message);
    cr_expect_null(strchr(err.message, '\n'));
    cr_expect_eq(err.status, 0, "no client is to blame");
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
    expect_error("[listen]\nlisten = 127.0.0.1:1\nlisten = 127.0.0.1:2\n", 3,
                 "listen: is set by an earlier line, too; give all values in one, separated by");
    unlink(path);
    expect_error("[engine]\nthreads = 1\ndepth = 1\n[engine]\nthreads = 1\n", 5,
                 "threads: is set by an earlier line, too; remove one of them");
}

Test(config, unknown_key_is_named_with_file_and_line) {
    expect_error("[engine]\nthreads = 1\nthread = 2\n", 3, "thread: unknown key");
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
    expect_error("[model]\nmodel = \"/m.gguf\"\n", 2, "without quotes");
    unlink(path);
    expect_error("[model]\nmodel = ~/m.gguf\n", 2, "the whole path");
    unlink(path);
    expect_error("[engine]\nthreads = 4 # four\n", 2, "a line of its own");
    unlink(path);
    expect_error("threads = 4\n", 1, "needs the line [engine] above it");
}

Test(config, address_without_host_or_port_says_how_one_looks) {
    static char *const wrong[] = {
        "8080",    ":8080",      "127.0.0.1",    "127.0.0.1:",     "127.0.0.1:65536", "localhost:x",
        "[::1:80", "[::1]x:80",  "[1.2.3.4]:80", "300.1.1.1:80",   "127.1:80",        "::1:80",
        "host:80", "tls:::1:80", "localhost2:1", "127.0.0.1%lo:80"};

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        char *argv[] = {"weftd", "--model", "m.gguf", "--listen", wrong[i], NULL};

        cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
        cr_expect_eq(config_check(&config, &err), -EINVAL, "%s", wrong[i]);
        cr_expect(strstr(err.message, "must be ADDRESS:PORT"), "%s", err.message);
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
        cr_expect(all[i].r == 0 || strstr(err.message, "model-name: must be text in UTF-8"));
    }
}

Test(config, socket_without_a_path_is_refused) {
    char *argv[] = {"weftd", "--model", "m.gguf", "--listen", "unix:", NULL};

    cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    cr_expect(strstr(err.message, "listen: unix: needs the path"), "%s", err.message);
}

/* A path of 108 bytes leaves no room for the NUL in struct sockaddr_un. */
Test(config, paths_of_sockets_have_a_limit) {
    static const char *const keys[] = {"listen", "admin-socket"};

    for (int n = 107; n <= 108; n++)
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
            char flag[32], at[160];
            char *argv[] = {"weftd", "--model", "m.gguf", flag, at, NULL};

            snprintf(flag, sizeof(flag), "--%s", keys[i]);
            snprintf(at, sizeof(at), "%s/%0*d", i == 0 ? "unix:" : "", n - 1, 0);
            cr_assert_eq(config_read_args(&config, 5, argv, &err), 0);
            cr_expect_eq(config_check(&config, &err), n == 107 ? 0 : -EINVAL, "%s", at);
            cr_expect(n == 107 || strstr(err.message, "at most 107 bytes, not 108"), "%s",
                      err.message);
        }
}

Test(config, file_without_its_flag_is_pointed_to_the_flag) {
    char *argv[] = {"weftd", "m.gguf", NULL};

    cr_expect_eq(config_read_args(&config, 2, argv, &err), -EINVAL);
    cr_expect(strstr(err.message, "--model FILE"), "%s", err.message);
}

Test(config, key_in_the_wrong_section_is_named) {
    expect_error("[log]\nthreads = 1\n", 2, "belongs in section [engine]");
}

Test(config, what_all_models_share_is_no_key_of_a_preset) {
    static const char *const refused[] = {
        "any-model-name", "models", "models-dir", "models-memory", "kv-disk", "prewarm", "listen"};
    char line[64];

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        snprintf(line, sizeof(line), "%s = x\n", refused[i]);
        read_text(line);
        cr_expect_eq(config_read_preset(&config, path, &err), -EINVAL, "%s", line);
        cr_expect(strstr(err.message, "cannot be set in a preset"), "%s", err.message);
        unlink(path);
    }
    read_text("max-context = 4096\n");
    cr_expect_eq(config_read_preset(&config, path, &err), 0, "%s", err.message);
}

Test(config, wrong_types_and_ranges_say_what_is_allowed) {
    expect_error("[engine]\nthreads = many\n", 2, "whole number from 0 to 1024");
    unlink(path);
    expect_error("\n[engine]\nthreads = 1025\n", 3, "whole number from 0 to 1024");
    unlink(path);
    expect_error("[engine]\nthreads = -1\n", 2, "whole number from 0 to 1024");
    unlink(path);
    expect_error("[limits]\nmax-body = 99999999999999999999G\n", 2, "max-body");
    unlink(path);
    expect_error("[limits]\nmax-body = 4GB\n", 2, "a size from 1K to 1G, such as 512M");
    unlink(path);
    expect_error("[engine]\nbackend = gpu\n", 2, "auto|cpu|cuda|reference");
    unlink(path);
    expect_error("[engine]\nlogits-digest = maybe\n", 2,
                 R"(logits-digest: must be yes or no, not "maybe")");
}

Test(config, sizes_take_units) {
    cr_assert_eq(read_text("[limits]\nmax-body = 2M\nstream-buffer = 64k\n"), 0, "%s", err.message);
    cr_expect_eq(config.api.max_body_bytes, 2u << 20);
    cr_expect_eq(config.api.stream_buffer_bytes, 64u << 10);
}

Test(config, packed_section_is_read_back_whole) {
    struct config other;
    struct buf b;

    buf_init(&b, 1 << 16);
    cr_assert_eq(read_text("[engine]\nisa = avx2\nkv-type = q8_0\n"
                           "kv-memory = 5G\nlogits-digest = no\ndraft-sources = suffix,model\n"
                           "[limits]\nmax-n = 3\n"),
                 0, "%s", err.message);
    cr_assert_eq(config_pack(&config, "engine", &b), 0);
    cr_assert_eq(config_init(&other), 0);
    cr_assert_eq(config_unpack(&other, b.data, b.len), 0);
    cr_expect_str_eq(other.engine.isa, "avx2");
    cr_expect_eq(other.kv_type, 1);
    cr_expect_not(other.engine.digest);
    cr_expect_eq(other.engine.kv_bytes, 5ull << 30);
    cr_expect_eq(config_no_sources(&other), 0x2Bu, "suffix and model are 2 and 4 of six");
    cr_expect_eq(other.api.max_n, 8, "of another section");
    for (size_t cut = 1; cut < 17; cut++) /* cuts within the last pair */
        cr_expect_eq(config_unpack(&other, b.data, b.len - cut), -EPROTO);
    cr_expect_eq(config_unpack(&other, "threads\0many", 13), -EPROTO);
    cr_expect_eq(config_unpack(&other, "draft-sources\0oracle", 21), -EPROTO);
    config_deinit(&other);
    buf_deinit(&b);
}

Test(config, garbage_and_unreadable_files_are_one_line) {
    expect_error("[engine]\nthreads\n", 2, "key = value");
    cr_expect_eq(config_read_file(&config, "/nonexistent/weft.conf", &err), -ENOENT);
    cr_expect(strstr(err.message, "/nonexistent/weft.conf: cannot be read"));
    cr_expect_eq(config_read_file(&config, "/", &err), -EISDIR);
}

Test(config, what_is_wrong_after_reading_names_the_line_of_its_option) {
    char *flag[] = {"weftd", "--page-tokens", "48", NULL};
    char start[128];

    cr_assert_eq(read_text("[model]\nmodel = m.gguf\n[engine]\npage-tokens = 20\n"), 0);
    snprintf(start, sizeof(start), "%s:4: page-tokens: must be", path);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    for (int i = 0; i < 2; i++) { /* the second time it has the place already */
        config_add_place(&config, &err);
        cr_expect_eq(strncmp(err.message, start, strlen(start)), 0, "%s", err.message);
    }
    cr_assert_eq(config_read_args(&config, 3, flag, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    config_add_place(&config, &err);
    cr_expect_eq(strncmp(err.message, "page-tokens: ", 13), 0, "a flag has no line: %s",
                 err.message);
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
    cr_expect(strstr(err.message, "page-tokens: must be 16, 32 or 64, not "), "%s", err.message);
}

Test(config, draft_sources_are_known_by_name) {
    char *wrong[] = {"weftd", "--model", "m.gguf", "--draft-sources", "suffix, oracle", NULL};
    char *right[] = {"weftd", "--draft-sources", "suffix, recent", NULL};

    cr_assert_eq(config_read_args(&config, 5, wrong, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    cr_expect(strstr(err.message, "draft-sources: unknown source oracle"));
    cr_assert_eq(config_read_args(&config, 3, right, &err), 0);
    cr_expect_eq(config_check(&config, &err), 0);
}

Test(config, other_machines_need_keys_or_a_word) {
    char *open[] = {"weftd", "--model", "m.gguf", "--listen", "0.0.0.0:80", NULL};
    char *said[] = {"weftd", "--anonymous", "yes", NULL};

    cr_assert_eq(config_read_args(&config, 5, open, &err), 0);
    cr_expect_eq(config_check(&config, &err), -EINVAL);
    cr_expect(strstr(err.message, "api-keys"));
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
    cr_expect_str_eq(err.message, "kv-memory: must be a size from 0 to 4096G, such as 512M or 4G, "
                                  R"(not "1 ")");
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
    cr_expect_str_eq(err.message, "aliases: at most 16 entries");
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
    cr_expect_str_eq(err.message, "--aliases: too long");
}

/* A longer value could be read and not be copied, so the daemon would not start. */
Test(config, a_value_has_a_limit) {
    static char text[CONFIG_VALUE_MAX + 1];
    struct config copy = {0};

    memset(text, 'a', CONFIG_VALUE_MAX);
    cr_expect_eq(config_set(&config, "system-prompt", text, &err), -EINVAL);
    cr_expect_str_eq(err.message, "system-prompt: is longer than 4095 bytes");
    text[CONFIG_VALUE_MAX - 1] = 0;
    cr_expect_eq(config_set(&config, "system-prompt", text, &err), 0);
    cr_expect_eq(config_clone(&copy, &config), 0);
    cr_expect_str_eq(copy.system_prompt, text);
    config_deinit(&copy);
}

Test(config, words_that_are_no_option_say_so) {
    static const struct {
        char *arg, *said;
    } all[] = {
        {"--threads", "--threads: needs a value"},
        {"--", "--: unknown option (weftd --help lists all)"},
        {"--thread", "--thread: unknown option; is --threads meant?"},
        {"--thread=1", "--thread: unknown option; is --threads meant?"},
        {"-threads", "-threads: unknown option; is --threads meant?"},
        {"-q", "-q: unknown option (weftd --help lists all)"},
        {"--a-name-of-64-characters-has-no-room-where-one-of-63-has-it-xxxxx",
         "--a-name-of-64-characters-has-no-room-wh...: unknown option"},
        {"--a-name-of-64-characters-has-no-room-where-one-of-63-has-it-xxxx",
         "--a-name-of-64-characters-has-no-room-where-one-of-63-has-it-x: unknown option (weftd "
         "--help lists all)"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        char *argv[] = {"weftd", all[i].arg, NULL};

        cr_expect_eq(config_read_args(&config, 2, argv, &err), -EINVAL);
        cr_expect_str_eq(err.message, all[i].said);
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

/* Pairs of options: a configuration that breaks the rule, and the key that the error names. */
Test(config, options_that_need_another_say_so) {
    static const struct {
        char *flags[4];
        const char *key, *why;
    } all[] = {
        {{"--model", ""}, "model", "this machine): --model FILE, or model = FILE below [model]"},
        {{"--allowed-hosts", "https://x.com/"}, "allowed-hosts", "the name of a host alone, such"},
        {{"--allowed-hosts", "x.com:80"}, "allowed-hosts", "the name of a host alone, such"},
        {{"--allowed-hosts", "x.com, [::1], *"}, NULL, NULL},
        {{"--picture-hosts", "https://x.com"}, "picture-hosts", "perhaps with :PORT, such"},
        {{"--picture-hosts", "x.com:444"}, NULL, NULL},
        {{"--cors-origins", "x.com"}, "cors-origins", "must be * or SCHEME://HOST[:PORT]"},
        {{"--cors-origins", "https://x.com/"}, "cors-origins", "must be * or SCHEME://HOST"},
        {{"--cors-origins", "https://*.x.*"}, "cors-origins", "an origin has at most one *"},
        {{"--cors-origins", "https://x.com:8080, *, null, localhost"}, NULL, NULL},
        {{"--cors-origins", "app://*, *://x.com, http://192.168.*"}, NULL, NULL},
        {{"--listen", ""}, "listen", "at least one address"},
        {{"--listen", "tls:127.0.0.1:1"}, "tls-certificate", "listen has tls:127.0.0.1:1"},
        {{"--tls-certificate", "c"}, "tls-key", "together with tls-certificate"},
        {{"--tls-key", "k"}, "tls-key", "together with tls-certificate"},
        {{"--kv-events-replay", "ipc://r"}, "kv-events-replay", "set kv-events, too"},
        {{"--kv-events", "ipc://e", "--kv-events-replay", "ipc://e"},
         "kv-events-replay",
         "must be another address than kv-events"},
        {{"--override-kv", "k=x:1"}, "override-kv", "k: the type must be int, float"},
        {{"--override-kv", "k=int:1, l=str:a"}, NULL, NULL},
        {{"--max-seqs", "65", "--max-batch-rows", "64"},
         "max-seqs",
         "is 65, which must not be more than max-batch-rows, 64"},
        {{"--max-seqs", "64", "--max-batch-rows", "64"}, NULL, NULL},
        {{"--model", "", "--models-dir", "d"}, NULL, NULL},
        {{"--model", "", "--models", "d"}, NULL, NULL},
        {{"--kv-events-replay", "ipc://r", "--kv-events", "ipc://e"}, NULL, NULL},
        {{"--tls-certificate", "c", "--tls-key", "k"}, NULL, NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        char *argv[8] = {"weftd", "--model", "m"};
        int n = 3;

        config_deinit(&config);
        set_up();
        for (int k = 0; k < 4 && all[i].flags[k]; k++)
            argv[n++] = all[i].flags[k];
        cr_assert_eq(config_read_args(&config, n, argv, &err), 0, "%s", err.message);
        cr_expect_eq(config_check(&config, &err), all[i].key ? -EINVAL : 0, "%zu: %s", i,
                     err.message);
        if (!all[i].key)
            continue;
        cr_expect_str_eq(err.param, all[i].key);
        cr_expect(strstr(err.message, all[i].why), "%s", err.message);
    }
}

/* Help has at most 78 columns except for longer words, and names each option once. */
Test(config, help_names_each_option_in_short_lines) {
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

            at += strspn(at, " \n");
            cr_assert_eq(strncmp(at, word, n), 0, "%s: %.20s", config_table[i].key, word);
            at += n;
            cr_expect(*at == ' ' || *at == '\n', "%.20s", at);
            word += n + (word[n] == ' ');
        }
        cr_expect_eq(*at, '\n', "%s", config_table[i].key);
    }
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

/* A host is at most 255 bytes long; what is longer, or has no end, is no address. */
Test(config, addresses_that_are_wrong_are_refused) {
    static const char *const wrong[] = {
        ":80",        "[]:80",       "[::1:80", "[:80",         "::1:80",       "[::g]:80",
        "[%eth0]:80", "localhost",   "lo:80",   "localhost:",   "127.0.0.1:-1", "127.0.0.1:65536",
        "1.2.3:80",   "1.2.3.4.5:1", "tls::80", "localhosts:80"};
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
