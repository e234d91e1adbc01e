/*
 * layers - pipeline parallelism: each device has some of the layers, with their keys and states,
 * and computes them as a single device would (docs/design/cuda-devices.md). The first device has
 * the embedding; the last one has the logits and the draft block or drafter, and samples. A page or
 * a state has the same number on each device.
 *
 *     device 0: embed, layers 0 .. c - 1 --x--> device 1: layers c .., logits, sample
 *
 * x of the batch's rows, and the taps of a block drafter, cross through pinned memory: a kernel
 * writes it, an event is recorded, a kernel of the next device reads it. There is such memory for
 * two steps, and at most two are in flight, so it is read before the second step after it writes
 * there. The graph of a device's part of a step ends before x is handed over. A batch of many rows
 * is computed in parts, as a pipeline; each part has its part of that memory and its own area for
 * the upload:
 *
 *     device 0: part 1, part 2, part 3
 *     device 1:         part 1, part 2, part 3, logits of all, sample
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/several.h"

/* -- sizes ------------------------------------------------------------------------------------- */

static uint64_t bytes_of_op(const struct model_op *op) {
    uint64_t n = 0;

    for (int w = 0; w < OP_MATRICES; w++)
        if (op->w[w])
            n += op->w[w]->n_bytes;
    return n;
}

/* Sets @bytes to those of the matrices of each layer, and [n_layer] to those of the logits and of
 * the draft block. The first layer includes the embedding. */
static void layers_bytes(const struct model_shape *s, uint64_t bytes[MODEL_LAYERS_MAX + 1]) {
    bool behind = false;

    memset(bytes, 0, (s->n_layer + 1) * sizeof(*bytes));
    for (uint32_t i = 0; i < s->n_ops; i++) {
        const struct model_op *op = &s->op[i];
        bool again = behind && (op->kind == OP_LOGITS || op->kind == OP_EMBED);

        behind |= op->kind == OP_LOGITS;
        if (behind && !again)
            bytes[s->n_layer] += bytes_of_op(op);
        else if (!behind && op->layer < s->n_layer)
            bytes[op->layer] += bytes_of_op(op);
    }
}

/* Cuts the layers so that each device has its part of the bytes, and at least one layer. Parts are
 * in 64ths, so that some megabytes of another process do not move layers. */
static void cut_layers(struct model_shape *s, const uint64_t *room, uint32_t n) {
    uint64_t bytes[MODEL_LAYERS_MAX + 1], all = 0, sum = 0, so_far = room[0], at = 0;
    uint32_t i = 0;

    layers_bytes(s, bytes);
    for (uint32_t l = 0; l <= s->n_layer; l++)
        all += bytes[l];
    for (uint32_t k = 0; k < n; k++)
        sum += room[k];
    for (uint32_t l = 0; l < s->n_layer; l++) {
        uint64_t part = (64 * so_far + sum / 2) / sum;
        bool enough = at + bytes[l] / 2 > all / 64 * part || s->n_layer - l < n - i;

        if (i + 1 < n && l > s->cut[i] && enough) {
            s->cut[++i] = l;
            so_far += room[i];
        }
        at += bytes[l];
    }
    s->cut[n] = s->n_layer;
    assert(i + 1 == n);
}

/* Divides layers in proportion to the free memory of the devices beside their buffers. */
static int layers_divide(struct model_shape *s, const struct engine_opts *o, struct err *err) {
    static const uint32_t none[ENGINE_DEVICES + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    uint64_t room[ENGINE_DEVICES];
    struct rank rank[ENGINE_DEVICES];
    uint32_t n = several_list(o, none, rank);

    memset(s->cut, 0, sizeof(s->cut));
    if (s->n_layer < n)
        return err_set(err, 0, "devices", "%u devices for the %u layers of the model: name fewer",
                       n, s->n_layer);
    TRY(cuda_rooms(s, o, rank, n, room, err));
    for (uint32_t i = 0; i < n; i++)
        room[i] = MAX(room[i], 1u);
    cut_layers(s, room, n);
    return 0;
}

/* Returns the bytes of pages and states of all layers that fit, if a device has @room for its @own
 * of @all. */
static uint64_t room_of_all(uint64_t room, uint64_t own, uint64_t all) {
    if (!own)
        return UINT64_MAX;
    return (uint64_t)((double)room / (double)own * (double)all);
}

/* Implements be_ops.room; called after layers_divide(), which waited for memory of ending
 * processes. */
static int room_layers(const struct model_shape *s, const struct engine_opts *o, uint64_t *bytes,
                       struct err *err) {
    struct rank rank[ENGINE_DEVICES];
    uint32_t n = several_list(o, s->cut, rank);

    *bytes = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct model_shape own = *s;
        uint64_t room = 0;

        TRY(cuda_room(s, o, &rank[i], &room, err));
        cuda_select_layers(&own, &rank[i].layers);
        for (uint32_t c = 0; c < PAGE_CLASSES; c++)
            *bytes = MIN(*bytes, room_of_all(room, own.n_kv_values[c], s->n_kv_values[c]));
        *bytes = MIN(*bytes, room_of_all(room, own.state.n_layer, s->state.n_layer));
    }
    return 0;
}

