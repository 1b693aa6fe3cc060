/* SPDX-License-Identifier: Apache-2.0 */

/* Changing the tables of the guest's clusters in memory (link.c). The image's lock is held. */

#ifndef IOUTIL_QCOW2_LINK_H
#define IOUTIL_QCOW2_LINK_H

#include "qcow2/map.h"
#include "qcow2/space.h"

/* Make sure that a guest's cluster has an L2 table that no snapshot uses. Lets go of the lock if it makes one. */
int link_need_table(struct qcow2 *q, struct op *op, uint64_t number);

/* Note that the tables do not name the clusters of an entry any more. */
void link_drop(struct qcow2 *q, uint64_t entry);

/* Let entries name taken clusters, in place of what they named before. */
void link_taken(struct qcow2 *q, struct slice *slice, uint64_t number, const struct taken *taken);

#endif
