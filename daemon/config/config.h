#pragma once

/*
 * config - the options of weftd. One row each in config_table.c gives an option its key in the
 * file, its flag (`--key VALUE`), type, default, range, sentence, and the field that it sets.
 * Fields lie in the options of the module that uses them, which struct config embeds, so values are
 * not copied from one struct to another. A flag overrides the file, and the file overrides the
 * default.
 *
 * The worker process gets the options of section [engine] as config_pack() writes them and reads
 * them into a struct config of its own, by the same table.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/gguf.h"
#include "base/log.h"
#include "engine/engine.h"
#include "scheduler/scheduler.h"
#include "text/repeats.h"

#define CONFIG_LIST_MAX 16
#define LOOPS_AUTO (REPEATS_MAX + 1)
#define REASONING_INLINE 1 /* reasoning_format: none */
#define EXIT_CONFIG 78     /* EX_CONFIG, after which systemd does not restart the service */
#define EXIT_AGAIN 75      /* EX_TEMPFAIL: a later start may succeed */

/* Values of all options. Strings are never NULL; lists end with NULL. Fields of embedded structs
 * that have no row are zero: the caller that opens the module sets them. */
struct config {
    /* paths, except model_name */
    char *model, *model_name, *chat_template, *draft_model;
    /* a path; "none"; "": the file beside the model */
    char *mmproj;
    uint32_t picture_min_tokens;
    bool picture_pads;
    enum picture_background picture_background;
    /* a path; "": none */
    char *system_prompt;
    char *aliases[CONFIG_LIST_MAX + 1], *tags[CONFIG_LIST_MAX + 1];
    /* paths; "": none */
    char *models, *models_dir;
    /* bytes; 0: decided at the start */
    uint64_t models_memory;
    /* 0: no limit */
    uint32_t keep_alive_s;
    bool pinned;
    char *listen[CONFIG_LIST_MAX + 1], *hosts[CONFIG_LIST_MAX + 1];
    /* tenants that may pull models; "*": all */
    char *allow_pull[CONFIG_LIST_MAX + 1];
    char *picture_hosts[CONFIG_LIST_MAX + 1];
    char *cors_origins[CONFIG_LIST_MAX + 1], *sampling[CONFIG_LIST_MAX + 1];
    /* a JSON object; "": none */
    char *template_kwargs;
    /* enum thinking_switch */
    uint32_t reasoning;
    /* index among the choices */
    uint32_t reasoning_format;
    /* index among the choices of `pooling` */
    uint32_t pooling;
    /* api_model.loop_tokens; or LOOPS_AUTO */
    uint32_t loop_tokens;
    /* paths; "": none */
    char *admin_socket, *api_keys, *tenants;
    /* paths; "": none */
    char *tls_certificate, *tls_key;
    bool anonymous;
    uint32_t drain_timeout_ms, upgrade_timeout_ms, hang_timeout_ms, load_timeout_ms;
    /* path; "": none */
    char *kv_disk;
    /* "": none */
    char *kv_events, *kv_events_replay, *kv_events_topic;
    /* KEY=TYPE:VALUE (base/gguf_override.h) */
    char *override_kv[CONFIG_LIST_MAX + 1];
    /* 0: decided by the worker */
    uint64_t draft_kv_bytes;
    char *draft_sources[CONFIG_LIST_MAX + 1];
    /* kv_type: index among the choices of kv-type. kv_type_k, kv_type_v: index + 1; 0: the same as
     * kv_type. */
    uint32_t kv_type, kv_type_k, kv_type_v;
    /* index among the choices of `log-level` */
    uint32_t log_level;
    enum log_format log_format;
    char *fault_dir, *usage_file, *state_file;
    struct api_opts api;
    /* options of the model; kv_bytes 0: no size was given */
    struct engine_opts engine;
    struct sched_opts sched;
    /* Owned: the last file that was read, and for each row of the table the line that set the
     * option, 0 if another source did. NULL: no file was read. */
    char *file;
    uint32_t *lines;
};

enum option_type {
    /* char *, owned; one of `choices` if there are any */
    OPTION_STRING,
    /* char *[CONFIG_LIST_MAX + 1], owned; separated by commas in the file */
    OPTION_LIST,
    /* uint32_t or uint64_t */
    OPTION_UINT,
    /* uint64_t in bytes; takes K, M and G */
    OPTION_SIZE,
    /* bool */
    OPTION_BOOL,
    /* bool, enum or uint32_t: the index among `choices` */
    OPTION_CHOICE,
};

