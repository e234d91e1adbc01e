#pragma once

/*
 * config - every option of weftd: one row each in config.c's table gives its key in the file, its
 * flag (`--key VALUE`), type, default, range and sentence. A flag wins over the file, the file over
 * the default. conf/weft.conf is this table printed by config_print(); a test holds them together.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

#define CONFIG_LIST_MAX 16
#define EXIT_CONFIG 78 /* EX_CONFIG: systemd does not restart on it */
#define EXIT_AGAIN 75  /* EX_TEMPFAIL: trying again may help */

struct config {
    /* model */
    char *model, *model_name, *chat_template, *draft_model;
    /* listen */
    char *listen[CONFIG_LIST_MAX + 1], *hosts[CONFIG_LIST_MAX + 1];
    char *admin_socket, *api_keys, *tenants;
    bool anonymous;
    /* limits */
    uint64_t max_connections, max_running, max_queued, max_n, max_body, max_header,
        max_header_count;
    uint64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, keepalive_ms, stall_timeout_ms;
    uint64_t stream_buffer, request_timeout_ms, drain_timeout_ms, default_max_tokens;
    uint64_t stored_responses, stored_memory, stored_ttl_s;
    /* engine */
    char *kv_disk;
    char *backend, *isa, *kv_type, *speculation, *draft_sources[CONFIG_LIST_MAX + 1], *retention,
        *warm_turn, *determinism;
    uint64_t threads, kv_pages, kv_memory, draft_kv_memory, host_kv_memory, kv_disk_size,
        kv_disk_daily, page_tokens, max_context, max_rows, max_seqs, depth, max_draft;
    uint64_t itl_target_ms, max_step_ms, hang_timeout_ms, load_timeout_ms;
    bool digests;
    /* log */
    char *log_level, *fault_dir;
};

enum option_type {
    OPTION_STRING,
    OPTION_LIST,
    OPTION_UINT,
    OPTION_SIZE,
    OPTION_BOOL,
    OPTION_CHOICE
};

struct option {
    const char *section, *key;
    enum option_type type;
    size_t offset;
    const char *initial; /* as written in the file */
    uint64_t min, max;   /* UINT, SIZE */
    const char *choices; /* CHOICE: "a|b|c" */
    bool reloads;        /* SIGHUP applies it */
    const char *help;    /* one sentence */
};

extern const struct option config_table[];
extern const uint32_t config_table_n;

int config_init(struct config *c); /* every option at its default */
void config_deinit(struct config *c);

/* Reads an INI file. A refusal is one line: "FILE:LINE: key: what is allowed". */
int config_read_file(struct config *c, const char *path, struct err *err);
/* Reads `--key VALUE` and `--key=VALUE`, `--config FILE` first. argv[0] is skipped. A first argument that is
 * none of the options is reported. */
int config_read_args(struct config *c, int argc, char **argv, struct err *err);
/* The number of a draft source in msg_draft_source[], -1: there is none of that name. */
int config_draft_source(const char *name);
/* Rules between options, once all were read. */
int config_check(const struct config *c, struct err *err);

/* The key that a name which is none probably stands for: a misspelt one, or what other servers call it; NULL: unknown. */
const char *config_meant(const char *name);

void config_print(FILE *out); /* the default configuration file */
void config_help(FILE *out);  /* the flags */

/* The current value of @o as it would be written in a file, into @out. */
void config_value(const struct config *c, const struct option *o, char *out, size_t size);
