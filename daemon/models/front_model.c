/*
 * Checks a model before a worker is started and before the service reports that it is ready, and
 * reports errors in one line with the file's name: a worker could only write to the log. The files
 * stay open because each worker gets their descriptors, so a model that is replaced by a rename is
 * still served. This process does not read them after front_model_open().
 */

#include "daemon/models/front_model.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "daemon/worker/worker.h"
#include "text/stops.h"

#define TEMPLATE_FILE_MAX (1u << 20)

/* Returns @r, with @err beginning with the option @key and the file @path that it names. */
static int name_file(int r, const char *key, const char *path, struct err *err) {
    struct err e = *err;
    const char *why = *e.message ? e.message : strerror(-r);

    if (r < 0 && strncmp(why, path, strlen(path)) == 0)
        err_set(err, 0, key, "%s: %.370s", key, why);
    else if (r < 0)
        err_set(err, 0, key, "%s: %.150s: %.220s", key, path, why);
    return r;
}

/* Returns NAME and its length if the folder @path is a snapshot in the hub's cache,
 * ".../models--OWNER--NAME/snapshots/COMMIT"; else NULL. */
static const char *hub_name(const char *path, size_t *len) {
    static const char models[] = "/models--", snapshots[] = "/snapshots/";
    const char *repo = strstr(path, models), *end = repo ? strstr(repo, snapshots) : NULL;

    if (!end)
        return NULL;
    const char *commit = end + strlen(snapshots), *rest = commit + strcspn(commit, "/");
    if (rest[strspn(rest, "/")]) /* a file or folder in the snapshot */
        return NULL;
    const char *name = repo + strlen(models);
    for (const char *p = name; p + 2 < end; p++)
        if (memcmp(p, "--", 2) == 0)
            name = p + 2;
    *len = (size_t)(end - name);
    return name;
}

/* Returns the last component of @path, a file or a folder, and its length. */
static const char *last_component(const char *path, size_t *len) {
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *slash = memrchr(path, '/', n), *start = slash ? slash + 1 : path;
    *len = (size_t)(path + n - start);
    return start;
}

/* Returns the name of the model in the file or folder @path: "/dir/TinyLlama-00001-of-00002.gguf"
 * is "TinyLlama". Unprintable characters are escaped, because the name is a label in /metrics and
 * is typed by clients and operators. NULL: out of memory. */
static char *name_of_file(const char *path) {
    size_t len;
    const char *hub = hub_name(path, &len), *base = hub ? hub : last_component(path, &len);
    size_t size = len * PRINTABLE_MAX + 1;
    char *name = malloc(size);

    if (!name)
        return NULL;
    len = printable_copy(name, size, base, len, false);
    if (len > 5 && strcmp(name + len - 5, ".gguf") == 0)
        name[len -= 5] = 0;
    if (len > 15 && strncmp(name + len - 9, "-of-", 4) == 0 && name[len - 15] == '-')
        name[len - 15] = 0;
    return name;
}

/* Reads the file that the option @key names. Returns 0 or -errno with @err, also for a file larger
 * than 1 MiB. */
static int read_text_file(const char *key, const char *path, struct buf *out, struct err *err) {
    int r = files_read(path, out, NULL);

    if (r == -EFBIG)
        return err_set(err, 0, key, "%s: %.300s: larger than 1 MiB", key, path);
    if (r < 0)
        err_set(err, 0, key, "%s: %.300s: cannot be read: %s", key, path, strerror(-r));
    if (r == 0 && !utf8_valid(text_or(out->data, ""), out->len))
        return err_set(err, 0, key, "%s: %.300s: is no text in UTF-8", key, path);
    return r;
}

/* Writes the built-in template @name to *@out, with BOS at its beginning if the vocabulary asks for
 * one. Returns false if there is no such template. */
static bool find_named(struct front_model *m, const char *name, struct gguf_str *out) {
    const char *source = template_named(name);

    if (!source)
        return false;
    buf_init(&m->template_text, TEMPLATE_FILE_MAX);
    if (tokenizer_adds_bos(m->tokenizer) && !strstr(source, "bos_token") &&
        buf_add_str(&m->template_text, "{{- bos_token -}}") < 0)
        return false;
    if (buf_add_str(&m->template_text, source) < 0)
        return false;
    *out = (struct gguf_str){m->template_text.data, m->template_text.len};
    return true;
}

