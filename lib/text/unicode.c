#include "text/unicode.h"

#include <utf8proc.h>

#define SP UC_SPACE
#define BR (UC_SPACE | UC_BREAK)
#define OT UC_OTHER
#define PU (UC_OTHER | UC_PUNCT)
#define SY (UC_OTHER | UC_SYMBOL)
#define UP (UC_LETTER | UC_UPPER)
#define LO (UC_LETTER | UC_LOWER)
#define NU UC_NUMBER
#define ND (UC_NUMBER | UC_DIGIT)
#define LE UC_LETTER
#define MA UC_MARK

/* clang-format off */
const uint16_t unicode_ascii_class[128] = {
    OT, OT, OT, OT, OT, OT, OT, OT, OT, SP, BR, SP, SP, BR, OT, OT,
    OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT,
    SP, PU, PU, PU, SY, PU, PU, PU, PU, PU, PU, SY, PU, PU, PU, PU,
    ND, ND, ND, ND, ND, ND, ND, ND, ND, ND, PU, PU, SY, SY, SY, PU,
    PU, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP,
    UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, PU, PU, PU, SY, PU,
    SY, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO,
    LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, PU, SY, PU, SY, OT,
};
/* clang-format on */

unsigned unicode_wide_class(uint32_t cp) {
    /* by category: Cn; letters Lu Ll Lt Lm Lo; marks; numbers; punctuation; symbols; separators;
     * others Cc Cf Cs Co */
    static const uint16_t of_category[] = {OT, UP, LO, UP, LE, LE, MA, MA, MA, ND,
                                           NU, NU, PU, PU, PU, PU, PU, PU, PU, SY,
                                           SY, SY, SY, SP, SP, SP, OT, OT, OT, OT};

    if (cp == UNICODE_INVALID)
        return SY;
    if (cp == 0x85)
        return SP;
    return of_category[utf8proc_category((utf8proc_int32_t)cp)];
}

unsigned unicode_encode(uint32_t cp, char out[4]) {
    return (unsigned)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}
