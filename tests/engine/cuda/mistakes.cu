/* mistakes - kernels that make the mistake that their argument names. simt_check must report each
 * of them (test_simt.c). */

#include "engine/cuda/bulk.cuh"
#include "engine/cuda/cluster.cuh"
#include "engine/cuda/wgmma.cuh"
#include "tests/engine/cuda/mistakes.h"

KERNEL(mistake, struct mistake_args, 64, 1) {
    alignas(16) SHARED uint32_t s[256];
    uint32_t t = threadIdx.x, other = t ^ 32u, sum = 0;
    enum mistake w = a.what;

    if (w == NEVER_WAITS && t == 63)
        return;
    if (w == TOO_EARLY)
        sum += a.data[t];
    wait_for_previous();
    if (w != UNWRITTEN_SHARED)
        s[t] = t;
    if (w == SHUFFLE_AS_BARRIER) {
        other = t ^ 1u;
        sum += (uint32_t)lane_xor((uint64_t)t, 1);
    } else if (w != NO_BARRIER) {
        sync_block();
    }
    sum += s[other];
    if (w == NO_BARRIER_REUSE)
        s[t] = sum;
    if (w == COPY_OVER_A_READER && t < 32)
        copy_async(&s[32], a.data);
    if (w == COPY_NOT_WAITED_FOR)
        copy_async(&s[4 * t], a.data);
    copy_commit();
    if (w == COPY_NOT_WAITED_FOR)
        sum += s[4 * t];
    copy_wait<0>();
    if (w == MISALIGNED)
        sum += load16((const uint8_t *)a.data + 4).x;
    if (w == MISALIGNED_WORD)
        sum += *(const uint32_t *)((const uint8_t *)a.data + 2);
    if (w == MISALIGNED_DOUBLE)
        sum += (uint32_t) * (const double *)(a.data + 1);
    if (w == HOST_MEMORY)
        sum += a.host[t];
    if (w == BEYOND_THE_END)
        sum += a.data[256];
    if (w == OTHER_BARRIER) {
        if (t < 32)
            sync_block();
        else
            sync_block();
    }
    if (w == OTHER_SHUFFLE) {
        if (t % 2)
            sum += (uint32_t)lane_xor((uint64_t)t, 2);
        else
            sum += (uint32_t)lane_xor((uint64_t)sum, 2);
    }
    if (w == HALF_A_WARP && t < 16)
        sum += (uint32_t)lane_xor((uint64_t)t, 2);
    if (w == HALF_A_WARP)
        sync_block();
    if (w == SHIFT_TOO_FAR)
        sum += 1u << (t & 32);
    if (w == NOT_DEVICE_MEMORY)
        sum += load16_device(&s[0]).x;
    if (w == PREFETCH_BEYOND)
        prefetch_bytes((const uint8_t *)a.data, 1040);
    if (w == PREFETCH_MISALIGNED)
        prefetch_bytes((const uint8_t *)a.data + 8, 16);
    if (w == PREFETCH_ELSEWHERE)
        prefetch(a.data + (1ull << 40));
    uint32_t own[4] = {t, t, t, t};
    if (w == BEYOND_AN_ARRAY)
        sum += own[t % 5];
    a.data[w == BLOCKS_WRITE_ALIKE ? t : blockIdx.x * 64 + t] = sum;
    bool last = w == NO_ARRIVAL && blockIdx.x == 1;
    SHARED uint32_t told;
    if (w != NO_BARRIER_BEFORE)
        sync_block();
    if (t == 0 && w != NO_ARRIVAL)
        told = arrive(a.data + 255, 1, 2);
    if (w != NO_BARRIER_BEHIND)
        sync_block();
    if (w != NO_ARRIVAL)
        last = w == NO_BARRIER_BEHIND ? blockIdx.x == 1 : told;
    if (last)
        a.data[128 + t] = a.data[t] + a.data[64 + t];
}

