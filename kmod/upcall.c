// SPDX-License-Identifier: GPL-2.0-only
/*
 * upcall.c - the last step before user mode
 *
 * Context: irqs off, on the carrier's CPU. A user return notifier is a per-CPU
 * list entry: it fires for whichever task of this CPU next returns to user mode.
 * So it is on the list only while the carrier is current: armed in sched_in (or
 * by an interrupt, or an ioctl, of the carrier), disarmed in sched_out.
 *
 * It runs after signals, restarts and rseq are settled, so the registers it sees
 * are those user space would get.
 *
 * RETURN. The carrier lost its processor. If one is free, it is taken here and
 * nothing else happens. Else the user ip goes to a slot of the carrier page and
 * the library's trampoline runs, whose ACQUIRE sleeps like any other ioctl. The
 * notifier stays armed until ACQUIRE has succeeded: a signal handler that starts
 * in between is redirected as well (a slot deeper). Between the entry of the
 * trampoline and the end of its ACQUIRE system call nothing is redirected.
 *
 * A trampoline whose ACQUIRE fails (a wrong descriptor), or that makes none,
 * would be entered anew at each system call, for ever. After FIBER_MAX_FRUITLESS
 * upcalls without one the thread is no carrier any more. Signal handlers can
 * nest between an upcall and its ACQUIRE, but not so deep: each blocks its own.
 *
 * PREEMPT. Only where it can do no harm (why_not); else the library finds
 * page->pending and we try again soon.
 */
#include <linux/ptrace.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/uprobes.h>

#include "compat.h"
#include "internal.h"
#include "trace.h"

static bool in_window(const struct fiber_group *g, unsigned long ip)
{
	return ip >= g->return_ip && ip < g->return_end;
}

/* An upcall would be lost, or would confuse whoever steps this thread. */
static bool uprobe_active(void)
{
#ifdef CONFIG_UPROBES
	return current->utask && current->utask->active_uprobe;
#else
	return false;
#endif
}

static void note(struct fiber_slot *slot, struct pt_regs *regs)
{
	slot->sp = user_stack_pointer(regs);
	slot->alt_sp = current->sas_ss_sp;
	slot->alt_size = current->sas_ss_size;
	slot->alt_flags = current->sas_ss_flags;
}

/* Is the code that was interrupted when the slot was filled certainly gone? */
static bool left_behind(struct fiber_carrier *c, unsigned long sp,
			const struct fiber_slot *slot)
{
	if (!slot->sp)
		return true;	/* never filled: user space made it up */
	return sp > slot->sp && slot->alt_sp == current->sas_ss_sp &&
	       slot->alt_size == current->sas_ss_size &&
	       slot->alt_flags == current->sas_ss_flags &&
	       !__on_sig_stack(sp) && fiber_stack_same(c->group, sp, slot->sp);
}

static noinline u32 drop_slots(struct fiber_carrier *c, unsigned long sp, u32 depth)
{
	u32 was = depth;

	while (depth && left_behind(c, sp, &c->slot[depth - 1]))
		depth--;
	if (depth != was)
		WRITE_ONCE(c->page->depth, depth);
	return depth;
}

/*
 * How many slots are filled. One is filled from the redirect until the
 * trampoline has taken it, a few instructions; only a signal handler can come
 * between. If that left by longjmp, the slot stays, and is taken back here: the
 * stack pointer is then above where it was, on the same stack.
 *
 * But so it is in a handler whose alternate stack is an array of an outer frame
 * of that very stack. Where that is, sigaltstack knows; not so while a handler
 * runs on an SS_AUTODISARM stack: then there is none, or what the handler has
 * set since. So a slot is given up only with the alternate stack as it was when
 * it was filled, and off it. A slot too few is a jump to nowhere; one too many
 * only puts preemption off, until the program has armed its stack again.
 */
static u32 slots_filled(struct fiber_carrier *c, struct pt_regs *regs)
{
	u32 depth = READ_ONCE(c->page->depth);

	if (likely(!depth))
		return 0;
	return drop_slots(c, user_stack_pointer(regs), min_t(u32, depth, FIBER_SLOTS));
}

/* Enter the library instead of user code. With no slot left, drop the oldest. */
static void redirect(struct fiber_carrier *c, struct pt_regs *regs, unsigned long to)
{
	struct fiber_carrier_page *page = c->page;
	u32 depth = slots_filled(c, regs), i;

	if (depth == FIBER_SLOTS) {
		depth--;
		for (i = 0; i < depth; i++) {
			WRITE_ONCE(page->slot[i], READ_ONCE(page->slot[i + 1]));
			c->slot[i] = c->slot[i + 1];
		}
	}
	note(&c->slot[depth], regs);
	WRITE_ONCE(page->slot[depth], instruction_pointer(regs));
	WRITE_ONCE(page->depth, depth + 1);
	instruction_pointer_set(regs, to);
}

/*
 * Is ip inside the restartable sequence this thread has announced? A redirect
 * would let it commit after other threads have run on this CPU.
 */
