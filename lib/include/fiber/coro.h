/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/coro.h - coroutines and generators; included by <fiber.h>
 *
 * A coroutine is a function with a stack of its own that stops in the middle,
 * hands out a value, and goes on when its caller asks for the next one: Lua's
 * coroutines, Python's generators. No scheduler takes part, and no runtime is
 * needed: these calls are for any thread, with or without fiber_init, and for
 * fibers, unless said otherwise. Not for signal handlers.
 *
 * Who resumes it may be another thread or fiber each time. A fiber inside a
 * coroutine remains a fiber: it parks, blocks, is preempted and changes its
 * thread there, as a whole. A coroutine may yield from any depth of calls,
 * through code that knows nothing of it (the comparator of qsort).
 *
 * errno and the floating-point modes are kept on both sides, as across a call.
 * In C++, so are the exceptions being handled; one that leaves the body of a
 * coroutine ends in std::terminate.
 *
 * Misuse is refused and changes nothing:
 *   -EDEADLK  the coroutine is the caller, or waits for the caller
 *   -EBUSY    another thread or fiber runs it
 *   -ESRCH    it has ended
 *   -EPERM    not inside a coroutine, or in a clean-up handler of one
 */
#include <fiber.h>

#ifndef FIBER_CORO_H
#define FIBER_CORO_H

typedef struct fiber_coro fiber_coro_t;

/*
 * The body of a coroutine. *value is what the first resume hands in; what it
 * leaves there is handed out at its end. Returns 0, or a negative errno value,
 * which that resume returns; -EINVAL stands for a positive one.
 */
typedef int (*fiber_coro_fn)(void *arg, void **value);

/*
 * struct fiber_coro_attr - properties of a new coroutine; zero: the default
 * @size:       sizeof(struct fiber_coro_attr)
 * @stack_size: bytes; the default is 64 KiB, of which a guard page and the
 *              descriptor take less than 8 KiB. Without @stack usable bytes at
 *              least, with @stack the size of that
 * @stack:      memory to live in, 4 KiB or more, for the coroutine alone until
 *              fiber_coro_destroy; the caller frees it then. It has no guard.
 *              The module preempts no code on it: that waits for a resume
 */
struct fiber_coro_attr {
	size_t size;
	size_t stack_size;
	void *stack;
};

/*
 * fiber_coro_create - make a coroutine that will run fn(arg, &value)
 * @out:  the coroutine, to be destroyed by fiber_coro_destroy
 * @attr: may be NULL
 * It begins, at the first resume, with errno 0 and with the floating-point
 * modes that its creator has now. Every stack has a guard page as long as the
 * kernel allows so many mappings (see FIBER_FEATURE_GUARD).
 * Errors: -EINVAL, -ENOMEM.
 */
int fiber_coro_create(fiber_coro_t **out, fiber_coro_fn fn, void *arg);
int fiber_coro_create_attr(fiber_coro_t **out,
			   const struct fiber_coro_attr *attr,
			   fiber_coro_fn fn, void *arg);

/*
 * fiber_coro_resume - go on with it until it yields or ends
 * @in:  what its fiber_coro_yield hands in to it
 * @out: receives what it yields, or leaves at its end; may be NULL
 * Returns FIBER_CORO_YIELDED, or what the body returned (0 or an error), or
 * refuses: -EDEADLK, -EBUSY, -ESRCH. An error of the body may have the same
 * number; fiber_coro_status tells them apart.
 */
#define FIBER_CORO_YIELDED	1
int fiber_coro_resume(fiber_coro_t *co, void *in, void **out);

/*
 * fiber_coro_throw - as resume, but fiber_coro_yield returns `error` there
 * @error: a negative errno value. A coroutine that has not begun ends with it.
 * Errors: as resume; -EINVAL.
 */
int fiber_coro_throw(fiber_coro_t *co, int error, void **out);

/*
 * fiber_coro_yield - hand out a value and wait to be resumed
 * @in: receives what resume hands in; may be NULL
 * Inside a coroutine only. Returns 0; -ECANCELED: it is being closed, it should
 * clean up and return, and not yield; what fiber_coro_throw says; or -EPERM.
 * Not between fiber_no_preempt_begin and _end, nor in a blocking section.
 */
int fiber_coro_yield(void *out, void **in);