/* -- weights ----------------------------------------------------------------------------------- */

/* Returns why an op cannot be divided by layers, or NULL: layers that read keys of other layers may
 * need another device's, and only x is handed over, once, not residual streams. */
static const char *layers_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->kind == OP_LAYER_INPUT || (op->kind == OP_QKV && !op->w[1] && op->layer < s->n_layer))
        return "layers that share keys or inputs";
    if (op->kind == OP_HC_OUT)
        return "residual streams";
    if (op->kind == OP_QKV && ops_run_again(s, op))
        return "layers that run several times";
    return be_lacks(&weft_backend_cuda, s, op);
}

/* Returns the first op of the model, which HOLES ops may precede. */
static const struct model_op *first_embed(const struct ranks *k) {
    const struct model_op *op = k->be[0]->shape->op;

    while (op->kind == OP_HOLES)
        op++;
    return op;
}

/* Returns the device that computes an op: the last one for the logits and the draft block. The
 * first and the last may embed. */
static uint32_t layers_device(const struct ranks *k, const struct model_op *op) {
    if (op->kind == OP_LOGITS)
        return k->n - 1;
    return device_of_layer(k->be[0]->shape, op->layer);
}

int layers_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err) {
    bool first = op == first_embed(k), behind = op->kind == OP_EMBED && !first;
    struct be *last = k->be[k->leader], *b = behind ? last : k->be[layers_device(k, op)];

    TRY(ON_DEVICE(b, cuda_load(b, op, out, err)));
    if (first && embeds_drafts(last))
        TRY(ON_DEVICE(last, cuda_load(last, op, &k->draft_embed, err)));
    for (uint32_t i = 0; i < k->n && op_has_pages(op); i++)
        k->be[i]->memory.kv[op->kv.cls].all_layer_bytes[op->kv.layer] =
            b->memory.kv[op->kv.cls].all_layer_bytes[op->kv.layer];
    return 0;
}

/* -- steps ------------------------------------------------------------------------------------- */

/* Enqueues a copy to or from pinned memory on the current device. */
static int layers_send(struct be *b, void *to, const void *from, size_t bytes) {
    const struct copy_args a = {.from = from, .to = to, .page_bytes = round_up(bytes, 16)};

    return cuda_copy_pages(b, &a, 1);
}

/* Makes later work of @b wait for another device's event. */
static int layers_wait_for(struct be *b, void *event) {
    b->queue.waits = true;
    return cuda_check(b, b->api->event_wait(event, b->queue.stream), "cudaStreamWaitEvent");
}

/* Returns the step of the batch on the device that computes it. */
static struct step *step_now(const struct ranks *k) {
    return &k->be[k->at]->step[k->batch->step % 2];
}

/* Returns the pinned memory through which x of the batch reaches device @i, and its size. */
static float *handed(const struct ranks *k, uint32_t i, size_t *bytes) {
    const struct be *b = k->be[i];
    size_t row = b->shape->n_embd;

    *bytes = k->batch->n_rows * row * sizeof(float);
    return b->group.handed.x[k->batch->step % 2] + k->row0 * row;
}

/* Copies x of the batch, and the inputs of layers that devices up to @upto have kept for a block
 * drafter, from device @b to the pinned memory that device @i reads; with @back from there to
 * @b. */