/* Refuses @name, which is no template, with a list of the names. Returns -EINVAL. */
static int refuse_template(const char *name, struct err *err) {
    char names[200] = "";

    for (size_t i = 0, n = 0; template_name(i) && n < sizeof(names); i++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, " %s", template_name(i));
    return err_set(err, 0, "chat-template",
                   "chat-template: %.200s is neither a file nor one of the built-in templates:%s",
                   name, names);
}

/* Opens the chat template: the configured file or name, else the model's, else the default. Returns
 * 0 or -errno with @err. */
static int open_template(struct front_model *m, const struct config *c, struct err *err) {
    struct buf *text = &m->template_text;
    struct gguf_str s;

    if (*c->chat_template && find_named(m, c->chat_template, &s)) {
        /* the built-in template was found */
    } else if (*c->chat_template) {
        buf_init(text, TEMPLATE_FILE_MAX);
        if (access(c->chat_template, F_OK) < 0 && errno == ENOENT)
            return refuse_template(c->chat_template, err);
        TRY(read_text_file("chat-template", c->chat_template, text, err));
        s = (struct gguf_str){text_or(text->data, ""), text->len};
    } else if (gguf_string(m->file, "tokenizer.chat_template", &s) < 0) {
        if (!find_named(m, TEMPLATE_DEFAULT, &s))
            return -ENOMEM;
        log_event(WLOG_INFO, "chat_template",
                  "name=" TEMPLATE_DEFAULT " reason=\"the model file has no chat template\"");
    }
    m->api.template_source = s.data;
    m->api.template_len = s.len;
    bool is_own = !*c->chat_template;
    return name_file(template_new(&m->template, s.data, s.len, err),
                     is_own ? "model" : "chat-template", is_own ? c->model : c->chat_template, err);
}

/* Reads the configured system message; an empty one removes the model's. Returns 0 or -errno with
 * @err. */
static int open_system(struct front_model *m, const struct config *c, struct err *err) {
    if (!*c->system_prompt)
        return 0;
    buf_init(&m->system_text, TEMPLATE_FILE_MAX);
    TRY(read_text_file("system-prompt", c->system_prompt, &m->system_text, err));
    if (m->system_text.len > 0 && *m->system_text.data)
        m->api.system = m->system_text.data;
    return 0;
}

/* Flags of the choices of `pooling`, in their order. */
static const uint16_t poolings[] = {0, SUBMIT_POOL_MEAN, SUBMIT_POOL_CLS, SUBMIT_POOL_LAST,
                                    SUBMIT_POOL_NONE};

/* Returns the pooling of "<arch>.pooling_type". Files of generative models lack it: their last
 * token attends to all others. So do files of encoders, where the first token does. */
static uint16_t pooling_of(const struct gguf *g, bool encoder) {
    static const uint16_t of_type[] = {[1] = SUBMIT_POOL_MEAN,
                                       [2] = SUBMIT_POOL_CLS,
                                       [3] = SUBMIT_POOL_LAST}; /* 4, a classifier's: the usual */
    uint16_t usual = encoder ? SUBMIT_POOL_CLS : SUBMIT_POOL_LAST;
    struct gguf_str arch;
    uint32_t type = 0;
    char key[96];

    if (gguf_string(g, "general.architecture", &arch) < 0)
        return usual;
    snprintf(key, sizeof(key), "%.*s.pooling_type", (int)MIN(arch.len, 64), arch.data);
    gguf_u32(g, key, &type);
    if (type <= 0 || type >= ARRAY_SIZE(of_type))
        return usual;
    return of_type[type];
}

/* Returns true if the string @key of the file is @value. */
static bool says(const struct gguf *g, const char *key, const char *value) {
    struct gguf_str s;

    return gguf_string(g, key, &s) == 0 && s.len == strlen(value) &&
           memcmp(s.data, value, s.len) == 0;
}

