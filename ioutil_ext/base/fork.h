/* SPDX-License-Identifier: Apache-2.0 */

/* What was made before a fork must not be used in the child: its locks may be held by threads that it does not have. */

#ifndef IOUTIL_BASE_FORK_H
#define IOUTIL_BASE_FORK_H

#include <stdint.h>

/* Count forks from now on. */
void fork_watch(void);

/* Changes in a forked child: an object that keeps the number knows whether it was made before the fork. */
uint32_t fork_generation(void);

#endif