static int layers_cross(struct ranks *k, struct be *b, uint32_t i, uint32_t upto, bool back) {
    const struct model_shape *s = k->be[i]->shape;
    size_t bytes, row = s->n_embd * sizeof(float), all = s->n_taps * row;
    float *x = handed(k, i, &bytes);
    uint8_t *there = (uint8_t *)k->be[i]->group.handed.tap[k->batch->step % 2] + k->row0 * all;

    const void *from = b->act.x;

    if (back)
        from = x;
    TRY(layers_send(b, back ? b->act.x : x, from, bytes));
    for (const struct model_op *op = s->op; op < s->op + s->n_ops; op++) {
        if (op->kind != OP_TAP || layers_device(k, op) > upto)
            continue;
        uint8_t *here = (uint8_t *)b->draft.tap + op->part * row, *far = there + op->part * row;
        const struct copy_args a = {.from = back ? far : here,
                                    .to = back ? here : far,
                                    .from_layer = all,
                                    .to_layer = all,
                                    .page_bytes = row};
        TRY(cuda_copy_pages(b, &a, k->batch->n_rows));
    }
    return 0;
}

/* Begins the batch on device @at, which is current or becomes so. */
static int begin_on(struct ranks *k, uint32_t at) {
    struct step *s;

    k->at = at;
    return ON_DEVICE(k->be[at], step_begin(k->be[at], k->batch, &s));
}

static int compute(struct ranks *k, const struct model_op *op) {
    return cuda_ops[op->kind]->run(step_now(k), op);
}

/* Ends the step on a device, and begins it on the next one with x. */
static int hand_over(struct ranks *k) {
    struct be *from = k->be[k->at], *to = k->be[k->at + 1];
    struct step *s = step_now(k);

    graph_end(s);
    TRY(layers_cross(k, from, k->at + 1, k->at, false));
    TRY(step_record(s));
    TRY(ON_DEVICE(to, layers_wait_for(to, s->event)));
    TRY(layers_cross(k, to, k->at + 1, k->at, true));
    TRY(begin_on(k, k->at + 1));
    for (const struct model_op *op = k->holes; op && op->kind == OP_HOLES; op++)
        if (k->at == k->leader)
            TRY(compute(k, op));
    return 0;
}

/* HOLES, which come first, are postponed until the device that has the draft block. */
static int run_op(struct ranks *k, const struct model_op *op) {
    uint32_t at = op->kind == OP_EMBED ? k->at : layers_device(k, op);
    struct model_op part = *op;

    if (op->kind == OP_HOLES) {
        if (!k->holes)
            k->holes = op;
        return 0;
    }
    while (k->at < at)
        TRY(hand_over(k));
    assert(k->at == at);
    if (op->kind != OP_EMBED || at == 0)
        return compute(k, op);
    /* for the draft block */
    if (op->weights == first_embed(k)->weights)
        part.weights = k->draft_embed;
    return compute(k, &part);
}

static int layers_run(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->group.ranks;

    if (op < k->done)
        return 0;
    return run_op(k, op);
}

/* -- parts of a batch -------------------------------------------------------------------------- */

/* Returns the rows of a part of the batch, a multiple of a product's panel; 0: the batch is not
 * divided. */
static uint32_t part_rows(const struct ranks *k, const struct engine_batch *batch) {
    bool whole = batch->model || batch->holes || k->be[0]->shape->encoder;
    uint32_t n = MIN(batch->n_rows / PART_ROWS, PARTS);

    for (uint32_t i = 0; i < batch->n_seqs; i++)
        whole |= batch->seq[i].n_pictures > 0;
    if (whole || n < 2)
        return 0;
    return (uint32_t)round_up((batch->n_rows + n - 1) / n, MATMUL_COLUMNS);
}

/* Returns at most @n rows of @batch from @row0 on as a batch without wants. */
static struct engine_batch layers_part(const struct ranks *k, const struct engine_batch *batch,
                                       uint32_t row0, uint32_t n) {
    struct engine_batch part = *batch;
    uint32_t first = 0;

    while (batch->seq[first].row0 + batch->seq[first].n_rows <= row0)
        first++;
    part.n_rows = MIN(n, batch->n_rows - row0);
    part.n_seqs = part.n_wants = 0;
    part.token += row0;
    part.seq = k->part;
    for (uint32_t i = first; i < batch->n_seqs && batch->seq[i].row0 < row0 + part.n_rows; i++) {
        struct engine_seq *q = &k->part[part.n_seqs++];
        uint32_t end = MIN(batch->seq[i].row0 + batch->seq[i].n_rows, row0 + part.n_rows);

        *q = batch->seq[i];
        uint32_t before = row0 > q->row0 ? row0 - q->row0 : 0;
        q->pos0 += before;
        q->n_rows = end - q->row0 - before;
        q->row0 += before;
        q->row0 -= row0;
        if (before)
            q->feed = -1;
        q->begins = q->begins && !before;
    }
    for (uint32_t c = 0; c < PAGE_CLASSES; c++)
        if (part.table[c].start)
            part.table[c].start += first;
    return part;
}

