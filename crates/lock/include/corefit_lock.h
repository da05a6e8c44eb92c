/* The opportunistic ticket lock of corefit: four bytes, all zero when nobody has it.
 *
 *     static corefit_lock_t lock = COREFIT_LOCK_INIT;
 *     corefit_lock_lock(&lock);
 *     ...
 *     corefit_lock_unlock(&lock);
 *
 * Link with libcorefit_lock.a -lpthread -ldl. Not for memory that processes share. Any thread may
 * unlock; a thread that locks twice waits for ever. */
#ifndef COREFIT_LOCK_H
#define COREFIT_LOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t corefit_lock_t;
#define COREFIT_LOCK_INIT 0

void corefit_lock_lock(corefit_lock_t *lock);
/* 0, or EBUSY. */
int corefit_lock_trylock(corefit_lock_t *lock);
/* 0, or ETIMEDOUT at deadline_ns of CLOCK_MONOTONIC. */
int corefit_lock_lock_until(corefit_lock_t *lock, uint64_t deadline_ns);
void corefit_lock_unlock(corefit_lock_t *lock);

#ifdef __cplusplus
}
#endif
#endif