/* Checks that the engine could compute the model, and names files that are often mistaken for a
 * model. */
static int front_model_check_kind(const struct gguf *g, struct engine_kind *out, struct err *err) {
    if (says(g, "general.type", "adapter"))
        return err_set(err, 0, "model",
                       "this file is a LoRA adapter, not a model; merge it into its model first");
    if (says(g, "general.type", "mmproj") || says(g, "general.architecture", "clip"))
        return err_set(err, 0, "model",
                       "this file is the image encoder of a model: name it with mmproj, and the "
                       "file of the model itself with model");
    return engine_check(g, out, err);
}

/* Template of query and document in a reranker's prompt if the file has none: the one that
 * Qwen3-Reranker was trained with. An encoder has its separator between the two; RoBERTa's family
 * (whose tokens are "t5") has it twice. */
#define PAIR_TEMPLATE                                                                              \
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "    \
    "and "                                                                                         \
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"       \
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "     \
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"                       \
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"

static int open_pair(struct front_model *m, bool encoder, struct err *err) {
    struct gguf_str s = {PAIR_TEMPLATE, sizeof(PAIR_TEMPLATE) - 1};
    struct gguf_str sep = tokenizer_text(m->tokenizer, tokenizer_eos(m->tokenizer));

    int again = says(m->file, "tokenizer.ggml.model", "t5") ? (int)sep.len : 0;

    if (encoder && asprintf(&m->pair, "{query}%.*s%.*s{document}", (int)sep.len, sep.data, again,
                            sep.data) < 0)
        return -ENOMEM;
    if (!encoder) {
        gguf_string(m->file, "tokenizer.chat_template.rerank", &s);
        m->pair = strndup(s.data, s.len);
    }
    char *query = m->pair ? strstr(m->pair, "{query}") : NULL;
    char *document = query ? strstr(query, "{document}") : NULL;
    if (!m->pair)
        return -ENOMEM;
    if (!document)
        return err_set(
            err, 0, "model",
            "tokenizer.chat_template.rerank must contain {query}, and {document} behind it");
    *query = *document = 0;
    m->api.pair.before = m->pair;
    m->api.pair.between = query + strlen("{query}");
    m->api.pair.behind = document + strlen("{document}");
    return 0;
}

/* Returns the bytes that the model would take, or the size of its file if it cannot be opened; then
 * the worker reports the reason, which @why gets, too. */
static uint64_t fit_bytes(const struct engine_opts *o, struct engine_fit *f, struct err *why) {
    engine_fit(f, o, why);
    if (f->weight_bytes)
        return f->weight_bytes + f->buffer_bytes + f->kv_bytes;
    return gguf_bytes(o->file);
}

/* Returns the file of draft-model if it is this model's own block and not a whole model, else
 * NULL. */
static const struct gguf *front_model_block(const struct front_model *m) {
    if (!m->draft || !engine_is_block(m->draft))
        return NULL;
    return m->draft;
}

/* Checks that each token has the same text in the model and in its draft model. Numbers beyond the
 * smaller vocabulary are padding. */
static int check_draft_tokens(const struct front_model *m, struct err *err) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;

    TRY(tokenizer_new(&t, m->draft, err));
    for (uint32_t i = 0; i < MIN(tokenizer_n_vocab(t), tokenizer_n_vocab(m->tokenizer)); i++) {
        struct gguf_str a = tokenizer_text(m->tokenizer, (int32_t)i);
        struct gguf_str b = tokenizer_text(t, (int32_t)i);

        if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            return err_set(err, 0, "draft-model",
                           "its vocabulary differs from the model's: token %u is \"%.*s\", not "
                           "\"%.*s\"",
                           i, (int)MIN(b.len, 40), b.data, (int)MIN(a.len, 40), a.data);
    }
    return 0;
}

/* Opens the file of the draft model, which may be a block without a vocabulary. */
static int open_draft_file(struct front_model *m, const struct config *c, struct err *err) {
    TRY(checkpoint_open_model(&m->draft, c->draft_model, err));
    if (engine_is_block(m->draft) && !gguf_array(m->draft, "tokenizer.ggml.tokens"))
        return 0;
    return check_draft_tokens(m, err);
}

