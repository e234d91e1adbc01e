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

/* clang-format off */
const uint16_t unicode_ascii_class[128] = {
    OT, OT, OT, OT, OT, OT, OT, OT, OT, SP, BR, SP, SP, BR, OT, OT,
    OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT,
    SP, PU, PU, PU, SY, PU, PU, PU, PU, PU, PU, SY, PU, PU, PU, PU,
    NU, NU, NU, NU, NU, NU, NU, NU, NU, NU, PU, PU, SY, SY, SY, PU,
    PU, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP,
    UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, PU, PU, PU, SY, PU,
    SY, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO,
    LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, PU, SY, PU, SY, OT,
};
/* clang-format on */

unsigned unicode_wide_class(uint32_t cp) {
    if (cp == UNICODE_INVALID)
        return SY;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return UP;
    case UTF8PROC_CATEGORY_LL:
        return LO;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return UC_LETTER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return UC_MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return UC_NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return UC_SPACE;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return PU;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return SY;
    default:
        return cp == 0x85 ? UC_SPACE : UC_OTHER;
    }
}

unsigned unicode_encode(uint32_t cp, char out[4]) {
    return (unsigned)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}
