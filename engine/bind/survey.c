#include "engine/bind/survey.h"

#include <stdio.h>
#include <string.h>

const char *survey_part(const char *name) {
    unsigned layer;
    int n = 0;

    if (sscanf(name, "blk.%u.%n", &layer, &n) == 1 && n > 0)
        return name + n;
    return name;
}

bool survey_has(const struct survey_names *s, const char *name) {
    for (uint32_t i = 0; i < s->n; i++)
        if (strncmp(s->name[i], name, SURVEY_CHARS - 1) == 0)
            return true;
    return false;
}

void survey_add(struct survey_names *s, const char *name) {
    if (s->n < SURVEY_NAMES && !survey_has(s, name))
        snprintf(s->name[s->n++], SURVEY_CHARS, "%.*s", SURVEY_CHARS - 1, name);
}

void survey_tensor(struct survey *s, const char *name, bool lacks) {
    const char *part = survey_part(name);

    survey_add(&s->known, part);
    if (lacks)
        survey_add(&s->missing, part);
}
