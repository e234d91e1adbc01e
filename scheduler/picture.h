#pragma once

/*
 * picture - one picture under one isolation key: its pixels and the rows computed from them.
 * scheduler/pictures.h has its states.
 */

#include "base/list.h"
#include "kvpager/kvpager.h"
#include "vision/projector.h"

enum picture_state {
    PICTURE_WANTED,
    PICTURE_ASKED,
    PICTURE_PIXELS,
    PICTURE_UNDER_WAY,
    PICTURE_READY
};

/* Owned by struct pictures. */
struct sched_picture {
    /* in pictures.coming, or in pictures.ready by last use */
    struct list link;
    /* chain of its bucket */
    struct sched_picture *next;
    struct kv_isolation isolation;
    int32_t number;
    enum picture_state state;
    struct picture_layout layout;
    /* number of requests that hold it */
    uint32_t n_users;
    /* ASKED: the request that was named, and the index of the picture in it */
    uint64_t id;
    uint32_t index, n_rgb;
    /* PIXELS, UNDER_WAY: pixels; ASKED: their first n_rgb bytes */
    uint8_t *rgb;
    /* READY: its rows; UNDER_WAY: the rows computed so far */
    float *rows;
};