/* Returns the bytes that the worker will need, computed as the worker does, also for a device,
 * which the front does not open. Sets the resulting context. */
static uint64_t memory_of(struct front_model *m, const struct config *c,
                          const struct msg_open *room) {
    struct config k = *c; /* borrows the members of *c, which are not freed */
    struct msg_open open = *room;
    struct engine_opts *o = &k.engine, d;
    uint64_t draft = 0;
    struct engine_fit draft_fit;

    o->block = front_model_block(m);
    open.n_projector = m->projector.file ? gguf_n_shards(m->projector.file) : 0;
    bool draft_first = worker_engine_opts(&k, &open);
    o->file = m->file;
    o->projector = m->projector.file;
    o->backend = strcmp(o->backend, "reference") == 0 ? "reference" : "cpu";
    d = engine_draft_opts(o, k.draft_kv_bytes);
    d.file = m->draft;
    if (m->draft && !o->block && !c->sched.no_speculation)
        draft = fit_bytes(&d, &draft_fit, NULL);
    if (draft_first)
        o->memory -= MIN(draft, MAX(o->memory, UINT64_C(1)) - 1);
    uint64_t bytes = fit_bytes(o, &m->fit, &m->fit_why) + draft;

    m->api.max_context = m->fit.context;
    return bytes;
}

/* Logs what the tokenizer of @file works around. */
static void log_vocabulary(const struct tokenizer *t, const char *file) {
    uint32_t duplicates = tokenizer_n_duplicates(t), merges = tokenizer_n_skipped_merges(t);

    if (duplicates || merges)
        log_event(WLOG_WARN, "vocabulary", "file=%s repeated_texts=%u skipped_merges=%u",
                  quoted(file).s, duplicates, merges);
}

/* Opens the model's file and its vocabulary. Returns 0 or -errno. */
static int front_model_read(struct front_model *m, const struct config *c, struct engine_kind *kind,
                            struct err *err) {
    TRY(checkpoint_open_model(&m->file, c->model, err));
    TRY(config_override(c, m->file, err));
    TRY(front_model_check_kind(m->file, kind, err));
    return tokenizer_new(&m->tokenizer, m->file, err);
}

