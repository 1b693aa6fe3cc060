/* SPDX-License-Identifier: Apache-2.0 */

/* The rule by which users share what is scarce. */

#include "api/ioutil.h"

int iou_may_have(uint64_t used, uint64_t more, uint64_t left) {
    return more <= left && used + more <= 2 * (left - more);
}
