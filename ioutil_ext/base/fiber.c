/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Fibers. makecontext(3) begins one on its stack; after that, setjmp(3) and longjmp(3) switch, without the two system
 * calls for the signal mask that swapcontext(3) makes. Sanitizers are notified of each switch.
 */

/* glibc's check of longjmp() takes a jump to another stack for an error. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "base/fiber.h"
#include "base/numbers.h"

/*
 * Large buffers are not on stacks. The deepest calls are those of OpenSSL and of an HTTP answer, with 9 KiB of
 * templates. Only the pages that are used take memory. A page without access below the stack stops an overflow.
 */
#define STACK_SIZE (128 * KIB)

static _Thread_local struct fiber *current;
static _Thread_local jmp_buf thread_context;

/* ---- sanitizers ------------------------------------------------------------------------------------------------- */

/* GCC defines macros, Clang has features. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#elif __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>

static _Thread_local const void *thread_stack;
static _Thread_local size_t thread_stack_size;

static void made(struct fiber *fiber) {
    fiber->sanitizer = NULL;
}

static void freed(struct fiber *fiber) {
    (void)fiber;
}

#define SWITCH_IN(fiber)                                                                                               \
    void *saved;                                                                                                       \
    __sanitizer_start_switch_fiber(&saved, (fiber)->stack, STACK_SIZE)
#define SWITCHED_BACK() __sanitizer_finish_switch_fiber(saved, NULL, NULL)
#define SWITCH_OUT(fiber)                                                                                              \
    __sanitizer_start_switch_fiber((fiber)->ended ? NULL : &(fiber)->sanitizer, thread_stack, thread_stack_size)
#define SWITCHED_IN(fiber) __sanitizer_finish_switch_fiber((fiber)->sanitizer, &thread_stack, &thread_stack_size)
/* Its red zones around the variables of a function that is left by a jump would stay on the stack. */
#define JUMPS __attribute__((no_sanitize_address))

#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

static _Thread_local void *thread_fiber;

static void made(struct fiber *fiber) {
    fiber->sanitizer = __tsan_create_fiber(0);
}

static void freed(struct fiber *fiber) {
    __tsan_destroy_fiber(fiber->sanitizer);
}

#define SWITCH_IN(fiber)                                                                                               \
    thread_fiber = __tsan_get_current_fiber();                                                                         \
    __tsan_switch_to_fiber((fiber)->sanitizer, 0)
#define SWITCHED_BACK()
#define SWITCH_OUT(fiber) __tsan_switch_to_fiber(thread_fiber, 0)
#define SWITCHED_IN(fiber)

#else

static void made(struct fiber *fiber) {
    (void)fiber;
}

static void freed(struct fiber *fiber) {
    (void)fiber;
}

#define SWITCH_IN(fiber)
#define SWITCHED_BACK()
#define SWITCH_OUT(fiber)
#define SWITCHED_IN(fiber)
#endif

#ifndef JUMPS
#define JUMPS
#endif

/* ---- making ----------------------------------------------------------------------------------------------------- */

int fiber_make(struct fiber *fiber, void (*main)(struct fiber *fiber)) {
    char *memory = mmap(NULL, STACK_SIZE + PAGE_UNIT, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return -ENOMEM;
    mprotect(memory, PAGE_UNIT, PROT_NONE);
    *fiber = (struct fiber){.main = main, .stack = memory + PAGE_UNIT, .fd = -1};
    link_init(&fiber->link);
    link_init(&fiber->woken);
    made(fiber);
    return 0;
}

void fiber_free(struct fiber *fiber) {
    freed(fiber);
    munmap(fiber->stack - PAGE_UNIT, STACK_SIZE + PAGE_UNIT);
    fiber->stack = NULL;
}

/* ---- switching -------------------------------------------------------------------------------------------------- */

/* The first function on the stack of a fiber. It does not return: nothing is below it. */
static JUMPS void begin(void) {
    struct fiber *fiber = current;
    SWITCHED_IN(fiber);
    fiber->main(fiber);
    fiber->ended = true;
    SWITCH_OUT(fiber);
    _longjmp(thread_context, 1);
}

static JUMPS __attribute__((noreturn)) void go_to(struct fiber *fiber) {
    ucontext_t context;
    if (fiber->begun)
        _longjmp(fiber->context, 1);
    fiber->begun = true;
    getcontext(&context);
    context.uc_stack = (stack_t){.ss_sp = fiber->stack, .ss_size = STACK_SIZE};
    context.uc_link = NULL;
    makecontext(&context, begin, 0);
    setcontext(&context);
    __builtin_unreachable();
}

JUMPS void fiber_enter(struct fiber *fiber) {
    SWITCH_IN(fiber);
    current = fiber;
    if (_setjmp(thread_context) == 0)
        go_to(fiber);
    current = NULL;
    SWITCHED_BACK();
}

JUMPS void fiber_leave(void) {
    struct fiber *fiber = current;
    SWITCH_OUT(fiber);
    if (_setjmp(fiber->context) == 0)
        _longjmp(thread_context, 1);
    SWITCHED_IN(fiber);
}

struct fiber *fiber_current(void) {
    return current;
}