/* A row of the table. Invariant: `initial` is a value that config_set() accepts. */
struct option {
    const char *section, *key;
    enum option_type type;
    /* offset and size of the field in struct config */
    size_t offset, size;
    /* default as text */
    const char *initial;
    /* UINT, SIZE: accepted range */
    uint64_t min, max;
    /* CHOICE, some STRINGs: the words, "a|b|c"; UINT: a word that stands for max; else NULL */
    const char *choices;
    /* SIGHUP applies a new value */
    bool reloads;
    /* one sentence */
    const char *help;
};

extern const struct option config_table[];
extern const uint32_t config_table_n;

int config_init(struct config *c);    /* sets every option to its default; returns 0 or -ENOMEM */
void config_deinit(struct config *c); /* may follow a failure of config_init() */

/* Reads an INI file. Returns 0, or -errno with one line in @err: "FILE:LINE: KEY: REASON". */
int config_read_file(struct config *c, const char *path, struct err *err);
/* Reads the preset of a model like config_read_file(). Its keys are those of [model] and [engine]
 * that concern one model, without sections. */
int config_read_preset(struct config *c, const char *path, struct err *err);
/* Makes @to, which is overwritten, a copy of @from. Returns 0 or -errno; config_deinit() must
 * follow in either case. */
int config_clone(struct config *to, const struct config *from);
/* Returns true if the @len bytes at @key name an option, or are "config". */
bool config_has(const char *key, size_t len);
uint64_t config_most(const char *key); /* Returns the most that the number @key takes. */
/* Reads `--key VALUE` and `--key=VALUE`, the file of `--config FILE` first. argv[0] is skipped.
 * Returns 0, or -errno with @err, also for an argument that is not an option. */
int config_read_args(struct config *c, int argc, char **argv, struct err *err);
/* Returns the ADDRESS:PORT of a listen address that begins with tls:, else @address itself. */
const char *config_without_tls(const char *address);
/* Checks the rules between options, after all were read. Returns 0, or -EINVAL with @err. */
int config_check(const struct config *c, struct err *err);

/* Puts "FILE:LINE: " before the message of @err if a line of a file set the option that it is
 * about, its param, and the message does not have them yet. */
void config_add_place(const struct config *c, struct err *err);

/* Sets the option @key, which must exist, to the value @text. Returns 0, or -errno with @err. */
int config_set(struct config *c, const char *key, const char *text, struct err *err);
/* Gives option @o of @to the value that it has in @from. Returns 0 or -ENOMEM. */
int config_copy(struct config *to, const struct config *from, const struct option *o);
/* Appends each option of @section to @out as KEY NUL VALUE NUL. Returns 0 or -errno. */
int config_pack(const struct config *c, const char *section, struct buf *out);
/* Sets the options that config_pack() wrote. Returns 0; -EPROTO: @data is not from config_pack();
 * or -ENOMEM. */
int config_unpack(struct config *c, const char *data, size_t len);

/* Applies the values of override-kv to @g, the model's file. Returns as gguf_override(). */
int config_override(const struct config *c, struct gguf *g, struct err *err);
enum log_level config_log_level(const struct config *c); /* Returns the value of log-level. */
/* Returns true if draft source @name is among @c->draft_sources. */
bool config_drafts_from(const struct config *c, const char *name);
/* Returns the draft sources that are missing in @c->draft_sources, which config_check() has
 * accepted, as a bit set: bit i stands for msg_draft_source[i]. */
uint32_t config_no_sources(const struct config *c);

/* Returns the key that an unknown @name probably means, because of a typing error or because other
 * servers use that name. NULL: no key is similar. */
const char *config_meant(const char *name);

void config_print(FILE *out); /* prints the default configuration file */
void config_help(FILE *out);  /* prints the flags */

/* Size of a value as written in a file, with its NUL; longer values are refused. */
#define CONFIG_VALUE_MAX 4096
/* Writes the value of @o in @c to @out, as in a configuration file. Returns its length before it
 * was cut. */
size_t config_value(const struct config *c, const struct option *o, char *out, size_t size);