int front_model_open(struct front_model *m, const struct config *c, const struct msg_open *room,
                     struct err *err) {
    struct engine_kind kind = {0};

    assert(*c->model);
    TRY(name_file(front_model_read(m, c, &kind, err), "model", c->model, err));
    log_vocabulary(m->tokenizer, c->model);
    TRY(kind.encoder ? 0 : open_template(m, c, err));
    TRY(open_system(m, c, err));
    if (kind.ranks)
        TRY(open_pair(m, kind.encoder, err));
    if (*c->draft_model)
        TRY(name_file(open_draft_file(m, c, err), "draft-model", c->draft_model, err));
    TRY(kind.encoder ? 0 : projector_file_open(&m->projector, c, m->file, m->tokenizer, err));
    m->memory_bytes = memory_of(m, c, room);
    gguf_fingerprint(m->file, m->print);
    engine_keep_key(m->file, front_model_block(m), m->keep_key[0]);
    if (m->draft)
        engine_keep_key(m->draft, NULL, m->keep_key[1]);
    gguf_drop_data(m->file); /* the file may change while the model is served */
    if (m->draft)
        gguf_drop_data(m->draft);
    if (m->projector.file) {
        gguf_drop_data(m->projector.file);
        m->api.projector = &m->projector.projector;
        m->api.projector_id = m->projector.id;
        m->api.picture_budget =
            (struct picture_budget){c->picture_min_tokens, c->engine.picture_rows, false};
        m->api.picture_pads = c->picture_pads;
        m->api.picture_background = c->picture_background;
    }
    if (*c->model_name)
        m->name = strdup(c->model_name);
    else
        m->name = name_of_file(c->model);
    if (!m->name)
        return -ENOMEM;
    model_header_read(&m->header, m->file);
    TRY(sampling_defaults_read(&m->sampling, m->file, m->name, c->sampling, err));
    m->api.sampling = &m->sampling.values;
    m->api.sampling_source = m->sampling.source;
    m->api.seed = m->sampling.has_seed ? &m->sampling.seed : NULL;
    m->api.thinking = (uint8_t)c->reasoning;
    m->api.inline_reasoning = c->reasoning_format == REASONING_INLINE;
    if (*c->template_kwargs) {
        TRY(api_read_kwargs(c->template_kwargs, &m->template_kwargs, err));
        m->api.template_kwargs = yyjson_doc_get_root(m->template_kwargs);
    }
    m->api.loops_of_chats = c->loop_tokens == LOOPS_AUTO;
    m->api.loop_tokens = m->api.loops_of_chats ? model_header_loops(&m->header) : c->loop_tokens;
    m->api.id = m->name;
    m->api.aliases = (const char *const *)c->aliases;
    m->api.tags = (const char *const *)c->tags;
    m->api.keep_alive_s = c->keep_alive_s;
    m->api.tokenizer = m->tokenizer;
    m->api.template = m->template;
    m->api.n_vocab = tokenizer_n_vocab(m->tokenizer);
    m->api.encoder = kind.encoder;
    m->api.ranks = kind.ranks;
    m->api.pool = c->pooling ? poolings[c->pooling] : pooling_of(m->file, kind.encoder);
    m->api.arch = m->header.arch;
    m->api.n_embd = m->header.n_embd;
    m->api.n_ctx_train = m->header.n_ctx_train;
    m->api.vocab_type = m->header.vocab_type;
    if (!m->api.max_context)
        m->api.max_context = model_header_context(&m->header, c);
    const char *slash = strrchr(c->model, '/');
    m->api.file = slash ? slash + 1 : c->model;
    m->api.n_bytes = gguf_bytes(m->file);
    m->api.n_params = m->header.n_params;
    m->api.tensor_bytes = m->header.tensor_bytes;
    return 0;
}

void front_model_deinit(struct front_model *m) {
    template_free(m->template);
    buf_deinit(&m->template_text);
    buf_deinit(&m->system_text);
    yyjson_doc_free(m->template_kwargs);
    tokenizer_free(m->tokenizer);
    projector_file_deinit(&m->projector);
    gguf_free(m->draft);
    gguf_free(m->file);
    free(m->name);
    free(m->pair);
}

/* Returns a digest of everything that a request's tokens depend on besides the request: model file
 * and program. */
static uint64_t fingerprint_of(const struct front_model *m) {
    struct rng r;

    memcpy(&r.state, m->print, sizeof(r.state));
    for (const char *s = WEFT_VERSION; *s; s++)
        r.state = rng_next(&r) ^ (unsigned char)*s;
    return rng_next(&r);
}

void front_model_ready(struct front_model *m, const struct msg_ready *ready,
                       struct api_model *info) {
    struct api_model *both[] = {&m->api, info};

    assert(ready->page_tokens > 0);
    if (!m->api.fingerprint)
        snprintf(m->fingerprint, sizeof(m->fingerprint), "b%016" PRIx64, fingerprint_of(m));
    for (size_t i = 0; i < ARRAY_SIZE(both); i++) {
        both[i]->max_context = ready->max_context;
        both[i]->n_pages = ready->n_pages;
        both[i]->page_tokens = ready->page_tokens;
        both[i]->n_embd = ready->n_embd;
        both[i]->fingerprint = m->fingerprint;
    }
}

void front_model_warn_of_context(const struct front_model *m, uint32_t asked) {
    uint32_t context = m->header.n_ctx_train;

    assert(m->api.max_context > 0);
    if (asked > m->api.max_context)
        log_event(WLOG_WARN, "context_lowered",
                  "asked=%u max_context=%u reason=\"the model supports no more (max-context)\"",
                  asked, m->api.max_context);
    else if (!asked && context > m->api.max_context)
        log_event(WLOG_WARN, "short_context",
                  "max_context=%u model=%u reason=\"kv-memory (or kv-pages) has no room for more\"",
                  m->api.max_context, context);
}