static bool in_rseq(unsigned long ip)
{
#ifdef CONFIG_RSEQ
	struct rseq __user *area = fiber_compat_rseq(current);
	struct rseq_cs cs;
	u64 ptr;

	if (!area)
		return false;
	if (copy_from_user_nofault(&ptr, &area->rseq_cs, sizeof(ptr)))
		return true;
	if (!ptr)
		return false;
	if (copy_from_user_nofault(&cs, u64_to_user_ptr(ptr), sizeof(cs)))
		return true;
	return ip - cs.start_ip < cs.post_commit_offset;
#else
	return false;
#endif
}

/* FIBER_REFUSE_NOT: it can do no harm here. */
static enum fiber_refusal why_not(struct fiber_carrier *c, struct pt_regs *regs)
{
	struct fiber_group *g = c->group;
	unsigned long ip = instruction_pointer(regs);

	if (!READ_ONCE(c->page->in_fiber))
		return FIBER_REFUSE_OUTSIDE;
	if (READ_ONCE(c->page->no_preempt))
		return FIBER_REFUSE_NO_PREEMPT;
	if (slots_filled(c, regs))
		return FIBER_REFUSE_NESTED;
	if (regs->flags & X86_EFLAGS_TF)
		return FIBER_REFUSE_STEPPED;
	if (!fiber_text_ok(g, ip))
		return FIBER_REFUSE_TEXT;
	if (!fiber_stack_ok(g, user_stack_pointer(regs)))
		return FIBER_REFUSE_STACK;
	return in_rseq(ip) ? FIBER_REFUSE_RSEQ : FIBER_REFUSE_NOT;
}

static void upcall_preempt(struct fiber_carrier *c, struct pt_regs *regs)
{
	struct fiber_carrier_page *page = c->page;
	unsigned long ip = instruction_pointer(regs);
	enum fiber_refusal why;

	c->want_preempt = false;
	if (!c->processor || !fiber_contended(c->processor))
		return;
	why = why_not(c, regs);
	if (why == FIBER_REFUSE_NOT) {
		WRITE_ONCE(page->preempts, fiber_count(c, FIBER_STAT_PREEMPTS));
		trace_preempt(c, ip);
		redirect(c, regs, c->group->preempt_ip);
		return;
	}
	WRITE_ONCE(page->refused, fiber_count(c, FIBER_STAT_REFUSED));
	fiber_count(c, FIBER_STAT_REASON + why);
	trace_refuse(c, ip, why);
	WRITE_ONCE(page->pending, 1);
	fiber_quantum_retry(c);
}

/*
 * True: the carrier is settled, the notifier can go. False: it is to ask for a
 * processor, or has been told so too often (the caller looks at ->fruitless).
 */
static bool upcall_return(struct fiber_carrier *c, struct pt_regs *regs)
{
	if (fiber_handoff_edge(c)) {
		c->need = false;
		fiber_quantum_resume(c);
		return true;
	}
	if (!in_window(c->group, instruction_pointer(regs))) {
		if (++c->fruitless > FIBER_MAX_FRUITLESS)
			return false;
		WRITE_ONCE(c->page->returns, fiber_count(c, FIBER_STAT_RETURNS));
		trace_return(c, FIBER_BACK_UPCALL);
		redirect(c, regs, c->group->return_ip);
	}
	return false;
}

static void edge(struct user_return_notifier *n)
{
	struct fiber_carrier *c = container_of(n, struct fiber_carrier, edge);
	struct pt_regs *regs = current_pt_regs();

	if (WARN_ON_ONCE(c->task != current)) {
		fiber_upcall_disarm(c);
		return;
	}
	if (unlikely(current->mm != c->group->mm)) {	/* exec */
		fiber_carrier_detach(c);
		return;
	}
	if (!user_64bit_mode(regs) || uprobe_active())
		return;		/* stays armed */
	if (c->need && !upcall_return(c, regs)) {
		if (unlikely(c->fruitless > FIBER_MAX_FRUITLESS))
			fiber_carrier_stray(c);
		return;
	}
	if (c->want_preempt)
		upcall_preempt(c, regs);
	fiber_upcall_disarm(c);
}

/**
 * fiber_upcall_init - prepare the edge of a carrier
 * @c: new
 */
void fiber_upcall_init(struct fiber_carrier *c)
{
	c->edge.on_user_return = edge;
}

/**
 * fiber_upcall_arm - look at the carrier before it next enters user mode
 * @c: current
 */
void fiber_upcall_arm(struct fiber_carrier *c)
{
	if (c->armed)
		return;
	c->armed = true;
	user_return_notifier_register(&c->edge);
}

/**
 * fiber_upcall_disarm - no more; must happen before another task runs here
 * @c: current
 */
void fiber_upcall_disarm(struct fiber_carrier *c)
{
	if (!c->armed)
		return;
	c->armed = false;
	user_return_notifier_unregister(&c->edge);
}