/* Computes the layers of a part on all devices. The result returns to the memory through which the
 * part was handed over. */
static int run_part(struct ranks *k, const struct model_op *end) {
    TRY(begin_on(k, 0));
    for (const struct model_op *op = first_embed(k); op < end; op++)
        TRY(run_op(k, op));
    assert(k->at == k->leader);
    return layers_cross(k, k->be[k->at], k->at, k->at, false);
}

/* Computes the layers of the batch up to @end part by part, so that a device computes one part
 * while the next device computes the one before. k->batch is the last part afterwards. */
static int run_layers(struct ranks *k, const struct engine_batch *batch, uint32_t n,
                      const struct model_op *end, struct engine_batch *part) {
    uint32_t turn = 0;

    k->batch = part;
    for (k->row0 = 0; k->row0 < batch->n_rows; k->row0 += n) {
        turn++;
        for (uint32_t i = 0; i < k->n; i++) {
            k->be[i]->step[batch->step % 2].rows.turn = turn;
            k->be[i]->step[batch->step % 2].batch = NULL;
        }
        *part = layers_part(k, batch, k->row0, n);
        TRY(run_part(k, end));
    }
    return 0;
}

/* Computes the layers in parts of @n rows, and begins the whole batch after the layers on the last
 * device. */
static int run_parts(struct ranks *k, const struct engine_batch *batch, uint32_t n) {
    const struct model_op *end = first_embed(k);
    struct be *last = k->be[k->leader];
    struct engine_batch part;

    while (end->kind != OP_KEEP && end->kind != OP_LOGITS)
        end++;
    int r = run_layers(k, batch, n, end, &part);
    k->batch = batch;
    k->row0 = 0;
    k->done = end;
    for (uint32_t i = 0; i < k->n; i++) {
        struct step *s = &k->be[i]->step[batch->step % 2];

        s->rows.turn = 0;
        if (i < k->leader)
            s->batch = batch;
        else
            s->batch = NULL;
        if (s->batch) /* needed by a step that it feeds */
            hidden_sort(s);
    }
    TRY(r);
    TRY(begin_on(k, k->leader));
    return layers_cross(k, last, k->leader, k->leader, true);
}

static bool is_fed(const struct engine_batch *batch) {
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        if (batch->seq[i].feed >= 0)
            return true;
    return false;
}

/* Returns the bytes of the samples of two steps. */
static size_t sampled_bytes(const struct be *b) {
    return 2 * b->opts->max_wants * sizeof(int32_t);
}

/* Copies the samples of the step before to the first device. */
static int layers_copy_samples(struct ranks *k) {
    struct be *b = k->be[0];

    TRY(ON_DEVICE(b, layers_wait_for(b, k->be[k->leader]->group.ready)));
    return layers_send(b, b->sampling.sampled, b->group.handed.sampled, sampled_bytes(b));
}

/* Begins on the first device, or for a draft pass on the last one. A batch without rows begins on
 * all. */
static int layers_begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = b->group.ranks;
    uint32_t n = part_rows(k, batch);

    k->batch = batch;
    k->holes = k->done = NULL;
    *out = &b->step[batch->step % 2];
    if (batch->model)
        return begin_on(k, k->leader);
    if (is_fed(batch))
        TRY(layers_copy_samples(k));
    if (n)
        return run_parts(k, batch, n);
    TRY(begin_on(k, 0));
    for (uint32_t i = 1; i < k->n && batch->n_rows == 0; i++)
        TRY(begin_on(k, i));
    return 0;
}

/* Samples on the last device, which is current, and starts the copy of the samples for the first
 * one. */
static int layers_sample(struct step *s) {
    struct be *b = s->be, *first = b->group.ranks->be[0];

    TRY(step_sample(s));
    TRY(layers_send(b, first->group.handed.sampled, b->sampling.sampled, sampled_bytes(b)));
    return cuda_check(b, b->api->event_record(b->group.ready, b->queue.stream), "cudaEventRecord");
}

void layers_ops(struct be_ops *all) {
    static struct op_code code[OP_KINDS];
    static const struct op_code *rows[OP_KINDS];

    for (uint32_t i = 0; i < OP_KINDS; i++) {
        code[i] = *cuda_ops[i];
        code[i].lacks = layers_lacks;
        code[i].run = layers_run;
        rows[i] = &code[i];
    }
    all->divide = layers_divide;
    all->room = room_layers;
    all->begin = layers_begin;
    all->op = rows;
    all->sample = layers_sample;
}