KERNEL(mistake_wgmma, struct mistake_args, 128, 1) {
    uint32_t t = threadIdx.x, w[4] = {t, t, t, t};
    uint64_t b = wgmma_operand(wgmma_place(0), 128, a.what == WGMMA_STRIDE ? 512 : 256);
    float d[32] = {}, apart[16];

    wait_for_previous();
    copy_async(dynamic_shared() + t * 16, a.data + t % 64 * 4);
    copy_commit();
    copy_wait<0>();
    if (a.what != WGMMA_NOT_PUBLISHED)
        bulk_publish();
    if (a.what == WGMMA_STORED_BEHIND)
        dynamic_shared()[16 * t] = 0;
    if (a.what != WGMMA_NO_BARRIER)
        sync_block();
    if (a.what == WGMMA_SWIZZLE)
        b |= 1ull << 62;
    if (a.what != WGMMA_NO_FENCE)
        wgmma_begin();
    if (a.what == WGMMA_OTHER_OPERAND && t >= 96)
        b = wgmma_operand(wgmma_place(0), 256, 128);
    if (a.what != WGMMA_HALF_A_GROUP || t < 64)
        wgmma_n64(d, w, b);
    if (a.what == WGMMA_SUMS_OF_OTHERS)
        wgmma_n32(d + 4, w, b);
    wgmma_first_n32(apart, w, b);
    wgmma_commit();
    sync_block();
    if (a.what == WGMMA_NO_WAIT) {
        dynamic_shared()[t] = (uint8_t)(t + 1);
        sync_block();
    }
    if (a.what == WGMMA_REGISTERS)
        w[2]++;
    if (a.what != WGMMA_NEVER_WAITED)
        wgmma_wait<0>();
    a.data[t] = (uint32_t)(d[0] + apart[0]);
}

/* Two phases of a barrier, each with two copies of 256 bytes by two lanes. */
KERNEL(mistake_bulk, struct mistake_args, 64, 1) {
    struct Stage {
        uint32_t word[128];
        uint64_t full, other;
    } &s = *(struct Stage *)dynamic_shared();
    uint32_t t = threadIdx.x, sum = 0;
    enum mistake w = a.what;

    if (w != BULK_NOT_ORDERED)
        wait_for_previous();
    if (t == 0) {
        bulk_init(&s.full);
        if (w != BULK_NOT_PUBLISHED)
            bulk_publish();
    }
    if (w == BULK_OVER_A_WRITER)
        s.word[t] = t;
    sync_block();
    for (uint32_t phase = 0; phase < 2; phase++) {
        uint32_t n = w == BULK_ODD_BYTES ? 248 : 256;

        if (w == BULK_OF_STORES && phase == 0)
            a.data[t] = t;

        if (t == 0)
            bulk_expect(w == BULK_NOT_INITIALISED ? &s.other : &s.full,
                        w == BULK_FEWER_BYTES      ? 768
                        : w == BULK_TOO_MANY_BYTES ? 1 << 20
                        : w == BULK_MORE_BYTES     ? 256
                                                   : 512);
        if (t == 0 && w == BULK_ANNOUNCED_TWICE)
            bulk_expect(&s.full, 512);
        if (w != BULK_NOT_FENCED && w != BULK_OVER_A_WRITER)
            bulk_publish();
        if (t < 2)
            bulk_copy(s.word + 64 * t + (w == BULK_MISALIGNED), a.data + 64 * t, n, &s.full);
        if (w == BULK_NEVER_WAITED && phase == 1)
            break;
        if (w != BULK_NOT_WAITED_FOR && (w != BULK_WAITED_BY_ANOTHER || t > 0))
            bulk_wait(&s.full, w == BULK_WRONG_PHASE && phase == 1     ? 0
                               : w == BULK_PHASE_TO_COME && phase == 1 ? 2
                                                                       : phase);
        sum += s.word[t];
        if (w != BULK_OVER_A_READER)
            sync_block();
    }
    a.data[128 + t] = sum;
}

/* Three warps: the last one copies to a ring of one stage, twice; the others read it and tell
 * so. */
KERNEL(mistake_roles, struct mistake_args, 96, 1) {
    struct Stage {
        uint32_t word[64];
        uint64_t full, empty;
    } &s = *(struct Stage *)dynamic_shared();
    uint32_t t = threadIdx.x, sum = 0;
    enum mistake w = a.what;

    wait_for_previous();
    if (t == 64) {
        bulk_init(&s.full);
        bulk_init(&s.empty, w == ROLES_MORE_ARRIVALS ? 3 : w == ROLES_FEWER_ARRIVALS ? 1 : 2);
        bulk_publish();
    }
    sync_block();
    for (uint32_t phase = 0; phase < 2 && t == 64; phase++) {
        if (phase == 1 && w != ROLES_COPIES_AT_ONCE)
            bulk_wait(&s.empty, 0);
        if (w != ROLES_NOT_FENCED)
            bulk_publish();
        bulk_expect(&s.full, 256);
        bulk_copy(s.word, a.data, 256, &s.full);
    }
    for (uint32_t phase = 0; phase < 2 && t < 64; phase++) {
        bulk_wait(&s.full, phase);
        if (w == ROLES_TELLS_EARLY && t % 32 == 0)
            bulk_arrive(&s.empty);
        sum += s.word[t];
        if (w != ROLES_NO_WARP_BARRIER)
            sync_warp();
        if (w != ROLES_TELLS_EARLY && t % 32 == 0)
            bulk_arrive(&s.empty);
    }
    if (t < 64)
        s.word[t] = sum;
    if (t < 64 && w != ROLES_NO_BARRIER)
        wgmma_sync(64);
    if (w == ROLES_BARRIER_OF_OTHERS && t >= 64)
        wgmma_sync(64);
    if (t < 64)
        a.data[128 + t] = s.word[t ^ 32];
    if (w == ROLES_REGISTERS)
        wgmma_more<160>();
}

