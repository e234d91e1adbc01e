/* workers_open - makes the descriptors, packed weights and options that a worker gets at its
 * start. */

#include <assert.h>
#include <errno.h>

#include "base/try.h"
#include "daemon/workers/workers_private.h"

static void claim_weights(struct workers *w) {
    const struct gguf *files[] = {w->opts.file, w->opts.draft};

    for (int i = 0; i < 2; i++)
        if (files[i] && !w->kept[i])
            w->kept[i] = kept_claim(w->opts.kept, w->keys[i]);
}

void workers_release_weights(struct workers *w, bool bad) {
    for (int i = 0; i < 2; i++) {
        kept_release(w->kept[i], bad);
        w->kept[i] = NULL;
    }
}

void workers_confirm_weights(struct workers *w) {
    for (int i = 0; i < 2; i++)
        if (w->kept[i] && !kept_confirm(w->kept[i])) {
            kept_release(w->kept[i], true);
            w->kept[i] = NULL;
        }
}

/* Adds @fd; does nothing if it is negative. */
static void add_fd(struct workers_fds *f, int fd) {
    assert(f->n < ARRAY_SIZE(f->stdio));
    if (fd >= 0)
        f->stdio[f->n++] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = fd};
}

/* Adds the descriptors of @file, which may be NULL. Returns 0, or -E2BIG if there are too many. */
static int workers_add_shards(struct workers_fds *f, const struct gguf *file) {
    for (uint32_t i = 0; file && i < gguf_n_shards(file); i++) {
        if (f->n_shards == WORKER_SHARDS_MAX)
            return -E2BIG;
        add_fd(f, gguf_shard_fd(file, i));
        f->n_shards++;
    }
    return 0;
}

/* Returns the number of the image encoder's files; 0: there is none. */
static uint32_t workers_n_projector(const struct workers *w) {
    return w->opts.projector ? gguf_n_shards(w->opts.projector) : 0;
}

int workers_list_fds(struct workers *w, int channel, struct workers_fds *out) {
    const int first[WORKER_FD_MODEL] = {
        [2] = 2, [WORKER_FD_CHANNEL] = channel, [WORKER_FD_CRASH_PAGE] = w->crash_page_fd};

    *out = (struct workers_fds){0};
    for (uint32_t i = 0; i < 2; i++)
        out->stdio[out->n++] = (uv_stdio_container_t){.flags = UV_IGNORE};
    for (uint32_t i = 2; i < WORKER_FD_MODEL; i++)
        add_fd(out, first[i]);
    assert(out->n == WORKER_FD_MODEL);
    if (workers_add_shards(out, w->opts.file) < 0 || workers_add_shards(out, w->opts.draft) < 0)
        return -E2BIG;
    for (uint32_t i = 0; i < workers_n_projector(w); i++) {
        if (i == WORKER_SHARDS_MAX)
            return -E2BIG;
        add_fd(out, gguf_shard_fd(w->opts.projector, i));
    }
    add_fd(out, w->opts.disk_fd);
    claim_weights(w);
    for (int i = 0; i < 2; i++)
        add_fd(out, w->kept[i] ? kept_fd(w->kept[i]) : -1);
    if (w->experts.fd > 0)
        add_fd(out, w->experts.fd);
    return 0;
}

/* Later workers use the backend and the experts in host memory of the first worker if these options
 * are auto, because the tokens of a stream depend on both: the CPU computes logits with other bits,
 * and so does a device that holds other experts. */
int workers_pack_open(const struct workers *w, struct buf *out) {
    CLEANUP(buf_deinit) struct buf options = {.max = MSG_MAX_FRAME};
    struct config c = *w->opts.config;

    if (w->backend[0])
        c.engine.backend = w->backend;
    TRY(config_pack(&c, "engine", &options));
    struct msg_open m = {
        .options = {options.data, (uint32_t)options.len},
        .kv_bytes = w->opts.kv_bytes,
        .memory_bytes = w->opts.memory_bytes,
        .n_draft_shards = w->opts.draft ? gguf_n_shards(w->opts.draft) : 0,
        .n_projector = workers_n_projector(w),
        .has_disk = w->opts.disk_fd >= 0,
        .disk_waits = w->opts.disk_waits,
        .keeps = w->kept[0] != NULL,
        .keeps_draft = w->kept[1] != NULL,
        .has_experts = w->experts.fd > 0,
        .keeps_place = w->placed,
        .tells_blocks = w->opts.on_blocks != NULL,
    };

    return msg_open_pack(out, &m);
}
