/* SPDX-License-Identifier: Apache-2.0 */

/* Read and write big-endian numbers, as network protocols and qcow2 have them, at any place in memory. */

#ifndef IOUTIL_BASE_BIG_ENDIAN_H
#define IOUTIL_BASE_BIG_ENDIAN_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t get16(const void *place) {
    uint16_t number;
    memcpy(&number, place, sizeof(number));
    return be16toh(number);
}

static inline uint32_t get32(const void *place) {
    uint32_t number;
    memcpy(&number, place, sizeof(number));
    return be32toh(number);
}

static inline uint64_t get64(const void *place) {
    uint64_t number;
    memcpy(&number, place, sizeof(number));
    return be64toh(number);
}

/* These return the size of the number. */
static inline size_t put16(void *place, uint16_t number) {
    number = htobe16(number);
    memcpy(place, &number, sizeof(number));
    return sizeof(number);
}

static inline size_t put32(void *place, uint32_t number) {
    number = htobe32(number);
    memcpy(place, &number, sizeof(number));
    return sizeof(number);
}

static inline size_t put64(void *place, uint64_t number) {
    number = htobe64(number);
    memcpy(place, &number, sizeof(number));
    return sizeof(number);
}

#endif