/* Two blocks, each of which stores 64 floats in the other's memory, twice. */
KERNEL_CLUSTER(mistake_cluster, struct mistake_args, 64, 1, 2) {
    SHARED float fixed[64];
    float *in = (float *)dynamic_shared(), sum = 0;
    uint32_t t = threadIdx.x, other = cluster_rank() ^ 1u;
    enum mistake w = a.what;

    wait_for_previous();
    if (w != CLUSTER_NO_ARRIVAL)
        cluster_arrive();
    if (w == CLUSTER_TWO_ARRIVALS)
        cluster_arrive();
    if (w == CLUSTER_NOT_MET)
        cluster_store(in + t, other, 1);
    cluster_wait();
    for (uint32_t round = 0; round < 2; round++) {
        float *to = in + 64 * round;

        if (w != CLUSTER_STORED_LATE)
            cluster_store(to + t, w == CLUSTER_OTHER_RANK ? 2 : other, (float)t);
        if (w == CLUSTER_OWN_BARRIER && round == 1) {
            sync_block();
        } else {
            cluster_arrive();
            if (w == CLUSTER_STORED_LATE)
                cluster_store(to + t, other, (float)t);
            if (w == CLUSTER_READ_EARLY)
                sum += to[t];
            if (w == CLUSTER_NEVER_WAITS && round == 1)
                return;
            cluster_wait();
        }
        sum += to[63 - t];
    }
    if (w == CLUSTER_NOT_LEFT && blockIdx.x == 0)
        cluster_store(in + 128 + t, other, sum);
    if (w == CLUSTER_STATIC) {
        fixed[t] = sum;
        sync_block();
        sum += fixed[t ^ 1u];
    }
    a.data[blockIdx.x * 64 + t] = (uint32_t)sum;
}

/* Two blocks, each of which copies half of the words to both, twice; the second warps read them and
 * tell both blocks so. */
KERNEL_CLUSTER(mistake_copies, struct mistake_args, 64, 1, 2) {
    struct Stage {
        uint32_t word[64];
        uint64_t full, empty;
    } &s = *(struct Stage *)dynamic_shared();
    uint32_t t = threadIdx.x, rank = cluster_rank(), sum = 0, ranks = 3;
    enum mistake w = a.what;

    wait_for_previous();
    if (w == COPIES_OTHER_RANK)
        ranks = 6;
    if (w == COPIES_NO_RANK)
        ranks = 0;
    if (t == 0) {
        bulk_init(&s.full);
        bulk_init(&s.empty, 2);
        cluster_publish();
    }
    if (w == COPIES_NOT_MET) {
        sync_block();
    } else {
        cluster_arrive();
        cluster_wait();
    }
    for (uint32_t phase = 0; phase < 2 && t == 0; phase++) {
        if (phase == 1)
            cluster_bulk_wait(&s.empty, 0);
        bulk_publish();
        bulk_expect(&s.full, w == COPIES_FEWER_BYTES ? 128 : 256);
        cluster_copy(s.word + 32 * rank, a.data + 32 * rank, 128, &s.full, ranks);
    }
    for (uint32_t phase = 0; phase < 2 && t >= 32; phase++) {
        bulk_wait(&s.full, phase);
        sum += s.word[t] + s.word[t - 32];
        sync_warp();
        if (w == COPIES_OVER_READERS && t % 32 < 2)
            cluster_bulk_arrive(&s.empty, rank);
        if (w != COPIES_OVER_READERS && t % 32 < 2)
            cluster_bulk_arrive(&s.empty, t % 32);
    }
    cluster_arrive();
    cluster_wait();
    if (t >= 32)
        a.data[64 + blockIdx.x * 32 + t - 32] = sum;
}
