/* SPDX-License-Identifier: Apache-2.0 */

#ifndef IOUTIL_QCOW2_PROMPT_H
#define IOUTIL_QCOW2_PROMPT_H

#include "qcow2/qcow2.h"

/* Whether a fiber can run the operation without keeping its thread (prompt.c). */
bool prompt_is(const struct op *op);

#endif