/*
 * fiber_coro_transfer - wait to be resumed, and go on with `to` in our place
 * @value: handed in to `to`
 * @in:    receives what the resume that comes hands in; may be NULL
 * Inside a coroutine only. `to` yields to, or ends into, whoever resumed us, so
 * any number of transfers needs no more stack than one. What a resume returns
 * is said by the one that came back, maybe another than was resumed.
 * Returns as fiber_coro_yield, or refuses: -EDEADLK, -EBUSY, -ESRCH, -EPERM.
 */
int fiber_coro_transfer(fiber_coro_t *to, void *value, void **in);

/*
 * fiber_coro_defer - call fn(arg) when the calling coroutine ends
 * On its own stack, newest first, before the last resume returns, and also when
 * it is destroyed while suspended and never returns. Handlers must not yield.
 * fiber_coro_undefer - take the newest handler back, and call it if `run`
 * Inside a coroutine only. Errors: -EPERM, -ENOMEM, -EINVAL; -ENOENT: none.
 */
int fiber_coro_defer(void (*fn)(void *), void *arg);
int fiber_coro_undefer(int run);

/*
 * fiber_coro_exit - end the calling coroutine from any depth of calls
 * As if the body returned `result`. The frames in between are not unwound.
 * Outside a coroutine the program is aborted.
 */
void fiber_coro_exit(int result) __attribute__((noreturn));

/*
 * fiber_coro_close - make a suspended coroutine clean up and end
 * One that has not begun ends at once; else its fiber_coro_yield returns
 * -ECANCELED. One that has ended: nothing to do. Returns 0 if it has ended,
 * with -ECANCELED or 0, else its error. -EAGAIN: it yielded once more, or
 * transferred. It is still suspended (its value is lost), can be resumed, or be
 * closed again. -EDEADLK, -EBUSY: it runs, nothing was done.
 */
int fiber_coro_close(fiber_coro_t *co);

/*
 * fiber_coro_destroy - close and free it; NULL: nothing to do
 * One that yields again instead of ending goes no further: its handlers run, it
 * is freed, and -EAGAIN reported. Else returns as fiber_coro_close; only
 * -EDEADLK and -EBUSY, when it runs, mean that it is not freed.
 */
int fiber_coro_destroy(fiber_coro_t *co);

/*
 * fiber_coro_status - what it does now; for one that others use, a guess
 * NORMAL: it has resumed another one and waits for that.
 */
enum fiber_coro_status {
	FIBER_CORO_SUSPENDED, FIBER_CORO_RUNNING, FIBER_CORO_NORMAL,
	FIBER_CORO_DEAD,
};
enum fiber_coro_status fiber_coro_status(const fiber_coro_t *co);
/*
 * fiber_coro_result - what the body returned; *value (may be NULL): handed out
 * -EAGAIN: it has not ended, *value is as it was.
 */
int fiber_coro_result(const fiber_coro_t *co, void **value);
/* fiber_coro_self - the coroutine that runs the caller; NULL: cannot yield. */
fiber_coro_t *fiber_coro_self(void);

/* ---- generators ---- */

/*
 * fiber_coro_wrap - a coroutine for fiber_coro_call; NULL: no memory, or no fn
 * fiber_coro_call - as fiber_coro_resume; the call that sees it end frees it
 * and sets *co to NULL. With *co NULL: -ESRCH.
 */
fiber_coro_t *fiber_coro_wrap(fiber_coro_fn fn, void *arg);
int fiber_coro_call(fiber_coro_t **co, void *in, void **out);

/*
 * For the value of each yield of a wrapped coroutine, `co` being a variable:
 *
 *	fiber_coro_t *lines FIBER_CORO_AUTO = fiber_coro_wrap(read_lines, file);
 *
 *	fiber_coro_for_each(char *, line, lines)
 *		puts(line);
 *
 * type is that of a pointer, or of an integer that fits into one. The loop may
 * be left by break, and gone on with later. FIBER_CORO_AUTO destroys it at the
 * end of its scope, whichever way that is left.
 */
#define fiber_coro_for_each(type, var, co)				\
	for (type var; __extension__ ({					\
		void *value_;						\
		int more_ = fiber_coro_call(&(co), NULL, &value_) ==	\
			    FIBER_CORO_YIELDED;				\
		if (more_)						\
			var = (type)(uintptr_t)value_;			\
		more_;							\
	}); )

static inline void fiber_coro_auto(fiber_coro_t **co)
{
	fiber_coro_destroy(*co);
}
#define FIBER_CORO_AUTO	__attribute__((cleanup(fiber_coro_auto)))

#endif /* FIBER_CORO_H */
